//! What a mailbox keeps is bounded, and counted for its connection and for its node.

use std::time::Duration;

use super::tests::{mailbox, push, push_qos_0, take};
use super::*;
use crate::base::limits;
use crate::codec::QoS;
use crate::config::bounds;
use crate::session::Sequence;

fn granted(mailbox: &Mailbox, sequence: u64, bytes: usize) {
    let granted = Withheld {
        sequence: Sequence(sequence),
        dup: false,
    };
    let packet = NewPacket::of(QoS::AtLeastOnce);
    let pushed = mailbox.push_granted(packet, granted, |out| {
        out.resize(out.len() + bytes, 0);
        Ok(())
    });
    pushed.expect("the client takes packets of any size");
}

/// However much is granted, the mailbox keeps at most one packet beyond its bound; the others are named in order.
#[test]
fn what_is_granted_to_a_client_that_is_behind_waits_in_its_queue() {
    let mailbox = mailbox(&OutboxLimits::of(100));
    for sequence in 1..=256 {
        granted(&mailbox, sequence, 60);
    }
    let remembered = 2 * size_of::<Tracked>() + 254 * size_of::<Withheld>();
    assert_eq!(mailbox.memory(), 120 + remembered);
    let mut contents = Contents::default();
    assert!(mailbox.take(&mut contents), "some are withheld");
    let numbers = |contents: &Contents| -> Vec<u64> {
        let numbers = contents.tracked.iter().map(|entry| entry.sequence);
        numbers
            .map(|sequence| sequence.expect("of the queue").0)
            .collect()
    };
    assert_eq!(numbers(&contents), [1, 2]);
    mailbox.progress(0, &mut WakeList::default());
    granted(&mailbox, 257, 60);
    let named: Vec<u64> = mailbox
        .withheld(2)
        .iter()
        .map(|next| next.sequence.0)
        .collect();
    assert_eq!(named, [3, 4], "nothing overtakes what is withheld");
    let packet = NewPacket::of(QoS::AtLeastOnce);
    let put = mailbox.push_withheld(Some(packet), |out| {
        out.push(0);
        Ok(())
    });
    put.expect("it is small");
    let passed_over = mailbox.push_withheld(None, |_| Ok(()));
    passed_over.expect("nothing to refuse");
    assert_eq!(mailbox.withheld(1)[0].sequence, Sequence(5));
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    assert_eq!(numbers(&contents), [3]);
}

/// What is remembered of a packet that expires is larger than the smallest packet: the node counts it, and the client
/// that is only slow goes on.
#[test]
fn tiny_packets_count_for_the_node_and_do_not_end_their_connection() {
    const TINY: usize = 8;
    const OUTBOX: usize = 1 << 19;
    let limits = OutboxLimits::dropping(OUTBOX);
    let mailbox = mailbox(&limits);
    let expiring = NewPacket {
        expiry_s: Some(9),
        ..NewPacket::of(QoS::AtMostOnce)
    };
    let push_expiring = || {
        mailbox.push_qos_0("t", expiring, |out, _| {
            out.resize(out.len() + TINY, 0);
            Ok(())
        })
    };
    let taken = (0..200_000).take_while(|_| push_expiring().is_ok()).count();
    assert_eq!(taken, OUTBOX / TINY);
    let all = taken * (TINY + size_of::<Tracked>());
    assert!(all > limits.connection_bytes);
    assert_eq!(mailbox.memory(), all);
    assert!((all - 4096..=all).contains(&limits.memory.used()));
    push(&mailbox, TINY).expect("its publisher waits");
    mailbox.push_item(Item::AckReleased(1));
    assert!(!mailbox.is_ending());
    mailbox.close(&mut WakeList::default());
    assert_eq!(limits.memory.used(), 0);
}

/// A packet with QoS 1 or 2 that does not expire, for a session without a queue, takes its bytes and no more.
#[test]
fn nothing_is_remembered_of_ordinary_packets() {
    const TINY: usize = 7;
    let limits = OutboxLimits::of(1 << 20);
    let mailbox = mailbox(&limits);
    for _ in 0..100_000 {
        push(&mailbox, TINY).expect("it fits");
    }
    assert_eq!(mailbox.memory(), 100_000 * TINY);
}

