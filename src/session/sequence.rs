//! Numbers of a session's outgoing messages, and the packet ids that follow from them.
//!
//! A packet id is a function of the sequence, so it is the same on every node and nothing has to be replicated for
//! it. Two messages have the same id when their sequences are a multiple of [`PACKET_IDS`] apart; a message is
//! therefore sent only while the oldest unfinished one is less than that behind ([`Sequence::fits_with`]).

use std::fmt;
use std::num::NonZeroU16;

/// How many packet ids queues use: 1 to 32,767. The others are the connection's own, for what is stored nowhere.
pub const PACKET_IDS: u64 = 32_767;

/// The number of a message in a session's queue: 1 for the first, rising by one, never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// Before the first message.
    pub const NONE: Sequence = Sequence(0);

    /// The number after this one. Never wraps: 2^64 messages take longer than any session lives.
    pub fn next(self) -> Sequence {
        Sequence(self.0.saturating_add(1))
    }

    /// The packet id this message is always sent under `[MQTT-2.2.1-4]`.
    pub fn packet_id(self) -> NonZeroU16 {
        let id = (self.0.wrapping_sub(1) % PACKET_IDS) as u16;
        // The remainder is below 32,767.
        NonZeroU16::MIN.saturating_add(id)
    }

    /// Whether this message may be under way together with `oldest` and all between them without two having one id.
    pub fn fits_with(self, oldest: Sequence) -> bool {
        self.0.abs_diff(oldest.0) < PACKET_IDS
    }

    /// The message a client means by `packet_id`, when `oldest` is not younger than any unfinished one: the only
    /// candidate among those that fit with `oldest`.
    pub fn of_packet_id(packet_id: NonZeroU16, oldest: Sequence) -> Sequence {
        let first = u64::from(oldest.packet_id().get());
        let wanted = u64::from(packet_id.get());
        let ahead = (wanted + PACKET_IDS - first) % PACKET_IDS;
        Sequence(oldest.0.saturating_add(ahead))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packet_ids_go_round_without_zero() {
        for (sequence, id) in [
            (1, 1),
            (2, 2),
            (32_766, 32_766),
            (32_767, 32_767),
            (32_768, 1),
            (65_534, 32_767),
            (65_535, 1),
        ] {
            assert_eq!(Sequence(sequence).packet_id().get(), id);
        }
    }

    #[test]
    fn mqtt_2_2_1_4_ids_are_unique_while_messages_fit_together() {
        let oldest = Sequence(1_000_000);
        let ids: HashSet<_> = (0..PACKET_IDS)
            .map(|ahead| Sequence(oldest.0 + ahead))
            .inspect(|sequence| assert!(sequence.fits_with(oldest)))
            .map(Sequence::packet_id)
            .collect();
        assert_eq!(ids.len() as u64, PACKET_IDS);
        assert!(!Sequence(oldest.0 + PACKET_IDS).fits_with(oldest));
    }

    proptest! {
        #[test]
        fn the_message_of_an_id_is_found_again(oldest in 1u64..1_000_000_000, ahead in 0..PACKET_IDS) {
            let sequence = Sequence(oldest + ahead);
            let found = Sequence::of_packet_id(sequence.packet_id(), Sequence(oldest));
            prop_assert_eq!(found, sequence);
        }
    }
}
