//! The sending and the receiving side of a stream between two nodes, together.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::base::ids::{ConnectionId, LogIndex};
use crate::base::proto::command;
use crate::codec::{QoS, Version};
use crate::forward::outbox::{Outbox, Outboxes};
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Item, Mailbox, NewPacket, RequestId};
use crate::router::{Message, Origin, PeerNodes, Recipients};

const OTHER: NodeId = NodeId(2);
const SIZE: usize = 10;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Messages are published.
    Publish(usize),
    /// The stream carries a request.
    Request,
    /// The stream carries an answer, which may be one that only tells of released messages.
    Answer,
    /// The stream breaks: what is on it is lost.
    Break,
    /// A message of the publisher goes through the log, if P5 lets it.
    Log,
    /// The other node was silent for long enough.
    Relay,
    /// This node applies the log.
    Commit,
    /// The other node applies an entry of the log.
    Apply,
    /// The subscriber reads.
    Read(usize),
    /// The other node's incarnation ends, and another begins.
    End,
    /// This node begins another incarnation.
    Renew,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1usize..20).prop_map(Step::Publish),
        6 => Just(Step::Request),
        6 => Just(Step::Answer),
        1 => Just(Step::Break),
        2 => Just(Step::Log),
        2 => Just(Step::Relay),
        3 => Just(Step::Commit),
        4 => Just(Step::Apply),
        4 => (1usize..200).prop_map(Step::Read),
        1 => Just(Step::End),
        1 => Just(Step::Renew),
    ]
}

/// The acknowledgement of one message, as the publisher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ack {
    Pending,
    Deferred,
    /// The publisher may acknowledge.
    Due,
}

/// An entry of the log.
enum Logged {
    /// A message of the publisher.
    Message(RequestId),
    Relay(command::Relay),
}

struct Nodes {
    log: Vec<Logged>,
    /// How many entries the other node has applied.
    applied: usize,
    /// The last entry with a message of the publisher.
    logged_through: LogIndex,
    /// The last batch of a relay that this node has not applied.
    relaying: Option<u64>,
    /// Requests that have arrived at the other node and wait there.
    waiting: VecDeque<DeliverRequest>,
    outboxes: Outboxes,
    outbox: Arc<Outbox>,
    publisher: Arc<Mailbox>,
    acks: HashMap<RequestId, Ack>,
    published: RequestId,
    /// The last message of each publisher before the present one.
    former: Vec<RequestId>,
    incarnation: u64,
    inboxes: Inboxes,
    stream: InboundStream,
    subscriber: Arc<Mailbox>,
    /// Request ids in the order in which they came to the subscriber.
    arrived: Vec<RequestId>,
    sent: u64,
    answers: Vec<DeliverResponse>,
}

fn mailbox() -> Arc<Mailbox> {
    Mailbox::new(
        ConnectionId(1),
        Version::V5,
        u32::MAX,
        0,
        OutboxLimits::of(20 * SIZE),
    )
}

/// A message reaches the other node's subscriber.
fn arrive(subscriber: &Arc<Mailbox>, arrived: &mut Vec<RequestId>, payload: &[u8]) -> Throttled {
    let request_id = payload.try_into().expect("it holds a request id");
    arrived.push(RequestId::from_be_bytes(request_id));
    let put = subscriber.push_packet(NewPacket::of(QoS::AtLeastOnce), |out| {
        out.resize(out.len() + SIZE, 0);
        Ok(())
    });
    let throttled = put.ok().and_then(|put| put.throttled);
    throttled
        .map(|end| (subscriber.clone(), end))
        .into_iter()
        .collect()
}

impl Nodes {
    fn new() -> Nodes {
        let outboxes = Outboxes::default();
        let inboxes = Inboxes::default();
        let mut nodes = Nodes {
            log: Vec::new(),
            applied: 0,
            logged_through: LogIndex(0),
            relaying: None,
            waiting: VecDeque::new(),
            outbox: outboxes.outbox(OTHER),
            outboxes,
            publisher: mailbox(),
            acks: HashMap::new(),
            published: 0,
            former: Vec::new(),
            incarnation: 1,
            stream: InboundStream::new(inboxes.inbox(NodeId(1))),
            inboxes,
            subscriber: mailbox(),
            arrived: Vec::new(),
            sent: 0,
            answers: Vec::new(),
        };
        nodes.connect();
        nodes
    }

    /// Opens a stream.
    fn connect(&mut self) {
        self.answers.clear();
        self.waiting.clear();
        self.sent = 0;
        self.stream = InboundStream::new(self.inboxes.inbox(NodeId(1)));
        let hello = DeliverRequest {
            incarnation: self.incarnation,
            ..DeliverRequest::default()
        };
        self.take(hello);
    }

