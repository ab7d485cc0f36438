//! The message expiry of messages that wait on their way to another node `[MQTT-3.3.2-5]` `[MQTT-3.3.2-6]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::{Batch, InboundStream, Inboxes};
use super::outbox::{Outbox, Outboxes};
use super::wire::Forwarded;
use crate::base::ids::{ConnectionId, Incarnation, NodeId};
use crate::base::limits;
use crate::base::proto::cluster::DeliverRequest;
use crate::codec::{QoS, Version};
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Item, Mailbox, NewPacket, RequestId, WakeList};
use crate::router::{Message, Origin, PeerNodes, Recipients, Throttled};
use crate::telemetry::labels::DropReason;
use crate::telemetry::metrics::Metrics;

const HERE: NodeId = NodeId(1);
const THERE: NodeId = NodeId(2);
const INCARNATION: Incarnation = Incarnation(1);

/// What arrives: the payload, and what is left of the interval.
type Arrived = Vec<(RequestId, Option<u32>)>;

/// The outbox of one node and the inbox of the other, which has a subscriber.
struct Nodes {
    outboxes: Outboxes,
    outbox: Arc<Outbox>,
    publisher: Arc<Mailbox>,
    metrics: Arc<Metrics>,
    inboxes: Inboxes,
    stream: InboundStream,
    subscriber: Arc<Mailbox>,
    arrived: Arrived,
}

fn mailbox(limit: usize) -> Arc<Mailbox> {
    let limits = OutboxLimits::of(limit);
    Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A message arrives. Two of ten bytes each are above the subscriber's high-water mark.
fn arrive(
    subscriber: &Arc<Mailbox>,
    arrived: &mut Arrived,
    forwarded: &Forwarded<'_>,
) -> Throttled {
    let id = forwarded.message.payload.try_into();
    let id = RequestId::from_be_bytes(id.expect("it holds a request id"));
    arrived.push((id, forwarded.message.expiry));
    let put = subscriber.push_packet(NewPacket::of(QoS::AtLeastOnce), |out| {
        out.resize(out.len() + 10, 0);
        Ok(())
    });
    let throttled = put.expect("it fits").throttled;
    let throttled = throttled.map(|end| (subscriber.clone(), end));
    throttled.into_iter().collect()
}

impl Nodes {
    fn new() -> Nodes {
        let (outboxes, metrics) = (Outboxes::default(), Arc::<Metrics>::default());
        let inboxes = Inboxes::new(metrics.clone());
        Nodes {
            outbox: outboxes.outbox(THERE),
            outboxes,
            publisher: mailbox(1_000),
            metrics,
            stream: InboundStream::new(inboxes.inbox(HERE)),
            inboxes,
            subscriber: mailbox(20),
            arrived: Arrived::new(),
        }
    }

    fn publish(&self, id: RequestId, qos: QoS, expiry: Option<u32>) {
        let message = Message {
            publisher: None,
            qos,
            retain: false,
            topic: "t",
            properties: &[],
            expiry,
            direct: false,
            payload: &id.to_be_bytes(),
        };
        let waits = (qos != QoS::AtMostOnce).then_some((&self.publisher, id));
        let origin = Origin {
            confirm_to: waits,
            ..Origin::default()
        };
        let recipients = Recipients::default();
        let taken = self.outboxes.forward(THERE, &message, recipients, origin);
        assert!(taken.is_some());
    }

    /// The next request, when none that went out before has arrived.
    fn request(&self) -> DeliverRequest {
        let batch = self.outbox.next_after(0, INCARNATION);
        batch.expect("something waits").into_request(HERE)
    }

    /// The other node handles a portion of a request that has come at `at`: about so many messages. Tells whether it
    /// was the last one.
    fn take(&mut self, request: &DeliverRequest, at: Instant, messages: usize) -> bool {
        let (subscriber, arrived) = (&self.subscriber, &mut self.arrived);
        let handled = self.stream.handle(request, at, |forwarded, _| {
            let throttled = arrive(subscriber, arrived, forwarded);
            (throttled, limits::TURN_WORK.div_ceil(messages))
        });
        let is_whole = handled.expect("well-formed");
        self.outbox.handle_answer(&self.stream.answer(0));
        is_whole
    }

    fn carry_over(&mut self) {
        let request = self.request();
        assert!(self.take(&request, Instant::now(), 1_000));
    }

    fn expired(&self) -> u64 {
        self.metrics.messages_dropped.of(DropReason::Expired).get()
    }

    /// What the publisher was told since the last time: of which messages that they are done, and of which that their
    /// acknowledgements are deferred.
    fn told(&self) -> (Vec<RequestId>, Vec<RequestId>) {
        let mut contents = Contents::default();
        self.publisher.take(&mut contents);
        let (mut confirmed, mut deferred) = (Vec::new(), Vec::new());
        for item in contents.items {
            match item {
                Item::ForwardConfirmed(id) => confirmed.push(id),
                Item::AckDeferred(id) => deferred.push(id),
                other => panic!("unexpected {other:?}"),
            }
        }
        (confirmed, deferred)
    }
}

#[test]
fn mqtt_3_3_2_6_the_time_in_an_outbox_counts() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtLeastOnce, Some(10));
    nodes.publish(2, QoS::AtMostOnce, None);
    nodes.outbox.age(seconds(3));
    nodes.publish(3, QoS::AtMostOnce, Some(10));
    nodes.outbox.age(seconds(2));
    nodes.publish(4, QoS::AtLeastOnce, Some(10));
    nodes.carry_over();
    let found = [(1, Some(5)), (2, None), (3, Some(8)), (4, Some(10))];
    assert_eq!(nodes.arrived, found);
    assert_eq!(nodes.expired(), 0);
}

