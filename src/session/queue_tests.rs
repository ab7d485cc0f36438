//! What a session's queue admits and grants, rule by rule.

use smallvec::SmallVec;

use super::super::entry::MessageId;
use super::*;

pub(super) const UNBOUNDED: Bounds = Bounds {
    max_messages: u64::MAX,
    max_bytes: u64::MAX,
    policy: DropPolicy::Oldest,
};

pub(super) fn maximum(receive_maximum: u16) -> NonZeroU16 {
    NonZeroU16::new(receive_maximum).expect("tests use maxima above 0")
}

/// An entry of ten bytes.
pub(super) fn entry(message: u64, qos: QoS) -> Entry {
    Entry::Queued(Queued {
        message: MessageId(message),
        qos,
        retain: false,
        size: 10,
        expires_at: None,
        group: None,
        identifiers: SmallVec::new(),
    })
}

fn publish(sequence: u64, dup: bool) -> Grant {
    Grant::Publish {
        packet_id: Some(Sequence(sequence).packet_id()),
        dup,
    }
}

/// A queue with the given messages, none granted.
fn queue_of(qos: &[QoS]) -> (Queue, Vec<(Sequence, Entry)>) {
    let mut queue = Queue::default();
    let entries = (0..)
        .zip(qos)
        .map(|(message, qos)| (queue.push(10), entry(message, *qos)))
        .collect();
    (queue, entries)
}

fn grant(queue: &mut Queue, (sequence, entry): &(Sequence, Entry), receive_maximum: u16) -> Grant {
    queue.grant(*sequence, entry, maximum(receive_maximum), || {
        panic!("asked for the oldest entry")
    })
}

#[test]
fn mqtt_4_9_0_2_no_more_than_the_receive_maximum_is_granted() {
    let (mut queue, entries) = queue_of(&[QoS::AtLeastOnce; 3]);
    assert_eq!(grant(&mut queue, &entries[0], 2), publish(1, false));
    assert_eq!(grant(&mut queue, &entries[1], 2), publish(2, false));
    assert_eq!(grant(&mut queue, &entries[2], 2), Grant::Wait);
    queue.finish(Sequence(2), &entries[1].1, 10);
    assert_eq!(grant(&mut queue, &entries[2], 2), publish(3, false));
}

#[test]
fn qos_0_needs_no_quota() {
    let (mut queue, entries) = queue_of(&[QoS::AtLeastOnce, QoS::AtMostOnce]);
    grant(&mut queue, &entries[0], 1);
    let granted = grant(&mut queue, &entries[1], 1);
    assert_eq!(
        granted,
        Grant::Publish {
            packet_id: None,
            dup: false
        }
    );
    queue.finish(Sequence(2), &entries[1].1, 10);
    assert_eq!((queue.in_flight, queue.messages), (1, 1));
}

#[test]
fn mqtt_3_3_1_1_what_was_granted_is_sent_again_with_dup_and_the_same_id() {
    let (mut queue, entries) = queue_of(&[QoS::AtLeastOnce; 3]);
    grant(&mut queue, &entries[0], 2);
    grant(&mut queue, &entries[1], 2);
    queue.end_connection(None);
    assert_eq!(grant(&mut queue, &entries[0], 9), publish(1, true));
    assert_eq!(grant(&mut queue, &entries[1], 9), publish(2, true));
    assert_eq!(grant(&mut queue, &entries[2], 9), publish(3, false));
}

#[test]
fn a_connection_that_says_what_it_sent_spares_the_rest_dup() {
    let (mut queue, entries) = queue_of(&[QoS::AtLeastOnce; 2]);
    grant(&mut queue, &entries[0], 9);
    grant(&mut queue, &entries[1], 9);
    queue.end_connection(Some(Sequence(1)));
    assert_eq!(grant(&mut queue, &entries[0], 9), publish(1, true));
    assert_eq!(grant(&mut queue, &entries[1], 9), publish(2, false));
}

#[test]
fn released_entries_keep_counting_and_are_passed_when_resumed() {
    let (mut queue, mut entries) = queue_of(&[QoS::ExactlyOnce, QoS::ExactlyOnce]);
    grant(&mut queue, &entries[0], 1);
    entries[0].1 = queue.receive(Sequence(1), 10);
    assert_eq!(grant(&mut queue, &entries[1], 1), Grant::Wait);
    queue.end_connection(None);
    assert_eq!(queue.in_flight, 1);
    assert_eq!(grant(&mut queue, &entries[0], 1), Grant::Passed);
    assert_eq!(grant(&mut queue, &entries[1], 1), Grant::Wait);
    queue.finish(Sequence(1), &entries[0].1, 0);
    assert_eq!(grant(&mut queue, &entries[1], 1), publish(2, false));
}

