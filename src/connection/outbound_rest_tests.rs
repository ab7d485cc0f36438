//! What expires waits for the socket outside of the output.

use super::*;
use std::collections::VecDeque;
use std::time::Duration;

use crate::base::ids::ConnectionId;
use crate::codec::{PublishHeader, Version, encode_publish};
use crate::mailbox::Mailbox;
use crate::mailbox::back_pressure::OutboxLimits;

/// Packets of 1,000 bytes and more with these numbers in front of their payload, which expire after `expiry_s`.
fn packets(numbers: Range<u16>, qos: QoS, expiry_s: Option<u32>) -> Contents {
    let limits = OutboxLimits::of(1 << 20);
    let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
    let mut contents = Contents::default();
    mailbox.fill(&mut contents, |filling| {
        for number in numbers {
            filling.push(qos, expiry_s, |out| {
                let mut payload = vec![0; 1_000];
                payload[..2].copy_from_slice(&number.to_be_bytes());
                let header = PublishHeader {
                    qos,
                    packet_id: (qos != QoS::AtMostOnce).then_some(PacketId::MIN),
                    remaining_expiry: expiry_s,
                    ..PublishHeader::plain(Version::V5)
                };
                encode_publish(out, "a", b"", &payload, &header).expect("it fits");
                Ok(())
            });
        }
    });
    contents
}

/// What the client has got.
#[derive(Default)]
struct Got {
    /// The numbers of the packets of QoS 0, and of those of QoS 1.
    numbers: [Vec<u16>; 2],
    unacknowledged: VecDeque<PacketId>,
}

impl Got {
    /// Everything that is in the output.
    fn take(&mut self, out: &mut Packets) {
        let mut at = 0;
        while let Some(packet) = out.locate(at, 0) {
            let number = packet.end - 1_000;
            let number = [out.bytes[number], out.bytes[number + 1]];
            self.numbers[packet.qos as usize].push(u16::from_be_bytes(number));
            if packet.qos != QoS::AtMostOnce {
                let id = [
                    out.bytes[packet.packet_id_at],
                    out.bytes[packet.packet_id_at + 1],
                ];
                self.unacknowledged
                    .extend(PacketId::new(u16::from_be_bytes(id)));
            }
            at = packet.end;
        }
        assert_eq!(at, out.bytes.len(), "packets are whole");
        out.clear();
    }
}

/// The interval goes on while the socket takes nothing.
#[test]
fn what_waits_for_the_socket_expires() {
    const MOST: usize = limits::EXPIRING_OUTPUT_BYTES;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let (mut outbound, mut out) = (Outbound::new(u16::MAX), Packets::default());
        let mut contents = packets(0..500, qos, Some(9));
        let over = Instant::now() + Duration::from_millis(20);
        for tracked in contents.tracked.iter_mut().skip(200) {
            tracked.expiry.as_mut().expect("it expires").deadline = over;
        }
        outbound.send(&mut contents, &mut out);
        assert!(contents.packets.is_empty() && contents.special == 0);
        assert!((MOST..MOST + 2_000).contains(&out.len()), "{}", out.len());
        assert!(outbound.has_rest() && outbound.has_backlog());
        let bytes = outbound.backlog_bytes();
        assert!(bytes > 400_000 && outbound.owned_bytes() >= bytes);
        assert!(outbound.tracked_bytes() > 0 && outbound.take_expired().is_none());
        while Instant::now() < over {
            std::hint::spin_loop();
        }
        let mut got = Got::default();
        while outbound.has_rest() {
            got.take(&mut out);
            outbound.send_rest(&mut out, MOST);
            assert!(out.len() < MOST + 2_000, "{}", out.len());
        }
        got.take(&mut out);
        assert!(got.numbers[qos as usize].iter().copied().eq(0..200));
        let sent = outbound.take_counts();
        assert_eq!((sent[qos as usize], sent.iter().sum()), (200, 200u32));
        let expired = outbound.take_expired().map(|expired| expired.count);
        assert_eq!(expired, Some(300));
        let left = outbound.backlog_bytes() + outbound.tracked_bytes();
        assert_eq!((left, outbound.has_backlog()), (0, false));
    }
}

