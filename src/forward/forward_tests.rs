//! The sending and the receiving side of the streams between nodes, together.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::base::ids::ConnectionId;
use crate::codec::{QoS, Version};
use crate::forward::outbox::{Outbox, Remote};
use crate::forward::wire::{Forwarded, Message};
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Item, Mailbox, RequestId};

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
    /// The subscriber reads.
    Read(usize),
    /// The other node's life ends, and another begins.
    End,
    /// This node begins another life.
    Renew,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1usize..20).prop_map(Step::Publish),
        6 => Just(Step::Request),
        6 => Just(Step::Answer),
        1 => Just(Step::Break),
        4 => (1usize..200).prop_map(Step::Read),
        1 => Just(Step::End),
        1 => Just(Step::Renew),
    ]
}

/// What the publisher was told of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Held,
    /// It may acknowledge.
    Through,
}

struct Nodes {
    remote: Remote,
    outbox: Arc<Outbox>,
    publisher: Arc<Mailbox>,
    told: HashMap<RequestId, Told>,
    published: RequestId,
    incarnation: u64,
    received: Received,
    incoming: Incoming,
    subscriber: Arc<Mailbox>,
    /// Tickets in the order in which they came to the subscriber.
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

impl Nodes {
    fn new() -> Nodes {
        let remote = Remote::default();
        let received = Received::default();
        let mut nodes = Nodes {
            outbox: remote.outbox(OTHER),
            remote,
            publisher: mailbox(),
            told: HashMap::new(),
            published: 0,
            incarnation: 1,
            incoming: Incoming::new(received.peer(NodeId(1))),
            received,
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
        self.sent = 0;
        self.incoming = Incoming::new(self.received.peer(NodeId(1)));
        let hello = DeliverRequest {
            incarnation: self.incarnation,
            ..DeliverRequest::default()
        };
        self.take(&hello);
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
        let publisher = Some((&self.publisher, self.published));
        assert!(self.remote.send(OTHER, &message.into(), publisher));
        self.told.insert(self.published, Told::Nothing);
    }

    fn request(&mut self) {
        let Some(batch) = self
            .outbox
            .next_after(self.sent, Incarnation(self.incarnation))
        else {
            return;
        };
        self.sent = batch.sequence;
        let request = DeliverRequest {
            node: 1,
            incarnation: batch.incarnation.0,
            sequence: batch.sequence,
            messages: batch.messages,
            applied: batch.applied,
        };
        self.take(&request);
    }

    fn take(&mut self, request: &DeliverRequest) {
        let (subscriber, arrived) = (&self.subscriber, &mut self.arrived);
        let deliver = |hold: &mut DeferAcks<'_>, wake: &mut WakeList| {
            let mut messages = &request.messages[..];
            let mut place = 0;
            while !messages.is_empty() {
                let message = Forwarded::decode(&mut messages)?.message;
                let request_id = RequestId::from_be_bytes(message.payload.try_into().ok()?);
                arrived.push(request_id);
                let put = subscriber.push_packet(QoS::AtLeastOnce, None, |out| {
                    out.resize(out.len() + SIZE, 0);
                    Ok(Some(0))
                });
                if let Some(end) = put.ok().and_then(|put| put.behind) {
                    hold(place, vec![(subscriber.clone(), end)], wake);
                }
                place += 1;
            }
            Some(())
        };
        assert_eq!(self.incoming.handle(request, deliver), Some(()));
        let answer = self.incoming.answer(0);
        self.answers.push(answer);
    }

    fn answer(&mut self) {
        if self.answers.is_empty() {
            if !self.incoming.has_news() {
                return;
            }
            let answer = self.incoming.answer(0);
            self.answers.push(answer);
        }
        let answer = self.answers.remove(0);
        self.outbox.answered(&answer);
        self.look();
    }

    /// What the publisher was told; each may be told only what follows from what it was told before.
    fn look(&mut self) {
        let mut contents = Contents::default();
        self.publisher.take(&mut contents);
        for item in contents.items {
            let (request_id, before, after) = match item {
                Item::ForwardConfirmed(request_id) => (request_id, Told::Nothing, Told::Through),
                Item::AckDeferred(request_id) => (request_id, Told::Nothing, Told::Held),
                Item::AckReleased(request_id) => (request_id, Told::Held, Told::Through),
                other => panic!("unexpected {other:?}"),
            };
            let told = self.told.insert(request_id, after);
            assert_eq!(
                told,
                Some(before),
                "request_id {request_id} before {after:?}"
            );
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
            Step::Read(bytes) => self.read(bytes),
            Step::End => {
                self.remote.node_ended(OTHER);
                self.look();
                self.subscriber.close(&mut WakeList::default());
                self.subscriber = mailbox();
                self.received = Received::default();
                self.connect();
            }
            Step::Renew => {
                // Its connections end with its life.
                self.publisher.close(&mut WakeList::default());
                self.publisher = mailbox();
                self.told.clear();
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
            self.read(1000);
        }
        let waits: Vec<_> = self
            .told
            .iter()
            .filter(|(_, told)| **told != Told::Through)
            .collect();
        assert!(waits.is_empty(), "{waits:?} wait for ever");
    }
}

proptest! {
    /// Streams break, lives end, subscribers are slow: every publisher is told once that its message is through, and no
    /// message comes twice.
    #[test]
    fn every_message_is_acknowledged_once(steps in prop::collection::vec(step(), 1..150)) {
        let mut nodes = Nodes::new();
        for step in steps {
            nodes.step(step);
            let through = nodes.told.iter().filter(|(_, told)| **told == Told::Held);
            for (request_id, _) in through {
                prop_assert!(nodes.arrived.contains(request_id), "{} is held and was never there", request_id);
            }
        }
        nodes.finish();
        let mut arrived = nodes.arrived.clone();
        prop_assert!(arrived.is_sorted(), "the order was not kept");
        arrived.dedup();
        prop_assert_eq!(arrived.len(), nodes.arrived.len(), "something came twice");
    }
}

#[test]
fn a_burst_of_a_life_that_is_over_does_not_silence_the_stream() {
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
fn a_held_message_does_not_hold_up_others() {
    let mut nodes = Nodes::new();
    for _ in 0..15 {
        nodes.publish();
    }
    nodes.request();
    nodes.answer();
    nodes.answer();
    let held = |nodes: &Nodes| {
        let mut held: Vec<RequestId> = nodes
            .told
            .iter()
            .filter(|(_, told)| **told == Told::Held)
            .map(|(request_id, _)| *request_id)
            .collect();
        held.sort_unstable();
        held
    };
    // Half of twenty are below the mark.
    assert_eq!(held(&nodes), [11, 12, 13, 14, 15]);
    let through = nodes.told.values().filter(|told| **told == Told::Through);
    assert_eq!(through.count(), 10);
    nodes.read(2 * SIZE);
    nodes.answer();
    assert_eq!(held(&nodes), [13, 14, 15]);
    // A release that is lost with its stream is found out on the next one.
    nodes.read(SIZE);
    assert_eq!(nodes.incoming.answer(0).released.len(), 1);
    nodes.connect();
    nodes.answer();
    assert_eq!(held(&nodes), [14, 15]);
    nodes.remote.node_ended(OTHER);
    nodes.look();
    assert_eq!(held(&nodes), [0; 0]);
}