/// What is remembered of its small messages fills the mailbox of a client that reads nothing. It stalls as with large
/// ones: nobody waits for it for ever.
#[test]
fn a_client_with_a_mailbox_full_of_what_is_remembered_stalls() {
    let limits = OutboxLimits::of(100_000);
    let slow = mailbox(&limits);
    let expiring = NewPacket {
        expiry_s: Some(9),
        ..NewPacket::of(QoS::AtLeastOnce)
    };
    let mut pushed = 0;
    while slow.state() != BackPressureState::Full {
        let put = slow.push_packet(expiring, |out| {
            out.resize(out.len() + 20, 0);
            Ok(())
        });
        put.expect("it fits");
        pushed += 20;
    }
    assert!(pushed < limits.high_water_mark(), "the messages are small");
    let publisher = mailbox(&limits);
    slow.await_room(&publisher);
    assert!(!publisher.take_offer(), "there is no room yet");
    slow.stall(&mut WakeList::default());
    assert_eq!(slow.state(), BackPressureState::Stalled);
    assert!(publisher.take_offer(), "its publishers go on");
    take(&slow, 0);
    slow.progress(0, &mut WakeList::default());
    assert_eq!(slow.state(), BackPressureState::Normal, "it has drained");
}

/// Publishers wait when as much memory is taken, whether messages are large or tiny.
#[test]
fn a_mailbox_is_full_with_what_is_remembered_of_messages() {
    const TINY: usize = 8;
    let limits = OutboxLimits::of(100_000);
    let publisher = mailbox(&limits);
    let slow = mailbox(&limits);
    let mut pushed = 0;
    while slow.state() != BackPressureState::Full {
        let put = push(&slow, TINY).expect("it fits");
        pushed += 1;
        if let Some(end) = put.throttled {
            let ack = DeferredAck::Local(publisher.clone(), 1);
            slow.defer_ack(end, ack, &mut WakeList::default());
        }
    }
    assert!(slow.memory() < limits.bytes + 100, "{}", slow.memory());
    assert!(pushed * TINY > limits.high_water_mark());
    // It is no reason to end the connection: those under way are taken.
    let ahead = limits.overrun() - pushed * TINY;
    push(&slow, ahead).expect("it was under way");
    slow.close(&mut WakeList::default());

    let slow = mailbox(&limits);
    let expiring = NewPacket {
        expiry_s: Some(9),
        ..NewPacket::of(QoS::AtLeastOnce)
    };
    while slow.state() != BackPressureState::Full {
        let put = slow.push_packet(expiring, |out| {
            out.resize(out.len() + 2 * TINY, 0);
            Ok(())
        });
        put.expect("it fits");
    }
    assert!(slow.memory() < limits.bytes + 100, "{}", slow.memory());
    take(&slow, 0);
    assert_eq!(slow.state(), BackPressureState::Normal);
    assert!(!slow.is_ending());
}

#[test]
fn deferred_acknowledgements_and_withheld_messages_count() {
    let limits = OutboxLimits::of(2_000);
    let (slow, publisher) = (mailbox(&limits), mailbox(&limits));
    let mut ends = Vec::new();
    for _ in 0..1_400 {
        ends.extend(push(&slow, 1).expect("it fits").throttled);
    }
    let before = (slow.memory(), limits.memory.used());
    for end in &ends {
        let ack = DeferredAck::Local(publisher.clone(), 1);
        assert!(slow.defer_ack(*end, ack, &mut WakeList::default()));
    }
    let acknowledgements = ends.len() * size_of::<(u64, DeferredAck)>();
    assert_eq!(slow.memory(), before.0 + acknowledgements);
    let charged = limits.memory.used() - before.1;
    assert!(charged.abs_diff(acknowledgements) < 4096, "{charged}");
    assert!(charged > 0);
    slow.close(&mut WakeList::default());
    publisher.close(&mut WakeList::default());
    assert_eq!(limits.memory.used(), 0);

    let behind = mailbox(&limits);
    for sequence in 0..2_000 {
        granted(&behind, sequence, 1_000);
    }
    let withheld = 1_999 * size_of::<Withheld>();
    assert!(behind.memory() >= withheld);
    assert!((withheld - 4096..=withheld + 4096).contains(&limits.memory.used()));
    for _ in 0..1_999 {
        let passed_over = behind.push_withheld(None, |_| Ok(()));
        passed_over.expect("nothing to refuse");
    }
    take(&behind, 0);
    assert_eq!((behind.memory(), limits.memory.used()), (0, 0));
}

