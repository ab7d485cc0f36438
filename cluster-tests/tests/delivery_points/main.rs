//! The node of a client dies between any two packets of its QoS 1 and QoS 2 flows, in either direction, alone or
//! together with the leader; the client goes on at another node: P1, P3, P4; D1 to D7, S1.
//!
//! For every point between two packets there is one client with a topic of its own. One kill meets all of them at once.

mod helper;
mod receiver;
mod sender;
mod session;

use cluster_tests::cluster::Cluster;
use cluster_tests::delivery::load::{Load, Shape};
use cluster_tests::delivery::trial;
use cluster_tests::record::{PublisherRecord, SubscriberShape};
use helper::Helper;
use receiver::{RECEIVING, Receiver};
use sender::{SENDING, Sender};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Which nodes die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    /// The clients' node follows.
    Follower,
    /// The clients' node leads.
    Leader,
    /// The clients' node follows, and the leader dies with it.
    Both,
}

#[test]
fn the_clients_node_dies_between_any_two_packets() {
    let mut cluster = Cluster::start();
    for round in 0..2 {
        show(
            &mut cluster,
            &format!("follower-{round}"),
            Victims::Follower,
        );
    }
}

#[test]
fn the_clients_node_dies_as_leader_between_any_two_packets() {
    let mut cluster = Cluster::start();
    for round in 0..2 {
        show(&mut cluster, &format!("leader-{round}"), Victims::Leader);
    }
}

#[test]
fn the_clients_node_and_the_leader_die_between_any_two_packets() {
    let mut cluster = Cluster::start();
    for round in 0..2 {
        show(&mut cluster, &format!("both-{round}"), Victims::Both);
    }
}

#[track_caller]
fn show(cluster: &mut Cluster, name: &str, victims: Victims) {
    let leader = cluster.wait_leader();
    let home = match victims {
        Victims::Leader => leader,
        Victims::Follower | Victims::Both => cluster.a_follower(),
    };
    let elsewhere = (0..cluster.nodes.len())
        .find(|node| *node != leader && *node != home)
        .expect("there are three nodes");
    let mut nodes = cluster.addresses();
    nodes.rotate_left(elsewhere);
    let scene = Scene::prepare(name, cluster.mqtt(home), nodes);
    cluster.nodes[home].kill();
    if victims == Victims::Both {
        cluster.nodes[leader].kill();
        cluster.start_node(leader);
    }
    let scene = scene.go_on();
    cluster.start_node(home);
    cluster.wait_ready();
    scene.judge();
}

/// One client at every point.
struct Scene {
    name: String,
    /// The first of them is not killed.
    nodes: Vec<SocketAddr>,
    observer: Load,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    helper: Helper,
    failed: Vec<String>,
}

impl Scene {
    /// Brings clients of the node `home` to their points; whoever kills it does so when this returns.
    #[track_caller]
    fn prepare(name: &str, home: SocketAddr, nodes: Vec<SocketAddr>) -> Self {
        // A subscriber of all topics, on a node that is not killed, records what publishers send.
        let observer = Load::start(&nodes, &observed(name));
        let mut helper = Helper::new(name, nodes[0]);
        let mut senders: Vec<Sender> = (0..SENDING.len())
            .map(|point| Sender::new(name, point, home))
            .collect();
        let mut receivers: Vec<Receiver> = (0..RECEIVING.len())
            .map(|point| Receiver::new(name, point, SENDING.len() + point, home))
            .collect();
        for sender in &mut senders {
            sender.approach();
        }
        for receiver in &mut receivers {
            receiver.approach(&mut helper);
        }
        // Packets that are to be in transit are sent last.
        for sender in &mut senders {
            sender.last_packet();
        }
        for receiver in &mut receivers {
            receiver.last_packet();
        }
        Self {
            name: name.to_owned(),
            nodes,
            observer,
            senders,
            receivers,
            helper,
            failed: Vec::new(),
        }
    }

    /// All clients end their flows at other nodes; the others go on when one of them fails.
    #[track_caller]
    fn go_on(mut self) -> Self {
        let (nodes, failed) = (&self.nodes, &mut self.failed);
        for sender in &mut self.senders {
            if catch_unwind(AssertUnwindSafe(|| sender.go_on(nodes))).is_err() {
                failed.push(format!("sender at {:?}", SENDING[sender.point]));
            }
        }
        self.helper = Helper::again(self.helper, nodes);
        let helper = &mut self.helper;
        for receiver in &mut self.receivers {
            if catch_unwind(AssertUnwindSafe(|| receiver.go_on(nodes, helper))).is_err() {
                failed.push(format!("receiver at {:?}", receiver.point()));
            }
        }
        self
    }

    /// Everything that was acknowledged arrived, once, in order, under the ids it should have.
    #[track_caller]
    fn judge(self) {
        let name = self.name;
        let mut record = self.observer.stop_when(|so_far| {
            let arrived = so_far.subscribers[0].labels();
            let mut sent = self.senders.iter().map(|sender| &sender.record);
            let all = |record: &PublisherRecord| {
                let mut messages = record.messages.iter();
                messages.all(|sent| sent.accepted.is_none() || arrived.contains(&sent.label))
            };
            all(&self.helper.record) && sent.all(all)
        });
        let publishers = self.senders.into_iter().map(|sender| sender.record);
        record.publishers = publishers.chain([self.helper.record]).collect();
        let receivers = self.receivers.into_iter().map(|receiver| receiver.record);
        record.subscribers.extend(receivers);
        assert!(self.failed.is_empty(), "{name}: {:#?}", self.failed);
        trial::judge(&observed(&name), &record);
    }
}

fn observed(name: &str) -> Shape {
    Shape {
        publishers: 0,
        subscribers: vec![SubscriberShape::new(format!("{name}-observer"))],
        ..Shape::new(name, 0)
    }
}
