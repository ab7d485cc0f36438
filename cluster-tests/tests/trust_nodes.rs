//! Nodes that prove to each other who they are, by certificates or by a secret: failover, rotation of certificates and
//! of their authority under load, and those who can't prove anything. P2, P7, P11.

#[path = "../../tests/authority/mod.rs"]
mod authority;

use authority::{Authority, Files, Subject, put};
use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::line::{Line, Place, Transport};
use cluster_tests::secrets::Places;
use cluster_tests::security::Shown;
use cluster_tests::trial::{self, FAILOVER_GAP, ORDERLY_GAP, RECOVERY};
use cluster_tests::wait;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// What the nodes of one machine share.
const SECRET: &str = "a secret of thirty-two bytes or more";

const WRONG_SECRET: &str = "another secret of thirty-two bytes or more";

/// The column of the table in docs/security.md.
const PORT: &str = "the port between nodes";

/// The harness calls its clusters so.
const NAME: &str = "test";

/// A line of a node that uses new files.
const RELOADED: &str = "the files of this node's identity have changed: they are used from now on";

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Waits until every node tells that its certificate lasts so many days, at least and at most.
#[track_caller]
fn assert_days_left(cluster: &Cluster, least: u64, most: u64) {
    for node in &cluster.nodes {
        wait::until_ok("the time that is left of a certificate", RECOVERY, || {
            let left = node.metric("quorumq_cluster_certificate_expiry_seconds");
            let days = left.map(|left| left / DAY.as_secs_f64());
            let is_right = days.is_some_and(|days| (least as f64..=most as f64).contains(&days));
            is_right
                .then_some(())
                .ok_or(format!("node {}: {days:?} days", node.id))
        });
    }
}

fn files(directory: &Path, id: usize) -> Files {
    Files::in_directory(&directory.join(id.to_string()))
}

fn environment(files: &Files) -> Vec<(String, String)> {
    let variable = |key: &str, path: &Path| {
        let name = format!("QUORUMQ__CLUSTER__{key}");
        (name, path.to_string_lossy().into_owned())
    };
    vec![
        variable("CERTIFICATE", &files.certificate),
        variable("KEY", &files.key),
        variable("CA_FILE", &files.authorities),
    ]
}

/// Three nodes with certificates in `directory`.
fn plan(authority: &Authority, directory: &Path) -> Plan {
    let of_node = |id: usize| {
        let files = authority.files(&directory.join(id.to_string()), NAME, id as u64);
        let variables = environment(&files).into_iter();
        variables.map(move |(name, value)| (id - 1, name, value))
    };
    Plan {
        environment: (1..=3).flat_map(of_node).collect(),
        ..Plan::default()
    }
}

fn directory() -> TempDir {
    TempDir::with_prefix("quorumq-trust-").expect("a temporary directory can be made")
}

/// What arrives at a stranger that sends `bytes` to a node's cluster port.
fn told(cluster: &Cluster, index: usize, bytes: &[u8]) -> Vec<u8> {
    let address = cluster.nodes[index].addresses.cluster;
    let mut stream = TcpStream::connect(address).expect("the port is open");
    let timeout = Some(Duration::from_secs(20));
    stream
        .set_read_timeout(timeout)
        .expect("a time-out can be set");
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    said
}

#[test]
fn leaders_are_killed_and_strangers_are_told_nothing() {
    let (authority, directory) = (Authority::new("nodes"), directory());
    let plan = plan(&authority, directory.path());
    let result = trial::with("trust-kill-leader", plan, |cluster, load| {
        for _ in 0..2 {
            let leader = cluster.wait_leader();
            for bytes in [
                &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
                b"GET / HTTP/1.1\r\n\r\n",
                b"",
            ] {
                let said = told(cluster, leader, bytes);
                assert!(said.len() < 16, "an alert at most: {said:?}");
            }
            cluster.nodes[leader].kill();
            load.wait_progress(300, RECOVERY);
            cluster.start_node(leader);
            cluster.wait_ready();
        }
    });
    result.assert_gap_below(FAILOVER_GAP);
    let mut shown = Shown::by("leaders_are_killed_and_strangers_are_told_nothing");
    shown.saw("Nodes", PORT, "nobody", "refused");
    shown.finish();
}

