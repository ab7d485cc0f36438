//! The node of a client dies between any two packets of its QoS 1 and QoS 2 flows, in either direction, alone or
//! together with the leader; the client goes on at another node: P1, P3, P4; D1 to D7, S1.
//!
//! Each kill hits one client at every point at once; each client has a topic of its own, and its number is its point's.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, PATIENCE};
use cluster_tests::delivery::hopper::Hopper;
use cluster_tests::delivery::label::Label;
use cluster_tests::delivery::load::{Load, Shape};
use cluster_tests::delivery::record::{
    Arrival, Event, Interest, PublisherRecord, Sent, SubscriberRecord, SubscriberShape,
};
use cluster_tests::delivery::trial::{self, RECOVERY};
use cluster_tests::wire::{self, Ack, Connect, Message, Packet, V5};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Under which a publisher sends everything, so that an id that is not freed shows.
const PACKET_ID: u16 = 77;

/// How far a publisher's flow is when its node dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// PUBLISH on its way.
    Published,
    /// PUBACK or PUBREC there, and not read.
    Committed,
    /// PUBACK or PUBREC read.
    Answered,
    /// PUBREC read; the client forgets that and begins again.
    AnsweredAndForgotten,
    /// PUBREL on its way.
    Released,
    /// PUBCOMP there, and not read.
    Completed,
    /// PUBCOMP read.
    Finished,
}

const SENDING: [(u8, Sending); 10] = [
    (1, Sending::Published),
    (1, Sending::Committed),
    (1, Sending::Answered),
    (2, Sending::Published),
    (2, Sending::Committed),
    (2, Sending::Answered),
    (2, Sending::AnsweredAndForgotten),
    (2, Sending::Released),
    (2, Sending::Completed),
    (2, Sending::Finished),
];

/// How far a subscriber's flow is when its node dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    /// Not connected when the message comes.
    Away,
    /// PUBLISH there, and not read.
    Queued,
    /// PUBLISH read.
    Published,
    /// PUBACK or PUBREC on its way.
    Answered,
    /// PUBREL there, and not read.
    Released,
    /// PUBREL read.
    ReleaseRead,
    /// PUBCOMP on its way.
    Completed,
}

const RECEIVING: [(u8, Receiving); 11] = [
    (1, Receiving::Away),
    (1, Receiving::Queued),
    (1, Receiving::Published),
    (1, Receiving::Answered),
    (2, Receiving::Away),
    (2, Receiving::Queued),
    (2, Receiving::Published),
    (2, Receiving::Answered),
    (2, Receiving::Released),
    (2, Receiving::ReleaseRead),
    (2, Receiving::Completed),
];

/// Which node dies beside the clients' own.
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
        // What publishers send is recorded by one that hears everything and is nowhere near.
        let observer = Load::start(&nodes, &observed(name));
        let mut helper = Helper::new(name, nodes[0]);
        let mut senders: Vec<Sender> = (0..SENDING.len())
            .map(|point| Sender::new(name, point, home))
            .collect();
        let mut receivers: Vec<Receiver> = (0..RECEIVING.len())
            .map(|point| Receiver::new(name, SENDING.len() + point, home))
            .collect();
        for sender in &mut senders {
            sender.approach();
        }
        for receiver in &mut receivers {
            receiver.approach(&mut helper);
        }
        // What is on its way is sent at the very last.
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

    /// All clients end their flows at other nodes; a failure of one does not keep the others from being looked at.
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

/// Connects a durable client again, to whichever node serves; its session must be there (S1).
#[track_caller]
fn resume(client_id: &str, nodes: &[SocketAddr]) -> Connection {
    let connect = Connect::v5(client_id).durable(600);
    let deadline = Instant::now() + RECOVERY;
    let never = AtomicBool::new(false);
    let (connection, connack) = Hopper::new(nodes, 0)
        .connect(&connect, &never)
        .expect("it is not told to stop");
    assert!(Instant::now() < deadline, "{client_id}: no node serves");
    assert!(connack.session_present, "S1: {client_id} at {nodes:?}");
    connection
}