#[test]
fn a_reception_counts_also_before_the_message_is_granted_again() {
    let (mut queue, mut entries) = queue_of(&[QoS::ExactlyOnce]);
    grant(&mut queue, &entries[0], 1);
    queue.end_connection(None);
    entries[0].1 = queue.receive(Sequence(1), 10);
    assert_eq!((queue.in_flight, queue.released, queue.messages), (1, 1, 0));
    queue.finish(Sequence(1), &entries[0].1, 0);
    assert_eq!(queue.in_flight, 0);
    assert!(queue.is_empty());
}

#[test]
fn receptions_are_numbered_in_their_order() {
    let (mut queue, entries) = queue_of(&[QoS::ExactlyOnce; 2]);
    grant(&mut queue, &entries[0], 9);
    grant(&mut queue, &entries[1], 9);
    assert_eq!(queue.receive(Sequence(2), 10), Entry::Released { order: 0 });
    assert_eq!(queue.receive(Sequence(1), 10), Entry::Released { order: 1 });
}

#[test]
fn mqtt_4_3_3_7_only_unsent_messages_expire_or_make_room() {
    let (mut queue, entries) = queue_of(&[QoS::AtLeastOnce; 2]);
    grant(&mut queue, &entries[0], 9);
    assert!(!queue.is_unsent(Sequence(1)) && queue.is_unsent(Sequence(2)));
    queue.end_connection(None);
    assert!(!queue.is_unsent(Sequence(1)) && queue.is_unsent(Sequence(2)));
    let bounds = Bounds {
        max_messages: 2,
        ..UNBOUNDED
    };
    assert_eq!(
        queue.admit(1, &bounds),
        Admission::DropFirstAfter(Sequence(1))
    );
}

#[test]
fn a_full_queue_follows_its_policy() {
    let (queue, _) = queue_of(&[QoS::AtLeastOnce; 2]);
    let judge = |max_messages, max_bytes, policy, bytes| {
        let bounds = Bounds {
            max_messages,
            max_bytes,
            policy,
        };
        queue.admit(bytes, &bounds)
    };
    use DropPolicy::{Newest, Oldest, Session};
    assert_eq!(judge(3, 30, Oldest, 10), Admission::Accepted);
    assert_eq!(
        judge(2, 30, Oldest, 10),
        Admission::DropFirstAfter(Sequence(0))
    );
    assert_eq!(
        judge(3, 29, Oldest, 10),
        Admission::DropFirstAfter(Sequence(0))
    );
    assert_eq!(
        judge(3, 29, Oldest, 30),
        Admission::DropNew,
        "it can never fit"
    );
    assert_eq!(judge(2, 30, Newest, 10), Admission::DropNew);
    assert_eq!(judge(2, 30, Session, 10), Admission::EndSession);
    assert_eq!(
        judge(9, u64::MAX - 1, Oldest, u64::MAX),
        Admission::DropNew,
        "nor does the sum overflow"
    );
}

#[test]
fn ids_in_use_are_not_given_again() {
    let mut queue = Queue::default();
    let stuck = (queue.push(1), entry(0, QoS::AtLeastOnce));
    grant(&mut queue, &stuck, 9);
    for _ in 1..super::super::sequence::PACKET_IDS {
        let next = (queue.push(1), entry(0, QoS::AtLeastOnce));
        assert!(matches!(grant(&mut queue, &next, 9), Grant::Publish { .. }));
        queue.finish(next.0, &next.1, 1);
    }
    let (sequence, next) = (queue.push(1), entry(0, QoS::AtLeastOnce));
    assert_eq!(sequence.packet_id(), stuck.0.packet_id());
    let waits = queue.grant(sequence, &next, maximum(9), || stuck.0);
    assert_eq!(waits, Grant::Wait);
    queue.finish(stuck.0, &stuck.1, 1);
    let granted = queue.grant(sequence, &next, maximum(9), || sequence);
    assert_eq!(granted, publish(sequence.0, false));
}
