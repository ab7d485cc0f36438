//! Requests from their arrival to their proposal or refusal.

use super::write::remember_s;
use super::*;
use crate::base::hlc::Hlc;
use crate::base::limits;
use crate::codec::{Packet, Property, PublishPropertiesBuf, Version, decode, frame};
use crate::replica::reply_to::ReplyTo;
use crate::replica::share::Share;

/// A PUBLISH with packet id 7 to a topic that does not matter here.
fn publish(dup: bool, correlation_data: &[u8], words: &[&str]) -> Vec<u8> {
    let mut properties = vec![0x08, 0, 1, b'r'];
    properties.push(0x09);
    properties.extend((correlation_data.len() as u16).to_be_bytes());
    properties.extend(correlation_data);
    properties.push(0x26);
    for text in ["__ts", "1696374425000:0:CLIENT"] {
        properties.extend((text.len() as u16).to_be_bytes());
        properties.extend(text.as_bytes());
    }
    let mut body = b"\0\x01t\0\x07".to_vec();
    push_length(&mut body, properties.len());
    body.extend(properties);
    body.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        body.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    let mut packet = vec![if dup { 0x3a } else { 0x32 }];
    push_length(&mut packet, body.len());
    packet.extend(body);
    packet
}

/// A length below 16,384.
fn push_length(out: &mut Vec<u8>, length: usize) {
    match length {
        ..128 => out.push(length as u8),
        _ => out.extend([(length % 128) as u8 | 0x80, (length / 128) as u8]),
    }
}

#[test]
fn p12_what_would_be_stored_is_refused_while_disks_are_low() {
    let short = [b'c'; 36];
    let long = [b'c'; 1_000];
    let proposed = |dup, correlation_data: &[u8], words: &[&str]| {
        let mut context = Context::for_tests(false);
        context.broker.state.set_refuses_writes(true);
        let bytes = publish(dup, correlation_data, words);
        let found = frame::next(&bytes, u32::MAX).expect("well-formed");
        let packet = decode(Version::V5, found.expect("whole")).expect("well-formed");
        let Packet::Publish(publish) = packet else {
            panic!("{packet:?}");
        };
        let flow = StoreRequests::default().handle_publish(&mut context, &publish, false);
        assert!(matches!(flow, Ok(Flow::Continue)));
        let refused = context.broker.metrics.writes_refused.get();
        assert_eq!(refused as usize + context.requests.len(), 1, "{words:?}");
        refused == 0
    };
    let set = ["SET", "k", "v"];
    assert!(!proposed(false, &short, &set));
    assert!(proposed(true, &short, &set), "it may be known");
    assert!(!proposed(true, &long, &set));
    assert!(proposed(false, &short, &["DEL", "k"]));
    assert!(!proposed(false, &long, &["DEL", "k"]));
    assert!(!proposed(false, &short, &["KEYNOTIFY", "k"]));
    assert!(proposed(false, &long, &["KEYNOTIFY", "k", "STOP"]));
    assert!(proposed(false, &long, &["GET", "k"]));
}

/// What ends the connection says why; the client asks again.
#[test]
fn nothing_is_answered_or_notified_behind_the_end() {
    let mut context = Context::for_tests(false);
    context.mailbox.push_item(Item::End(End::Unavailable));
    let bytes = publish(false, b"c", &["NONE"]);
    let found = frame::next(&bytes, u32::MAX).expect("well-formed");
    let packet = decode(Version::V5, found.expect("whole")).expect("well-formed");
    let Packet::Publish(publish) = packet else {
        panic!("{packet:?}");
    };
    let flow = StoreRequests::default().handle_publish(&mut context, &publish, false);
    assert_eq!(flow, Ok(Flow::Continue));
    assert!(context.output.acknowledgements().is_empty());
    let version = Hlc::parse("1696374425000:0:CLIENT");
    let deleted = Change::Delete {
        version: version.expect("well-formed"),
    };
    assert_eq!(notify(&mut context, b"k", &deleted), Ok(()));
}

/// A client that asks for ten minutes fills no node's memory.
#[test]
fn replies_are_remembered_for_a_minute_where_they_are_costly() {
    assert_eq!(remember_s(Some(10_000), false), 600);
    assert_eq!(remember_s(Some(10_000), true), 60);
    assert_eq!(remember_s(Some(5), true), 5);
    assert_eq!(remember_s(None, false), 60);
}

/// What becomes of a SET, with the user property `$high_priority` or without.
fn set(context: &mut Context, is_urgent: bool) -> Flow {
    let mut properties = PublishPropertiesBuf::new();
    for property in [
        Property::ResponseTopic("r"),
        Property::CorrelationData(b"1"),
    ] {
        properties.push(property).expect("it fits");
    }
    let urgent = is_urgent.then_some(("$high_priority", ""));
    let names = [("__ts", "1696374425000:0:CLIENT")].into_iter();
    for (name, value) in names.chain(urgent) {
        properties.push_user(name, value).expect("it fits");
    }
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topics::INVOKE,
        packet_id: PacketId::new(7),
        properties: properties.as_properties().expect("well-formed"),
        payload: b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
    };
    let flow = StoreRequests::default().handle_publish(context, &publish, false);
    flow.expect("the connection goes on")
}