    fn publish(&mut self) {
        self.published += 1;
        let message = Message {
            publisher: None,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            properties: &[],
            expiry: None,
            direct: false,
            payload: &self.published.to_be_bytes(),
        };
        let origin = Origin {
            confirm_to: Some((&self.publisher, self.published)),
            after: self.logged_through,
        };
        let taken = self
            .outboxes
            .forward(OTHER, &message, Recipients::default(), origin);
        assert!(taken.is_some());
        self.acks.insert(self.published, Ack::Pending);
    }

    fn request(&mut self) {
        let Some(batch) = self
            .outbox
            .next_after(self.sent, Incarnation(self.incarnation))
        else {
            return;
        };
        self.sent = batch.sequence;
        self.take(batch.into_request(NodeId(1)));
    }

    /// The other node gets a request, and handles what it may.
    fn take(&mut self, request: DeliverRequest) {
        self.waiting.push_back(request);
        let applied = self.applied as u64;
        while let Some(request) = self
            .waiting
            .pop_front_if(|request| request.after <= applied)
        {
            let (subscriber, arrived) = (&self.subscriber, &mut self.arrived);
            // Each message is a portion.
            let mut deliver = |forwarded: &Forwarded<'_>, _: &mut WakeList| {
                let throttled = arrive(subscriber, arrived, forwarded.message.payload);
                (throttled, limits::TURN_WORK)
            };
            while !self
                .stream
                .handle(&request, Instant::now(), &mut deliver)
                .expect("well-formed")
            {}
            let answer = self.stream.answer(applied);
            self.answers.push(answer);
        }
    }

    /// Which publisher has sent a message; each has the incarnation of its node.
    fn publisher_of(&self, id: RequestId) -> usize {
        self.former.partition_point(|last| *last < id)
    }

    /// Publishes through the log, when no earlier message could be overtaken there.
    fn log(&mut self) {
        if self.acks.values().any(|ack| *ack == Ack::Pending) {
            return;
        }
        self.published += 1;
        self.log.push(Logged::Message(self.published));
        self.commit();
        self.logged_through = LogIndex(self.log.len() as u64);
    }

    fn relay(&mut self) {
        self.outbox.set_silent();
        let Some(relay) = self
            .outbox
            .begin_relay(OTHER, Incarnation(self.incarnation))
        else {
            return;
        };
        self.log
            .extend(relay.batches.into_iter().map(Logged::Relay));
        self.relaying = Some(relay.through);
    }

    fn commit(&mut self) {
        if let Some(through) = self.relaying.take() {
            let index = LogIndex(self.log.len() as u64);
            self.outbox.end_relay(through, Some(index));
            self.look();
        }
    }

    fn apply(&mut self) {
        let Some(entry) = self.log.get(self.applied) else {
            return;
        };
        let (subscriber, arrived) = (&self.subscriber, &mut self.arrived);
        match entry {
            Logged::Message(id) => {
                arrive(subscriber, arrived, &id.to_be_bytes());
            }
            Logged::Relay(relay) => {
                let batch = Batch {
                    incarnation: Incarnation(relay.incarnation),
                    sequence: relay.sequence,
                    messages: &relay.messages,
                    waited_ms: &[],
                };
                let inbox = self.inboxes.inbox(NodeId(1));
                let deliver = |forwarded: &Forwarded<'_>, _: &mut WakeList| {
                    arrive(subscriber, arrived, forwarded.message.payload)
                };
                assert_eq!(inbox.deliver(batch, deliver), Ok(()));
            }
        }
        self.applied += 1;
        if let Some(request) = self.waiting.pop_front() {
            self.take_again(request);
        }
    }

    fn take_again(&mut self, request: DeliverRequest) {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.take(request);
        while let Some(request) = waiting.pop_front() {
            self.take(request);
        }
    }

    fn answer(&mut self) {
        if self.answers.is_empty() {
            if !self.stream.has_news() {
                return;
            }
            let answer = self.stream.answer(0);
            self.answers.push(answer);
        }
        let answer = self.answers.remove(0);
        self.outbox.handle_answer(&answer);
        self.look();
    }

    /// Looks at what the publisher was told. It may be told of each message only what follows from what it was told
    /// before.
    fn look(&mut self) {
        let mut contents = Contents::default();
        self.publisher.take(&mut contents);
        for item in contents.items {
            let (request_id, before, after) = match item {
                Item::ForwardConfirmed(request_id) => (request_id, Ack::Pending, Ack::Due),
                Item::AckDeferred(request_id) => (request_id, Ack::Pending, Ack::Deferred),
                Item::AckReleased(request_id) => (request_id, Ack::Deferred, Ack::Due),
                other => panic!("unexpected {other:?}"),
            };
            let known = self.acks.insert(request_id, after);
            assert_eq!(known, Some(before), "request {request_id} before {after:?}");
        }
    }

    fn read(&mut self, bytes: usize) {
        self.subscriber.take(&mut Contents::default());
        let unsent = self.subscriber.unsent().saturating_sub(bytes);
        self.subscriber.progress(unsent, &mut WakeList::default());
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish(count) => (0..count).for_each(|_| self.publish()),
            Step::Request => self.request(),
            Step::Answer => self.answer(),
            Step::Break => self.connect(),
            Step::Log => self.log(),
            Step::Relay => self.relay(),
            Step::Commit => self.commit(),
            Step::Apply => self.apply(),
            Step::Read(bytes) => self.read(bytes),
            Step::End => {
                self.outboxes.node_ended(OTHER);
                self.look();
                self.subscriber.close(&mut WakeList::default());
                self.subscriber = mailbox();
                self.inboxes = Inboxes::default();
                // It serves clients again when it has applied what there was.
                self.applied = self.log.len();
                self.connect();
            }
            Step::Renew => {
                // Its connections end with its incarnation.
                self.publisher.close(&mut WakeList::default());
                self.publisher = mailbox();
                self.former.push(self.published);
                self.acks.clear();
                if let Some(through) = self.relaying.take() {
                    self.outbox.end_relay(through, None);
                }
                self.incarnation += 1;
                self.connect();
            }
        }
    }

    /// Goes on without faults until nothing is under way.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.request();
            self.answer();
            self.commit();
            self.apply();
            self.read(1000);
        }
        let waits: Vec<_> = self
            .acks
            .iter()
            .filter(|(_, ack)| **ack != Ack::Due)
            .collect();
        assert!(waits.is_empty(), "{waits:?} wait for ever");
    }
}

