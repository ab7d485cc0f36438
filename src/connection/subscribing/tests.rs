//! SUBSCRIBE and UNSUBSCRIBE on a cluster of one node.

use std::sync::Arc;

use super::*;
use crate::base::ids::LogIndex;
use crate::codec::{Packet, Version, decode, frame};
use crate::machine::read;

fn handle(subscribing: &mut Subscribing, context: &mut Context, bytes: &[u8]) -> Flow {
    try_to_handle(subscribing, context, bytes).expect("the connection goes on")
}

fn try_to_handle(
    subscribing: &mut Subscribing,
    context: &mut Context,
    bytes: &[u8],
) -> Result<Flow, Ended> {
    let found = frame::next(bytes, u32::MAX)
        .expect("well-formed")
        .expect("whole");
    match decode(context.options.version, found).expect("well-formed") {
        Packet::Subscribe(packet) => subscribing.handle_subscribe(context, &packet),
        Packet::Unsubscribe(packet) => subscribing.handle_unsubscribe(context, &packet),
        other => panic!("{other:?}"),
    }
}

/// Packet id 5, filter `a`, QoS 1.
const SUBSCRIBE: &[u8] = b"\x82\x07\0\x05\0\0\x01a\x01";

#[test]
fn suback_follows_when_the_subscription_is_applied() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let flow = handle(&mut subscribing, &mut context, SUBSCRIBE);
    assert_eq!(flow, Flow::Continue);
    assert!(subscribing.is_unapplied() && context.take_acknowledgements().is_empty());
    let reply = Reply::Subscribed {
        index: LogIndex(9),
        new: vec![true],
        refused: Vec::new(),
    };
    subscribing.handle_reply(&mut context, 0, &reply);
    assert!(!subscribing.is_unapplied());
    assert_eq!(context.take_acknowledgements(), b"\x90\x04\0\x05\0\x01");
    assert!(subscribing.wants_retained(&context, false));
    subscribing.read_retained(&mut context, &mut Contents::default());
    assert!(!subscribing.wants_retained(&context, false));
}

#[test]
fn wrong_filters_are_refused_without_the_log() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let bytes = b"\x82\x09\0\x05\0\0\x03a#b\x01";
    handle(&mut subscribing, &mut context, bytes);
    assert_eq!(context.take_acknowledgements(), b"\x90\x04\0\x05\0\x8f");
    assert_eq!(context.requests.len(), 0);
}

#[test]
fn unsuback_says_what_was_there() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let bytes = b"\xa2\x09\0\x06\0\0\x01a\0\x01b";
    handle(&mut subscribing, &mut context, bytes);
    let reply = Reply::Unsubscribed(vec![true, false]);
    subscribing.handle_reply(&mut context, 0, &reply);
    assert_eq!(context.take_acknowledgements(), b"\xb0\x05\0\x06\0\0\x11");
}

#[test]
fn a_session_with_a_new_owner_owes_nothing() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    handle(&mut subscribing, &mut context, SUBSCRIBE);
    subscribing.handle_reply(&mut context, 0, &Reply::NotOwner);
    assert!(!subscribing.is_unapplied());
    assert_eq!(context.requests.len(), 0);
}

#[test]
fn p12_durable_sessions_get_no_subscriptions_while_disks_are_low() {
    for (is_durable, proposed) in [(true, 0), (false, 1)] {
        let (mut subscribing, mut context) =
            (Subscribing::default(), Context::for_tests(is_durable));
        context.broker.state.set_refuses_writes(true);
        handle(&mut subscribing, &mut context, SUBSCRIBE);
        assert_eq!(context.requests.len(), proposed);
        let refused = context.take_acknowledgements();
        assert_eq!(refused == b"\x90\x04\0\x05\0\x97", is_durable);
    }
}

