//! Who may ask over HTTP, on every node of a cluster: tokens and their scopes, what web pages ask for, what the audit
//! log says of it, and who can read the files.

mod files;
mod routes;

use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::http::{self, Answer};
use cluster_tests::{rules, wait};
use files::{files_are_their_owners, mode, the_audit_log_says_what_happened};
use routes::{
    a_rule_takes_a_route_from_a_token_on_every_node, no_rule_binds_the_token_of_a_file,
    no_way_of_writing_a_path_gets_round_a_rule, the_command_line_tells_who_may_ask,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;

/// The token that administers, from the first rule on.
static ADMIN: Mutex<String> = Mutex::new(String::new());

/// Every token that was made.
static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Time within which a restarted node has what the others have.
const WITHIN: Duration = Duration::from_secs(20);

fn admin() -> String {
    ADMIN.lock().expect("no rule panics with it").clone()
}

fn http_of(cluster: &Cluster, index: usize) -> SocketAddr {
    cluster.nodes[index].addresses.http
}

#[track_caller]
fn ask(address: SocketAddr, method: &str, target: &str, token: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let fields = [("authorization", bearer.as_str())];
    let fields = if token.is_empty() { &[][..] } else { &fields };
    http::ask(address, method, target, fields, body).expect("the node answers")
}

/// Status codes of one request to every node.
fn statuses(cluster: &Cluster, method: &str, target: &str, token: &str) -> Vec<u16> {
    let nodes = 0..cluster.nodes.len();
    nodes
        .map(|index| ask(http_of(cluster, index), method, target, token, "{}").status)
        .collect()
}

/// A token, made at one node by who administers.
#[track_caller]
fn make(cluster: &Cluster, index: usize, name: &str, scope: &str) -> String {
    let body = format!("{{\"name\":\"{name}\",\"scope\":\"{scope}\"}}");
    let answer = ask(
        http_of(cluster, index),
        "POST",
        "/v1/tokens",
        &admin(),
        &body,
    );
    assert_eq!(answer.status, 200, "{}", answer.body);
    let made: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let token = made["token"].as_str().expect("a token").to_owned();
    MADE.lock()
        .expect("no rule panics with it")
        .push(token.clone());
    token
}

fn quorumq(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).envs(environment.iter().copied());
    command.output().expect("the binary can be run")
}

#[test]
fn administration() {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let audit = directory.path().join("audit.jsonl");
    let mut cluster = Cluster::start_with(Plan {
        extra: format!("[audit]\nfile = {audit:?}"),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            loopback_is_open_until_there_is_a_token,
            the_first_token_administers,
            probes_and_metrics_stay_free,
            a_token_works_on_every_node,
            a_scope_allows_no_more_than_it_says,
            a_removed_token_stops_on_every_node_at_once,
            a_web_page_is_refused_whatever_it_holds,
            the_last_administrator_is_not_removed,
            nobody_joins_where_no_node_can_be,
            the_command_line_shows_a_token,
            an_expired_token_is_refused,
            a_rule_takes_a_route_from_a_token_on_every_node,
            no_way_of_writing_a_path_gets_round_a_rule,
            the_command_line_tells_who_may_ask,
        ],
    );
    tokens_survive_the_death_of_the_leader(&mut cluster);
    the_audit_log_says_what_happened(&audit);
    files_are_their_owners(&cluster, &audit);
}

fn loopback_is_open_until_there_is_a_token(cluster: &Cluster) {
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", ""), [200; 3]);
    assert_eq!(statuses(cluster, "GET", "/v1/tokens", ""), [200; 3]);
}

fn the_first_token_administers(cluster: &Cluster) {
    let http = http_of(cluster, 0).to_string();
    let wrong = quorumq(
        &["token", "add", "look", "--scope", "read", "--http", &http],
        &[],
    );
    assert!(!wrong.status.success());
    let made = quorumq(
        &["token", "add", "ops", "--scope", "admin", "--http", &http],
        &[],
    );
    assert!(made.status.success(), "{made:?}");
    let token = String::from_utf8(made.stdout).expect("a token is text");
    *ADMIN.lock().expect("no rule panics with it") = token.trim().to_owned();
    MADE.lock()
        .expect("no rule panics with it")
        .push(token.trim().to_owned());
    for (method, target) in [
        ("GET", "/v1/sessions"),
        ("GET", "/v1/cluster/status"),
        ("POST", "/v1/session/kick?client_id=c"),
        ("POST", "/v1/tokens"),
    ] {
        assert_eq!(
            statuses(cluster, method, target, ""),
            [401; 3],
            "{method} {target}"
        );
        let forged = format!("{}x", admin());
        assert_eq!(
            statuses(cluster, method, target, &forged),
            [401; 3],
            "{method} {target}"
        );
    }
}

