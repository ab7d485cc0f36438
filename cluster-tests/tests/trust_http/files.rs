//! The audit log, and who may read the files.

use super::*;

pub fn the_audit_log_says_what_happened(audit: &Audit) {
    let mut seen = BTreeSet::new();
    let text = wait::until("the audit log's lines", WITHIN, || {
        let text = audit.text();
        let is_whole = text.ends_with('\n') && text.contains("\"gone\"");
        is_whole.then_some(text)
    });
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        let field = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        assert!(
            event["node"].as_u64().is_some() && !field("time").is_empty(),
            "{line}"
        );
        if field("event") != "opened" && field("event") != "token" && field("event") != "log_in" {
            assert!(field("address").starts_with("127.0.0.1:"), "{line}");
        }
        seen.insert((field("event"), field("result"), field("principal")));
    }
    for (event, result, principal) in [
        ("opened", "accepted", ""),
        ("token", "accepted", "anonymous"),
        ("token", "accepted", "ops"),
        ("token", "failed", "ops"),
        ("http_request", "accepted", "ops"),
        ("http_request", "failed", "work"),
        ("http_refusal", "refused", ""),
        ("http_refusal", "refused", "look"),
        ("http_refusal", "refused", "held"),
        ("rules", "accepted", "ops"),
    ] {
        let expected = (event.to_owned(), result.to_owned(), principal.to_owned());
        assert!(seen.contains(&expected), "{expected:?} is not in {seen:?}");
    }
}

pub fn mode(path: &Path) -> u32 {
    let data = std::fs::metadata(path).expect("it is there");
    data.permissions().mode() & 0o777
}

pub fn files_are_their_owners(cluster: &Cluster, audit: &Audit) {
    assert_eq!(mode(audit.path()), 0o600);
    let mut places = Places::of(cluster);
    places.add("audit", audit.text());
    for place in ["audit", ": data/log"] {
        places.assert_has(place, "kept");
    }
    places.assert_has("check", "http.authentication");
    places.assert_has("metrics", "quorumq_");
    places.assert_has("log", "serving clients");
    let made = MADE.lock().expect("no rule panics with it");
    let secrets = made
        .iter()
        .map(|token| token.rsplit('.').next().expect("three parts"));
    places.assert_without(secrets.chain(["quorumq.ops."]));
}