#[test]
fn mqtt_4_7_3_1_unsubscribe_from_what_is_no_filter_gets_0x8f() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let bytes = b"\xa2\x0d\0\x06\0\0\0\0\x01a\0\x03a#b";
    handle(&mut subscribing, &mut context, bytes);
    subscribing.handle_reply(&mut context, 0, &Reply::Unsubscribed(vec![true]));
    let unsuback = b"\xb0\x06\0\x06\0\x8f\0\x8f";
    assert_eq!(context.take_acknowledgements(), unsuback);
    handle(&mut subscribing, &mut context, b"\xa2\x05\0\x07\0\0\0");
    assert_eq!(context.take_acknowledgements(), b"\xb0\x04\0\x07\0\x8f");
    assert_eq!(context.requests.len(), 0, "the log is not asked");
}

#[test]
fn mqtt311_4_7_3_1_unsubscribe_from_what_is_no_filter_ends_the_connection() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    context.options.version = Version::V311;
    let bytes = b"\xa2\x07\0\x06\0\x01a\0\0";
    let ended = try_to_handle(&mut subscribing, &mut context, bytes);
    assert!(ended.is_err());
    assert_eq!(context.requests.len(), 0);
}

#[test]
fn mqtt_3_1_2_24_an_answer_that_does_not_fit_is_told_before_anything_is_done() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let two = b"\x82\x0b\0\x05\0\0\x01a\x01\0\x01b\x01";
    let unsubscribe = b"\xa2\x09\0\x06\0\0\x01a\0\x01b";
    context.options.limits.max_packet_size = 7;
    handle(&mut subscribing, &mut context, two);
    handle(&mut subscribing, &mut context, unsubscribe);
    assert_eq!(context.requests.len(), 2, "the answers fit exactly");
    context.options.limits.max_packet_size = 6;
    for request in [&two[..], unsubscribe] {
        let ended = try_to_handle(&mut subscribing, &mut context, request);
        let reason = ended.expect_err("it does not fit").reason;
        assert_eq!(reason, Some(ReasonCode::PacketTooLarge));
    }
    assert_eq!(context.requests.len(), 2);
}

/// A connection of a node that has a retained message of each topic, in log entry 1.
fn with_retained(topics: &[String], payload: &[u8]) -> Context {
    let mut context = Context::for_tests(false);
    let row = crate::base::proto::state::Retained {
        qos: 2,
        payload: payload.to_vec().into(),
        index: 1,
        ..Default::default()
    };
    let messages = topics.iter().map(|topic| (topic.as_str(), row.clone()));
    let broker = std::sync::Arc::get_mut(&mut context.broker).expect("no other connection");
    broker.services.backing = std::sync::Arc::new(read::retained_state(messages));
    context
}

/// SUBSCRIBE to one filter.
fn subscribe(filter: &str, options: u8) -> Vec<u8> {
    let length = filter.len() as u8;
    let mut bytes = vec![0x82, length + 6, 0, 5, 0, 0, length];
    bytes.extend_from_slice(filter.as_bytes());
    bytes.push(options);
    bytes
}

/// UNSUBSCRIBE from one filter.
fn unsubscribe(filter: &str) -> Vec<u8> {
    let length = filter.len() as u8;
    let mut bytes = vec![0xa2, length + 5, 0, 6, 0, 0, length];
    bytes.extend_from_slice(filter.as_bytes());
    bytes
}

fn subscribed(index: u64, new: bool) -> Reply {
    Reply::Subscribed {
        index: LogIndex(index),
        new: vec![new],
        refused: Vec::new(),
    }
}

/// The topics of the next page, with the QoS of each.
fn page(subscribing: &mut Subscribing, context: &mut Context) -> Vec<(String, QoS)> {
    let mut contents = Contents::default();
    subscribing.read_retained(context, &mut contents);
    let mut bytes = contents.packets.bytes.as_slice();
    let mut found = Vec::new();
    while let Some(frame) = frame::next(bytes, u32::MAX).expect("well-formed") {
        let Packet::Publish(publish) = decode(Version::V5, frame).expect("well-formed") else {
            panic!("not a PUBLISH");
        };
        assert!(publish.retain);
        found.push((publish.topic.to_owned(), publish.qos));
        bytes = &bytes[frame.length..];
    }
    found
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("t/{number:06}")).collect()
}

