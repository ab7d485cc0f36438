//! `/v1/cluster/…`: the status of the cluster and changes to its membership.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use crate::base::object::Object;
use crate::config::bounds::{ADMIN_REQUEST_TIMEOUT_S, LARGEST_ADMIN_BODY_BYTES};
use crate::telemetry::audit::Kind;

/// The cluster as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `cluster.name`.
    pub name: String,
    /// The identity checked between nodes.
    pub cluster_id: String,
    /// The node that answers.
    pub node: u64,
    /// The leader it knows of.
    pub leader: Option<u64>,
    /// Its Raft term.
    pub term: u64,
    /// Index of the last entry in its log.
    pub last_log_index: u64,
    /// Index of the last committed entry it knows of.
    pub committed_index: u64,
    /// Index of the last entry it applied.
    pub applied_index: u64,
    /// Every member.
    pub members: Vec<MemberStatus>,
    /// The version of the machine by which the node applies the log.
    #[serde(default)]
    pub machine_version: u32,
    /// What is wrong, one text each: nodes that were refused because their machine has another version, full disks.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// One member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its `node.id`.
    pub id: u64,
    /// Where the other nodes reach it.
    pub address: String,
    /// Whether it votes; a learner only receives the log.
    pub voter: bool,
    /// Index up to which its log is known to match the leader's; only the leader knows.
    pub matched_index: Option<u64>,
    /// Milliseconds since it was last heard of; only the leader knows.
    pub last_seen_ms: Option<u64>,
    /// Milliseconds that its wall clock is ahead of what a majority of the voters' clocks agrees on, negative when it
    /// is behind; only the leader knows all of them, and each node its own.
    #[serde(default)]
    pub clock_ahead_ms: Option<i64>,
}

/// `POST /v1/cluster/join`: adds a node as learner, waits until it has caught up, then makes it a voter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Number of the new node.
    pub id: u64,
    /// `host:port` where the others reach it.
    pub address: String,
}

/// `POST /v1/cluster/leave`: removes a node from the voters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveRequest {
    /// Number of the node.
    pub id: u64,
}

/// `POST /v1/cluster/transfer`: hands leadership to another voter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferRequest {
    /// The next leader; the most advanced voter when absent.
    pub to: Option<u64>,
}

/// What `POST /v1/cluster/verify` finds: whether the nodes have the same rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyAnswer {
    /// The log entry after which the states were compared.
    pub index: u64,
    /// Nodes whose states are the same as those of a majority.
    pub same: Vec<u64>,
    /// Nodes whose states are not; they stop.
    pub differ: Vec<Differs>,
    /// Tables (first bytes of their keys) in which nodes differ while no majority has the same.
    pub disputed: Vec<u8>,
    /// Live voters that have not answered in time.
    pub missing: Vec<u64>,
}

/// A node whose state differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differs {
    /// Its `node.id`.
    pub node: u64,
    /// The tables (first bytes of their keys) in which it differs.
    pub tables: Vec<u8>,
}

/// Why an administration request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// There is no leader to carry it out; try again. 503.
    #[error("there is no leader: {0}")]
    NoLeader(String),
    /// This node stops, and nothing was done; ask another one. 503.
    #[error("this node stops: ask another one")]
    Stopping,
    /// Too much of its kind waits already, and nothing was done; try again. 429.
    #[error("{0}")]
    Overloaded(String),
    /// The present state does not allow it. 409.
    #[error("{0}")]
    Conflict(String),
    /// What the request names does not exist. 404.
    #[error("{0}")]
    Absent(String),
    /// The request is wrong. 400.
    #[error("{0}")]
    Invalid(String),
    /// The request's body is larger than it may be. 413.
    #[error("{0}")]
    TooLarge(String),
    /// It did not finish in time, and may still finish. 504.
    #[error("not finished in {ADMIN_REQUEST_TIMEOUT_S} s; look at the status")]
    TimedOut,
    /// Something else went wrong. 500.
    #[error("{0}")]
    Internal(String),
}

