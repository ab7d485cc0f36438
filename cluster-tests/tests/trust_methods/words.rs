//! What the audit log says of clients, and what nobody says.

use super::*;
use cluster_tests::secrets::Places;

/// Whoever logged in, proved itself again or was ended, by what, and from where.
pub fn the_audit_log_says_who_it_was(audit: &Audit) {
    let client = |event: &str, result: &str, principal: &str, client_id: &Json, reason: &str| {
        let reason = match reason {
            "" => Json::Null,
            reason => reason.into(),
        };
        json!({"event": event, "result": result, "principal": principal, "client_id": client_id,
               "listener": "clients", "reason": reason})
    };
    let again = "reauthentication";
    audit.expect_all(&[
        client("log_in", "accepted", "anna", &"client-4-any".into(), ""),
        client("log_in", "refused", "any", &"client-5-any".into(), "*"),
        client(again, "accepted", "anna", &"again".into(), ""),
        json!({"event": again, "result": "refused", "client_id": "again", "listener": "clients",
               "reason": "the client has become somebody else"}),
        client(
            again,
            "accepted",
            "system:serviceaccount:plant:press",
            &"sat".into(),
            "",
        ),
        client(
            "revocation",
            "accepted",
            "anna",
            &Json::Null,
            "the key that has signed the client's token is withdrawn",
        ),
    ]);
}

/// Neither a token that was shown, nor what it was signed with.
pub fn no_token_is_shown(cluster: &Cluster, audit: &Audit) {
    let mut places = Places::of(cluster);
    places.add("audit", audit.text());
    for place in ["audit", "node 1: log", "node 2: log", "node 3: log"] {
        places.assert_has(place, "client-5-any");
    }
    places.assert_has("check", "auth.http_url");
    let made = MADE.lock().expect("nobody panics with it");
    assert!(made.len() > 20, "tokens were made: {}", made.len());
    let secrets = [SECRET, LONG_SECRET].map(|secret| std::str::from_utf8(secret).expect("text"));
    // The header alone says nothing.
    let parts = made.iter().flat_map(|token| token.split('.').skip(1));
    places.assert_without(parts.chain(secrets));
}
