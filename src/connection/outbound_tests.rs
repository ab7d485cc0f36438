//! The client's receive maximum, packet ids, expiry, and the steps of QoS 1 and 2.

use super::*;
use std::time::Duration;

use crate::base::ids::ConnectionId;
use crate::codec::Version;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Body, Expiry, Mailbox, NewPacket, Tracked, Withheld};

/// A packet with this topic, before its packet id is known.
fn packet(topic: u8, qos: QoS) -> Vec<u8> {
    match qos {
        QoS::AtMostOnce => vec![0x30, 3, 0, 1, topic],
        _ => vec![0x30 | (qos as u8) << 1, 5, 0, 1, topic, 0, 0],
    }
}

/// Bytes of a packet with QoS 1.
const BYTES: usize = 7;

fn packet_with_id(topic: u8, id: u16) -> Vec<u8> {
    let mut packet = packet(topic, QoS::AtLeastOnce);
    packet[5..].copy_from_slice(&id.to_be_bytes());
    packet
}

/// Packets with these topics: with QoS 1 where it is a small letter, otherwise with QoS 0.
fn contents(topics: &[u8]) -> Contents {
    let mut contents = Contents::default();
    for topic in topics {
        let qos = match topic.is_ascii_lowercase() {
            true => QoS::AtLeastOnce,
            false => QoS::AtMostOnce,
        };
        contents.special += usize::from(qos != QoS::AtMostOnce);
        contents.counts[qos as usize] += 1;
        let packets = &mut contents.packets.bytes;
        packets.extend_from_slice(&packet(*topic, qos));
    }
    contents
}

/// Remembers something of the packet with this topic.
fn track(contents: &mut Contents, topic: u8, sequence: Option<u64>, expiry: Option<Expiry>) {
    let (packets, mut at) = (&mut contents.packets, 0);
    while packets.bytes[at + 4] != topic {
        at = packets.locate(at, 0).expect("it is there").end;
    }
    let found = packets.locate(at, 0).expect("it is there");
    if let Some(sequence) = sequence {
        packets.bytes[found.packet_id_at + 1] = sequence as u8;
    }
    contents.special += usize::from(found.qos == QoS::AtMostOnce);
    contents.tracked.push(Tracked {
        at: at as u32,
        sequence: sequence.map(Sequence),
        expiry,
    });
}

/// What a mailbox holds into which the queue's messages with these topics were put, numbered from 1: see [`contents`].
fn granted(topics: &[u8]) -> Contents {
    let limits = OutboxLimits::of(1 << 20);
    let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
    for (number, topic) in (1..).zip(topics) {
        let granted = Withheld {
            sequence: Sequence(number),
            dup: false,
        };
        let qos = match topic.is_ascii_lowercase() {
            true => QoS::AtLeastOnce,
            false => QoS::AtMostOnce,
        };
        let pushed = mailbox.push_granted(NewPacket::of(qos), granted, |out| {
            let mut packet = packet(*topic, qos);
            if qos == QoS::AtLeastOnce {
                packet[5..].copy_from_slice(&(number as u16).to_be_bytes());
            }
            out.extend_from_slice(&packet);
            Ok(())
        });
        pushed.expect("it fits");
    }
    let mut contents = Contents::default();
    mailbox.take(&mut contents);
    contents
}

/// The topics of the packets, each with its packet id: 1 is the first of the connection's own, above the queue's.
fn sent(packets: &Packets) -> Vec<(char, u16)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(packet) = packets.locate(at, 0) {
        let id = &packets.bytes[packet.packet_id_at..packet.end];
        let id = match packet.qos {
            QoS::AtMostOnce => 0,
            _ => u16::from_be_bytes([id[0], id[1]]) - QUEUE_IDS,
        };
        found.push((char::from(packets.bytes[at + 4]), id));
        at = packet.end;
    }
    assert_eq!(at, packets.bytes.len(), "packets are whole");
    found
}

/// One of the connection's own ids, which begin above those of the queue.
fn id(id: u16) -> PacketId {
    PacketId::new(QUEUE_IDS + id).expect("not zero")
}

#[test]
fn room_is_short_when_half_of_what_is_granted_is_in_use() {
    let outbound = Outbound::new(10);
    assert!(!outbound.is_short_of_room(4, 256));
    assert!(outbound.is_short_of_room(5, 256));
    assert!(outbound.is_short_of_room(2, 4));
    assert!(Outbound::new(1).is_short_of_room(1, 256));
}