#[test]
fn what_does_not_expire_and_a_little_of_what_does_is_handed_over_whole() {
    let (mut outbound, mut out) = (Outbound::new(u16::MAX), Packets::default());
    let mut got = Got::default();
    for (count, expiry_s) in [(500, None), (50, Some(9))] {
        outbound.send(&mut packets(0..count, QoS::AtLeastOnce, expiry_s), &mut out);
        assert!(!outbound.has_rest());
        got.take(&mut out);
    }
    assert_eq!(got.numbers[1].len(), 550);
}

/// Answers that wait for room in the receive maximum are known until the last of them has left; others do not count.
#[test]
fn answers_that_wait_are_known() {
    for expiry_s in [None, Some(9)] {
        let (mut outbound, mut out) = (Outbound::new(1), Packets::default());
        let mut got = Got::default();
        let mut step = |outbound: &mut Outbound, out: &mut Packets| {
            got.take(out);
            let id = got.unacknowledged.pop_front().expect("one is under way");
            outbound.handle_puback(id, out);
            outbound.send_rest(out, limits::EXPIRING_OUTPUT_BYTES);
        };
        outbound.send(&mut packets(0..5, QoS::AtLeastOnce, None), &mut out);
        assert!(!outbound.has_answers(), "messages of others");
        let mut answers = packets(5..105, QoS::AtLeastOnce, expiry_s);
        answers.has_answers = true;
        outbound.send(&mut answers, &mut out);
        assert!(!answers.has_answers, "the next ones may be of others");
        assert!(outbound.has_answers());
        let others = &mut packets(105..110, QoS::AtLeastOnce, None);
        outbound.send(others, &mut out);
        let mut acknowledged = 0;
        while outbound.has_answers() {
            acknowledged += 1;
            step(&mut outbound, &mut out);
        }
        assert_eq!(acknowledged, 104, "the last one leaves");
        assert!(outbound.has_backlog(), "messages of others still wait");
    }
}

proptest::proptest! {
    /// However the socket takes them, and the client acknowledges: every packet leaves once, in the order of its QoS.
    #[test]
    fn packets_leave_once_and_in_order(
        batches in proptest::collection::vec(
            (1u16..90, proptest::bool::ANY, proptest::bool::ANY, 0u8..4, 0usize..40),
            1..12,
        ),
        receive_maximum in 1u16..200,
    ) {
        let (mut outbound, mut out) = (Outbound::new(receive_maximum), Packets::default());
        let mut got = Got::default();
        let mut step = |outbound: &mut Outbound, out: &mut Packets, acknowledged: usize| {
            got.take(out);
            let most = acknowledged.min(got.unacknowledged.len());
            for id in got.unacknowledged.drain(..most) {
                outbound.handle_puback(id, out);
            }
            outbound.send_rest(out, limits::EXPIRING_OUTPUT_BYTES);
        };
        let (mut put, mut next) = ([0, 0], 0);
        for (count, is_certain, expires, steps, acknowledged) in batches {
            let qos = if is_certain { QoS::AtLeastOnce } else { QoS::AtMostOnce };
            let mut contents = packets(next..next + count, qos, expires.then_some(9));
            outbound.send(&mut contents, &mut out);
            next += count;
            put[qos as usize] += usize::from(count);
            for _ in 0..steps {
                step(&mut outbound, &mut out, acknowledged);
            }
        }
        while outbound.has_backlog() || !out.is_empty() {
            step(&mut outbound, &mut out, usize::MAX);
        }
        for (numbers, put) in got.numbers.iter().zip(put) {
            proptest::prop_assert!(numbers.is_sorted(), "{numbers:?}");
            proptest::prop_assert_eq!(numbers.len(), put);
        }
        proptest::prop_assert_eq!(outbound.backlog_bytes() + outbound.tracked_bytes(), 0);
    }
}