impl AdminError {
    fn status(&self) -> StatusCode {
        match self {
            AdminError::NoLeader(_) | AdminError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            AdminError::Overloaded(_) => StatusCode::TOO_MANY_REQUESTS,
            AdminError::Conflict(_) => StatusCode::CONFLICT,
            AdminError::Absent(_) => StatusCode::NOT_FOUND,
            AdminError::Invalid(_) => StatusCode::BAD_REQUEST,
            AdminError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            AdminError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            AdminError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            AdminError::NoLeader(_) => "no_leader",
            AdminError::Stopping => "stopping",
            AdminError::Overloaded(_) => "overloaded",
            AdminError::Conflict(_) => "conflict",
            AdminError::Absent(_) => "absent",
            AdminError::Invalid(_) => "invalid",
            AdminError::TooLarge(_) => "too_large",
            AdminError::TimedOut => "timed_out",
            AdminError::Internal(_) => "internal",
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let mut response = error_body(self.status(), self.code(), &self.to_string());
        if matches!(self, AdminError::Overloaded(_)) {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// The answer to a request that is not carried out.
pub(super) fn error_body(status: StatusCode, code: &str, message: &str) -> Response {
    let body = serde_json::json!({ "error": code, "message": message });
    (status, Json(body)).into_response()
}

/// The answer of an administration request, once there is one.
pub type AdminFuture<'a, T> = BoxFuture<'a, Result<T, AdminError>>;

/// What a node can do for an administrator.
pub trait Admin: Send + Sync + 'static {
    /// The cluster as this node sees it, also without a leader.
    fn status(&self) -> AdminFuture<'_, ClusterStatus>;

    /// Adds a voter; done when it votes.
    fn join(&self, request: JoinRequest) -> AdminFuture<'_, ()>;

    /// Removes a voter; done when the others have committed it.
    fn leave(&self, request: LeaveRequest) -> AdminFuture<'_, ()>;

    /// Hands leadership over and returns the new leader.
    fn transfer(&self, request: TransferRequest) -> AdminFuture<'_, u64>;

    /// Moves log time of this node, which leads, forward to what the nodes' wall clocks show, and returns by how many
    /// milliseconds.
    fn catch_up_log_time(&self) -> AdminFuture<'_, u64>;

    /// Has all nodes hash their states as they are after the same log entry, and compares what they find.
    fn verify(&self) -> AdminFuture<'_, VerifyAnswer>;
}

/// Waits for the answer, but not longer than a caller should have to.
pub(super) async fn bounded<T>(work: AdminFuture<'_, T>) -> Result<T, AdminError> {
    let limit = Duration::from_secs(ADMIN_REQUEST_TIMEOUT_S);
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or(Err(AdminError::TimedOut))
}

/// The JSON object that came with a request, if it did.
pub(super) type Posted<T> = Result<Json<Object<T>>, JsonRejection>;

pub(super) fn body<T>(parsed: Posted<T>) -> Result<T, AdminError> {
    parsed
        .map(|Json(Object(request))| request)
        .map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => AdminError::TooLarge(format!(
                "a body has at most {LARGEST_ADMIN_BODY_BYTES} bytes"
            )),
            _ => AdminError::Invalid(rejection.body_text()),
        })
}

pub(super) async fn status(
    State(admin): State<Arc<dyn Admin>>,
) -> Result<Json<ClusterStatus>, AdminError> {
    bounded(admin.status()).await.map(Json)
}

pub(super) async fn join(
    State(admin): State<Arc<dyn Admin>>,
    Extension(identity): Extension<Identity>,
    request: Posted<JoinRequest>,
) -> Result<Json<serde_json::Value>, AdminError> {
    let request = body(request)?;
    let (id, address) = (request.id, request.address.clone());
    let joined = bounded(admin.join(request)).await;
    let details = [
        ("action", "join"),
        ("member", &id.to_string()),
        ("member_address", &address),
    ];
    identity.note(Kind::Membership, &joined, &details);
    joined?;
    Ok(Json(serde_json::json!({ "joined": id })))
}

pub(super) async fn leave(
    State(admin): State<Arc<dyn Admin>>,
    Extension(identity): Extension<Identity>,
    request: Posted<LeaveRequest>,
) -> Result<Json<serde_json::Value>, AdminError> {
    let request = body(request)?;
    let id = request.id;
    let left = bounded(admin.leave(request)).await;
    let details = [("action", "leave"), ("member", &*id.to_string())];
    identity.note(Kind::Membership, &left, &details);
    left?;
    Ok(Json(serde_json::json!({ "left": id })))
}

pub(super) async fn transfer(
    State(admin): State<Arc<dyn Admin>>,
    Extension(identity): Extension<Identity>,
    request: Posted<TransferRequest>,
) -> Result<Json<serde_json::Value>, AdminError> {
    let leader = bounded(admin.transfer(body(request)?)).await;
    identity.note(Kind::Membership, &leader, &[("action", "transfer")]);
    Ok(Json(serde_json::json!({ "leader": leader? })))
}

/// `POST /v1/cluster/log-time`: moves log time forward to what the nodes' wall clocks show.
pub(super) async fn catch_up_log_time(
    State(admin): State<Arc<dyn Admin>>,
    Extension(identity): Extension<Identity>,
) -> Result<Json<serde_json::Value>, AdminError> {
    let moved = bounded(admin.catch_up_log_time()).await;
    identity.note(Kind::Membership, &moved, &[("action", "catch-up-log-time")]);
    Ok(Json(serde_json::json!({ "moved_forward_ms": moved? })))
}

pub(super) async fn verify(
    State(admin): State<Arc<dyn Admin>>,
) -> Result<Json<VerifyAnswer>, AdminError> {
    bounded(admin.verify()).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_too_much_waits_is_told_to_come_again() {
        let text = "too many commands are waiting".to_owned();
        let response = AdminError::Overloaded(text).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let response = AdminError::NoLeader(String::new()).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }
}
