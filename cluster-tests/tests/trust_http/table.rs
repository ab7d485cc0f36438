//! The rows of the table in docs/security.md: what somebody is told at each of its columns.

use super::*;

/// The columns, each with what is asked there.
pub const ENTRIES: [(&str, &[(&str, &str)]); 4] = [
    (
        "`/livez`, `/readyz`, `/metrics`",
        &[("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics")],
    ),
    (
        "routes with the scope `read`",
        &[("GET", "/v1/sessions"), ("GET", "/v1/cluster/status")],
    ),
    (
        "`operate`",
        &[("POST", "/v1/session/kick?client_id=nobody")],
    ),
    ("`admin`", &[("GET", "/v1/tokens"), ("POST", "/v1/tokens")]),
];

/// Asks for everything with this token, or with none, on every node.
#[track_caller]
pub fn see(shown: &mut Shown, cluster: &Cluster, who: &str, token: &str) {
    for node in &cluster.nodes {
        see_at(shown, node.addresses.http, who, token);
    }
}

/// Asks for everything at one place.
#[track_caller]
pub fn see_at(shown: &mut Shown, address: SocketAddr, who: &str, token: &str) {
    for (entry, routes) in ENTRIES {
        for (method, target) in routes {
            let answer = ask(address, method, target, token, "{}");
            shown.saw("HTTP", entry, who, of_status(answer.status));
        }
    }
}
