//! The client's receive maximum, packet ids, expiry, and the steps of QoS 1 and 2.

use super::*;
use std::time::Duration;

use crate::codec::Version;
use crate::mailbox::Tracked;

fn contents(packets: &[(&[u8], Option<usize>)]) -> Contents {
    let mut contents = Contents::default();
    for (packet, id_at) in packets {
        let at = contents.packets.len();
        contents.packets.bytes.extend_from_slice(packet);
        if let Some(id_at) = id_at {
            contents.tracked.push(Tracked {
                at: at as u32,
                length: packet.len() as u32,
                packet_id_at: (at + id_at) as u32,
                qos: QoS::AtLeastOnce,
                sequence: None,
                expiry: None,
            });
        }
    }
    contents
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
    let mut four = contents(&[
        (b"a__", Some(1)),
        (b"zero", None),
        (b"b__", Some(1)),
        (b"c__", Some(1)),
        (b"0", None),
        (b"d__", Some(1)),
    ]);
    outbound.send(&mut four, &mut out);
    assert_eq!(out.bytes, b"a\x80\0zerob\x80\x010");
    out.clear();
    assert_eq!(outbound.handle_puback(id(2), &mut out), After::Nothing);
    assert_eq!(out.bytes, b"c\x80\x02");
    outbound.handle_puback(id(2), &mut out);
    assert_eq!(out.bytes, b"c\x80\x02", "acknowledged twice");
    outbound.handle_puback(id(1), &mut out);
    assert_eq!(out.bytes, b"c\x80\x02d\x80\x03");
}

#[test]
fn the_backlog_is_counted() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    let mut three = contents(&[(b"a__", Some(1)), (b"bb__", Some(2)), (b"c__", Some(1))]);
    outbound.send(&mut three, &mut out);
    assert_eq!(outbound.backlog_bytes(), 7);
    outbound.handle_puback(id(1), &mut out);
    assert_eq!(outbound.backlog_bytes(), 3);
    outbound.handle_puback(id(2), &mut out);
    assert_eq!(outbound.backlog_bytes(), 0);
    assert_eq!(out.bytes, b"a\x80\0bb\x80\x01c\x80\x02");
}

#[test]
fn packet_ids_in_use_are_passed_over() {
    let mut outbound = Outbound::new(u16::MAX);
    outbound.last_id = u16::MAX - 1;
    outbound.awaited.insert(id(1).get(), Awaited::PubAck);
    assert_eq!(outbound.assign_packet_id(QoS::AtLeastOnce), u16::MAX);
    assert_eq!(outbound.assign_packet_id(QoS::AtLeastOnce), id(2).get());
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
    let mut three = contents(&[
        (b"q\0\x07", Some(1)),
        (b"a__", Some(1)),
        (b"r\0\x08", Some(1)),
    ]);
    three.tracked[0].sequence = Some(Sequence(7));
    three.tracked[2].sequence = Some(Sequence(8));
    outbound.send(&mut three, &mut out);
    assert_eq!(out.bytes, b"q\0\x07a\x80\0");
    assert_eq!(outbound.sent_through(), Sequence(7));
    out.clear();
    let seven = PacketId::new(7).expect("not zero");
    assert_eq!(
        outbound.handle_puback(seven, &mut out),
        After::Completed(Sequence(7))
    );
    assert_eq!(out.bytes, b"r\0\x08");
    assert_eq!(outbound.handle_puback(seven, &mut out), After::Nothing);
}

