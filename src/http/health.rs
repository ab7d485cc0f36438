//! `/livez` and `/readyz`: whether to restart this node, and whether to send it clients.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;

/// Why a node is not ready for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It has not joined its cluster.
    #[error("this node is not a member of the cluster yet")]
    NotJoined,
    /// It knows of no leader.
    #[error("no leader is known")]
    NoLeader,
    /// Its replica is behind.
    #[error("{entries} entries are not applied yet")]
    Behind {
        /// Committed entries that it has not applied.
        entries: u64,
    },
    /// Its incarnation is not registered, or no quorum is in reach.
    #[error("not registered with, or out of touch with, the cluster's majority")]
    NotServing,
    /// Its disk is nearly full.
    #[error("the disk is nearly full: nothing more is stored until there is room")]
    DiskLow,
    /// It is about to stop.
    #[error("the node is shutting down")]
    Draining,
}

/// One condition of readiness: its name, and why it does not hold.
pub type Check = (&'static str, Result<(), NotReady>);

/// What a node knows about its own readiness.
pub trait Readiness: Send + Sync + 'static {
    /// Every condition. A node is ready when all hold.
    fn checks(&self) -> Vec<Check>;

    /// The threads of the process that do not come round, in words.
    fn stuck(&self) -> Vec<String> {
        Vec::new()
    }
}

/// `GET /livez`: 200 when the process answers and all its threads come round, so it must not be restarted; 503
/// otherwise, and the body names the threads that do not. A lost leader is no reason to restart.
pub(super) async fn livez(State(readiness): State<Arc<dyn Readiness>>) -> (StatusCode, String) {
    let stuck = readiness.stuck();
    if stuck.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let lines = stuck.iter().map(|thread| format!("[-] {thread}\n"));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
}

/// `GET /readyz[?verbose]`: 200 when every check holds, 503 otherwise; the body names what does not.
pub(super) async fn readyz(
    State(readiness): State<Arc<dyn Readiness>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> (StatusCode, String) {
    let checks = readiness.checks();
    let ready = checks.iter().all(|(_, result)| result.is_ok());
    let verbose = query.contains_key("verbose");
    let mut body = String::new();
    for (name, result) in &checks {
        let _ = match result {
            Ok(()) if verbose => writeln!(body, "[+] {name} ok"),
            Ok(()) => Ok(()),
            Err(reason) => writeln!(body, "[-] {name}: {reason}"),
        };
    }
    if ready {
        body.push_str("ok\n");
        (StatusCode::OK, body)
    } else {
        body.push_str("not ready\n");
        (StatusCode::SERVICE_UNAVAILABLE, body)
    }
}
