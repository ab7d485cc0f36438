//! Routes.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tokio::net::TcpListener;

use super::admin::{self, Admin};
use super::guard::{self, Hosts};
use super::health::{self, Readiness};
use super::rules::{self, RulesAdmin};
use super::server::{self, Bounds};
use super::sessions::{self, Sessions};
use super::users::{self, Users};
use crate::config::bounds::LARGEST_ADMIN_BODY_BYTES;
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics};

/// What the routes get their answers from.
#[derive(Clone)]
pub struct Endpoints {
    /// Conditions of readiness.
    pub readiness: Arc<dyn Readiness>,
    /// Administration of the cluster.
    pub admin: Arc<dyn Admin>,
    /// Sessions and retained messages.
    pub sessions: Arc<dyn Sessions>,
    /// Users and bans.
    pub users: Arc<dyn Users>,
    /// What principals may do.
    pub rules: Arc<dyn RulesAdmin>,
    /// All metrics of the node.
    pub metrics: Arc<Metrics>,
}

impl FromRef<Endpoints> for Arc<dyn RulesAdmin> {
    fn from_ref(endpoints: &Endpoints) -> Self {
        endpoints.rules.clone()
    }
}

impl FromRef<Endpoints> for Arc<dyn Readiness> {
    fn from_ref(endpoints: &Endpoints) -> Self {
        endpoints.readiness.clone()
    }
}

impl FromRef<Endpoints> for Arc<dyn Admin> {
    fn from_ref(endpoints: &Endpoints) -> Self {
        endpoints.admin.clone()
    }
}

impl FromRef<Endpoints> for Arc<dyn Sessions> {
    fn from_ref(endpoints: &Endpoints) -> Self {
        endpoints.sessions.clone()
    }
}

impl FromRef<Endpoints> for Arc<dyn Users> {
    fn from_ref(endpoints: &Endpoints) -> Self {
        endpoints.users.clone()
    }
}

impl FromRef<Endpoints> for Arc<Metrics> {
    fn from_ref(endpoints: &Endpoints) -> Self {
        endpoints.metrics.clone()
    }
}

async fn metrics(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.render())
}

async fn unknown() -> (StatusCode, &'static str) {
    (
        StatusCode::NOT_FOUND,
        "there is /livez, /readyz, /metrics, /v1/cluster/status, join, leave, transfer, verify, \
         /v1/sessions, /v1/session, /v1/session/kick, /v1/retained, /v1/retained/message, \
         /v1/users, /v1/user, /v1/users/import, /v1/bans, /v1/rules\n",
    )
}

/// Every route.
pub(super) fn router(endpoints: Endpoints, hosts: Hosts) -> Router {
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics))
        .route("/v1/cluster/status", get(admin::status))
        .route("/v1/cluster/join", post(admin::join))
        .route("/v1/cluster/leave", post(admin::leave))
        .route("/v1/cluster/transfer", post(admin::transfer))
        .route("/v1/cluster/verify", post(admin::verify))
        .route("/v1/sessions", get(sessions::list))
        .route("/v1/session", get(sessions::show).delete(sessions::delete))
        .route("/v1/session/kick", post(sessions::kick))
        .route("/v1/retained", get(sessions::retained))
        .route("/v1/retained/message", get(sessions::retained_message))
        .route("/v1/users", get(users::list).post(users::add))
        .route("/v1/users/import", post(users::import))
        .route(
            "/v1/user",
            get(users::show).post(users::change).delete(users::delete),
        )
        .route(
            "/v1/bans",
            get(users::bans).post(users::ban).delete(users::unban),
        )
        .route("/v1/rules", get(rules::show).put(rules::replace))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(LARGEST_ADMIN_BODY_BYTES))
        .layer(middleware::from_fn_with_state(hosts, guard::check))
        .with_state(endpoints)
}

/// Serves until `shutdown` completes and the requests under way are answered. `hosts` are the names under which
/// administration may be asked for.
pub async fn serve(
    listener: TcpListener,
    endpoints: Endpoints,
    hosts: Hosts,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let routes = router(endpoints, hosts);
    server::run(listener, routes, Bounds::default(), shutdown).await;
}
