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
use super::gate::Gate;
use super::post::{self, Changes, Currency, Post, When};
use crate::config::Scope;
use crate::telemetry::metrics::Metrics;

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
    currency: Arc<dyn Currency>,
    metrics: Arc<Metrics>,
    changes: Changes,
    declared: Vec<Declared>,
}

impl Routes {
    /// None yet; the gate judges who asks, by what the node knows when it is current.
    pub(super) fn new(
        gate: Arc<Gate>,
        currency: Arc<dyn Currency>,
        metrics: Arc<Metrics>,
    ) -> Routes {
        Routes {
            router: Router::new(),
            gate,
            currency,
            metrics,
            changes: Changes::default(),
            declared: Vec::new(),
        }
    }

    /// Room for changes, which is all there when none is carried out.
    pub(super) fn changes(&self) -> Changes {
        self.changes.clone()
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
        let route = on(filter(&method), handler);
        self.guarded(When::Current, scope, method, path, route)
    }

    /// As [`Routes::scoped`], and answered without a quorum, too: a token that was removed meanwhile is still taken.
    pub(super) fn scoped_always<H, T>(
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
        let route = on(filter(&method), handler);
        self.guarded(When::Always, scope, method, path, route)
    }

    fn guarded(
        self,
        when: When,
        scope: Scope,
        method: Method,
        path: &'static str,
        route: MethodRouter<Endpoints, Infallible>,
    ) -> Routes {
        let post = Post {
            gate: self.gate.clone(),
            currency: self.currency.clone(),
            metrics: self.metrics.clone(),
            changes: self.changes.clone(),
            scope,
            path,
            when,
        };
        let check = middleware::from_fn_with_state(post, post::check);
        let route = route.route_layer(check);
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