/// How many lines of the audit log say that a node uses new files.
fn reloads_noted(audit: &Audit, id: usize) -> usize {
    let is_reload = |line: &Value| {
        line["event"] == "certificates" && line["result"] == "accepted" && line["node"] == id
    };
    let text = audit.text();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(is_reload).count()
}

#[test]
fn certificates_and_their_authority_are_replaced_under_load() {
    let (old, new, directory) = (Authority::new("old"), Authority::new("new"), directory());
    let audit = Audit::new();
    let plan = Plan {
        extra: audit.toml(),
        ..plan(&old, directory.path())
    };
    let result = trial::with("trust-rotation", plan, |cluster, load| {
        let mut reloads = 0;
        let mut step = |change: &dyn Fn(usize, &Files)| {
            reloads += 1;
            for id in 1..=3 {
                change(id, &files(directory.path(), id));
                wait::until("the node to use its new files", RECOVERY, || {
                    let log = cluster.nodes[id - 1].log_text();
                    (log.matches(RELOADED).count() >= reloads).then_some(())
                });
                audit.expect(&json!({
                    "event": "certificates", "result": "accepted", "node": id, "files": "*", "address": null,
                }));
                // That line may be of an earlier step: each step has one of its own.
                wait::until_ok("a line of each step", RECOVERY, || {
                    let noted = reloads_noted(&audit, id);
                    (noted == reloads)
                        .then_some(())
                        .ok_or(format!("node {id}: {noted} of {reloads}"))
                });
                load.wait_progress(50, RECOVERY);
            }
        };
        step(&|_, files| files.put_authorities(&[&old, &new]));
        assert_days_left(cluster, 365 * 1_000, u64::MAX);
        step(&|id, files| {
            let subject = Subject {
                valid_for: Some(DAY * 40),
                ..Subject::node(NAME, id as u64)
            };
            files.put_certificate(&new, &subject);
        });
        assert_days_left(cluster, 39, 40);
        step(&|_, files| files.put_authorities(&[&new]));
        // A node that starts now meets the new authority only.
        let leader = cluster.wait_leader();
        cluster.nodes[leader].kill();
        load.wait_progress(300, RECOVERY);
        cluster.start_node(leader);
        cluster.wait_ready();
    });
    result.assert_gap_below(FAILOVER_GAP);
}

#[test]
fn a_node_with_a_foreign_certificate_is_not_let_in_and_one_with_its_own_is() {
    let (authority, foreign) = (Authority::new("nodes"), Authority::new("nodes"));
    let (directory, audit) = (directory(), Audit::new());
    let plan = Plan {
        extra: audit.toml(),
        ..plan(&authority, directory.path())
    };
    let mut shown =
        Shown::by("a_node_with_a_foreign_certificate_is_not_let_in_and_one_with_its_own_is");
    let result = trial::with("trust-join", plan, |cluster, load| {
        let new = cluster.add_node(false);
        let id = cluster.nodes[new].id;
        let files = foreign.files(&directory.path().join(id.to_string()), NAME, id as u64);
        // It would take the others for nodes; they do not take it for one.
        files.put_authorities(&[&authority, &foreign]);
        cluster.nodes[new].environment.extend(environment(&files));
        cluster.start_node(new);
        let refused = "did not prove that it is a node's";
        wait::until("the refusal in a log", RECOVERY, || {
            let mut nodes = cluster.nodes[..3].iter();
            nodes
                .any(|node| node.log_text().contains(refused))
                .then_some(())
        });
        wait::until_ok("the refusal in its own log", RECOVERY, || {
            let log = cluster.nodes[new].log_text();
            let says = log.contains("the log there says whether it took this node for one");
            says.then_some(()).ok_or(log)
        });
        // It has no name: it has not proved any.
        audit.expect(&json!({
            "event": "peer", "result": "refused", "reason": "*", "address": "127.0.0.1", "principal": null,
        }));
        load.wait_progress(300, RECOVERY);
        assert!(!cluster.nodes[new].is_ready());
        let status = cluster.nodes[0].status().expect("node 1 answers");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3));
        shown.saw(
            "Nodes",
            PORT,
            "a certificate of another authority",
            "refused",
        );
        cluster.nodes[new].terminate();
        files.put_certificate(&authority, &Subject::node(NAME, id as u64));
        files.put_authorities(&[&authority]);
        cluster.start_node(new);
        cluster.wait_ready();
        shown.saw(
            "Nodes",
            PORT,
            "a certificate of a node of the cluster",
            "allowed",
        );
        load.wait_progress(300, RECOVERY);
    });
    shown.finish();
    result.assert_gap_below(ORDERLY_GAP);
}

