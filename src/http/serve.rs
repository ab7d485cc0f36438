//! Routes.

use std::future::Future;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use tokio::net::TcpListener;
use tokio::time::Instant;

#[cfg(test)]
use super::access::Declared;
use super::access::Routes;
use super::admin::AdminError;
use super::caller::TlsSource;
use super::endpoints::Endpoints;
use super::gate::Gate;
use super::guard::{self, Hosts};
use super::post::Currency;
use super::server::{self, Bounds};
use super::{admin, event_subscriptions, events, health, rules, sessions, token_routes, users};
use crate::config::Scope::{Admin, Operate, Read};
use crate::config::bounds::LARGEST_ADMIN_BODY_BYTES;
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics};

/// Which of the routes a port has. Every port has the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Metrics.
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
}

fn measured(routes: Routes) -> Routes {
    routes.free(Method::GET, "/metrics", metrics)
}

fn state(routes: Routes) -> Routes {
    routes
        .scoped_always(Read, Method::GET, "/v1/cluster/status", admin::status)
        .scoped(Admin, Method::POST, "/v1/cluster/join", admin::join)
        .scoped(Admin, Method::POST, "/v1/cluster/leave", admin::leave)
        .scoped(
            Operate,
            Method::POST,
            "/v1/cluster/transfer",
            admin::transfer,
        )
        .scoped(
            Admin,
            Method::POST,
            "/v1/cluster/log-time",
            admin::catch_up_log_time,
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

/// Events, and who gets them.
fn of_events(routes: Routes) -> Routes {
    const ALL: &str = "/v1/events/subscriptions";
    const ONE: &str = "/v1/events/subscriptions/{name}";
    const PAUSE: &str = "/v1/events/subscriptions/{name}/pause";
    const RESUME: &str = "/v1/events/subscriptions/{name}/resume";
    const TEST: &str = "/v1/events/subscriptions/{name}/test";
    const DEAD: &str = "/v1/events/subscriptions/{name}/dead-letters";
    const REPLAY: &str = "/v1/events/subscriptions/{name}/dead-letters/replay";
    const PURGE: &str = "/v1/events/subscriptions/{name}/dead-letters/purge";
    routes
        .scoped(Read, Method::GET, "/v1/events", events::pull)
        .scoped(Read, Method::GET, ALL, event_subscriptions::list)
        .scoped(Read, Method::GET, ONE, event_subscriptions::show)
        .scoped(Admin, Method::PUT, ONE, event_subscriptions::put)
        .scoped(Admin, Method::DELETE, ONE, event_subscriptions::delete)
        .scoped(Operate, Method::POST, PAUSE, event_subscriptions::pause)
        .scoped(Operate, Method::POST, RESUME, event_subscriptions::resume)
        .scoped(Operate, Method::POST, TEST, event_subscriptions::test)
        .scoped(Read, Method::GET, DEAD, event_subscriptions::dead_letters)
        .scoped(Operate, Method::POST, REPLAY, event_subscriptions::replay)
        .scoped(Operate, Method::POST, PURGE, event_subscriptions::purge)
}

fn routes(
    part: Part,
    gate: Arc<Gate>,
    currency: Arc<dyn Currency>,
    metrics: Arc<Metrics>,
) -> Routes {
    let routes = probes(Routes::new(gate, currency, metrics));
    match part {
        Part::Probes => measured(routes),
        Part::State => of_events(state(routes)),
        Part::Everything => of_events(state(measured(routes))),
    }
}

/// Every route of a part, as it was declared.
#[cfg(test)]
pub(super) fn declared(part: Part, gate: Arc<Gate>, currency: Arc<dyn Currency>) -> Vec<Declared> {
    let metrics = Arc::new(Metrics::default());
    routes(part, gate, currency, metrics).declared().to_vec()
}

/// The answer where there is no route: which there are.
fn unknown(routes: &Routes) -> String {
    let mut paths: Vec<&str> = routes.declared().iter().map(|route| route.path).collect();
    paths.dedup();
    format!("there is {}\n", paths.join(", "))
}

/// The routes of a port.
#[cfg(test)]
pub(super) fn router(endpoints: Endpoints, hosts: Hosts, gate: Arc<Gate>, part: Part) -> Router {
    let (currency, metrics) = (endpoints.currency.clone(), endpoints.metrics.clone());
    let routes = routes(part, gate, currency, metrics);
    assembled(routes, endpoints, hosts)
}

fn assembled(routes: Routes, endpoints: Endpoints, hosts: Hosts) -> Router {
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

/// Serves until `shutdown` completes, the requests under way are answered, and changes are carried out, also those
/// whose clients have hung up. A change that has not begun, and waits for no turn, is refused. `hosts` are the names
/// under which administration may be asked for; `gate` judges who asks.
pub async fn serve(
    port: Port,
    endpoints: Endpoints,
    hosts: Hosts,
    gate: Arc<Gate>,
    shutdown: impl Future<Output = Instant> + Send + 'static,
) {
    let (currency, metrics) = (endpoints.currency.clone(), endpoints.metrics.clone());
    let routes = routes(port.part, gate, currency, metrics);
    let changes = routes.changes();
    let refused = changes.clone();
    let shutdown = async move {
        refused.refuse(shutdown.await);
    };
    let routes = assembled(routes, endpoints, hosts);
    server::run(
        port.listener,
        port.tls,
        routes,
        Bounds::default(),
        late,
        shutdown,
    )
    .await;
    changes.carried_out().await;
}

/// The answer to a request that is not answered in time.
pub(super) fn late() -> Response {
    AdminError::TimedOut.into_response()
}