fn probes_and_metrics_stay_free(cluster: &Cluster) {
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(statuses(cluster, "GET", path, ""), [200; 3], "{path}");
    }
}

fn a_token_works_on_every_node(cluster: &Cluster) {
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", &admin()), [200; 3]);
    for index in 0..3 {
        // Answered: valid everywhere, without waiting.
        let token = make(cluster, index, &format!("at-{index}"), "read");
        assert_eq!(statuses(cluster, "GET", "/v1/sessions", &token), [200; 3]);
    }
}

fn a_scope_allows_no_more_than_it_says(cluster: &Cluster) {
    let look = make(cluster, 0, "look", "read");
    let work = make(cluster, 1, "work", "operate");
    let kick = "/v1/session/kick?client_id=nobody";
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", &look), [200; 3]);
    assert_eq!(statuses(cluster, "POST", kick, &look), [403; 3]);
    assert_eq!(statuses(cluster, "POST", kick, &work), [404; 3]);
    assert_eq!(
        statuses(cluster, "POST", "/v1/cluster/leave", &work),
        [403; 3]
    );
    assert_eq!(statuses(cluster, "GET", "/v1/tokens", &work), [403; 3]);
    assert_eq!(statuses(cluster, "POST", "/v1/tokens", &work), [403; 3]);
}

fn a_removed_token_stops_on_every_node_at_once(cluster: &Cluster) {
    for round in 0..9 {
        let token = make(cluster, round % 3, "short", "operate");
        assert_eq!(statuses(cluster, "GET", "/v1/sessions", &token), [200; 3]);
        let remover = http_of(cluster, (round + 1) % 3);
        let removed = ask(remover, "DELETE", "/v1/token?name=short", &admin(), "");
        assert_eq!(removed.status, 200, "{}", removed.body);
        assert_eq!(
            statuses(cluster, "GET", "/v1/sessions", &token),
            [401; 3],
            "round {round}"
        );
    }
}

fn a_web_page_is_refused_whatever_it_holds(cluster: &Cluster) {
    let bearer = format!("Bearer {}", admin());
    let address = http_of(cluster, 0);
    for (name, value, expected) in [
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("host", "rebound.example", 421),
        ("content-type", "text/plain", 415),
        ("content-type", "application/x-www-form-urlencoded", 415),
    ] {
        let fields = [("authorization", bearer.as_str()), (name, value)];
        let target = "/v1/session/kick?client_id=nobody";
        let answer = http::ask(address, "POST", target, &fields, "").expect("the node answers");
        assert_eq!(answer.status, expected, "{name}: {value}");
    }
}

fn the_last_administrator_is_not_removed(cluster: &Cluster) {
    let answer = ask(
        http_of(cluster, 2),
        "DELETE",
        "/v1/token?name=ops",
        &admin(),
        "",
    );
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert_eq!(statuses(cluster, "GET", "/v1/tokens", &admin()), [200; 3]);
}

fn nobody_joins_where_no_node_can_be(cluster: &Cluster) {
    for address in [
        "169.254.169.254:80",
        "[fe80::1]:7883",
        "[fd00:ec2::254]:80",
        "0.0.0.0:1",
        "x",
    ] {
        let body = format!("{{\"id\":9,\"address\":\"{address}\"}}");
        let answer = ask(
            http_of(cluster, 0),
            "POST",
            "/v1/cluster/join",
            &admin(),
            &body,
        );
        assert_eq!(answer.status, 400, "{address}: {}", answer.body);
    }
}