#[test]
fn the_receive_maximum_is_honoured_and_what_waits_goes_out_in_order() {
    let mut outbound = Outbound::new(2);
    let mut out = Packets::default();
    let mut six = contents(b"aYbcZd");
    outbound.send(&mut six, &mut out);
    assert_eq!(sent(&out), [('a', 1), ('Y', 0), ('b', 2), ('Z', 0)]);
    out.clear();
    assert_eq!(outbound.handle_puback(id(2), &mut out), After::Nothing);
    assert_eq!(sent(&out), [('c', 3)]);
    outbound.handle_puback(id(2), &mut out);
    assert_eq!(sent(&out), [('c', 3)], "acknowledged twice");
    outbound.handle_puback(id(1), &mut out);
    assert_eq!(sent(&out), [('c', 3), ('d', 4)]);
}

#[test]
fn the_backlog_is_counted() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    outbound.send(&mut contents(b"abc"), &mut out);
    for (number, left) in [(1, 2), (2, 1), (3, 0)] {
        assert_eq!(outbound.backlog_bytes(), left * BYTES);
        outbound.handle_puback(id(number), &mut out);
    }
    assert_eq!(sent(&out), [('a', 1), ('b', 2), ('c', 3)]);
}

/// A packet that waits takes as much memory as it has bytes, however small it is.
#[test]
fn nothing_is_remembered_of_packets_that_wait() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    let idle = outbound.owned_bytes();
    for _ in 0..1_000 {
        outbound.send(&mut contents(&[b'a'; 100]), &mut out);
    }
    assert_eq!(outbound.backlog_bytes(), 99_999 * BYTES);
    let awaited = outbound.awaited.capacity() * AWAITED_BYTES;
    assert_eq!(outbound.owned_bytes() - idle - awaited, 99_999 * BYTES);
    // What is sent is given back.
    for number in 1..=60_000 {
        let last = outbound.last_id;
        outbound.handle_puback(PacketId::new(last).expect("not zero"), &mut out);
        let left = (99_999 - number) * BYTES;
        assert_eq!(outbound.backlog_bytes(), left);
        let kept = outbound.backlog.as_ref().expect("some wait").owned_bytes();
        assert!(kept <= left + (64 << 10), "{kept}");
    }
}

#[test]
fn packet_ids_in_use_are_passed_over() {
    let mut outbound = Outbound::new(u16::MAX);
    outbound.last_id = u16::MAX - 1;
    let delivery = Delivery {
        awaited: Awaited::PubAck,
        end: 0,
    };
    outbound.awaited.insert(id(1).get(), delivery);
    assert_eq!(outbound.assign_packet_id(QoS::AtLeastOnce), u16::MAX);
    assert_eq!(outbound.assign_packet_id(QoS::AtLeastOnce), id(2).get());
}

/// Whatever is acknowledged tells that all before it was read.
#[test]
fn acknowledgements_tell_how_far_the_client_has_read() {
    let mut outbound = Outbound::new(3);
    let mut out = Packets::default();
    // Positions beyond 4 GiB are told, too.
    let start = (1 << 32) - 10;
    (outbound.sent_bytes, outbound.read_bytes) = (start, start);
    outbound.send(&mut contents(b"XaYbcdZ"), &mut out);
    const QOS_0: u64 = 5;
    let (first, second) = (QOS_0 + BYTES as u64, 2 * QOS_0 + 2 * BYTES as u64);
    assert_eq!(outbound.read_bytes(), start);
    outbound.handle_puback(id(2), &mut out);
    assert_eq!(outbound.read_bytes() - start, second);
    outbound.handle_puback(id(1), &mut out);
    assert_eq!(outbound.read_bytes() - start, second, "{first} was before");
    outbound.handle_puback(id(9), &mut out);
    assert_eq!(outbound.read_bytes() - start, second, "not in use");
    // It had to wait, and Z was sent before it.
    outbound.handle_puback(id(4), &mut out);
    assert_eq!(outbound.read_bytes(), outbound.sent_bytes);
    let all = 3 * QOS_0 + 4 * BYTES as u64;
    assert_eq!(outbound.sent_bytes - start, all);
}

#[test]
fn qos_2_goes_from_pubrec_to_pubcomp() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    outbound.assign_packet_id(QoS::ExactlyOnce);
    assert_eq!(
        outbound.handle_pubrec(id(1), false, &mut out),
        After::SendPubRel
    );
    assert_eq!(
        outbound.handle_pubrec(id(1), false, &mut out),
        After::SendPubRel
    );
    assert_eq!(
        outbound.handle_pubrec(id(9), false, &mut out),
        After::NotFound
    );
    assert_eq!(outbound.handle_puback(id(1), &mut out), After::WrongQos);
    assert_eq!(outbound.handle_pubcomp(id(1), &mut out), After::Nothing);
    outbound.assign_packet_id(QoS::ExactlyOnce);
    assert_eq!(
        outbound.handle_pubrec(id(2), true, &mut out),
        After::Nothing
    );
    assert!(outbound.has_room(None));
}

