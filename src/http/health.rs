//! `/livez` and `/readyz`: whether to restart this node, and whether to send it clients.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::{Query, State};
use axum::http::StatusCode;

use super::serve::Endpoints;

/// One condition of readiness: its name, and why it does not hold.
pub type Check = (&'static str, Result<(), String>);

/// What the node layer knows about its own readiness.
pub trait Readiness: Send + Sync + 'static {
    /// Every condition: joined, has leader, caught up, listening, not draining. Ready means that all hold.
    fn checks(&self) -> Vec<Check>;
}

/// `GET /livez`: the process answers, so it must not be restarted. Losing the leader is no reason to restart.
pub async fn livez() -> &'static str {
    "ok\n"
}

/// `GET /readyz[?verbose]`: 200 when every check holds, 503 otherwise; the body names what does not.
pub async fn readyz(
    State(endpoints): State<Endpoints>,
    Query(query): Query<BTreeMap<String, String>>,
) -> (StatusCode, String) {
    let checks = endpoints.readiness.checks();
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