/// When a message was put in counts like the message, until it is sent.
#[test]
fn what_is_remembered_of_messages_that_expire_counts() {
    let nodes = Nodes::new();
    let added = |expiry| {
        let before = nodes.outboxes.depth_bytes();
        nodes.publish(1, QoS::AtMostOnce, expiry);
        nodes.outboxes.depth_bytes() - before
    };
    let interval = size_of::<u32>();
    assert_eq!(
        added(Some(9)),
        added(None) + interval + size_of::<Instant>()
    );
    // Also of batches that are complete.
    let each = added(Some(9));
    let before = nodes.outboxes.depth_bytes();
    let many = 2 * limits::MESSAGE_BATCH_BYTES / (each - size_of::<Instant>());
    for _ in 0..many {
        nodes.publish(1, QoS::AtMostOnce, Some(9));
    }
    assert_eq!(nodes.outboxes.depth_bytes(), before + many * each);
    let mut sent = 0;
    while let Some(batch) = nodes.outbox.next_after(sent, INCARNATION) {
        sent = batch.sequence;
    }
    assert!(sent > 2, "{sent}");
    assert_eq!(nodes.outboxes.depth_bytes(), 0);
}

#[test]
fn mqtt_3_3_2_6_the_time_until_a_batch_is_sent_again_counts() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtLeastOnce, Some(10));
    nodes.outbox.age(seconds(1));
    assert_eq!(nodes.request().waited_ms.len(), 1, "the stream breaks");
    nodes.outbox.age(seconds(3));
    nodes.carry_over();
    assert_eq!(nodes.arrived, [(1, Some(6))]);
}

/// The batch waits there for what its publisher's earlier messages are in.
#[test]
fn mqtt_3_3_2_6_the_time_on_the_other_node_counts() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtLeastOnce, Some(10));
    nodes.publish(2, QoS::AtLeastOnce, Some(5));
    nodes.outbox.age(seconds(2));
    let request = nodes.request();
    let arrived = Instant::now().checked_sub(seconds(3));
    assert!(nodes.take(&request, arrived.expect("it is later"), 1_000));
    assert_eq!(nodes.arrived, [(1, Some(5))]);
    assert_eq!(nodes.expired(), 1);
}

/// It is done, and nobody takes another message for it.
#[test]
fn mqtt_3_3_2_5_what_expires_on_its_way_is_counted_and_confirmed() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtLeastOnce, None);
    nodes.publish(2, QoS::AtLeastOnce, Some(3));
    nodes.publish(3, QoS::AtMostOnce, Some(4));
    nodes.publish(4, QoS::ExactlyOnce, Some(9));
    nodes.outbox.age(seconds(4));
    nodes.carry_over();
    assert_eq!(nodes.arrived, [(1, None), (4, Some(5))]);
    assert_eq!(nodes.expired(), 2);
    // The fourth is above the subscriber's high-water mark.
    assert_eq!(nodes.told(), (vec![1, 2], vec![4]));
}