#[test]
fn retained_messages_come_page_by_page() {
    let topics = numbered(1_000);
    let mut context = with_retained(&topics, b"x");
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("#", 1));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    let mut found = Vec::new();
    while subscribing.wants_retained(&context, false) {
        let page = page(&mut subscribing, &mut context);
        assert!(page.len() <= 64);
        found.extend(page);
    }
    let expected: Vec<_> = topics
        .into_iter()
        .map(|topic| (topic, QoS::AtLeastOnce))
        .collect();
    assert_eq!(found, expected);
}

/// Seen before: a second without an answer beside 100,000 topics.
#[test]
fn a_page_ends_where_it_has_looked_at_enough_whatever_matches() {
    let mut context = with_retained(&numbered(10_000), b"x");
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("t/+/none", 1));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    let mut pages = 0;
    while subscribing.wants_retained(&context, false) {
        assert!(page(&mut subscribing, &mut context).is_empty());
        pages += 1;
    }
    assert!(pages >= 10_000 / 256, "{pages}");
    // Large messages that do not match end it, too.
    let mut context = with_retained(&numbered(64), &[0; 32 << 10]);
    handle(&mut subscribing, &mut context, &subscribe("t/+/none", 1));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    for _ in 0..8 {
        assert!(subscribing.wants_retained(&context, false));
        page(&mut subscribing, &mut context);
    }
}

#[test]
fn a_new_subscribe_takes_the_place_of_the_replay_under_way() {
    let topics = numbered(200);
    let mut context = with_retained(&topics, b"x");
    let mut subscribing = Subscribing::default();
    for _ in 0..50 {
        handle(&mut subscribing, &mut context, &subscribe("#", 2));
        subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
        assert_eq!(page(&mut subscribing, &mut context).len(), 64);
    }
    handle(&mut subscribing, &mut context, &subscribe("#", 0));
    subscribing.handle_reply(&mut context, 0, &subscribed(10, false));
    let mut found = Vec::new();
    while subscribing.wants_retained(&context, false) {
        found.extend(page(&mut subscribing, &mut context));
    }
    let expected: Vec<_> = topics
        .into_iter()
        .map(|topic| (topic, QoS::AtMostOnce))
        .collect();
    assert_eq!(found, expected, "once, with the QoS of the last one");
}

#[test]
fn a_subscribe_that_asks_for_none_gives_the_replay_its_options() {
    let mut context = with_retained(&numbered(100), b"x");
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("#", 2));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    assert_eq!(page(&mut subscribing, &mut context).len(), 64);
    // Retain Handling 1, QoS 0.
    handle(&mut subscribing, &mut context, &subscribe("#", 0x10));
    subscribing.handle_reply(&mut context, 0, &subscribed(10, false));
    let rest = page(&mut subscribing, &mut context);
    assert_eq!(rest.len(), 36, "nothing is lost");
    assert!(rest.iter().all(|(_, qos)| *qos == QoS::AtMostOnce));
}

#[test]
fn nothing_retained_comes_after_unsuback() {
    let mut context = with_retained(&numbered(200), b"x");
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("#", 2));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    assert_eq!(page(&mut subscribing, &mut context).len(), 64);
    handle(&mut subscribing, &mut context, &unsubscribe("#"));
    subscribing.handle_reply(&mut context, 0, &Reply::Unsubscribed(vec![true]));
    assert!(!subscribing.wants_retained(&context, false));
    // Also where the SUBACK of the subscription comes later than the UNSUBACK.
    let mut replays = RetainedReplays::default();
    let subscription = || Subscription {
        filter: "#".into(),
        qos: QoS::AtMostOnce,
        no_local: false,
        retain_handling: 0,
        identifier: 0,
    };
    replays.subscribed(7, [(subscription(), true)].into_iter(), LogIndex(9));
    replays.unsubscribed("#");
    replays.acknowledged(7);
    assert!(!replays.is_ready());
    replays.subscribed(7, [(subscription(), true)].into_iter(), LogIndex(9));
    replays.unsubscribed("#");
    replays.subscribed(8, [(subscription(), true)].into_iter(), LogIndex(10));
    replays.acknowledged(7);
    assert!(!replays.is_ready(), "it waits for its own SUBACK");
    replays.acknowledged(8);
    assert!(replays.is_ready());
}

