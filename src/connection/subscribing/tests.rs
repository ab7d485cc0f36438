//! SUBSCRIBE and UNSUBSCRIBE on a cluster of one node.

use super::*;
use crate::base::ids::LogIndex;
use crate::codec::{Packet, Version, decode, frame};

fn handle(subscribing: &mut Subscribing, context: &mut Context, bytes: &[u8]) -> Flow {
    let found = frame::next(bytes, u32::MAX)
        .expect("well-formed")
        .expect("whole");
    match decode(Version::V5, found).expect("well-formed") {
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