#[test]
fn mqtt_3_3_2_5_a_batch_of_which_everything_expires_is_confirmed() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtLeastOnce, Some(1));
    nodes.outbox.age(seconds(1));
    nodes.carry_over();
    assert_eq!((nodes.arrived.len(), nodes.expired()), (0, 1));
    assert_eq!(nodes.told(), (vec![1], vec![]));
}

/// As on one node: what is published with an interval of 0 reaches who is connected, and does not wait.
#[test]
fn mqtt_3_3_2_5_an_interval_of_0_arrives_when_it_does_not_wait() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtMostOnce, Some(0));
    nodes.carry_over();
    assert_eq!(nodes.arrived, [(1, Some(0))]);
    nodes.publish(2, QoS::AtMostOnce, Some(0));
    nodes.outbox.age(seconds(1));
    nodes.carry_over();
    assert_eq!((nodes.arrived.len(), nodes.expired()), (1, 1));
}

/// Messages of a portion are not taken for those of another, also when the batch is sent again meanwhile.
#[test]
fn what_is_left_is_known_of_each_portion() {
    let mut nodes = Nodes::new();
    for id in 1..=6 {
        let expiry = (id % 3 != 0).then_some(10 * id);
        nodes.publish(id, QoS::AtMostOnce, expiry);
        nodes.outbox.age(seconds(2));
    }
    let request = nodes.request();
    assert!(!nodes.take(&request, Instant::now(), 2));
    assert!(!nodes.take(&request, Instant::now(), 1));
    assert_eq!(nodes.arrived, [(2, Some(10)), (3, None), (4, Some(34))]);
    nodes.outbox.age(seconds(1));
    nodes.stream = InboundStream::new(nodes.inboxes.inbox(HERE));
    nodes.carry_over();
    assert_eq!(nodes.arrived[3..], [(5, Some(45)), (6, None)]);
    assert_eq!(nodes.expired(), 1);
}

/// Also behind the messages of the batch that were there before.
#[test]
fn what_goes_through_the_log_has_waited_too() {
    for has_begun in [false, true] {
        let mut nodes = Nodes::new();
        nodes.publish(1, QoS::AtMostOnce, Some(9));
        nodes.publish(2, QoS::AtLeastOnce, Some(9));
        nodes.publish(3, QoS::AtLeastOnce, Some(3));
        nodes.publish(4, QoS::AtLeastOnce, None);
        nodes.publish(5, QoS::AtLeastOnce, Some(9));
        if has_begun {
            let request = nodes.request();
            assert!(!nodes.take(&request, Instant::now(), 2));
            assert_eq!(nodes.arrived, [(1, Some(9)), (2, Some(9))]);
            nodes.arrived.clear();
        }
        nodes.outbox.age(seconds(4));
        nodes.outbox.set_silent();
        let relay = nodes.outbox.begin_relay(THERE, INCARNATION);
        let relay = relay.expect("the other node is silent");
        assert_eq!(relay.left_out, 1);
        let inbox = nodes.inboxes.inbox(HERE);
        for relayed in &relay.batches {
            let batch = Batch {
                incarnation: INCARNATION,
                sequence: relayed.sequence,
                messages: &relayed.messages,
                waited_ms: &[],
            };
            let (subscriber, arrived) = (&nodes.subscriber, &mut nodes.arrived);
            let delivered = inbox.deliver(batch, |forwarded, _: &mut WakeList| {
                arrive(subscriber, arrived, forwarded)
            });
            assert_eq!(delivered, Ok(()));
        }
        let found = [(2, Some(5)), (4, None), (5, Some(5))];
        assert_eq!(nodes.arrived, found[usize::from(has_begun)..]);
        assert_eq!(nodes.expired(), 1);
    }
}

/// Nodes of the former release neither say how long messages have waited nor know what it means.
#[test]
fn a_node_that_says_nothing_about_waiting_is_understood() {
    let mut nodes = Nodes::new();
    nodes.publish(1, QoS::AtLeastOnce, Some(10));
    nodes.publish(2, QoS::AtMostOnce, None);
    let mut request = nodes.request();
    nodes.outbox.age(seconds(4));
    assert_eq!(request.messages, nodes.request().messages, "as it was");
    request.waited_ms.clear();
    assert!(nodes.take(&request, Instant::now(), 1_000));
    assert_eq!(nodes.arrived, [(1, Some(10)), (2, None)]);
}