proptest! {
    /// Streams break, incarnations end, subscribers are slow: every message is acknowledged once, and none comes twice.
    #[test]
    fn every_message_is_acknowledged_once(steps in prop::collection::vec(step(), 1..150)) {
        let mut nodes = Nodes::new();
        for step in steps {
            nodes.step(step);
            let deferred = nodes.acks.iter().filter(|(_, ack)| **ack == Ack::Deferred);
            for (request_id, _) in deferred {
                prop_assert!(nodes.arrived.contains(request_id), "{} is deferred and was never there", request_id);
            }
        }
        nodes.finish();
        let mut arrived = nodes.arrived.clone();
        arrived.sort_by_key(|id| nodes.publisher_of(*id));
        prop_assert!(arrived.is_sorted(), "the order was not kept");
        arrived.dedup();
        prop_assert_eq!(arrived.len(), nodes.arrived.len(), "something came twice");
    }
}

#[test]
fn a_batch_of_an_incarnation_that_has_ended_does_not_silence_the_stream() {
    let mut nodes = Nodes::new();
    let steps = [
        Step::Publish(1),
        Step::Request,
        Step::Renew,
        Step::Request,
        Step::Publish(10),
        Step::Request,
        Step::Break,
    ];
    for step in steps {
        nodes.step(step);
    }
    nodes.finish();
}

#[test]
fn a_deferred_acknowledgement_does_not_delay_others() {
    let mut nodes = Nodes::new();
    for _ in 0..15 {
        nodes.publish();
    }
    nodes.request();
    nodes.answer();
    nodes.answer();
    let deferred = |nodes: &Nodes| {
        let mut deferred: Vec<RequestId> = nodes
            .acks
            .iter()
            .filter(|(_, ack)| **ack == Ack::Deferred)
            .map(|(request_id, _)| *request_id)
            .collect();
        deferred.sort_unstable();
        deferred
    };
    // Half of twenty are below the mark.
    assert_eq!(deferred(&nodes), [11, 12, 13, 14, 15]);
    let due = nodes.acks.values().filter(|ack| **ack == Ack::Due);
    assert_eq!(due.count(), 10);
    nodes.read(2 * SIZE);
    nodes.answer();
    assert_eq!(deferred(&nodes), [13, 14, 15]);
    // A release that is lost with its stream is found out on the next one.
    nodes.read(SIZE);
    assert_eq!(nodes.stream.answer(0).released.len(), 1);
    nodes.connect();
    nodes.answer();
    assert_eq!(deferred(&nodes), [14, 15]);
    nodes.outboxes.node_ended(OTHER);
    nodes.look();
    assert_eq!(deferred(&nodes), [0; 0]);
}

#[path = "relay_tests.rs"]
mod relay_tests;