#[test]
fn a_client_that_is_behind_gets_the_next_page_when_it_has_got_as_much() {
    let mut context = with_retained(&numbered(200), b"x");
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("#", 2));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    assert!(subscribing.wants_retained(&context, true));
    assert_eq!(page(&mut subscribing, &mut context).len(), 64);
    assert!(!subscribing.wants_retained(&context, true));
    let unsent = context.mailbox.unsent();
    context.mailbox.progress(unsent / 2, &mut context.wake);
    assert!(!subscribing.wants_retained(&context, true));
    context.mailbox.progress(0, &mut context.wake);
    assert!(subscribing.wants_retained(&context, true));
    // Nor does it get more by subscribing again and again.
    page(&mut subscribing, &mut context);
    for index in 10..20 {
        handle(&mut subscribing, &mut context, &unsubscribe("#"));
        subscribing.handle_reply(&mut context, 0, &Reply::Unsubscribed(vec![true]));
        handle(&mut subscribing, &mut context, &subscribe("#", 2));
        subscribing.handle_reply(&mut context, 0, &subscribed(index, true));
        assert!(!subscribing.wants_retained(&context, true));
    }
}

/// What is delivered while a page is read follows it (P5), and nobody who delivers waits for the page.
#[test]
fn what_is_delivered_during_a_page_comes_behind_it() {
    let context = Context::for_tests(false);
    let mut contents = Contents::default();
    context.mailbox.fill(&mut contents, |_| {
        let pushed = context
            .mailbox
            .push_item(crate::mailbox::Item::SubscriptionEffective(1));
        assert!(pushed, "the mailbox is not locked");
    });
    assert!(contents.is_empty() && context.mailbox.is_filled());
}

/// SUBSCRIBE or UNSUBSCRIBE with many filters, as MQTT 5 has it.
fn with_filters(head: u8, count: usize, options: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 5, 0];
    for number in 0..count {
        let filter = format!("{number:06}");
        body.extend_from_slice(&[0, 6]);
        body.extend_from_slice(filter.as_bytes());
        body.extend_from_slice(options);
    }
    let length = body.len();
    let mut packet = vec![head, length as u8 | 0x80, (length >> 7) as u8];
    packet.extend(body);
    packet
}

#[test]
fn many_filters_take_several_commands_and_one_acknowledgement() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let count = limits::FILTERS_AT_ONCE * 2 + 30;
    let subscribe = with_filters(0x82, count, &[1]);
    handle(&mut subscribing, &mut context, &subscribe);
    // The machine may stop before the end of a command.
    for applied in [limits::FILTERS_AT_ONCE, 20, limits::FILTERS_AT_ONCE, 10] {
        assert!(context.take_acknowledgements().is_empty());
        assert!(subscribing.is_unapplied());
        let reply = Reply::Subscribed {
            index: LogIndex(9),
            new: vec![true; applied],
            refused: Vec::new(),
        };
        subscribing.handle_reply(&mut context, 0, &reply);
    }
    assert!(!subscribing.is_unapplied());
    let suback = context.take_acknowledgements();
    assert!(suback.ends_with(&vec![1; count]), "{suback:?}");
    let unsubscribe = with_filters(0xa2, count, &[]);
    handle(&mut subscribing, &mut context, &unsubscribe);
    for applied in [20, limits::FILTERS_AT_ONCE, limits::FILTERS_AT_ONCE, 10] {
        assert!(context.take_acknowledgements().is_empty());
        let reply = Reply::Unsubscribed(vec![true; applied]);
        subscribing.handle_reply(&mut context, 0, &reply);
    }
    let unsuback = context.take_acknowledgements();
    assert!(unsuback.ends_with(&vec![0; count]), "{unsuback:?}");
    assert_eq!(context.requests.len(), 0);
}