#[track_caller]
fn open(client_id: &str, node: SocketAddr) -> Connection {
    let (connection, connack) = Connection::connect(node, &Connect::v5(client_id).durable(600));
    assert!(!connack.session_present, "S2: {client_id}");
    connection
}

/// A publisher with one message half sent.
struct Sender {
    point: usize,
    prefix: String,
    client_id: String,
    connection: Connection,
    record: PublisherRecord,
}

impl Sender {
    fn new(prefix: &str, point: usize, node: SocketAddr) -> Self {
        let client_id = format!("{prefix}-sender-{point}");
        Self {
            point,
            prefix: prefix.to_owned(),
            connection: open(&client_id, node),
            record: PublisherRecord {
                client_id: client_id.clone(),
                ..PublisherRecord::default()
            },
            client_id,
        }
    }

    fn qos(&self) -> u8 {
        SENDING[self.point].0
    }

    fn stage(&self) -> Sending {
        SENDING[self.point].1
    }

    fn label(&self, sequence: u32) -> Label {
        Label {
            publisher: self.point,
            topic: self.point,
            qos: self.qos(),
            sequence,
        }
    }

    /// Sends message `sequence`, for the first time or again.
    fn publish(&mut self, sequence: u32, duplicate: bool) {
        let label = self.label(sequence);
        let index = sequence as usize;
        if self.record.messages.len() == index {
            self.record.messages.push(Sent {
                label,
                sent: 0,
                attempts: 0,
                accepted: None,
                refused: None,
            });
        }
        self.record.messages[index].attempts += 1;
        let topic = format!("{}/t{}", self.prefix, self.point);
        let mut message = Message::new(&topic, label.payload()).qos(label.qos, PACKET_ID);
        message.duplicate = duplicate;
        self.connection.send(&message.bytes(V5));
    }

    /// PUBACK or PUBREC.
    #[track_caller]
    fn answered(&mut self, sequence: u32) {
        let ack = match (self.qos(), self.connection.expect()) {
            (1, Packet::Puback(ack)) | (2, Packet::Pubrec(ack)) => ack,
            (_, other) => panic!("{}: instead of PUBACK or PUBREC: {other:?}", self.client_id),
        };
        self.check(&ack);
        self.record.messages[sequence as usize].accepted = Some(0);
    }

    #[track_caller]
    fn check(&self, ack: &Ack) {
        let who = (&self.client_id, self.stage());
        assert_eq!(ack.packet_id, PACKET_ID, "{who:?}: {ack:?}");
        assert!(ack.code < 0x80, "{who:?}: {ack:?}");
    }

    fn release(&mut self) {
        self.connection
            .send(&wire::acknowledgement(wire::PUBREL, PACKET_ID));
    }

    /// PUBCOMP; `again`: with reason 0x92 when the first one was sent.
    #[track_caller]
    fn completed(&mut self, again: bool) {
        match self.connection.expect() {
            Packet::Pubcomp(ack) if ack.code == 0x92 && again => {}
            Packet::Pubcomp(ack) => self.check(&ack),
            other => panic!("{}: instead of PUBCOMP: {other:?}", self.client_id),
        }
    }

    fn approach(&mut self) {
        use Sending::{
            Answered, AnsweredAndForgotten, Committed, Completed, Finished, Published, Released,
        };
        match self.stage() {
            Published => {}
            Committed => {
                self.publish(0, false);
                self.connection.wait_for_bytes();
            }
            Answered | AnsweredAndForgotten | Released => {
                self.publish(0, false);
                self.answered(0);
            }
            Completed => {
                self.publish(0, false);
                self.answered(0);
                self.release();
                self.connection.wait_for_bytes();
            }
            Finished => {
                self.publish(0, false);
                self.answered(0);
                self.release();
                self.completed(false);
            }
        }
    }

    fn last_packet(&mut self) {
        match self.stage() {
            Sending::Published => self.publish(0, false),
            Sending::Released => self.release(),
            _ => {}
        }
    }