/// What a node says to whoever shows a certificate and speaks HTTP/2.
fn outcome(cluster: &Cluster, files: &Files) -> &'static str {
    const SETTINGS: u8 = 4;
    const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];
    let place = Place {
        identity: Some((files.certificate.clone(), files.key.clone())),
        ..Place::new(Transport::Tls, cluster.nodes[0].addresses.cluster.port())
    };
    let mut line = Line::open(&place).expect("openssl runs");
    line.send(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &EMPTY_SETTINGS].concat());
    match line.bytes(EMPTY_SETTINGS.len()) {
        Some(frame) => {
            assert_eq!(frame[3], SETTINGS, "{frame:?}");
            "allowed"
        }
        None => "refused",
    }
}

/// All are of the authority in which the node trusts. Whether what comes is a member is looked at then.
#[test]
fn a_certificate_must_be_valid_and_of_a_node_of_the_cluster() {
    const REVOKED: u64 = 3;
    let (authority, directory) = (Authority::new("nodes"), directory());
    let own = authority.files(&directory.path().join("1"), NAME, 1);
    authority.put_list(&own.list, &[REVOKED]);
    let lists = own.list.to_string_lossy().into_owned();
    let lists = ("QUORUMQ__CLUSTER__CRL_FILES".to_owned(), lists);
    let variables = environment(&own).into_iter().chain([lists]);
    let audit = Audit::new();
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: audit.toml(),
        environment: variables.map(|(name, value)| (0, name, value)).collect(),
        ..Plan::default()
    });
    let shows = |subject: &Subject| {
        let files = files(directory.path(), 2);
        files.put_certificate(&authority, subject);
        outcome(&cluster, &files)
    };
    let node = Subject::node(NAME, 2);
    assert_eq!(
        shows(&node),
        "allowed",
        "nothing else is wrong with the others"
    );
    let mut shown = Shown::by("a_certificate_must_be_valid_and_of_a_node_of_the_cluster");
    let wrong = [
        (
            "an expired certificate of a node",
            Subject {
                expired: true,
                ..node.clone()
            },
        ),
        (
            "a revoked certificate of a node",
            Subject {
                serial: Some(REVOKED),
                ..node.clone()
            },
        ),
        (
            "a certificate of a node of another cluster",
            Subject::node("other", 2),
        ),
        (
            "a certificate that names no node",
            Subject {
                uris: Vec::new(),
                ..node
            },
        ),
    ];
    for (who, subject) in &wrong {
        shown.saw("Nodes", PORT, who, shows(subject));
    }
    shown.finish();
    // It is the node that has refused them, and nobody else.
    wait::until_ok("a line for each refusal", RECOVERY, || {
        let text = audit.text();
        let refusals = text.lines().filter(|line| line.contains("\"peer\""));
        let is_right = refusals.count() == wrong.len();
        is_right.then_some(()).ok_or(text)
    });
}

