//! Nodes that prove to each other who they are, by certificates or by a secret: failover, rotation of certificates and
//! of their authority under load, and those who can't prove anything. P2, P7, P11.

#[path = "../../tests/authority/mod.rs"]
mod authority;

use authority::{Authority, Files, Subject, put};
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::trial::{self, FAILOVER_GAP, ORDERLY_GAP, RECOVERY};
use cluster_tests::wait;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The harness calls its clusters so.
const NAME: &str = "test";

/// A line of a node that uses new files.
const RELOADED: &str = "the files of this node's identity have changed: they are used from now on";

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
}

#[test]
fn certificates_and_their_authority_are_replaced_under_load() {
    let (old, new, directory) = (Authority::new("old"), Authority::new("new"), directory());
    let plan = plan(&old, directory.path());
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
                load.wait_progress(50, RECOVERY);
            }
        };
        step(&|_, files| files.put_authorities(&[&old, &new]));
        step(&|id, files| files.put_certificate(&new, &Subject::node(NAME, id as u64)));
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
    let directory = directory();
    let plan = plan(&authority, directory.path());
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
        load.wait_progress(300, RECOVERY);
        assert!(!cluster.nodes[new].is_ready());
        let status = cluster.nodes[0].status().expect("node 1 answers");
        assert_eq!(status["members"].as_array().map(Vec::len), Some(3));
        cluster.nodes[new].terminate();
        files.put_certificate(&authority, &Subject::node(NAME, id as u64));
        files.put_authorities(&[&authority]);
        cluster.start_node(new);
        cluster.wait_ready();
        load.wait_progress(300, RECOVERY);
    });
    result.assert_gap_below(ORDERLY_GAP);
}

#[test]
fn a_secret_joins_the_nodes_of_one_machine() {
    let directory = directory();
    let secret = directory.path().join("secret");
    put(&secret, "a secret of thirty-two bytes or more\n");
    let variable = |index| {
        let name = "QUORUMQ__CLUSTER__SECRET_FILE".to_owned();
        (index, name, secret.to_string_lossy().into_owned())
    };
    let plan = Plan {
        environment: (0..3).map(variable).collect(),
        ..Plan::default()
    };
    let result = trial::with("trust-secret", plan, |cluster, load| {
        let leader = cluster.wait_leader();
        assert!(told(cluster, leader, &[b'x'; 56]).is_empty());
        cluster.nodes[leader].kill();
        load.wait_progress(300, RECOVERY);
        cluster.start_node(leader);
        cluster.wait_ready();
    });
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