    /// Ends the flow on another node; then the id must be free for another message.
    #[track_caller]
    fn go_on(&mut self, nodes: &[SocketAddr]) {
        self.connection = resume(&self.client_id, nodes);
        let is_qos_2 = self.qos() == 2;
        match self.stage() {
            Sending::Published | Sending::Committed | Sending::AnsweredAndForgotten => {
                self.publish(0, true);
                self.answered(0);
                if is_qos_2 {
                    self.release();
                    self.completed(false);
                }
            }
            Sending::Answered if is_qos_2 => {
                self.release();
                self.completed(false);
            }
            Sending::Released | Sending::Completed => {
                self.release();
                self.completed(true);
            }
            Sending::Answered | Sending::Finished => {}
        }
        self.publish(1, false);
        self.answered(1);
        if is_qos_2 {
            self.release();
            self.completed(false);
        }
        self.connection.expect_nothing();
    }
}

/// Publishes to the receivers, whole flows, from a node that lives or is back.
struct Helper {
    prefix: String,
    connection: Connection,
    record: PublisherRecord,
}

/// Number of the helper in labels.
const HELPER: usize = 99;

impl Helper {
    fn new(prefix: &str, node: SocketAddr) -> Self {
        let client_id = format!("{prefix}-helper");
        Self {
            prefix: prefix.to_owned(),
            connection: open(&client_id, node),
            record: PublisherRecord {
                client_id,
                ..PublisherRecord::default()
            },
        }
    }

    #[track_caller]
    fn again(self, nodes: &[SocketAddr]) -> Self {
        Self {
            connection: resume(&self.record.client_id, nodes),
            ..self
        }
    }

    /// Message `sequence` for that topic, acknowledged.
    #[track_caller]
    fn publish(&mut self, topic: usize, qos: u8, sequence: u32) {
        let label = Label {
            publisher: HELPER,
            topic,
            qos,
            sequence,
        };
        let packet_id = self.connection.packet_id();
        let name = format!("{}/t{topic}", self.prefix);
        let message = Message::new(&name, label.payload()).qos(qos, packet_id);
        self.connection.send(&message.bytes(V5));
        match (qos, self.connection.expect()) {
            (1, Packet::Puback(ack)) if ack.code < 0x80 => {}
            (2, Packet::Pubrec(ack)) if ack.code < 0x80 => {
                self.connection
                    .send(&wire::acknowledgement(wire::PUBREL, packet_id));
                let last = self.connection.expect();
                assert!(matches!(last, Packet::Pubcomp(_)), "{last:?}");
            }
            (_, other) => panic!("{label} was answered {other:?}"),
        }
        self.record.messages.push(Sent {
            label,
            sent: 0,
            attempts: 1,
            accepted: Some(0),
            refused: None,
        });
    }
}

/// A subscriber with one message half received.
struct Receiver {
    number: usize,
    prefix: String,
    connection: Option<Connection>,
    record: SubscriberRecord,
    /// Packet ids of QoS 2 flows that have not ended.
    open: BTreeSet<u16>,
    began: Instant,
}

impl Receiver {
    #[track_caller]
    fn new(prefix: &str, number: usize, node: SocketAddr) -> Self {
        let client_id = format!("{prefix}-receiver-{number}");
        let mut connection = open(&client_id, node);
        connection.subscribe(&[(&format!("{prefix}/t{number}"), 2)]);
        let mut receiver = Self {
            number,
            prefix: prefix.to_owned(),
            connection: Some(connection),
            record: SubscriberRecord {
                shape: SubscriberShape {
                    interest: Interest::Topic(number),
                    receive_maximum: u16::MAX,
                    ..SubscriberShape::new(client_id)
                },
                identifier: None,
                first_uncertain: false,
                events: Vec::new(),
            },
            open: BTreeSet::new(),
            began: Instant::now(),
        };
        receiver.log(Event::Connected { present: false });
        receiver
    }

    fn point(&self) -> (u8, Receiving) {
        RECEIVING[self.number - SENDING.len()]
    }

    fn log(&mut self, event: Event) {
        let at = u64::try_from(self.began.elapsed().as_millis()).expect("a test is short");
        self.record.events.push((at, event));
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is connected")
    }