#[test]
fn messages_of_the_queue_keep_their_ids_and_count_against_the_same_maximum() {
    let mut outbound = Outbound::new(2);
    let mut out = Packets::default();
    let mut three = contents(b"qar");
    track(&mut three, b'q', Some(7), None);
    track(&mut three, b'r', Some(8), None);
    outbound.send(&mut three, &mut out);
    let two = [packet_with_id(b'q', 7), packet_with_id(b'a', id(1).get())];
    assert_eq!(out.bytes, two.concat());
    assert_eq!(outbound.sent_through(), Sequence(7));
    out.clear();
    let seven = PacketId::new(7).expect("not zero");
    assert_eq!(
        outbound.handle_puback(seven, &mut out),
        After::Completed(Sequence(7))
    );
    assert_eq!(out.bytes, packet_with_id(b'r', 8));
    assert_eq!(outbound.handle_puback(seven, &mut out), After::Nothing);
}

/// QoS 1, topic `a`, an expiry interval of 9 s.
const EXPIRING: &[u8] = b"\x32\x0c\0\x01a\0\0\x05\x02\0\0\0\x09m";

/// With `mqtt.queue_qos_0` those with QoS 0 come from the queue, too; nothing is left of them there.
#[test]
fn messages_of_the_queue_with_qos_0_need_no_room_and_take_none() {
    let mut outbound = Outbound::new(2);
    let mut out = Packets::default();
    let mut taken = granted(b"AaBbCc");
    assert_eq!(taken.tracked.len(), 3, "of QoS 0 nothing is remembered");
    outbound.send(&mut taken, &mut out);
    let first: String = topics(&out);
    assert_eq!(first, "AaBbC", "the client takes two at once");
    assert_eq!(outbound.sent_through(), Sequence(4));
    out.clear();
    let acknowledged = PacketId::new(2).expect("not zero");
    assert_ne!(
        outbound.handle_puback(acknowledged, &mut out),
        After::Nothing
    );
    assert_eq!(topics(&out), "c");
}

/// The topics of the packets.
fn topics(packets: &Packets) -> String {
    let (mut found, mut at) = (String::new(), 0);
    while let Some(packet) = packets.locate(at, 0) {
        found.push(char::from(packets.bytes[at + 4]));
        at = packet.end;
    }
    found
}

/// What is remembered of packets that wait counts as long as they wait, wherever that is.
#[test]
fn what_is_remembered_of_the_backlog_is_counted() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    let mut three = Contents::default();
    for at in (0..3).map(|number| number * EXPIRING.len()) {
        three.packets.bytes.extend_from_slice(EXPIRING);
        three.special += 1;
        three.counts[1] += 1;
        three.tracked.push(Tracked {
            at: at as u32,
            sequence: None,
            expiry: expiry_after(0, 9, QoS::AtLeastOnce, EXPIRING),
        });
    }
    outbound.send(&mut three, &mut out);
    assert_eq!(outbound.tracked_bytes(), 2 * size_of::<Tracked>());
    for (number, left) in [(1, 1), (2, 0)] {
        outbound.handle_puback(id(number), &mut out);
        assert_eq!(outbound.tracked_bytes(), left * size_of::<Tracked>());
    }
    assert_eq!(
        (outbound.backlog_bytes(), outbound.has_backlog()),
        (0, false)
    );
}

/// The expiry of a packet that has waited for so long.
fn expiry_after(waited_s: u64, expiry_s: u32, qos: QoS, packet: &[u8]) -> Option<Expiry> {
    let mut expiry = Expiry::new(expiry_s, packet, qos, Version::V5);
    expiry.deadline -= Duration::from_secs(waited_s);
    Some(expiry)
}

#[test]
fn what_waits_for_room_counts_down_and_expires() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    let mut three = contents(b"qe");
    // Of the first nothing is left: it does not wait longer than a second.
    track(
        &mut three,
        b'e',
        None,
        expiry_after(1, 0, QoS::AtLeastOnce, b""),
    );
    three.tracked.push(Tracked {
        at: three.packets.bytes.len() as u32,
        sequence: None,
        expiry: expiry_after(5, 9, QoS::AtLeastOnce, EXPIRING),
    });
    three.special += 1;
    three.counts[1] += 1;
    three.packets.bytes.extend_from_slice(EXPIRING);
    outbound.send(&mut three, &mut out);
    assert!(outbound.take_expired().is_none(), "they wait");
    out.clear();
    outbound.handle_puback(id(1), &mut out);
    assert_eq!(out.bytes, b"\x32\x0c\0\x01a\x80\x01\x05\x02\0\0\0\x04m");
    assert_eq!(
        outbound.take_expired().map(|expired| expired.count),
        Some(1)
    );
}

