//! Nodes that join, leave and are replaced while clients write. Nothing acknowledged is lost, and writes go on.

use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::store::{Request, StoreClient, blob};
use cluster_tests::trial::{self, ORDERLY_GAP, RECOVERY};
use cluster_tests::wait;
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Runs `quorumq cluster …` against that node's HTTP port.
fn ask(cluster: &Cluster, node: usize, arguments: &[&str]) -> Output {
    Command::new(binary())
        .arg("cluster")
        .args(arguments)
        .args(["--http", &cluster.nodes[node].addresses.http.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("the binary can be run")
}

#[track_caller]
fn done(cluster: &Cluster, node: usize, arguments: &[&str]) -> String {
    let output = ask(cluster, node, arguments);
    assert!(output.status.success(), "cluster {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the operator is told when it can't be done.
#[track_caller]
fn refused(cluster: &Cluster, node: usize, arguments: &[&str]) -> String {
    let output = ask(cluster, node, arguments);
    assert_eq!(
        output.status.code(),
        Some(1),
        "cluster {arguments:?}: {output:?}"
    );
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ids of the voters as that node sees them; `None` while somebody is a learner.
fn voters(cluster: &Cluster, node: usize) -> Option<Vec<u64>> {
    let status = cluster.nodes[node].status()?;
    let members = status["members"].as_array()?;
    members
        .iter()
        .map(|member| member["voter"].as_bool()?.then(|| member["id"].as_u64())?)
        .collect()
}

#[track_caller]
fn wait_voters(cluster: &Cluster, node: usize, wanted: &[u64]) {
    wait::until(&format!("voters {wanted:?}"), RECOVERY, || {
        (voters(cluster, node)? == wanted).then_some(())
    });
}

fn id(cluster: &Cluster, index: usize) -> String {
    cluster.nodes[index].id.to_string()
}

#[test]
fn a_node_joins_leads_and_another_leaves() {
    let audit = Audit::new();
    let plan = Plan {
        extra: audit.toml(),
        ..Plan::default()
    };
    let result = trial::with("join-leave", plan, |cluster, load| {
        let new = cluster.add_node(false);
        cluster.start_node(new);
        cluster.wait_ready();
        wait_voters(cluster, 0, &[1, 2, 3, 4]);
        load.wait_progress(300, RECOVERY);
        // It answers with what was written before it came, and takes writes.
        let mut client = StoreClient::connected("at-the-new-node", cluster.mqtt(new));
        client.expect(&Request::set("joined", "1"), "+OK\r\n");
        client.expect(&Request::get("joined"), blob(b"1"));

        assert_eq!(done(cluster, 1, &["transfer", "4"]).trim(), "leader 4");
        wait::until("node 4 to lead", RECOVERY, || {
            (cluster.leader()? == new).then_some(())
        });
        load.wait_progress(300, RECOVERY);

        assert_eq!(done(cluster, 1, &["leave", "1"]).trim(), "left 1");
        let by = |action: &str, result: &str, member: Value| {
            json!({"event": "membership", "result": result, "principal": "anonymous", "node": 2,
                   "action": action, "member": member})
        };
        refused(cluster, 1, &["leave", "99"]);
        audit.expect_all(&[
            by("transfer", "accepted", Value::Null),
            by("leave", "accepted", "1".into()),
            by("leave", "failed", "99".into()),
        ]);
        wait_voters(cluster, 1, &[2, 3, 4]);
        load.wait_progress(300, RECOVERY);
        // The node that left stops serving by itself.
        cluster.nodes[0].wait_not_ready(RECOVERY);
        wait::until("the reason in its log", RECOVERY, || {
            let log = cluster.nodes[0].log_text();
            log.contains("node 1 is not a member of the cluster")
                .then_some(())
        });
        assert!(cluster.nodes[0].terminate().success());
        cluster.nodes.remove(0);
        load.wait_progress(300, RECOVERY);
    });
    result.assert_gap_below(ORDERLY_GAP);
}

#[test]
fn a_dead_node_is_replaced_by_a_fresh_one() {
    trial::with("replace", Plan::default(), |cluster, load| {
        let dead = cluster.a_follower();
        cluster.nodes[dead].kill();
        let gone = cluster.nodes[dead].id as u64;
        let asked = cluster.wait_leader();
        done(cluster, asked, &["leave", &gone.to_string()]);
        let new = cluster.add_node(true);
        cluster.start_node(new);
        let address = cluster.nodes[new].addresses.cluster.to_string();
        let other = (0..3).find(|index| ![dead, asked].contains(index));
        // Asked of a node that does not lead, which passes it on.
        let answer = done(
            cluster,
            other.expect("three nodes"),
            &["join", "4", &address],
        );
        assert_eq!(answer.trim(), "joined 4");
        let wanted: Vec<u64> = (1..=4).filter(|id| *id != gone).collect();
        wait_voters(cluster, asked, &wanted);
        cluster.wait_ready();
        load.wait_progress(300, RECOVERY);
        // Asked again, nothing happens.
        done(cluster, asked, &["join", "4", &address]);

        // It counts: with it and one of the old nodes there is a majority.
        let leader = cluster.wait_leader();
        cluster.nodes[leader].kill();
        load.wait_progress(300, RECOVERY);
        cluster.start_node(leader);
        cluster.wait_ready();
        cluster.nodes.remove(dead);
    });
}

#[test]
fn the_leader_leaves_and_comes_back_under_a_new_number() {
    let result = trial::with("leader-leaves", Plan::default(), |cluster, load| {
        let leader = cluster.wait_leader();
        let other = cluster.a_follower();
        done(cluster, other, &["leave", &id(cluster, leader)]);
        load.wait_progress(300, RECOVERY);
        cluster.nodes[leader].wait_not_ready(RECOVERY);
        assert!(cluster.nodes[leader].terminate().success());
        let new = cluster.add_node(false);
        cluster.start_node(new);
        cluster.wait_ready();
        cluster.nodes.remove(leader);
        load.wait_progress(300, RECOVERY);
    });
    result.assert_gap_below(ORDERLY_GAP);
}

#[test]
fn what_cannot_be_done_is_refused_with_a_reason() {
    let mut cluster = Cluster::start();
    let text = refused(&cluster, 0, &["leave", "9"]);
    assert!(text.contains("node 9 is not a member"), "{text}");
    let text = refused(&cluster, 0, &["transfer", "9"]);
    assert!(text.contains("node 9 is not a member"), "{text}");
    // A member under another number.
    let address = cluster.nodes[1].addresses.cluster.to_string();
    let text = refused(&cluster, 0, &["join", "7", &address]);
    assert!(text.contains("belongs to a cluster already"), "{text}");
    // Port 1 of loopback: nothing listens there.
    let text = refused(&cluster, 0, &["join", "7", "127.0.0.1:1"]);
    let silent = "127.0.0.1:1 does not answer";
    assert!(text.contains(silent) && text.contains("refused"), "{text}");
    // The others are gone: nothing can be committed, and the operator is told so in time.
    let leader = cluster.wait_leader();
    for index in (0..3).filter(|index| *index != leader) {
        cluster.nodes[index].kill();
    }
    let output = ask(&cluster, leader, &["leave", "9", "--timeout", "40"]);
    assert!(!output.status.success(), "{output:?}");
}

/// Both sides of a join that is refused say what to look at, on whichever of them it was asked for.
#[test]
fn who_is_refused_is_told_what_to_look_at() {
    let mut cluster = Cluster::single();
    let stranger = cluster.add_node(false);
    let name = ("QUORUMQ__CLUSTER__NAME".to_owned(), "other".to_owned());
    cluster.nodes[stranger].environment.push(name);
    cluster.start_node(stranger);
    let why = "refuses this node: it tells its own cluster alone why: compare cluster.name";
    wait::until_ok("the reason in its log", RECOVERY, || {
        let log = cluster.nodes[stranger].log_text();
        log.contains(why).then_some(()).ok_or(log)
    });
    let address = cluster.nodes[stranger].addresses.cluster.to_string();
    let text = refused(&cluster, 0, &["join", "2", &address]);
    assert!(text.contains(&format!("{address} {why}")), "{text}");
}

/// A node that was removed and is started again does not come back by itself, also not with an empty directory, and
/// disturbs nobody. An operator can have it back.
#[test]
fn a_removed_node_does_not_come_back() {
    let mut cluster = Cluster::start();
    let new = cluster.add_node(false);
    cluster.start_node(new);
    cluster.wait_ready();
    done(&cluster, 0, &["leave", "4"]);
    assert!(cluster.nodes[new].terminate().success());
    let (term, _) = cluster.nodes[0].leader_seen().expect("a leader");
    cluster.start_node(new);
    wait::until("the reason in its log", RECOVERY, || {
        let log = cluster.nodes[new].log_text();
        log.contains("it was removed from the cluster")
            .then_some(())
    });
    assert!(!cluster.nodes[new].is_ready());
    // Longer than any election.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(voters(&cluster, 0), Some(vec![1, 2, 3]));
    let (now, _) = cluster.nodes[0].leader_seen().expect("a leader");
    assert_eq!(now, term, "no election");
    assert!(cluster.nodes[new].terminate().success());
    cluster.nodes[new].wipe();
    cluster.start_node(new);
    wait::until("the reason in its log", RECOVERY, || {
        let log = cluster.nodes[new].log_text();
        log.contains("does not come back by itself").then_some(())
    });
    assert_eq!(voters(&cluster, 0), Some(vec![1, 2, 3]));
    let address = cluster.nodes[new].addresses.cluster.to_string();
    done(&cluster, 1, &["join", "4", &address]);
    wait_voters(&cluster, 0, &[1, 2, 3, 4]);
    cluster.wait_ready();
}