fn the_command_line_shows_a_token(cluster: &Cluster) {
    let http = http_of(cluster, 1).to_string();
    let list = ["session", "list", "--http", &http];
    let without = quorumq(&list, &[]);
    let told = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(
        !without.status.success() && told.contains("--token-file"),
        "{told}"
    );
    assert!(
        quorumq(&list, &[("QUORUMQ_TOKEN", &admin())])
            .status
            .success()
    );
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let path = directory.path().join("token");
    let file = path.to_str().expect("a path is text");
    let add = [
        "token", "add", "cli", "--scope", "read", "--write", file, "--http", &http,
    ];
    let added = quorumq(&add, &[("QUORUMQ_TOKEN", &admin())]);
    assert!(
        added.status.success() && added.stdout.is_empty(),
        "{added:?}"
    );
    assert_eq!(mode(&path), 0o600);
    let with_file = ["session", "list", "--http", &http, "--token-file", file];
    assert!(quorumq(&with_file, &[]).status.success());
    let listed = quorumq(
        &["token", "list", "--http", &http],
        &[("QUORUMQ_TOKEN", &admin())],
    );
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("cli") && !listed.contains("quorumq."),
        "{listed}"
    );
}

fn an_expired_token_is_refused(cluster: &Cluster) {
    let body = "{\"name\":\"brief\",\"scope\":\"read\",\"expires_in_s\":1}";
    let answer = ask(http_of(cluster, 0), "POST", "/v1/tokens", &admin(), body);
    let made: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let token = made["token"].as_str().expect("a token");
    wait::until("the token's end", WITHIN, || {
        let refused = statuses(cluster, "GET", "/v1/sessions", token) == [401; 3];
        refused.then_some(())
    });
}

fn tokens_survive_the_death_of_the_leader(cluster: &mut Cluster) {
    let is_leader =
        |node: &cluster_tests::cluster::Node| node.metric("quorumq_raft_is_leader") == Some(1.0);
    let leader = cluster
        .nodes
        .iter()
        .position(is_leader)
        .expect("there is a leader");
    // Answered just before the leader dies: it holds.
    let gone = make(cluster, leader, "gone", "read");
    let kept = make(cluster, leader, "kept", "read");
    let other = http_of(cluster, (leader + 1) % 3);
    let removed = ask(other, "DELETE", "/v1/token?name=gone", &admin(), "");
    assert_eq!(removed.status, 200);
    cluster.nodes[leader].kill();
    for index in (0..3).filter(|index| *index != leader) {
        let address = http_of(cluster, index);
        let asked = |token: &str| ask(address, "GET", "/v1/token-none", token, "").status;
        assert_eq!(asked(&kept), 404);
        assert_eq!(ask(address, "GET", "/v1/tokens", &gone, "").status, 401);
        assert_eq!(ask(address, "GET", "/v1/tokens", &kept, "").status, 403);
    }
    cluster.start_node(leader);
    cluster.wait_ready();
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", &kept), [200; 3]);
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", &gone), [401; 3]);
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", ""), [401; 3]);
}

/// A node alone whose first administrator has the token of a file.
#[test]
fn the_token_of_a_file_makes_the_first() {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let path = directory.path().join("token");
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(&path, token).expect("a file can be written");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, private).expect("its mode can be set");
    let cluster = Cluster::start_with(Plan {
        size: 1,
        environment: vec![(
            0,
            "QUORUMQ__HTTP__TOKEN_FILE".into(),
            path.display().to_string(),
        )],
        ..Plan::default()
    });
    let address = http_of(&cluster, 0);
    assert_eq!(ask(address, "GET", "/v1/sessions", "", "").status, 401);
    let body = "{\"name\":\"look\",\"scope\":\"read\"}";
    let made = ask(address, "POST", "/v1/tokens", token, body);
    assert_eq!(made.status, 200, "{}", made.body);
    no_rule_binds_the_token_of_a_file(address, token);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&path, open).expect("its mode can be set");
    let mut cluster = cluster;
    cluster.nodes[0].terminate();
    cluster.nodes[0].start();
    let status = cluster.nodes[0].wait_exit(WITHIN);
    assert!(!status.success(), "others can read the token");
    assert!(cluster.nodes[0].log_text().contains("chmod o-rwx"));
}