#[test]
fn a_secret_joins_the_nodes_of_one_machine() {
    let directory = directory();
    let secret = directory.path().join("secret");
    put(&secret, &format!("{SECRET}\n"));
    let wrong = directory.path().join("wrong");
    put(&wrong, &format!("{WRONG_SECRET}\n"));
    let variable = |path: &Path| {
        let name = "QUORUMQ__CLUSTER__SECRET_FILE".to_owned();
        (name, path.to_string_lossy().into_owned())
    };
    let of_node = |index| {
        let (name, value) = variable(&secret);
        (index, name, value)
    };
    let audit = Audit::new();
    let plan = Plan {
        extra: audit.toml(),
        environment: (0..3).map(of_node).collect(),
        ..Plan::default()
    };
    let mut shown = Shown::by("a_secret_joins_the_nodes_of_one_machine");
    let result = trial::with("trust-secret", plan, |cluster, load| {
        let leader = cluster.wait_leader();
        assert!(told(cluster, leader, &[b'x'; 56]).is_empty());
        cluster.nodes[leader].kill();
        load.wait_progress(300, RECOVERY);
        cluster.start_node(leader);
        cluster.wait_ready();
        let places = Places::of(cluster);
        places.assert_has("check", "secret_file");
        places.assert_without([SECRET]);
        shown.saw("Nodes", PORT, "the shared secret", "allowed");
        let new = cluster.add_node(false);
        cluster.nodes[new].environment.push(variable(&wrong));
        cluster.start_node(new);
        audit.expect(&json!({
            "event": "peer", "result": "refused", "reason": "the peer has another secret", "address": "127.0.0.1",
            "principal": null,
        }));
        load.wait_progress(300, RECOVERY);
        assert!(!cluster.nodes[new].is_ready());
        let status = cluster.nodes[0].status().expect("node 1 answers");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3));
        shown.saw("Nodes", PORT, "another secret", "refused");
        cluster.nodes[new].terminate();
        cluster.nodes.remove(new);
    });
    shown.finish();
    result.assert_gap_below(FAILOVER_GAP);
}

#[test]
fn a_port_that_others_reach_is_not_opened_without_proof() {
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let node = &mut cluster.nodes[0];
    let public = format!("0.0.0.0:{}", node.addresses.cluster.port());
    let listen = ("QUORUMQ__CLUSTER__LISTEN".to_owned(), public);
    node.environment.push(listen);
    node.start();
    assert_eq!(
        node.wait_exit(RECOVERY).code(),
        Some(78),
        "bad configuration"
    );
    assert!(
        node.log_text().contains("cluster.insecure = true"),
        "it says what to do"
    );
    let accepted = ("QUORUMQ__CLUSTER__INSECURE".to_owned(), "true".to_owned());
    node.environment.push(accepted);
    node.start();
    node.wait_ready(RECOVERY);
    assert!(
        node.log_text()
            .contains("cluster.insecure: nodes do not prove who they are")
    );
}

/// Until there is a user: then nobody is let in unasked but where a listener says so.
#[test]
fn a_listener_that_lets_other_machines_in_unasked_is_named_at_each_start() {
    let mut cluster = Cluster::start_with(Plan {
        size: 1,
        // What is said of the second one says that it was looked at the first one.
        extra: "[auth]\npassword_memory_kib = 64\npassword_passes = 1\n\
                [[listeners]]\nname = \"asks\"\naddress = \"0.0.0.0:{mqtt_port}\"\n\
                [[listeners]]\nname = \"open\"\naddress = \"0.0.0.0:0\"\nauthentication = [\"anonymous\"]\n"
            .into(),
        ..Plan::default()
    });
    let named = |cluster: &Cluster, listener: &str| {
        let log = cluster.nodes[0].log_text();
        let warnings = log.lines().filter(|line| {
            line.contains(" WARN ") && line.contains("is let in and may do everything: add a user")
        });
        let listener = format!("listener={listener} ");
        warnings.filter(|line| line.contains(&listener)).count()
    };
    let wait_named = |cluster: &Cluster, times: usize| {
        wait::until_ok("the warning", RECOVERY, || {
            let (open, log) = (named(cluster, "open"), cluster.nodes[0].log_text());
            (open == times).then_some(()).ok_or(log)
        });
    };
    wait_named(&cluster, 1);
    assert_eq!(named(&cluster, "asks"), 1);
    let mut add = Command::new(binary());
    add.args([
        "user",
        "add",
        "anna",
        "--http",
        &cluster.nodes[0].http().to_string(),
    ]);
    let mut process = add
        .stdin(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(b"pencil\n").expect("it reads");
    drop(stdin);
    assert!(process.wait().expect("it was started").success());
    assert!(cluster.nodes[0].terminate().success());
    cluster.start_node(0);
    cluster.wait_ready();
    wait_named(&cluster, 2);
    assert_eq!(named(&cluster, "asks"), 1, "there is a user");
}