/// The buffers that a connection gives for those it takes go to whoever is next.
#[test]
fn a_mailbox_gets_no_large_empty_buffers() {
    let mailbox = mailbox(&OutboxLimits::of(1 << 20));
    let mut contents = Contents::default();
    contents.packets.bytes.reserve(1 << 20);
    contents.tracked.reserve(1 << 14);
    mailbox.take(&mut contents);
    mailbox.take(&mut contents);
    assert!(contents.packets.bytes.capacity() <= 256 << 10);
    assert!(contents.tracked.capacity() * size_of::<Tracked>() <= 256 << 10);
}

/// A watcher that does not read must not miss an event, so it ends.
#[test]
fn items_are_bounded_and_the_one_that_exceeds_the_bound_ends_the_connection() {
    let limits = OutboxLimits::of(1_000);
    let mailbox = mailbox(&limits);
    let notify = || Item::Notify {
        key: bytes::Bytes::from_static(b"key"),
        change: crate::machine::effect::Change::Set {
            value: bytes::Bytes::from_static(&[0; 500]),
            version: crate::base::hlc::Hlc::of_store(1, 0),
        },
    };
    let mut pushed = 0;
    while !mailbox.is_ending() {
        mailbox.push_item(notify());
        pushed += 1;
        assert!(mailbox.memory() < limits.connection_bytes);
        assert!(pushed < 2_000, "500 bytes each, 1 MiB may be there");
    }
    assert!(!mailbox.push_item(notify()), "nobody looks at it");
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    let items = contents.take_items();
    assert!(matches!(items[..], [Item::End(End::ConnectionMemory)]));
    assert_eq!(limits.memory.used(), 0);
}

/// A large answer alone fills the mailbox of a client that reads. Who publishes to it, or changes what it watches,
/// finds the room that is there without the answer.
#[test]
fn an_answer_takes_no_room_of_messages_and_notifications() {
    let limits = OutboxLimits {
        stall: Duration::ZERO,
        ..Arc::into_inner(OutboxLimits::of(100)).expect("just made")
    };
    let limits = Arc::new(limits);
    let asker = mailbox(&limits);
    let push_direct = |mailbox: &Mailbox, is_answer: bool, bytes: usize| {
        let packet = NewPacket {
            is_direct: true,
            is_asked_for: true,
            is_answer,
            ..NewPacket::of(QoS::AtLeastOnce)
        };
        mailbox.push_packet(packet, |out| {
            out.resize(out.len() + bytes, 0);
            Ok(())
        })
    };
    asker.answers.publish(200);
    push_direct(&asker, true, 200).expect("it is asked for");
    push(&asker, 60).expect("a message");
    push(&asker, 60).expect("a message");
    push_direct(&asker, false, 60).expect("a notification");
    asker.answers.publish(0);
    assert_eq!(push(&asker, 1), Err(Refused::Ended), "messages fill it");

    let watcher = mailbox(&limits);
    let notified = std::iter::repeat_with(|| push_direct(&watcher, false, 10));
    let notified = notified.take_while(Result::is_ok).count();
    assert_eq!(notified * 10, limits.overrun(), "it may be told as much");
}

/// Whatever waits for it: what is read and what may come for it is no more than the connection may have.
#[test]
fn a_client_is_read_up_to_what_messages_leave() {
    let limits = OutboxLimits::of(10_000);
    let all = limits.connection_bytes;
    let for_messages = limits.overrun() + limits.bytes;
    for waiting in 0..=for_messages {
        let more = for_messages - waiting + limits::READ_BUFFER_BYTES;
        assert_eq!(limits.read_up_to(waiting) + more, all, "{waiting}");
    }
    let most = all - limits::READ_BUFFER_BYTES;
    assert_eq!(limits.read_up_to(2 * for_messages), most, "answers count");
}

