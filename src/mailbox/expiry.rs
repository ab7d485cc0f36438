//! The message expiry of a packet that waits for its client.
//!
//! Invariant: an interval goes on while the packet waits. The packet that leaves carries what is left of it
//! `[MQTT-3.3.2-6]`, and one whose interval has passed does not leave `[MQTT-3.3.2-5]`.
//! Invariant: a message of which nothing is left reaches clients that are connected, as it is, and does not wait for
//! one that is slow: it leaves within [`LEAST_WAIT`], which is the unit of an interval, or not at all.

use std::time::{Duration, Instant};

use crate::codec::{PropertyId, QoS, Version, frame};

/// How long a packet may be on its way from the publisher's task to the client's socket when nothing is left of its
/// interval.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// How long a message with this expiry interval may wait.
fn longest_wait(expiry_s: u32) -> Duration {
    Duration::from_secs(expiry_s.into()).max(LEAST_WAIT)
}

/// What is left of an expiry interval when the message has waited for so long, seconds; `None` when it is over.
pub fn left(expiry_s: u32, waited: Duration) -> Option<u32> {
    let left = longest_wait(expiry_s).saturating_sub(waited);
    let seconds = u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
    (!left.is_zero()).then_some(seconds.min(expiry_s))
}

/// When a waiting packet expires, and where it says so.
#[derive(Clone, Copy, Debug)]
pub struct Expiry {
    /// When the message is over.
    pub deadline: Instant,
    /// Position of an interval that is counted down in the packet; before MQTT 5 there is none.
    at: Option<u32>,
}

impl Expiry {
    /// The expiry of a packet that was encoded just now; `packet` may lack its body.
    pub fn new(expiry_s: u32, packet: &[u8], qos: QoS, version: Version) -> Expiry {
        Expiry {
            deadline: Instant::now() + longest_wait(expiry_s),
            at: (version.is_v5() && expiry_s > 0)
                .then(|| interval_at(packet, qos, expiry_s))
                .flatten(),
        }
    }

    /// Writes what is left of the interval at `now`; `false` when nothing is.
    pub fn count_down(&self, packet: &mut [u8], now: Instant) -> bool {
        let left = self.deadline.saturating_duration_since(now);
        if left.is_zero() {
            return false;
        }
        let seconds = left.as_millis().div_ceil(1000);
        let at = self.at.map(|at| at as usize);
        if let Some(field) = at.and_then(|at| packet.get_mut(at..at + 4)) {
            field.copy_from_slice(&u32::try_from(seconds).unwrap_or(u32::MAX).to_be_bytes());
        }
        true
    }
}

/// Where a PUBLISH of MQTT 5 holds its expiry interval. The encoder writes it first, behind a topic alias alone.
fn interval_at(packet: &[u8], qos: QoS, expiry_s: u32) -> Option<u32> {
    let fixed = frame::header(packet, u32::MAX).ok()??.length;
    let topic = packet.get(fixed..fixed + 2)?;
    let topic = usize::from(u16::from_be_bytes([topic[0], topic[1]]));
    let packet_id = if qos == QoS::AtMostOnce { 0 } else { 2 };
    let mut at = fixed + 2 + topic + packet_id;
    while *packet.get(at)? & 0x80 != 0 {
        at += 1;
    }
    at += 1;
    if packet.get(at) == Some(&(PropertyId::TopicAlias as u8)) {
        at += 3;
    }
    let is_there = packet.get(at) == Some(&(PropertyId::MessageExpiryInterval as u8))
        && packet.get(at + 1..at + 5) == Some(&expiry_s.to_be_bytes());
    is_there.then_some(at as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{PacketId, PublishHeader, TopicAlias, encode_publish};

    fn packet(qos: QoS, version: Version, alias: Option<u16>) -> Vec<u8> {
        let header = PublishHeader {
            qos,
            packet_id: (qos != QoS::AtMostOnce).then_some(PacketId::MIN),
            remaining_expiry: Some(9),
            topic_alias: alias.and_then(PacketId::new).map(|alias| TopicAlias {
                alias,
                send_topic: true,
            }),
            subscription_ids: &[300],
            ..PublishHeader::plain(version)
        };
        let mut out = Vec::new();
        let payload = b"\x05\x02\0\0\0\x09payload";
        encode_publish(&mut out, "a/b", b"", payload, &header).expect("it fits");
        out
    }

    #[test]
    fn mqtt_3_3_2_6_what_is_left_is_written_and_nothing_else() {
        for (qos, alias) in [
            (QoS::AtMostOnce, None),
            (QoS::AtMostOnce, Some(3)),
            (QoS::AtLeastOnce, None),
        ] {
            let before = packet(qos, Version::V5, alias);
            let mut after = before.clone();
            let expiry = Expiry::new(9, &before, qos, Version::V5);
            let now = expiry.deadline - Duration::from_millis(4_001);
            assert!(expiry.count_down(&mut after, now));
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b);
            assert_eq!(changed.collect::<Vec<_>>(), [(&9, &5)], "{qos:?} {alias:?}");
            assert!(!expiry.count_down(&mut after, expiry.deadline));
        }
    }

    /// The same as in `session::delivery`: at its deadline a message still reaches clients that are connected.
    #[test]
    fn mqtt_3_3_2_5_an_interval_of_0_reaches_a_connected_client_and_does_not_wait() {
        let header = PublishHeader {
            remaining_expiry: Some(0),
            ..PublishHeader::plain(Version::V5)
        };
        let mut packet = Vec::new();
        encode_publish(&mut packet, "a/b", b"", b"payload", &header).expect("it fits");
        let expiry = Expiry::new(0, &packet, QoS::AtMostOnce, Version::V5);
        let mut sent = packet.clone();
        assert!(expiry.count_down(&mut sent, Instant::now()));
        assert_eq!(sent, packet, "nothing is left, and so it says");
        assert!(!expiry.count_down(&mut sent, Instant::now() + LEAST_WAIT));
    }

    #[test]
    fn mqtt_3_3_2_6_what_is_left_is_rounded_up_and_never_more_than_before() {
        let left = |expiry_s, waited_ms| left(expiry_s, Duration::from_millis(waited_ms));
        assert_eq!(left(9, 0), Some(9));
        assert_eq!(left(9, 1), Some(9));
        assert_eq!([left(9, 8_000), left(9, 8_999)], [Some(1); 2]);
        assert_eq!([left(9, 9_000), left(9, u64::MAX)], [None; 2]);
        assert_eq!([left(0, 0), left(0, 999)], [Some(0); 2]);
        assert_eq!(left(0, 1_000), None);
        assert_eq!(left(u32::MAX, 1), Some(u32::MAX));
    }

    #[test]
    fn before_mqtt_5_a_payload_that_looks_like_an_interval_is_left_alone() {
        let before = packet(QoS::AtLeastOnce, Version::V311, None);
        let mut after = before.clone();
        let expiry = Expiry::new(9, &before, QoS::AtLeastOnce, Version::V311);
        assert!(expiry.count_down(&mut after, Instant::now() + Duration::from_secs(5)));
        assert_eq!(before, after);
    }
}
