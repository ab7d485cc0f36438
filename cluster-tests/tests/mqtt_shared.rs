//! Messages with QoS 0 for shared subscriptions: every group gets each once, its members take turns wherever they are
//! connected, and none costs a commit.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::rules;
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, Value, id};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn shared_subscriptions() {
    let cluster = Cluster::start_with(Plan {
        mqtt: "queue_qos_0 = true".into(),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            members_on_all_nodes_take_turns_without_commits,
            members_that_leave_are_passed_over,
            a_client_gets_a_copy_for_its_group_and_one_for_itself,
            a_group_whose_members_are_away_keeps_what_it_is_asked_to,
        ],
    );
}

/// Members of `$share/{name}/{name}/+`, two on each node, and what each has received.
struct Members {
    connections: Vec<Connection>,
    received: Vec<BTreeSet<String>>,
}

impl Members {
    fn new(cluster: &Cluster, name: &str) -> Members {
        let connections: Vec<_> = (0..6)
            .map(|number| {
                let address = cluster.mqtt(number % 3);
                let mut connection = Connection::v5(address, &format!("{name}-{number}"));
                connection.subscribe(&[(&format!("$share/{name}/{name}/+"), (number % 2) as u8)]);
                connection
            })
            .collect();
        Members {
            received: vec![BTreeSet::new(); connections.len()],
            connections,
        }
    }

    /// Reads until all have received `total` together, and a little longer.
    fn read(&mut self, total: usize) {
        let mut come = 0;
        let mut last_round = false;
        wait::until("every message to arrive", 3 * TIMEOUT, || {
            for (connection, received) in self.connections.iter_mut().zip(&mut self.received) {
                loop {
                    match connection.receive(Duration::from_millis(20)) {
                        Ok(Packet::Publish(publish)) => {
                            assert_eq!(publish.qos, 0);
                            let payload = String::from_utf8_lossy(&publish.payload).into_owned();
                            assert!(received.insert(payload), "twice: {publish:?}");
                            come += 1;
                        }
                        Err(Fault::Timeout) => break,
                        other => panic!("{other:?}"),
                    }
                }
            }
            let all = come >= total;
            std::mem::replace(&mut last_round, all).then_some(())
        });
        assert_eq!(come, total);
    }

    fn counts(&self) -> Vec<usize> {
        self.received.iter().map(BTreeSet::len).collect()
    }
}

/// `count` messages from each of three publishers, one on each node.
fn publish(cluster: &Cluster, name: &str, round: &str, count: usize) {
    let mut publishers: Vec<Connection> = (0..3)
        .map(|node| Connection::v5(cluster.mqtt(node), &format!("{name}-pub-{node}")))
        .collect();
    for number in 0..count {
        for (node, publisher) in publishers.iter_mut().enumerate() {
            let payload = format!("{round}-{node}-{number}");
            publisher.publish(Message::new(&format!("{name}/{node}"), payload));
        }
    }
    for publisher in &mut publishers {
        publisher.expect_nothing();
    }
}

fn proposals(cluster: &Cluster) -> f64 {
    let nodes = cluster.nodes.iter();
    let proposals = nodes.filter_map(|node| node.metric("quorumq_raft_proposals_total"));
    proposals.sum()
}

fn members_on_all_nodes_take_turns_without_commits(cluster: &Cluster) {
    let mut members = Members::new(cluster, "turns");
    let before = proposals(cluster);
    publish(cluster, "turns", "only", 300);
    members.read(900);
    let commits = proposals(cluster) - before;
    // Three publishers connected and may have gone already.
    assert!(commits <= 12.0, "{commits} proposals for 900 messages");
    for count in members.counts() {
        assert!((140..=160).contains(&count), "{:?}", members.counts());
    }
    let all: BTreeSet<&String> = members.received.iter().flatten().collect();
    assert_eq!(all.len(), 900, "some came to two members");
}

fn members_that_leave_are_passed_over(cluster: &Cluster) {
    let mut members = Members::new(cluster, "leave");
    publish(cluster, "leave", "before", 60);
    members.read(180);
    // One unsubscribes, one disconnects, on different nodes; a third unsubscribes from the other one's node.
    let filter = "$share/leave/leave/+";
    let unsubscriber = &mut members.connections[0];
    unsubscriber.send(&wire::unsubscribe(V5, 9, &[filter]));
    match unsubscriber.expect() {
        Packet::Unsuback(unsuback) => assert_eq!(unsuback.codes, [0]),
        other => panic!("instead of UNSUBACK: {other:?}"),
    }
    members.connections.remove(4).disconnect();
    let gone = members.received.remove(4).len();
    assert!(gone > 0);
    let before = members.counts();
    publish(cluster, "leave", "after", 100);
    members.read(300);
    let after = members.counts();
    assert_eq!(after[0], before[0], "it has unsubscribed");
    for member in 1..5 {
        let count = after[member] - before[member];
        assert!((50..=130).contains(&count), "{before:?} {after:?}");
    }
}

fn a_client_gets_a_copy_for_its_group_and_one_for_itself(cluster: &Cluster) {
    for node in 0..3 {
        let mut client = Connection::v5(cluster.mqtt(node), "both");
        for (packet_id, filter) in [(1, "both"), (2, "$share/g/both"), (3, "$share/h/both")] {
            let list = Properties::new()
                .with(id::SUBSCRIPTION_IDENTIFIER, Value::Varint(packet_id.into()));
            client.send(&wire::subscribe(V5, packet_id, &list, &[(filter, 1)]));
            assert!(matches!(client.expect(), Packet::Suback(_)));
        }
        let mut publisher = Connection::v5(cluster.mqtt(0), "both-pub");
        publisher.publish(Message::new("both", "x"));
        let mut identifiers: Vec<u32> = (0..3)
            .flat_map(|_| {
                client
                    .publish_received()
                    .properties
                    .subscription_identifiers()
            })
            .collect();
        identifiers.sort_unstable();
        assert_eq!(identifiers, [1, 2, 3]);
        client.expect_nothing();
        client.disconnect();
    }
}

fn a_group_whose_members_are_away_keeps_what_it_is_asked_to(cluster: &Cluster) {
    let durable = Connect::v5("away").durable(600);
    let mut member = Connection::connect(cluster.mqtt(1), &durable).0;
    member.subscribe(&[("$share/away/away", 1)]);
    member.disconnect();
    let mut publisher = Connection::v5(cluster.mqtt(0), "away-pub");
    // Every node may know only now that it is away: what is published until then is lost, as QoS 0 may be.
    let queued = |cluster: &Cluster| cluster.nodes[0].metric("quorumq_queued_messages");
    let before = queued(cluster);
    wait::until("a message to be kept", TIMEOUT, || {
        publisher.publish(Message::new("away", "early"));
        publisher.expect_nothing();
        (queued(cluster) > before).then_some(())
    });
    publisher.publish(Message::new("away", "last"));
    publisher.expect_nothing();
    let resumed = Connect {
        clean: false,
        ..durable
    };
    let (mut member, connack) = Connection::connect(cluster.mqtt(2), &resumed);
    assert!(connack.session_present);
    loop {
        let publish = member.publish_received();
        if publish.payload == b"last" {
            break;
        }
        assert_eq!(publish.payload, b"early");
    }
    member.expect_nothing();
}