/// More messages than there are packet ids, for a client that acknowledges none and set no receive maximum.
#[test]
fn packet_ids_never_run_out() {
    let mut outbound = Outbound::new(u16::MAX);
    let mut out = Packets::default();
    for _ in 0..70 {
        outbound.send(&mut contents(&[b'a'; 1_000]), &mut out);
    }
    assert_eq!(outbound.awaited.len(), OWN_UNACKNOWLEDGED);
    assert_eq!(out.len(), BYTES * OWN_UNACKNOWLEDGED);
    let waiting = BYTES * (70_000 - OWN_UNACKNOWLEDGED);
    assert_eq!(outbound.backlog_bytes(), waiting);
    // A message of the session's queue has an id of its own, but nothing overtakes.
    let mut queued = contents(b"q");
    track(&mut queued, b'q', Some(7), None);
    out.clear();
    outbound.send(&mut queued, &mut out);
    assert!(out.is_empty());
    // The same id is acknowledged again and again: the search stays cheap, because half of the ids are free.
    let mut acknowledged = 0;
    for number in 1..=OWN_UNACKNOWLEDGED as u16 {
        outbound.handle_puback(id(number), &mut out);
        acknowledged += 1;
        assert_eq!(out.len(), BYTES * acknowledged, "each makes room for one");
    }
    assert_eq!(outbound.awaited.len(), OWN_UNACKNOWLEDGED);
}

/// The interval goes on in the mailbox, for QoS 0 too, and what is over leaves nothing behind.
#[test]
fn what_has_waited_in_the_mailbox_counts_down_and_expires() {
    let mut outbound = Outbound::new(2);
    let packet = b"\x30\x0a\0\x01a\x05\x02\0\0\0\x09m";
    let mut four = Contents::default();
    for waited_s in [6, 10] {
        four.tracked.push(Tracked {
            at: four.packets.bytes.len() as u32,
            sequence: None,
            expiry: expiry_after(waited_s, 9, QoS::AtMostOnce, packet),
        });
        four.packets.bytes.extend_from_slice(packet);
    }
    let mut rest = contents(b"bc");
    track(
        &mut rest,
        b'b',
        Some(3),
        expiry_after(10, 9, QoS::AtLeastOnce, b""),
    );
    four.tracked
        .extend(rest.tracked.drain(..).map(|entry| Tracked {
            at: entry.at + 2 * packet.len() as u32,
            ..entry
        }));
    four.special = 4;
    four.counts = [2, 2, 0];
    four.packets.bytes.append(&mut rest.packets.bytes);
    let mut out = Packets::default();
    outbound.send(&mut four, &mut out);
    let counted_down = b"\x30\x0a\0\x01a\x05\x02\0\0\0\x03m".to_vec();
    let left = [counted_down, packet_with_id(b'c', id(1).get())];
    assert_eq!(out.bytes, left.concat());
    let expired = outbound.take_expired().expect("two are over");
    assert_eq!((expired.count, expired.sequences), (2, vec![Sequence(3)]));
}

/// Bodies that are shared with other subscribers wait, leave and are counted with their packets.
#[test]
fn shared_bodies_stay_with_their_packets() {
    let memory = crate::mailbox::memory::NodeMemory::new(1 << 20);
    // A body of two bytes, and one small packet between.
    let mut mixed = Contents::default();
    for topic in b"abc" {
        let mut head = packet(*topic, QoS::AtLeastOnce);
        if *topic != b'b' {
            head[1] += 2;
        }
        mixed.packets.bytes.extend_from_slice(&head);
        if *topic != b'b' {
            mixed.packets.push_body(Body::new(&[*topic; 2], &memory));
        }
        mixed.special += 1;
        mixed.counts[1] += 1;
    }
    let with_body = |topic: u8, number: u16| {
        let mut packet = packet_with_id(topic, id(number).get());
        packet[1] += 2;
        packet.extend_from_slice(&[topic; 2]);
        packet
    };
    let mut outbound = Outbound::new(1);
    let mut out = crate::mailbox::Unsent::default();
    outbound.send(&mut mixed, out.packets());
    assert_eq!(out.to_vec(), with_body(b'a', 1));
    assert_eq!(outbound.backlog_bytes(), 2 * BYTES + 2);
    out.advance(BYTES + 2);
    outbound.handle_puback(id(1), out.packets());
    assert_eq!(out.to_vec(), packet_with_id(b'b', id(2).get()));
    out.advance(BYTES);
    outbound.handle_puback(id(2), out.packets());
    assert_eq!(out.to_vec(), with_body(b'c', 3));
    assert_eq!(outbound.backlog_bytes(), 0);
}
