//! Routes.

use std::future::Future;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, header};
use axum::response::IntoResponse;
use axum::{Router, middleware};
use tokio::net::TcpListener;

#[cfg(test)]
use super::access::Declared;
use super::access::Routes;
use super::caller::TlsSource;
use super::endpoints::Endpoints;
use super::gate::Gate;
use super::guard::{self, Hosts};
use super::server::{self, Bounds};
use super::{admin, health, rules, sessions, token_routes, users};
use crate::config::Scope::{Admin, Operate, Read};
use crate::config::bounds::LARGEST_ADMIN_BODY_BYTES;
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics};

/// Which of the routes a port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Probes and metrics.
    Probes,
    /// Administration and data.
    State,
    /// All of them.
    Everything,
}

/// A port that is served.
pub struct Port {
    /// Its socket.
    pub listener: TcpListener,
    /// The TLS that it speaks; `None`: plain HTTP.
    pub tls: Option<TlsSource>,
    /// Its routes.
    pub part: Part,
}

async fn metrics(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render())
}

fn probes(routes: Routes) -> Routes {
    routes
        .free(Method::GET, "/livez", health::livez)
        .free(Method::GET, "/readyz", health::readyz)
        .free(Method::GET, "/metrics", metrics)
}

fn state(routes: Routes) -> Routes {
    routes
        .scoped(Read, Method::GET, "/v1/cluster/status", admin::status)
        .scoped(Admin, Method::POST, "/v1/cluster/join", admin::join)
        .scoped(Admin, Method::POST, "/v1/cluster/leave", admin::leave)
        .scoped(
            Operate,
            Method::POST,
            "/v1/cluster/transfer",
            admin::transfer,
        )
        .scoped(Operate, Method::POST, "/v1/cluster/verify", admin::verify)
        .scoped(Read, Method::GET, "/v1/sessions", sessions::list)
        .scoped(Read, Method::GET, "/v1/session", sessions::show)
        .scoped(Operate, Method::DELETE, "/v1/session", sessions::delete)
        .scoped(Operate, Method::POST, "/v1/session/kick", sessions::kick)
        .scoped(Read, Method::GET, "/v1/retained", sessions::retained)
        .scoped(
            Read,
            Method::GET,
            "/v1/retained/message",
            sessions::retained_message,
        )
        .scoped(Admin, Method::GET, "/v1/users", users::list)
        .scoped(Admin, Method::POST, "/v1/users", users::add)
        .scoped(Admin, Method::POST, "/v1/users/import", users::import)
        .scoped(Admin, Method::GET, "/v1/user", users::show)
        .scoped(Admin, Method::POST, "/v1/user", users::change)
        .scoped(Admin, Method::DELETE, "/v1/user", users::delete)
        .scoped(Read, Method::GET, "/v1/bans", users::bans)
        .scoped(Operate, Method::POST, "/v1/bans", users::ban)
        .scoped(Operate, Method::DELETE, "/v1/bans", users::unban)
        .scoped(Read, Method::GET, "/v1/rules", rules::show)
        .scoped(Admin, Method::PUT, "/v1/rules", rules::replace)
        .scoped(Admin, Method::GET, "/v1/tokens", token_routes::list)
        .scoped(Admin, Method::POST, "/v1/tokens", token_routes::add)
        .scoped(Admin, Method::DELETE, "/v1/token", token_routes::remove)
}

fn routes(part: Part, gate: Arc<Gate>) -> Routes {
    let routes = Routes::new(gate);
    match part {
        Part::Probes => probes(routes),
        Part::State => state(routes),
        Part::Everything => state(probes(routes)),
    }
}

/// Every route of a part, as it was declared.
#[cfg(test)]
pub(super) fn declared(part: Part, gate: Arc<Gate>) -> Vec<Declared> {
    routes(part, gate).declared().to_vec()
}

/// The answer where there is no route: which there are.
fn unknown(routes: &Routes) -> String {
    let mut paths: Vec<&str> = routes.declared().iter().map(|route| route.path).collect();
    paths.dedup();
    format!("there is {}\n", paths.join(", "))
}

/// The routes of a port.
pub(super) fn router(endpoints: Endpoints, hosts: Hosts, gate: Arc<Gate>, part: Part) -> Router {
    let routes = routes(part, gate);
    let unknown = unknown(&routes);
    routes
        .into_router()
        .fallback(move || {
            let text = unknown.clone();
            async move { (StatusCode::NOT_FOUND, text) }
        })
        .layer(DefaultBodyLimit::max(LARGEST_ADMIN_BODY_BYTES))
        .layer(middleware::from_fn_with_state(hosts, guard::check))
        .with_state(endpoints)
}

/// Serves until `shutdown` completes and the requests under way are answered. `hosts` are the names under which
/// administration may be asked for; `gate` judges who asks.
pub async fn serve(
    port: Port,
    endpoints: Endpoints,
    hosts: Hosts,
    gate: Arc<Gate>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let routes = router(endpoints, hosts, gate, port.part);
    server::run(port.listener, port.tls, routes, Bounds::default(), shutdown).await;
}
