//! What a CONNECT is refused for before its session is opened.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use super::broker::Broker;
use super::opening::{Login, Opening, Place};
use super::origin::Origin;
use crate::auth::{Chain, Principal};
use crate::base::directory::Kind;
use crate::base::ids::{Incarnation, LogIndex, SessionId};
use crate::base::proto::{command, state};
use crate::base::time::Elapsed;
use crate::codec::{decode_connect, frame};
use crate::config::Listener;
use crate::connection::context::Context;
use crate::events::DisconnectionReason;
use crate::identity::password::OpenUntilUsers;
use crate::machine::effect::Reply;
use crate::machine::subscriptions::Queueing;
use crate::mailbox::{Item, WakeList};
use crate::replica::directory::DirectoryObserver as _;
use crate::replica::proposer::Cursor;

/// A CONNECT with Clean Start, and with a will to the topic `t` if these are flags of one.
fn connect(will_flags: u8, payload: u16) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05".to_vec();
    body.push(2 | will_flags);
    body.extend(b"\0\0\0\0\x01c");
    if will_flags != 0 {
        body.extend(b"\0\0\x01t");
        body.extend(payload.to_be_bytes());
        body.extend(vec![b'p'; payload.into()]);
    }
    let length = body.len();
    let mut packet = vec![0x10];
    match length {
        ..128 => packet.push(length as u8),
        _ => packet.extend([(length % 128) as u8 | 0x80, (length / 128) as u8]),
    }
    packet.extend(body);
    packet
}

#[test]
fn p12_a_will_that_would_be_stored_is_refused_while_disks_are_low() {
    const WILL: u8 = 4;
    const QOS_1: u8 = 8;
    const RETAIN: u8 = 0x20;
    let context = Context::for_tests(false);
    let broker = &context.broker;
    broker.state.set_registered(true);
    let forever = Elapsed::from_duration(Duration::MAX);
    broker.state.contact().hold_until(forever);
    let listener = Listener::of_address("127.0.0.1:1883".parse().expect("an address"));
    let is_taken = |will_flags, payload| {
        let bytes = connect(will_flags, payload);
        let found = frame::next(&bytes, u32::MAX).expect("well-formed");
        let connect = decode_connect(found.expect("whole")).expect("well-formed");
        let login = Login {
            principal: Principal::anonymous(),
            origin: Origin::for_tests(),
            data: Vec::new(),
            hub: None,
        };
        let place = Place {
            address: None,
            listener: &listener,
        };
        Opening::begin(broker, &connect, login, &place).is_ok()
    };
    assert!(is_taken(WILL | RETAIN, 1));
    broker.state.set_refuses_writes(true);
    assert!(is_taken(0, 0));
    assert!(!is_taken(WILL | RETAIN, 1));
    assert!(is_taken(WILL | RETAIN, 0), "it makes room");
    assert!(is_taken(WILL | QOS_1, 1), "nobody keeps it");
    assert!(
        is_taken(WILL, 500) && !is_taken(WILL, 512),
        "its session does"
    );
    let index = broker.services.router.subscriptions();
    let queueing = Queueing {
        durable: true,
        qos_0: false,
    };
    let row = state::Subscription {
        qos: 1,
        ..state::Subscription::default()
    };
    index.put(SessionId(2), None, queueing, &[]);
    index.put_row(SessionId(2), "t", &row, LogIndex::default());
    assert!(!is_taken(WILL | QOS_1, 1));
    assert_eq!(broker.metrics.writes_refused.get(), 3);
}

/// The code of the CONNACK of a client that is judged, and whose session is opened after `change`.
async fn connack_after(change: impl FnOnce(&Broker), is_open: bool) -> u8 {
    let context = Context::for_tests(false);
    let broker = &context.broker;
    broker.state.set_registered(true);
    let forever = Elapsed::from_duration(Duration::MAX);
    broker.state.contact().hold_until(forever);
    let listener = Listener::of_address("127.0.0.1:1883".parse().expect("an address"));
    let users = broker.services.identity.users.clone();
    let chain = match is_open {
        true => Chain::default(),
        false => Chain::new(vec![Arc::new(OpenUntilUsers { users })]),
    };
    let bytes = connect(4, 1);
    let found = frame::next(&bytes, u32::MAX).expect("well-formed");
    let connect = decode_connect(found.expect("whole")).expect("well-formed");
    let login = Login {
        principal: Principal::anonymous(),
        origin: Arc::new(Origin {
            chain: Arc::new(chain),
            ..(*Origin::for_tests()).clone()
        }),
        data: Vec::new(),
        hub: None,
    };
    let place = Place {
        address: None,
        listener: &listener,
    };
    let begun = Opening::begin(broker, &connect, login, &place);
    let opening = begun.ok().expect("it may connect");
    change(broker);
    let mailboxes = broker.services.router.mailboxes();
    let [mailbox] = &mailboxes[..] else {
        panic!("one connection");
    };
    let opened = Reply::Opened {
        session: SessionId(1),
        present: false,
        durable: false,
        received: Vec::new(),
    };
    mailbox.push_item(Item::Reply(0, opened));
    let finished = opening.finish(broker).await;
    finished.map_or_else(|refusal| refusal.packet[3], |_| 0)
}