#[test]
fn what_waits_for_room_counts_down_and_expires() {
    let mut outbound = Outbound::new(1);
    let mut out = Packets::default();
    let packet = b"\x32\x0c\0\x01a__\x05\x02\0\0\0\x09m";
    let mut three = contents(&[(b"q__", Some(1)), (b"0__\0", Some(1)), (packet, Some(5))]);
    let expiry = |expiry_s, packet: &[u8]| {
        let qos = QoS::AtLeastOnce;
        Some(Expiry::new(expiry_s, packet, qos, Version::V5))
    };
    three.tracked[1].expiry = expiry(0, b"");
    three.tracked[2].expiry = expiry(9, packet);
    outbound.send(&mut three, &mut out);
    assert!(outbound.take_expired().is_none());
    // Of the first nothing is left: it does not wait longer than a second.
    for (waiting, waited_s) in outbound.backlog.iter_mut().zip([1, 5]) {
        let expiry = waiting.expiry.as_mut().expect("it expires");
        expiry.deadline -= Duration::from_secs(waited_s);
    }
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
        let packets: Vec<(&[u8], Option<usize>)> = vec![(b"___", Some(1)); 1_000];
        outbound.send(&mut contents(&packets), &mut out);
    }
    assert_eq!(outbound.awaited.len(), OWN_UNACKNOWLEDGED);
    assert_eq!(out.len(), 3 * OWN_UNACKNOWLEDGED);
    assert_eq!(outbound.backlog_bytes(), 3 * (70_000 - OWN_UNACKNOWLEDGED));
    // A message of the session's queue has an id of its own, but nothing overtakes.
    let mut queued = contents(&[(b"q\0\x07", Some(1))]);
    queued.tracked[0].sequence = Some(Sequence(7));
    out.clear();
    outbound.send(&mut queued, &mut out);
    assert!(out.is_empty());
    // The same id is acknowledged again and again: the search stays cheap, because half of the ids are free.
    let mut acknowledged = 0;
    for number in 1..=OWN_UNACKNOWLEDGED as u16 {
        outbound.handle_puback(id(number), &mut out);
        acknowledged += 1;
        assert_eq!(out.len(), 3 * acknowledged, "each makes room for one");
    }
    assert_eq!(outbound.awaited.len(), OWN_UNACKNOWLEDGED);
}

/// The interval goes on in the mailbox, for QoS 0 too, and what is over leaves nothing behind.
#[test]
fn what_has_waited_in_the_mailbox_counts_down_and_expires() {
    let mut outbound = Outbound::new(2);
    let packet = b"\x30\x0a\0\x01a\x05\x02\0\0\0\x09m";
    let mut three = contents(&[(packet, Some(0)), (packet, Some(0)), (b"b__", Some(1))]);
    for entry in &mut three.tracked[..2] {
        entry.qos = QoS::AtMostOnce;
        let mut expiry = Expiry::new(9, packet, entry.qos, Version::V5);
        expiry.deadline -= Duration::from_secs(6);
        entry.expiry = Some(expiry);
    }
    let over = three.tracked[1].expiry.as_mut().expect("it expires");
    over.deadline -= Duration::from_secs(4);
    let mut queued = three.tracked[2];
    queued.sequence = Some(Sequence(3));
    queued.expiry = three.tracked[1].expiry;
    three.tracked.push(three.tracked[2]);
    three.tracked[2] = queued;
    three.tracked[3].at += 3;
    three.tracked[3].packet_id_at += 3;
    three.packets.bytes.extend_from_slice(b"c__");
    let mut out = Packets::default();
    outbound.send(&mut three, &mut out);
    assert_eq!(out.bytes, b"\x30\x0a\0\x01a\x05\x02\0\0\0\x03mc\x80\0");
    let expired = outbound.take_expired().expect("two are over");
    assert_eq!((expired.count, expired.sequences), (2, vec![Sequence(3)]));
}

/// Bodies that are shared with other subscribers wait, leave and are counted with their packets.
#[test]
fn shared_bodies_stay_with_their_packets() {
    let memory = crate::mailbox::memory::NodeMemory::new(1 << 20);
    let mut contents = Contents::default();
    for head in [b"a__", b"b__"] {
        let at = contents.packets.bytes.len() as u32;
        contents.packets.bytes.extend_from_slice(head);
        contents.packets.push_body(Body::new(&head[..1], &memory));
        contents.tracked.push(Tracked {
            at,
            length: 3,
            packet_id_at: at + 1,
            qos: QoS::AtLeastOnce,
            sequence: None,
            expiry: None,
        });
    }
    let mut outbound = Outbound::new(1);
    let mut out = crate::mailbox::Unsent::default();
    outbound.send(&mut contents, out.packets());
    assert_eq!(
        (out.to_vec(), outbound.backlog_bytes()),
        (b"a\x80\0a".to_vec(), 4)
    );
    out.advance(4);
    outbound.handle_puback(id(1), out.packets());
    assert_eq!(
        (out.to_vec(), outbound.backlog_bytes()),
        (b"b\x80\x01b".to_vec(), 0)
    );
}
