//! SIGHUP: a node reads again what its listeners, its HTTP port and its identity rest on, and opens its audit log
//! again.

#[path = "../../tests/authority/mod.rs"]
mod authority;

use authority::{Authority, Files, put};
use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Node, Plan, binary};
use cluster_tests::wait;
use serde_json::json;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long what must come may take.
const WITHIN: Duration = Duration::from_secs(20);

/// A line of a node whose identity's files can't be used. Without SIGHUP it takes two looks at the same files, which
/// are 2 s apart.
const UNUSABLE: &str = "the files of this node's identity have changed and can't be used";

/// So many changes of the files, and what they may take together: without SIGHUP they take 12 s or more.
const CHANGES: usize = 6;
const CHANGES_WITHIN: Duration = Duration::from_secs(11);

fn free_address() -> SocketAddr {
    let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
    held.local_addr().expect("it is bound")
}

/// A certificate for listeners, as the program itself makes it.
fn make_certificate(directory: &Path) -> String {
    for arguments in [&["ca"][..], &["node", "--id", "1", "--host", "localhost"]] {
        let mut command = Command::new(binary());
        command.arg("certificates").args(arguments);
        let output = command.arg("--directory").arg(directory).output();
        let output = output.expect("the binary can be run");
        assert!(output.status.success(), "{output:?}");
    }
    let path = |name: &str| directory.join(name);
    let (certificate, key) = (path("node-1.pem"), path("node-1.key"));
    format!("[{{ certificate = {certificate:?}, key = {key:?} }}]")
}

#[test]
fn a_node_reads_its_files_again_when_it_is_asked_to() {
    let (directory, audit) = (TempDir::new().expect("a temporary directory"), Audit::new());
    let identity = Authority::new("nodes").files(&directory.path().join("identity"), "test", 1);
    let pair = make_certificate(directory.path());
    let settings = [
        ("HTTP__ADMIN_LISTEN", free_address().to_string()),
        ("HTTP__CERTIFICATES", pair.clone()),
        (
            "CLUSTER__CERTIFICATE",
            identity.certificate.display().to_string(),
        ),
        ("CLUSTER__KEY", identity.key.display().to_string()),
        (
            "CLUSTER__CA_FILE",
            identity.authorities.display().to_string(),
        ),
    ];
    let environment = settings.map(|(key, value)| (0, format!("QUORUMQ__{key}"), value));
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: format!(
            "{}[[listeners]]\nname = \"plain\"\naddress = \"{{mqtt}}\"\n\
             [[listeners]]\nname = \"tls\"\naddress = \"{}\"\ntransport = \"tls\"\ncertificates = {pair}\n",
            audit.toml(),
            free_address()
        ),
        environment: environment.to_vec(),
        ..Plan::default()
    });
    let node = &cluster.nodes[0];
    certificates_are_read_though_they_are_as_they_were(node, &audit);
    the_identity_is_looked_at_once_and_again(node, &identity, &audit);
    the_audit_log_goes_on_under_its_name(node, &audit);
}

fn certificates_are_read_though_they_are_as_they_were(node: &Node, audit: &Audit) {
    let loaded = || {
        node.metric("quorumq_certificates_loaded_total")
            .unwrap_or_default()
    };
    assert_eq!(
        loaded(),
        0.0,
        "files that have not changed are not read again"
    );
    for times in 1..=2 {
        node.hang_up();
        // The listener's and the HTTP port's.
        let wanted = 2.0 * f64::from(times);
        wait::until_ok("certificates to be read again", WITHIN, || {
            let loaded = loaded();
            (loaded == wanted)
                .then_some(())
                .ok_or(format!("{loaded} of {wanted}"))
        });
    }
    audit.expect(&json!({
        "event": "certificates", "result": "accepted", "files": "*", "address": null, "principal": null,
    }));
}

fn the_identity_is_looked_at_once_and_again(node: &Node, files: &Files, audit: &Audit) {
    let good = std::fs::read_to_string(&files.certificate).expect("it was written");
    let said = || node.log_text().matches(UNUSABLE).count();
    let began = Instant::now();
    for times in 1..=CHANGES {
        put(&files.certificate, &format!("no certificate: {times}\n"));
        node.hang_up();
        wait::until_ok("the node to say what is wrong", WITHIN, || {
            let said = said();
            (said == times)
                .then_some(())
                .ok_or(format!("said {said} times of {times}"))
        });
    }
    let took = began.elapsed();
    assert!(took < CHANGES_WITHIN, "{CHANGES} changes took {took:?}");
    put(&files.certificate, &good);
    let named = format!("{}*", files.certificate.display());
    audit.expect(&json!({
        "event": "certificates", "result": "failed", "files": named, "reason": "*", "address": null,
    }));
}

fn the_audit_log_goes_on_under_its_name(node: &Node, audit: &Audit) {
    let moved = audit.path().with_extension("1");
    std::fs::rename(audit.path(), &moved).expect("it is there");
    node.hang_up();
    let mode = wait::until("the new file", WITHIN, || {
        let data = std::fs::metadata(audit.path()).ok()?;
        Some(data.permissions().mode() & 0o777)
    });
    assert_eq!(mode, 0o600);
    let before = std::fs::read_to_string(&moved).expect("it was moved");
    node.hang_up();
    audit.expect(&json!({ "event": "certificates", "result": "accepted", "address": null }));
    let after = std::fs::read_to_string(&moved).expect("it was moved");
    assert!(after.starts_with(&before), "nothing is lost: {after}");
    let text = audit.text();
    assert!(!text.contains("\"opened\""), "nothing comes twice: {text}");
}
