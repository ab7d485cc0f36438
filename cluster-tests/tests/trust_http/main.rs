//! Who may ask over HTTP, on every node of a cluster: tokens and their scopes, what web pages ask for, what the audit
//! log says of it, and who can read the files.

mod files;
mod join;
mod routes;
mod table;
mod tls;

use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::http::{self, Answer};
use cluster_tests::secrets::Places;
use cluster_tests::security::{Shown, of_status};
use cluster_tests::{rules, wait};
use files::{files_are_their_owners, mode, the_audit_log_says_what_happened};
use join::{
    nobody_joins_where_no_node_can_be, nothing_came_back, who_is_no_node_is_left_and_says_nothing,
};
use routes::{
    a_rule_takes_a_route_from_a_token_on_every_node, no_rule_binds_the_token_of_a_file,
    no_way_of_writing_a_path_gets_round_a_rule, the_command_line_tells_who_may_ask,
};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use table::{ENTRIES, see, see_at};

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
    let audit = Audit::new();
    let mut cluster = Cluster::start_with(Plan {
        extra: audit.toml(),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            loopback_is_open_until_there_is_a_token,
            the_first_token_administers,
            a_token_works_on_every_node,
            a_scope_allows_no_more_than_it_says,
            a_removed_token_stops_on_every_node_at_once,
            a_web_page_is_refused_whatever_it_holds,
            the_last_administrator_is_not_removed,
            nobody_joins_where_no_node_can_be,
            who_is_no_node_is_left_and_says_nothing,
            the_command_line_shows_a_token,
            an_expired_token_is_refused,
            a_rule_takes_a_route_from_a_token_on_every_node,
            no_way_of_writing_a_path_gets_round_a_rule,
            the_command_line_tells_who_may_ask,
        ],
    );
    tokens_survive_the_death_of_the_leader(&mut cluster);
    the_audit_log_says_what_happened(&audit);
    nothing_came_back(&cluster, &audit);
    files_are_their_owners(&cluster, &audit);
}

fn loopback_is_open_until_there_is_a_token(cluster: &Cluster) {
    let mut shown = Shown::by("loopback_is_open_until_there_is_a_token");
    let who = "nobody, loopback, no token in the cluster";
    see(&mut shown, cluster, who, "");
    shown.finish();
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
    let mut shown = Shown::by("the_first_token_administers");
    see(
        &mut shown,
        cluster,
        "nobody, with a token in the cluster",
        "",
    );
    see(
        &mut shown,
        cluster,
        "a forged token",
        &format!("{}x", admin()),
    );
    shown.finish();
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
    let mut shown = Shown::by("a_scope_allows_no_more_than_it_says");
    see(&mut shown, cluster, "a token, scope `read`", &look);
    see(&mut shown, cluster, "a token, scope `operate`", &work);
    see(&mut shown, cluster, "a token, scope `admin`", &admin());
    shown.finish();
}

fn a_removed_token_stops_on_every_node_at_once(cluster: &Cluster) {
    let mut shown = Shown::by("a_removed_token_stops_on_every_node_at_once");
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
        see(&mut shown, cluster, "a removed token", &token);
    }
    shown.finish();
}

fn a_web_page_is_refused_whatever_it_holds(cluster: &Cluster) {
    let mut shown = Shown::by("a_web_page_is_refused_whatever_it_holds");
    let bearer = format!("Bearer {}", admin());
    for (name, value, expected) in [
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("host", "rebound.example", 421),
        ("content-type", "text/plain", 415),
        ("content-type", "application/x-www-form-urlencoded", 415),
    ] {
        let fields = [("authorization", bearer.as_str()), (name, value)];
        for (entry, routes) in ENTRIES {
            for (method, target) in routes {
                let is_free = !target.starts_with("/v1/");
                // What changes nothing has no body whose type could matter.
                if expected == 415 && *method == "GET" && !is_free {
                    continue;
                }
                let asked = http::ask(http_of(cluster, 0), method, target, &fields, "{}");
                let status = asked.expect("the node answers").status;
                let wanted = if is_free { 200 } else { expected };
                assert_eq!(status, wanted, "{method} {target} with {name}: {value}");
                let who = "a web page of another origin, whatever it holds";
                shown.saw("HTTP", entry, who, of_status(status));
            }
        }
    }
    shown.finish();
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
    let mut shown = Shown::by("an_expired_token_is_refused");
    see(&mut shown, cluster, "an expired token", token);
    shown.finish();
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
    let (path, audit) = (directory.path().join("token"), Audit::new());
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(&path, token).expect("a file can be written");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, private).expect("its mode can be set");
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        extra: audit.toml(),
        ..Plan::default()
    });
    let mut shown = Shown::by("the_token_of_a_file_makes_the_first");
    let address = http_of(&cluster, 0);
    let public = format!("0.0.0.0:{}", address.port());
    let node = &mut cluster.nodes[0];
    node.environment
        .push(("QUORUMQ__HTTP__LISTEN".into(), public));
    node.start();
    node.wait_ready(WITHIN);
    // Who can't be told from one of another machine: a token is asked for before there is one.
    see_at(&mut shown, address, "nobody, from another machine", "");
    assert!(node.terminate().success());
    let of_file = path.display().to_string();
    node.environment
        .push(("QUORUMQ__HTTP__TOKEN_FILE".into(), of_file));
    node.start();
    node.wait_ready(WITHIN);
    assert_eq!(ask(address, "GET", "/v1/sessions", "", "").status, 401);
    see_at(&mut shown, address, "the token of `http.token_file`", token);
    shown.finish();
    let body = "{\"name\":\"look\",\"scope\":\"read\"}";
    let made = ask(address, "POST", "/v1/tokens", token, body);
    assert_eq!(made.status, 200, "{}", made.body);
    no_rule_binds_the_token_of_a_file(address, token);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&path, open).expect("its mode can be set");
    let mut places = Places::of(&cluster);
    places.add("audit", audit.text());
    places.assert_has("node 1: data", "look");
    places.assert_without([token]);
    cluster.nodes[0].terminate();
    cluster.nodes[0].start();
    let status = cluster.nodes[0].wait_exit(WITHIN);
    assert!(!status.success(), "others can read the token");
    assert!(cluster.nodes[0].log_text().contains("chmod o-rwx"));
}
