//! The routes, each with what it asks of who asks.
//!
//! Invariant: there is no way to add a route without saying who may ask it.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware;
use axum::routing::{MethodFilter, MethodRouter, on};

use super::endpoints::Endpoints;
use super::gate::{self, Gate, Post};
use crate::config::Scope;

/// Who may ask a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody: it is a probe, or figures.
    Free,
    /// Who has this scope.
    Scope(Scope),
}

/// A route as it was declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: &'static str,
    /// Who may ask it.
    pub access: Access,
}

/// Routes that are put together.
pub(super) struct Routes {
    router: Router<Endpoints>,
    gate: Arc<Gate>,
    declared: Vec<Declared>,
}

impl Routes {
    /// None yet; the gate judges who asks.
    pub(super) fn new(gate: Arc<Gate>) -> Routes {
        Routes {
            router: Router::new(),
            gate,
            declared: Vec::new(),
        }
    }

    /// A route that everybody may ask.
    pub(super) fn free<H, T>(self, method: Method, path: &'static str, handler: H) -> Routes
    where
        H: Handler<T, Endpoints>,
        T: 'static,
    {
        let route = on(filter(&method), handler);
        self.add(method, path, Access::Free, route)
    }

    /// A route that is asked by who has a scope.
    pub(super) fn scoped<H, T>(
        self,
        scope: Scope,
        method: Method,
        path: &'static str,
        handler: H,
    ) -> Routes
    where
        H: Handler<T, Endpoints>,
        T: 'static,
    {
        let post = Post {
            gate: self.gate.clone(),
            scope,
            path,
        };
        let check = middleware::from_fn_with_state(post, gate::check);
        let route = on(filter(&method), handler).route_layer(check);
        self.add(method, path, Access::Scope(scope), route)
    }

    fn add(
        mut self,
        method: Method,
        path: &'static str,
        access: Access,
        route: MethodRouter<Endpoints, Infallible>,
    ) -> Routes {
        self.router = self.router.route(path, route);
        self.declared.push(Declared {
            method,
            path,
            access,
        });
        self
    }

    /// What was declared.
    pub(super) fn declared(&self) -> &[Declared] {
        &self.declared
    }

    /// The routes, without what they get their answers from.
    pub(super) fn into_router(self) -> Router<Endpoints> {
        self.router
    }
}

/// Methods of routes are fixed words of this room; one that can't be filtered is asked by GET.
fn filter(method: &Method) -> MethodFilter {
    MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::GET)
}
