//! Nodes that die while the rows of an ended session go: nothing of it is left, and the nodes' states agree.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::flow::{self, Load};
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Packet, Properties, V5};
use std::time::Duration;

/// Messages that wait for the session, and filters that it has subscribed to: each many times what one log entry
/// removes.
const MESSAGES: u32 = 60_000;
const FILTERS: usize = 9_000;

/// How long the rows may take to go, on whatever machine.
const LIMIT: Duration = Duration::from_secs(120);

fn metric(cluster: &Cluster, node: usize, name: &str) -> Option<f64> {
    cluster.nodes[node].metric(name)
}

/// A session with many subscriptions and a long queue, whose client is away.
fn with_large_session(cluster: &Cluster) {
    let connect = Connect::v5("large").durable(3_600);
    let (mut client, _) = Connection::connect(cluster.mqtt(0), &connect);
    let filters: Vec<String> = (0..FILTERS)
        .map(|number| format!("other/{number}"))
        .chain(["waits".to_owned()])
        .collect();
    for (number, some) in filters.chunks(1_000).enumerate() {
        let filters: Vec<(&str, u8)> = some.iter().map(|filter| (filter.as_str(), 1)).collect();
        let packet_id = number as u16 + 1;
        client.send(&wire::subscribe(
            V5,
            packet_id,
            &Properties::new(),
            &filters,
        ));
        match client.expect_answer() {
            Packet::Suback(suback) => {
                assert!(suback.codes.iter().all(|code| *code < 0x80), "{suback:?}");
            }
            other => panic!("instead of SUBACK: {other:?}"),
        }
    }
    client.hang_up();
    let load = Load {
        topic: "waits".into(),
        qos: 1,
        messages: MESSAGES,
        bytes: 16,
        window: 1_000,
    };
    flow::publish(Connection::v5(cluster.mqtt(0), "publisher"), 1, &load);
}

/// Whether some of what the session has left behind is gone on a node, and not all.
fn is_half_gone(cluster: &Cluster, node: usize) -> Option<()> {
    let left = metric(cluster, node, "quorumq_queued_messages")?;
    let subscriptions = metric(cluster, node, "quorumq_subscriptions")?;
    let has_begun = subscriptions < FILTERS as f64;
    (has_begun && left > 0.0).then_some(())
}

fn kill_while_it_goes(victims: impl Fn(&Cluster) -> Vec<usize>) {
    let mut cluster = Cluster::start();
    with_large_session(&cluster);
    let victims = victims(&cluster);
    // Clean Start ends the former session; the new one goes with its connection.
    let other = (0..3).find(|node| victims.len() == 3 || !victims.contains(node));
    let other = other.expect("a node");
    let client = Connection::v5(cluster.mqtt(other), "large");
    wait::until("the rows to be on their way out", LIMIT, || {
        is_half_gone(&cluster, victims[0])
    });
    for victim in &victims {
        cluster.nodes[*victim].kill();
    }
    drop(client);
    for victim in &victims {
        cluster.start_node(*victim);
    }
    cluster.wait_ready_within(LIMIT);
    for node in 0..3 {
        wait::until("nothing to be left on any node", LIMIT, || {
            let left = ["quorumq_queued_messages", "quorumq_subscriptions"];
            let left = left.map(|name| metric(&cluster, node, name));
            (left == [Some(0.0); 2]).then_some(())
        });
        // An ended session counts until the last of its rows is gone; clients of the tests' own may come and go.
        wait::until("the ended session to be gone", LIMIT, || {
            (metric(&cluster, node, "quorumq_sessions") == Some(0.0)).then_some(())
        });
    }
    cluster.assert_states_agree();
    // A session under that name begins with nothing.
    let connect = Connect::v5("large").durable(60);
    let (mut client, connack) = Connection::connect(cluster.mqtt(0), &connect);
    assert!(!connack.session_present);
    client.expect_nothing();
}

#[test]
fn a_follower_dies_while_the_rows_of_a_session_go() {
    kill_while_it_goes(|cluster| vec![cluster.a_follower()]);
}

#[test]
fn the_leader_dies_while_the_rows_of_a_session_go() {
    kill_while_it_goes(|cluster| vec![cluster.wait_leader()]);
}

#[test]
fn all_nodes_die_while_the_rows_of_a_session_go() {
    kill_while_it_goes(|_| vec![0, 1, 2]);
}
