//! What the command line and the log say, and what they keep to themselves.

use super::imports::file;
use super::*;
use cluster_tests::secrets::Places;
use serde_json::json;

pub fn what_is_wrong_is_said(cluster: &Cluster) {
    for (arguments, input, said) in [
        (vec!["user", "add", "anna"], "p\n", "there is such a user"),
        (vec!["user", "add", "x\u{7}"], "p\n", "SASLprep"),
        (vec!["user", "add", "empty"], "\n", "1 to 1024 bytes"),
        (vec!["user", "show", "nobody"], "", "no such user"),
        (vec!["user", "disable", "nobody"], "", "no such user"),
        (vec!["ban", "add", "nobody"], "", "client:ID"),
        (vec!["ban", "remove", "user:nobody"], "", "no such ban"),
    ] {
        let output = run(cluster, 0, &arguments, input);
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    let bad = file("anna:plain text\n");
    let path = bad.path().to_str().expect("temporary paths are text");
    let output = run(cluster, 0, &["user", "import", path], "");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("line 1: the password is not hashed"),
        "{stderr}"
    );
    assert!(!stderr.contains("plain text"), "{stderr}");
}

/// What the other rules have done, with whoever did it, and from where.
pub fn the_audit_log_says_who_did_what(audit: &Audit) {
    let user = |result: &str, action: &str, name: &str| json!({"event": "user", "result": result, "principal": "anonymous", "action": action, "name": name});
    let ban = |action: &str| json!({"event": "ban", "result": "accepted", "principal": "anonymous", "action": action, "name": "user:loud"});
    let refused = |name: &str, client_id: &str, reason: &str| {
        json!({"event": "log_in", "result": "refused", "principal": name, "client_id": client_id,
               "listener": "default", "reason": reason})
    };
    let accepted = |name: &str, method: &str, client_id: &str| {
        json!({"event": "log_in", "result": "accepted", "principal": name, "method": method,
               "client_id": client_id, "listener": "default", "reason": null})
    };
    // Connections that end are nobody's doing but the directory's.
    let revoked = |what: &str, name: &str| {
        json!({"event": "revocation", "result": "accepted", "what": what, "name": name, "connections": "*",
               "address": null})
    };
    audit.expect_all(&[
        user("accepted", "add", "anna"),
        user("failed", "add", "anna"),
        user("accepted", "change", "resting"),
        user("accepted", "delete", "leaving"),
        user("accepted", "import", "pbkdf2"),
        ban("add"),
        ban("delete"),
        accepted("anna", "password", "other-changing"),
        accepted("new-0", "password", "code-4-new-0"),
        accepted("anna", "scram", "SCRAM-SHA-256-anna"),
        refused("anna", "alike", "the password is wrong"),
        refused("who-is-this", "alike", "there is no such user"),
        refused("resting", "code-5-resting", "the user is disabled"),
        refused("loud", "banned", "banned: user:loud"),
        refused(
            "guessed",
            "code-5-guessed",
            "too many log-ins with this user name have failed",
        ),
        revoked("user", "leaving"),
        revoked("ban", "user:loud"),
    ]);
}

/// Passwords are nowhere, and hashes where they have to be: with the directory that nodes keep.
pub fn no_secret_is_shown(cluster: &mut Cluster, audit: &Audit) {
    let password = "a password which nobody else has";
    add(cluster, 0, "keeper", password);
    assert_eq!(code_at(cluster.mqtt(1), V5, "keeper", password), 0);
    let shown = done(cluster, 0, &["user", "show", "keeper"], "").to_string();
    // It leaves a snapshot.
    assert!(cluster.nodes[2].terminate().success());
    let mut places = Places::of(cluster);
    places.add("audit", audit.text());
    places.add("show", shown);
    for place in ["show", "audit", ": data/log"] {
        places.assert_has(place, "keeper");
    }
    places.assert_has("node 2: log", "who-is-this");
    places.assert_has("node 1: metrics", "quorumq_");
    places.assert_has("node 1: check", "failures_per_user");
    places.assert_without([password, GUESS, "pencil"]);
    places.assert_has(": data/log", "$argon2id");
    for hash in ["$argon2id", "$7$101"] {
        let mut elsewhere = places.with(hash);
        elsewhere.retain(|place| !place.contains(": data/"));
        assert!(elsewhere.is_empty(), "{hash} is in {elsewhere:?}");
    }
}
