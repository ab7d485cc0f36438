//! What the command line and the log say, and what they keep to themselves.

use super::imports::file;
use super::*;

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

pub fn no_secret_is_shown(cluster: &Cluster) {
    let shown = done(cluster, 0, &["user", "show", "anna"], "").to_string();
    for node in &cluster.nodes {
        let log = node.log_text();
        for secret in ["pencil", "$argon2id", "$7$101"] {
            assert!(!log.contains(secret), "node {} logs {secret}", node.id);
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}
