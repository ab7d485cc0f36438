//! What becomes of the acknowledgement when an answer does not reach its client.

use std::time::Duration;

use super::*;
use crate::acl::{Rights, Rules};
use crate::base::hlc::Hlc;
use crate::base::ids::{ConnectionId, Incarnation, LogIndex, Owner, SessionId};
use crate::base::proto::state::Subscription;
use crate::codec::{Packet, Version, decode, frame};
use crate::config::OutboxPolicy;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Contents, Mailbox, NewPacket, Refused, WakeList};

/// A client that has subscribed to its response topic, and its requests.
struct Asker {
    context: Context,
    requests: StoreRequests,
}

impl Asker {
    fn new(max_packet_size: u32, outbox: OutboxLimits) -> Asker {
        let mut context = Context::for_tests(false);
        context.mailbox = Mailbox::new(
            ConnectionId(1),
            Version::V5,
            max_packet_size,
            0,
            Arc::new(outbox),
        );
        let asker = Asker {
            context,
            requests: StoreRequests::default(),
        };
        let router = &asker.context.broker.services.router;
        router.register(asker.context.mailbox.clone());
        asker.is_owned_by(asker.context.mailbox.connection);
        asker
    }

    /// Its session has this owner now.
    fn is_owned_by(&self, connection: ConnectionId) {
        let owner = Owner {
            node: self.context.broker.settings.node,
            incarnation: Incarnation::default(),
            connection,
        };
        let subscriptions = self.context.broker.services.router.subscriptions();
        subscriptions.put(SessionId(1), Some(owner), Default::default(), &[]);
        let row = Subscription {
            qos: 1,
            ..Subscription::default()
        };
        subscriptions.put_row(SessionId(1), "r", &row, LogIndex::default());
    }

    /// A request is answered: whether it is acknowledged.
    fn answer(&mut self, verb: Verb, correlation_data: usize, reply: &Reply) -> bool {
        let judged = self.context.rights.now().clone();
        !self
            .acknowledgement(verb, correlation_data, judged, reply)
            .is_empty()
    }

    /// How one is acknowledged that was judged by these rights.
    fn acknowledgement(
        &mut self,
        verb: Verb,
        correlation_data: usize,
        judged: Arc<Rights>,
        reply: &Reply,
    ) -> Vec<u8> {
        let request = StoreRequest {
            packet_id: PacketId::new(7).expect("not 0"),
            response_topic: "r".into(),
            correlation_data: vec![b'c'; correlation_data].into(),
            verb,
            key: Bytes::new(),
            judged: Some(judged),
            scan: None,
        };
        let requests = &mut self.context.requests;
        let id = requests.insert(Request::Store(Box::new(request)));
        self.context.work = 0;
        self.requests
            .handle_store_reply(&mut self.context, id, reply);
        self.context.take_acknowledgements()
    }

    /// The payloads that have come for it since, and why its connection ends.
    fn taken(&self) -> (Vec<String>, Option<End>) {
        let mut contents = Contents::default();
        self.context.mailbox.take(&mut contents);
        let mut payloads = Vec::new();
        let mut rest = &contents.packets.bytes[..];
        while let Some(found) = frame::next(rest, u32::MAX).expect("well-formed") {
            let Packet::Publish(publish) = decode(Version::V5, found).expect("well-formed") else {
                panic!("no answer");
            };
            payloads.push(String::from_utf8_lossy(publish.payload).into_owned());
            rest = &rest[found.length..];
        }
        let end = contents.items.iter().find_map(|item| match item {
            Item::End(end) => Some(*end),
            _ => None,
        });
        (payloads, end)
    }
}

fn outbox(bytes: usize) -> OutboxLimits {
    Arc::into_inner(OutboxLimits::of(bytes)).expect("just made")
}

fn version() -> Hlc {
    Hlc::of_store(1, 0)
}

fn value(bytes: usize) -> Reply {
    Reply::Value {
        value: vec![b'v'; bytes].into(),
        version: version(),
    }
}

#[test]
fn who_accepts_no_packet_as_large_as_a_value_is_told() {
    let mut asker = Asker::new(400, outbox(1 << 20));
    assert!(asker.answer(Verb::Get, 16, &value(1_000)));
    let error = "-ERR the answer is larger than the client's maximum packet size\r\n";
    assert_eq!(asker.taken(), (vec![error.to_owned()], None));
    assert!(asker.answer(Verb::Get, 16, &value(10)));
    assert_eq!(asker.taken().0.len(), 1);
}

/// What was done is not called an error.
#[test]
fn who_accepts_no_packet_as_large_as_any_answer_is_disconnected() {
    let set = Reply::Set { version: version() };
    for (verb, reply) in [(Verb::Get, value(1_000)), (Verb::Set, set)] {
        let mut asker = Asker::new(400, outbox(1 << 20));
        assert!(!asker.answer(verb, 1_000, &reply), "{verb:?}");
        assert_eq!(asker.taken(), (Vec::new(), Some(End::AnswerTooLarge)));
    }
}

/// The node may know of the new owner before it ends this connection: answers go there by then.
#[test]
fn who_has_lost_its_session_acknowledges_nothing() {
    let mut asker = Asker::new(u32::MAX, outbox(1 << 20));
    assert!(asker.answer(Verb::Get, 16, &value(10)));
    assert_eq!(asker.taken().0.len(), 1);
    asker.is_owned_by(ConnectionId(2));
    assert!(!asker.answer(Verb::Get, 16, &value(10)));
    assert_eq!(asker.taken(), (Vec::new(), None));
    asker.is_owned_by(ConnectionId(1));
    assert!(asker.answer(Verb::Get, 16, &value(10)));
    let subscriptions = asker.context.broker.services.router.subscriptions();
    subscriptions.leave(SessionId(1), true);
    assert!(!asker.answer(Verb::Get, 16, &value(10)), "it has ended");
}