/// What is held of it, the beginning of a packet and one read leave room for one more: it may acknowledge in that.
#[test]
fn what_a_client_sends_leaves_room_for_one_more_read() {
    for bytes in (4..=16 * 1024).map(|kib| kib << 10) {
        let outboxes = bounds::CONNECTION_MEMORY_OUTBOXES * bytes;
        let limits = OutboxLimits {
            connection_bytes: outboxes.max(bounds::LEAST_CONNECTION_MEMORY_BYTES),
            ..Arc::into_inner(OutboxLimits::of(bytes)).expect("just made")
        };
        let largest_packet = bytes;
        let sent = limits::HELD_INPUT_BYTES + largest_packet + limits::READ_BUFFER_BYTES;
        assert!(limits.read_up_to(0) > sent, "{bytes}");
    }
}

/// What the connection's task keeps counts, too.
#[test]
fn packets_are_refused_beyond_the_memory_of_a_connection() {
    let limits = OutboxLimits::dropping(100);
    let mailbox = mailbox(&limits);
    push(&mailbox, 100).expect("it fits");
    push(&mailbox, 100).expect("it was under way");
    mailbox.keep(limits.connection_bytes - 200);
    assert_eq!(push(&mailbox, 1), Err(Refused::Full));
    mailbox.keep(0);
    push(&mailbox, 1).expect("it was under way");
}

#[test]
fn what_waits_is_charged_to_the_node_until_it_is_taken() {
    let limits = OutboxLimits::of(1 << 20);
    let mailbox = mailbox(&limits);
    push(&mailbox, 100_000).expect("it fits");
    assert!((90_000..=110_000).contains(&limits.memory.used()));
    take(&mailbox, 0);
    assert_eq!(limits.memory.used(), 0);
    let body = mailbox.copy_body(&[7; 50_000]);
    let packet = NewPacket {
        body: Some(&body),
        ..NewPacket::of(QoS::AtLeastOnce)
    };
    for _ in 0..10 {
        let pushed = mailbox.push_packet(packet, |out| {
            out.push(0);
            Ok(())
        });
        pushed.expect("it fits");
    }
    assert_eq!(limits.memory.used(), 50_000, "one body, shared by ten");
    assert!(mailbox.memory() > 500_000, "the client is to get ten");
    drop(body);
    mailbox.close(&mut WakeList::default());
    assert_eq!(limits.memory.used(), 0);
}

#[test]
fn a_publisher_is_told_when_a_full_mailbox_has_room() {
    let limits = OutboxLimits::of(100);
    let (slow, publisher) = (mailbox(&limits), mailbox(&limits));
    slow.await_room(&publisher);
    assert!(publisher.take_offer(), "it is not full");
    push(&slow, 100).expect("it fits");
    slow.await_room(&publisher);
    assert!(!publisher.take_offer());
    take(&slow, 100);
    assert!(!publisher.take_offer(), "still full");
    slow.progress(99, &mut WakeList::default());
    assert!(publisher.take_offer());
    push(&slow, 1).expect("it fits");
    slow.await_room(&publisher);
    slow.close(&mut WakeList::default());
    assert!(
        publisher.take_offer(),
        "nobody waits for one that has ended"
    );
}

/// Packets that come before the reply neither hide it nor are lost.
#[test]
fn the_first_reply_is_found_among_packets() {
    use crate::machine::effect::Reply;
    let mailbox = mailbox(&OutboxLimits::of(100));
    let mut context = Context::from_waker(std::task::Waker::noop());
    push_qos_0(&mailbox, 1).expect("it fits");
    assert!(mailbox.poll_first_reply(&mut context).is_pending());
    push_qos_0(&mailbox, 1).expect("it fits");
    assert!(mailbox.poll_first_reply(&mut context).is_pending());
    assert!(mailbox.push_item(Item::Reply(0, Reply::Done)), "it wakes");
    let reply = mailbox.poll_first_reply(&mut context);
    assert!(matches!(reply, Poll::Ready(Item::Reply(0, Reply::Done))));
    assert!(mailbox.is_filled());
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    assert_eq!((contents.packets.len(), contents.items.len()), (2, 0));
}