fn set_rules(broker: &Broker, rules: &str) {
    let rules = format!(r#"{{"rules": [{{"broker_resources": [{rules}]}}]}}"#);
    let rules = crate::acl::Rules::parse(rules.as_bytes(), 1).expect("rules");
    broker.services.rules.set(rules);
}

#[tokio::test]
async fn who_is_opened_is_judged_by_what_was_in_the_log_before() {
    assert_eq!(connack_after(|_| {}, false).await, 0);
    let has_user = |broker: &Broker| {
        let entry = state::DirectoryEntry::default();
        let users = &broker.services.identity.users;
        users.changed(Kind::User, "anna", Some(&entry));
    };
    assert_eq!(
        connack_after(has_user, false).await,
        0x87,
        "nobody any more"
    );
    assert_eq!(connack_after(has_user, true).await, 0, "who asks nothing");
    let all = r#"{"method": "connect"}, {"method": "publish"}"#;
    assert_eq!(
        connack_after(|broker| set_rules(broker, all), true).await,
        0
    );
    let no_will = r#"{"method": "connect"}"#;
    let changed = connack_after(|broker| set_rules(broker, no_will), true).await;
    assert_eq!(changed, 0x87, "not with its will");
    let others = r#"{"method": "connect", "client_ids": ["other"]}, {"method": "publish"}"#;
    let changed = connack_after(|broker| set_rules(broker, others), true).await;
    assert_eq!(changed, 0x87);
}

/// Nobody else knows of the connection then, and the node's life may be long.
#[tokio::test]
async fn a_session_that_was_opened_is_closed_when_a_fault_ends_the_opening() {
    let context = Context::for_tests(false);
    let broker = &context.broker;
    broker.state.set_registered(true);
    let forever = Elapsed::from_duration(Duration::MAX);
    broker.state.contact().hold_until(forever);
    let proposer = &broker.services.proposer;
    proposer.begin(Incarnation(1));
    let listener = Listener::of_address("127.0.0.1:1883".parse().expect("an address"));
    let bytes = connect(0, 0);
    let found = frame::next(&bytes, u32::MAX).expect("well-formed");
    let connect = decode_connect(found.expect("whole")).expect("well-formed");
    let login = Login {
        principal: Principal::anonymous(),
        origin: Origin::for_tests(),
        data: Vec::new(),
        hub: None,
    };
    let place = Place {
        address: None,
        listener: &listener,
    };
    let begun = Opening::begin(broker, &connect, login, &place);
    let opening = begun.ok().expect("it may connect");
    let mut finishing = Box::pin(opening.finish(broker));
    let waits = tokio::time::timeout(Duration::from_millis(5), &mut finishing).await;
    assert!(waits.is_err(), "there is no reply");
    let fault = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _under_way = finishing;
        panic!("a fault");
    }));
    assert!(fault.is_err());
    assert!(broker.services.router.mailboxes().is_empty());
    let mut cursor = Cursor::default();
    let mut kinds = Vec::new();
    // The next one waits until this one is applied.
    while let Some(proposal) = proposer.next(&mut cursor) {
        let mut commands = proposal.commands;
        while !commands.is_empty() {
            let command = command::Command::decode_length_delimited(&mut commands);
            kinds.extend(command.expect("it was encoded").kind);
        }
        let of = (proposal.incarnation, proposal.sequence);
        for _ in 0..proposer.depth().in_flight {
            proposer.replied(of, Reply::Done, None, &mut WakeList::default());
        }
        proposer.applied(proposal.incarnation, proposal.sequence);
    }
    let [
        ..,
        command::command::Kind::OpenSession(opened),
        command::command::Kind::CloseSession(closed),
    ] = &kinds[..]
    else {
        panic!("{kinds:?}");
    };
    assert_eq!(closed.connection, opened.connection);
    assert_eq!(closed.client_id, "c");
    assert_eq!(closed.reason, DisconnectionReason::ServerError as u32);
}