/// The rules may change between a request and its answer, which is not delivered then.
#[test]
fn who_may_not_have_the_answer_any_more_is_told() {
    let mut asker = Asker::new(u32::MAX, outbox(1 << 20));
    let judged = asker.context.rights.now().clone();
    let set = Reply::Set { version: version() };
    let acknowledged = asker.acknowledgement(Verb::Set, 16, judged.clone(), &set);
    assert_eq!(acknowledged, [0x40, 2, 0, 7]);
    let rules =
        r#"{"rules": [{"state_store_resources": [{"method": "read_write", "keys": ["*"]}]}]}"#;
    let rules = Rules::parse(rules.as_bytes(), 1).expect("rules");
    asker.context.broker.services.rules.set(rules);
    let acknowledged = asker.acknowledgement(Verb::Set, 16, judged, &set);
    assert_eq!(
        (acknowledged[0], &acknowledged[2..5]),
        (0x40, &[0, 7, 0x87][..])
    );
}

/// However much waits for the client: only the memory of its connection bounds what it has asked for.
#[test]
fn an_answer_ends_nothing_as_long_as_there_is_memory() {
    for full in [OutboxPolicy::Drop, OutboxPolicy::Disconnect] {
        let outbox = OutboxLimits {
            stall: Duration::ZERO,
            full,
            connection_bytes: 8_000,
            ..outbox(1_000)
        };
        let mut asker = Asker::new(u32::MAX, outbox);
        for _ in 0..8 {
            assert!(asker.answer(Verb::Get, 16, &value(1_000)), "{full:?}");
        }
        assert!(!asker.answer(Verb::Get, 16, &value(10)), "{full:?}");
        let (payloads, end) = asker.taken();
        assert_eq!((payloads.len(), end), (8, Some(End::OutboxFull)));
    }
}

/// An answer takes no room of messages until it has left, and gives them none from then on.
#[test]
fn an_answer_that_has_left_makes_no_room() {
    let outbox = OutboxLimits {
        stall: Duration::ZERO,
        full: OutboxPolicy::Drop,
        ..outbox(1_000)
    };
    let mut asker = Asker::new(u32::MAX, outbox);
    let message = |asker: &Asker| {
        let packet = NewPacket::of(QoS::AtLeastOnce);
        asker.context.mailbox.push_packet(packet, |out| {
            out.resize(out.len() + 600, 0);
            Ok(())
        })
    };
    assert!(asker.answer(Verb::Get, 16, &value(1_500)));
    for _ in 0..2 {
        message(&asker).expect("room that is there without the answer");
    }
    assert_eq!(message(&asker).err(), Some(Refused::Full));
    asker.context.mailbox.take(&mut Contents::default());
    asker.context.mailbox.progress(0, &mut WakeList::default());
    // What is answered while others leave comes after them.
    for _ in 0..2 {
        asker.requests.handle_sent(&mut asker.context);
    }
    for _ in 0..2 {
        message(&asker).expect("room");
    }
    assert_eq!(message(&asker).err(), Some(Refused::Full), "it has left");
}

/// Requests wait while answers leave room for messages, whatever the mailbox takes.
#[test]
fn requests_wait_while_there_is_room() {
    let answered = |stall: Duration| {
        let outbox = OutboxLimits {
            stall,
            ..outbox(10_000)
        };
        let mut asker = Asker::new(u32::MAX, outbox);
        let mut answered = 0;
        while !asker.requests.owes_answers(&asker.context) {
            assert!(asker.answer(Verb::Get, 16, &value(500)));
            answered += 1;
        }
        answered
    };
    let normally = answered(Duration::from_secs(5));
    assert!((20..40).contains(&normally), "{normally}");
    let without = answered(Duration::ZERO);
    assert!((5..10).contains(&without), "{without}");
    // Of a client that has stalled, too.
    let mut asker = Asker::new(u32::MAX, outbox(10_000));
    assert!(asker.answer(Verb::Get, 16, &value(9_000)));
    assert!(!asker.requests.owes_answers(&asker.context));
    asker.context.mailbox.stall(&mut WakeList::default());
    assert!(asker.requests.owes_answers(&asker.context));
}

/// Other acknowledgements do not wait for an answer that never was in the mailbox.
#[test]
fn what_is_refused_behind_the_end_keeps_no_acknowledgement_back() {
    let mut asker = Asker::new(u32::MAX, outbox(1 << 20));
    asker
        .context
        .mailbox
        .push_item(Item::End(End::ShuttingDown));
    let set = Reply::Set { version: version() };
    let request = StoreRequest {
        packet_id: PacketId::new(7).expect("not 0"),
        response_topic: "r".into(),
        correlation_data: Bytes::new(),
        verb: Verb::Set,
        key: Bytes::new(),
        judged: None,
        scan: None,
    };
    asker.requests.answer(&mut asker.context, &request, &set);
    let published = PacketId::new(8).expect("not 0");
    asker
        .context
        .acknowledge(published, QoS::AtLeastOnce, ReasonCode::Success, None);
    asker.context.output.flush_acknowledgements();
    assert_eq!(asker.context.output.unsent(), 4, "one PUBACK");
}