fn many_filters(first_byte: u8, has_options: bool) -> Vec<u8> {
    let mut body = vec![0, 9, 0];
    for at in 0..=limits::ITEMS_AT_LEAST as u8 {
        body.extend_from_slice(&[0, 1, b'a' + at]);
        body.extend(has_options.then_some(1));
    }
    [&[first_byte, body.len() as u8], &body[..]].concat()
}

/// A later request is not applied between two commands of an earlier one.
#[test]
fn a_request_in_several_commands_is_not_overtaken() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let count = limits::ITEMS_AT_LEAST + 1;
    let subscribed = |new: usize| Reply::Subscribed {
        index: LogIndex(9),
        new: vec![true; new],
        refused: Vec::new(),
    };
    const UNSUBSCRIBE: &[u8] = b"\xa2\x06\0\x06\0\0\x01a";
    let many = many_filters(0x82, true);
    assert_eq!(
        handle(&mut subscribing, &mut context, &many),
        Flow::Continue
    );
    for packet in [SUBSCRIBE, UNSUBSCRIBE] {
        assert_eq!(handle(&mut subscribing, &mut context, packet), Flow::Retry);
    }
    subscribing.handle_reply(&mut context, 0, &subscribed(count - 1));
    assert_eq!(
        handle(&mut subscribing, &mut context, SUBSCRIBE),
        Flow::Retry
    );
    subscribing.handle_reply(&mut context, 0, &subscribed(1));
    let many = many_filters(0xa2, false);
    assert_eq!(
        handle(&mut subscribing, &mut context, &many),
        Flow::Continue
    );
    assert_eq!(
        handle(&mut subscribing, &mut context, SUBSCRIBE),
        Flow::Retry
    );
    let requests: Vec<_> = (0..8)
        .filter(|id| context.requests.get(*id).is_some())
        .collect();
    let removed = Reply::Unsubscribed(vec![true; count]);
    subscribing.handle_reply(&mut context, requests[0], &removed);
    assert_eq!(
        handle(&mut subscribing, &mut context, SUBSCRIBE),
        Flow::Continue
    );
}

/// Everybody's commands on the node wait behind its own; what takes a subscription away passes for longer.
#[test]
fn p12_a_client_that_subscribes_to_much_waits_while_others_would() {
    const UNSUBSCRIBE: &[u8] = b"\xa2\x06\0\x06\0\0\x01a";
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let proposer = context.broker.services.proposer.clone();
    Arc::make_mut(&mut context.options.bounds).receive_maximum = u16::MAX;
    let mut taken = |context: &mut Context, packet| {
        let mut taken = 0;
        while handle(&mut subscribing, context, packet) == Flow::Continue {
            taken += 1;
        }
        taken
    };
    let most = limits::CLIENT_WEIGHT_UNDER_WAY / limits::LOGGED_QUEUE_BYTES;
    assert_eq!(taken(&mut context, SUBSCRIBE), most);
    assert_eq!(taken(&mut context, UNSUBSCRIBE), most);
    assert_eq!(taken(&mut context, SUBSCRIBE), 0);
    // All of it leaves in one proposal: nobody waits behind it any more.
    proposer.begin(crate::base::ids::Incarnation(7));
    assert_eq!(
        handle(&mut subscribing, &mut context, SUBSCRIBE),
        Flow::Continue
    );
}

/// The client would wait for a SUBACK that it does not accept.
#[test]
fn a_refusal_that_does_not_fit_ends_the_connection_too() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(true));
    context.broker.state.set_refuses_writes(true);
    context.options.limits.max_packet_size = 8;
    let many = many_filters(0x82, true);
    assert!(try_to_handle(&mut subscribing, &mut context, &many).is_err());
    assert!(context.take_acknowledgements().is_empty());
}

#[path = "rules_tests.rs"]
mod rules;
