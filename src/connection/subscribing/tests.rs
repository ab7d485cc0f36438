//! SUBSCRIBE and UNSUBSCRIBE on a cluster of one node.

use super::*;
use crate::base::ids::LogIndex;
use crate::codec::{Packet, Version, decode, frame};

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
    };
    subscribing.handle_reply(&mut context, 0, &reply);
    assert!(!subscribing.is_unapplied());
    assert_eq!(context.take_acknowledgements(), b"\x90\x04\0\x05\0\x01");
    assert!(subscribing.has_retained());
    subscribing.read_retained(&context);
    assert!(!subscribing.has_retained());
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

fn subscribed(subscribing: &mut Subscribing, context: &mut Context, request_id: RequestId) {
    let reply = Reply::Subscribed {
        index: LogIndex(9),
        new: vec![true],
    };
    subscribing.handle_reply(context, request_id, &reply);
}

/// Nothing is sent for a subscription that has ended, or was replaced.
#[test]
fn the_retained_messages_of_a_filter_end_with_its_subscription() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    for _ in 0..2 {
        handle(&mut subscribing, &mut context, SUBSCRIBE);
        subscribed(&mut subscribing, &mut context, 0);
    }
    assert_eq!(
        subscribing.readers.len(),
        1,
        "the second replaces the first"
    );
    let unsubscribe = b"\xa2\x06\0\x06\0\0\x01a";
    handle(&mut subscribing, &mut context, unsubscribe);
    subscribing.handle_reply(&mut context, 0, &Reply::Unsubscribed(vec![true]));
    assert!(!subscribing.has_retained());
}