/// What curl is answered, with these further arguments.
fn curl(directory: &Path, url: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("curl")
        .current_dir(directory)
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "10",
            "--output",
            "/dev/null",
        ])
        .args(["--write-out", "%{http_code} %{ssl_verify_result}"])
        .args(arguments)
        .arg(url)
        .output()
        .expect("curl can be run");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Administration on a port of its own, over TLS, for who has a client certificate or a token.
#[test]
fn administration_over_tls() {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !has_curl {
        cluster_tests::skip::skip("there is no curl");
        return;
    }
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let place = directory.path().to_str().expect("a path is text");
    for arguments in [
        &["ca"][..],
        &["node", "--id", "1", "--host", "127.0.0.1,localhost"],
        &["client", "look"],
        &["client", "root"],
        &["client", "nobody"],
    ] {
        let made = quorumq(
            &[&["certificates"], arguments, &["--directory", place]].concat(),
            &[],
        );
        assert!(made.status.success(), "{made:?}");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|free| free.local_addr())
        .expect("there is a free port");
    let key_pair = format!(
        "[{{ certificate = {:?}, key = {:?} }}]",
        path("node-1.pem"),
        path("node-1.key")
    );
    let settings = [
        ("ADMIN_LISTEN", port.to_string()),
        ("CERTIFICATES", key_pair),
        ("CLIENT_CERTIFICATES", "optional".to_owned()),
        ("CLIENT_CA_FILE", path("ca.pem")),
        ("CLIENT_SCOPES", "look=read,root=admin".to_owned()),
    ];
    let environment = settings.map(|(key, value)| (0, format!("QUORUMQ__HTTP__{key}"), value));
    let cluster = Cluster::start_with(Plan {
        size: 1,
        environment: environment.to_vec(),
        ..Plan::default()
    });
    // Probes have a port of their own, with nothing else.
    assert_eq!(
        cluster.nodes[0]
            .get("/v1/sessions")
            .map(|answer| answer.status),
        Some(404)
    );
    let sessions = format!("https://{port}/v1/sessions");
    let kick = format!("https://{port}/v1/session/kick?client_id=c");
    let ask = |url: &str, arguments: &[&str]| curl(directory.path(), url, arguments);
    let ca = ["--cacert", "ca.pem"];
    assert!(
        ask(&sessions, &[]).is_err(),
        "the CA is not one of the system's"
    );
    assert_eq!(ask(&sessions, &ca), Ok("401 0".into()));
    let with = |name: &str| {
        let (certificate, key) = (format!("client-{name}.pem"), format!("client-{name}.key"));
        ["--cacert", "ca.pem", "--cert", &certificate, "--key", &key].map(str::to_owned)
    };
    let json = [
        "--header",
        "content-type: application/json",
        "--request",
        "POST",
    ];
    for (name, url, is_change, expected) in [
        ("look", &sessions, false, "200 0"),
        ("look", &kick, true, "403 0"),
        ("root", &kick, true, "404 0"),
        ("nobody", &sessions, false, "401 0"),
    ] {
        let identity = with(name);
        let mut arguments: Vec<&str> = identity.iter().map(String::as_str).collect();
        if is_change {
            arguments.extend(json);
        }
        assert_eq!(ask(url, &arguments), Ok(expected.into()), "{name} {url}");
    }
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        assert_eq!(
            ask(&sessions, &[&ca[..], &[version]].concat()),
            Ok("401 0".into())
        );
    }
    let plain = format!("http://{port}/v1/sessions");
    assert!(ask(&plain, &[]).is_err(), "plain HTTP is not answered");
    let (http, ca_file) = (port.to_string(), path("ca.pem"));
    let (certificate, key) = (path("client-root.pem"), path("client-root.key"));
    let flags = ["--http", &http, "--ca-file", &ca_file];
    let identity = ["--certificate", &certificate, "--key", &key];
    let made = quorumq(
        &[
            &["token", "add", "look", "--scope", "read"],
            &flags[..],
            &identity,
        ]
        .concat(),
        &[],
    );
    assert!(made.status.success(), "{made:?}");
    let token = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let listed = quorumq(
        &[&["session", "list"], &flags[..]].concat(),
        &[("QUORUMQ_TOKEN", &token)],
    );
    assert!(listed.status.success(), "{listed:?}");
}