/// They are taken among the others as long as there is room, and beyond that they have some of their own: no client
/// keeps the others out by calling what it writes urgent.
#[test]
fn writes_with_high_priority_have_bounded_room_of_their_own() {
    let mut context = Context::for_tests(false);
    let proposer = context.broker.services.proposer.clone();
    let fill = |share| {
        let kind = Kind::Nothing(crate::base::proto::command::Nothing {});
        let weight = limits::PROPOSAL_QUEUE_BYTES;
        let filled = proposer.submit_weighing(share, kind, ReplyTo::Nobody, weight);
        filled.expect("room");
    };
    assert_eq!(set(&mut context, true), Flow::Continue);
    fill(Share::Urgent);
    assert_eq!(set(&mut context, true), Flow::Continue, "among the others");
    assert_eq!(set(&mut context, false), Flow::Continue);
    fill(Share::Common);
    assert_eq!(set(&mut context, true), Flow::Retry);
    assert_eq!(set(&mut context, false), Flow::Retry);
    proposer.begin(crate::base::ids::Incarnation(1));
    fill(Share::Common);
    assert_eq!(set(&mut context, false), Flow::Retry);
    assert_eq!(set(&mut context, true), Flow::Continue, "in its own room");
    for share in [Share::Devices, Share::Identities, Share::Administration] {
        assert!(proposer.has_room(share), "{share:?}");
    }
}

/// Whoever writes much that very many are told has room for a few such writes: others' do not wait behind them.
#[test]
fn writes_of_keys_with_very_many_watchers_have_little_room_of_their_own() {
    let mut context = Context::for_tests(false);
    let services = &context.broker.services;
    let (proposer, view) = (services.proposer.clone(), services.view.clone());
    view.set_watchers(b"k", 2_000);
    let mut taken = 0;
    while set(&mut context, false) == Flow::Continue {
        taken += 1;
    }
    let each = 2_000 * limits::LOGGED_NOTIFICATION_BYTES;
    assert_eq!(taken, limits::PROPOSAL_QUEUE_WATCHED_BYTES.div_ceil(each));
    assert!(!context.requests.is_much(1), "it counts there alone");
    assert_eq!(
        set(&mut context, true),
        Flow::Retry,
        "whoever is in a hurry"
    );
    assert!(proposer.has_room(Share::Common));
    view.set_watchers(b"k", 200);
    assert_eq!(set(&mut context, false), Flow::Continue);
}

/// Everybody's commands on the node wait behind its own.
#[test]
fn p12_a_client_whose_writes_many_are_told_has_few_of_them_under_way() {
    let mut context = Context::for_tests(false);
    context.broker.services.view.set_watchers(b"k", 256);
    let each = 256 * limits::LOGGED_NOTIFICATION_BYTES;
    let most = limits::CLIENT_WEIGHT_UNDER_WAY.div_ceil(each);
    for _ in 0..most {
        assert_eq!(set(&mut context, false), Flow::Continue);
    }
    assert_eq!(set(&mut context, false), Flow::Retry);
    context.requests.applied(0);
    assert_eq!(set(&mut context, false), Flow::Continue);
}

/// Each answer has a topic that its client chose, and others of the thread wait while a thousand of them are looked up.
#[test]
fn replies_beyond_a_turn_are_answered_in_later_ones() {
    const MANY: u16 = 100;
    let mut context = Context::for_tests(false);
    let mut requests = StoreRequests::default();
    let ids: Vec<RequestId> = (1..=MANY)
        .map(|packet_id| {
            let request = StoreRequest {
                packet_id: PacketId::new(packet_id).expect("not 0"),
                response_topic: format!("r/{packet_id}").into(),
                correlation_data: Bytes::new(),
                verb: Verb::Get,
                key: Bytes::new(),
                judged: None,
                scan: None,
            };
            context.requests.insert(Request::Store(Box::new(request)))
        })
        .collect();
    let version = Hlc {
        wall_ms: 1,
        counter: 0,
        node: crate::base::hlc::NodeName::new("n").expect("a name"),
    };
    let value = Reply::Value {
        value: Bytes::from_static(&[b'x'; 1_000]),
        version: version.clone(),
    };
    context.work = limits::TURN_WORK - 10;
    for id in ids {
        requests.handle_store_reply(&mut context, id, &value);
    }
    let left = context.requests.len();
    assert!(
        left < MANY.into() && left >= usize::from(MANY) - 10,
        "{left}"
    );
    assert!(requests.has_due() && requests.memory() >= left * 1_000);
    // A change of a key that came behind them does not overtake them.
    let notifications = context.broker.metrics.store_notifications.get();
    let change = Change::Delete { version };
    let notified = requests.notify(&mut context, Bytes::from_static(b"k"), change);
    assert!(notified.is_ok());
    // Whatever else a turn has done, one is answered.
    assert!(requests.answer_due(&mut context).is_ok());
    assert_eq!(context.requests.len(), left - 1);
    assert_eq!(
        context.broker.metrics.store_notifications.get(),
        notifications
    );
    context.work = 0;
    assert!(requests.answer_due(&mut context).is_ok());
    assert_eq!(
        context.broker.metrics.store_notifications.get(),
        notifications + 1
    );
    assert!(!requests.has_due() && context.requests.len() == 0);
    assert!(requests.memory() < 1_000 * MANY as usize);
}