    /// The next packet, written down, and the answer that it asks for; a PINGRESP asks for none.
    #[track_caller]
    fn next(&mut self) -> Option<(u8, u16)> {
        let who = self.record.shape.client_id.clone();
        match self.connection().receive(PATIENCE) {
            Ok(Packet::Publish(publish)) => {
                let (qos, packet_id) = (publish.qos, publish.packet_id);
                let inside = publish.topic.strip_prefix(&format!("{}/", self.prefix));
                let arrival = Arrival {
                    packet_id,
                    duplicate: publish.duplicate,
                    qos,
                    retain: publish.retain,
                    topic: inside.unwrap_or(&publish.topic).to_owned(),
                    label: Label::parse(&publish.payload),
                    identifiers: publish.properties.subscription_identifiers(),
                };
                self.log(Event::Publish(arrival));
                if qos == 1 {
                    return Some((wire::PUBACK, packet_id));
                }
                self.open.insert(packet_id);
                Some((wire::PUBREC, packet_id))
            }
            Ok(Packet::Pubrel(ack)) => {
                let packet_id = ack.packet_id;
                self.log(Event::Pubrel { packet_id });
                Some((wire::PUBCOMP, packet_id))
            }
            Ok(Packet::Pingresp) => None,
            other => panic!("{who}, {:?}: {other:?}", self.point()),
        }
    }

    #[track_caller]
    fn read(&mut self) -> (u8, u16) {
        self.next().expect("no ping was sent")
    }

    #[track_caller]
    fn answer(&mut self, (header, packet_id): (u8, u16)) {
        self.log(match header {
            wire::PUBACK => Event::SentPuback { packet_id },
            wire::PUBREC => Event::SentPubrec { packet_id },
            _ => Event::SentPubcomp { packet_id },
        });
        if header == wire::PUBCOMP {
            self.open.remove(&packet_id);
        }
        self.connection()
            .send(&wire::acknowledgement(header, packet_id));
    }

    #[track_caller]
    fn approach(&mut self, helper: &mut Helper) {
        let (qos, stage) = self.point();
        if stage == Receiving::Away {
            self.connection = None;
            self.log(Event::Cut);
        }
        helper.publish(self.number, qos, 0);
        match stage {
            Receiving::Away => {}
            Receiving::Queued => self.connection().wait_for_bytes(),
            Receiving::Published | Receiving::Answered => {
                self.read();
            }
            Receiving::Released => {
                let answer = self.read();
                self.answer(answer);
                self.connection().wait_for_bytes();
            }
            Receiving::ReleaseRead | Receiving::Completed => {
                let answer = self.read();
                self.answer(answer);
                self.read();
            }
        }
    }

    /// The answer to what was read last, on its way when the node dies.
    #[track_caller]
    fn last_packet(&mut self) {
        let (qos, stage) = self.point();
        let header = match (stage, qos) {
            (Receiving::Answered, 1) => wire::PUBACK,
            (Receiving::Answered, _) => wire::PUBREC,
            (Receiving::Completed, _) => wire::PUBCOMP,
            _ => return,
        };
        let packet_id = self
            .record
            .events
            .iter()
            .rev()
            .find_map(|(_, event)| match event {
                Event::Publish(arrival) => Some(arrival.packet_id),
                _ => None,
            });
        self.answer((header, packet_id.expect("a message was read")));
    }

    /// Ends the flow on another node, until a second message has come through.
    #[track_caller]
    fn go_on(&mut self, nodes: &[SocketAddr], helper: &mut Helper) {
        if self.connection.take().is_some() {
            self.log(Event::Cut);
        }
        self.connection = Some(resume(&self.record.shape.client_id, nodes));
        self.log(Event::Connected { present: true });
        let (qos, _) = self.point();
        helper.publish(self.number, qos, 1);
        let has_last = |record: &SubscriberRecord| {
            let mut labels = record.labels().into_iter();
            labels.any(|label| label.sequence == 1)
        };
        while !has_last(&self.record) {
            let answer = self.read();
            self.answer(answer);
        }
        // Until every flow has ended and nothing follows.
        let deadline = Instant::now() + PATIENCE;
        let mut answered = true;
        while answered || !self.open.is_empty() {
            let open = &self.open;
            assert!(Instant::now() < deadline, "no PUBREL comes for {open:?}");
            answered = false;
            self.connection().send(&wire::PINGREQ);
            while let Some(answer) = self.next() {
                self.answer(answer);
                answered = true;
            }
        }
    }
}
