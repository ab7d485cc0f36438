//! One message for one session: how several matching subscriptions make one delivery, and when a message expires.
//!
//! Overlapping subscriptions are merged: the session gets one copy, with the highest QoS granted and the identifiers of
//! all subscriptions that matched (MQTT 5, 3.3.4). Shared subscriptions are not merged: each of their groups
//! gets a copy of its own.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::QoS;
use crate::base::time::Millis;

/// Up to so many identifiers, the duplicates among them are found by looking at all.
const FEW_IDENTIFIERS: usize = 16;

/// The identifiers of the subscriptions that match one message, in the order in which they were added.
///
/// A client may have subscriptions with 65,536 identifiers that match one topic, so duplicates are found without
/// comparing each with all others.
#[derive(Clone, Debug, Default)]
pub struct Identifiers {
    found: SmallVec<[u32; 2]>,
    /// Those found, once they are many. Clients choose them, so they are hashed with a random seed.
    #[expect(
        clippy::box_collection,
        reason = "few have one, and routes hold many of these"
    )]
    known: Option<Box<HashSet<u32>>>,
}

impl Identifiers {
    /// Adds an identifier, unless it is there.
    pub fn add(&mut self, identifier: u32) {
        let is_new = match &mut self.known {
            Some(known) => known.insert(identifier),
            None => !self.found.contains(&identifier),
        };
        if !is_new {
            return;
        }
        self.found.push(identifier);
        if self.known.is_none() && self.found.len() > FEW_IDENTIFIERS {
            self.known = Some(Box::new(self.found.iter().copied().collect()));
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// No more are to be added: gives back what only that needs.
    pub fn finish(&mut self) {
        self.known = None;
        self.found.shrink_to_fit();
    }

    /// What they take in memory beside `Self`, once all are added.
    pub fn bytes(&self) -> usize {
        match self.found.spilled() {
            true => self.found.capacity() * size_of::<u32>(),
            false => 0,
        }
    }

    /// Each once.
    pub fn as_slice(&self) -> &[u32] {
        &self.found
    }

    /// Each once.
    pub fn into_list(self) -> SmallVec<[u32; 2]> {
        self.found
    }
}

impl From<SmallVec<[u32; 2]>> for Identifiers {
    /// A list without duplicates, to which none is to be added.
    fn from(found: SmallVec<[u32; 2]>) -> Identifiers {
        Identifiers { found, known: None }
    }
}

/// What a matching subscription asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Maximum QoS, as granted.
    pub qos: QoS,
    /// No Local, when the publisher is the subscriber itself `[MQTT-3.8.3-3]`.
    pub is_own: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Subscription identifier; `None` when there is none.
    pub identifier: Option<u32>,
}

/// The copy of a message that one session gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The lower of the message's QoS and the highest one granted.
    pub qos: QoS,
    /// RETAIN, as far as a subscription wants it passed on `[MQTT-3.3.1-12]`, `[MQTT-3.3.1-13]`.
    pub retain: bool,
    /// Identifiers of the subscriptions that matched, in the order in which they did, none twice.
    pub identifiers: SmallVec<[u32; 2]>,
}

impl Delivery {
    /// Merges the matches of one session; `None` when the message is not for it. `qos` and `retain` are those of the
    /// PUBLISH.
    pub fn merge(qos: QoS, retain: bool, matches: impl IntoIterator<Item = Match>) -> Option<Self> {
        let mut merged: Option<Delivery> = None;
        let mut identifiers = Identifiers::default();
        for found in matches {
            if found.is_own {
                continue;
            }
            let delivery = merged.get_or_insert_with(|| Delivery {
                qos: QoS::AtMostOnce,
                retain: false,
                identifiers: SmallVec::new(),
            });
            delivery.qos = delivery.qos.max(found.qos.min(qos));
            delivery.retain |= retain && found.retain_as_published;
            if let Some(identifier) = found.identifier {
                identifiers.add(identifier);
            }
        }
        if let Some(delivery) = &mut merged {
            delivery.identifiers = identifiers.into_list();
        }
        merged
    }
}

/// What subscription identifiers count for in a queue's bounds, bytes: those beyond the first, which a row of an entry
/// has room for. None of them may be left out `[MQTT-3.3.4-3]`, so a session with many overlapping subscriptions fills
/// its queue sooner.
pub fn identifiers_size(identifiers: &[u32]) -> u32 {
    let bytes = identifiers.len().saturating_sub(1) * size_of::<u32>();
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// When a message that was accepted at `accepted_at` with this expiry interval expires.
pub fn expires_at(accepted_at: Millis, expiry_interval_s: u32) -> Millis {
    accepted_at.plus(u64::from(expiry_interval_s) * 1000)
}

/// The expiry interval to send with a message, seconds: what was received less the time it waited `[MQTT-3.3.2-6]`,
/// rounded up. `None` when it has expired and must not be sent `[MQTT-3.3.2-5]`. At the deadline it may still be sent,
/// so that a message with an interval of 0 reaches clients that are connected.
pub fn remaining_s(expires_at: Millis, now: Millis) -> Option<u32> {
    let left_ms = expires_at.0.checked_sub(now.0)?;
    Some(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX))
}

/// Whether a new subscription gets the retained messages that match, by its Retain Handling
/// `[MQTT-3.3.1-9]`, `[MQTT-3.3.1-10]`, `[MQTT-3.3.1-11]`. Never for shared subscriptions (MQTT 5, 3.8.4).
pub fn sends_retained(retain_handling: u8, is_new: bool, is_shared: bool) -> bool {
    match retain_handling {
        _ if is_shared => false,
        0 => true,
        1 => is_new,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Match = Match {
        qos: QoS::ExactlyOnce,
        is_own: false,
        retain_as_published: false,
        identifier: None,
    };

    #[test]
    fn the_qos_of_a_delivery_is_the_lower_one() {
        for (published, granted, delivered) in [
            (QoS::AtMostOnce, QoS::ExactlyOnce, QoS::AtMostOnce),
            (QoS::ExactlyOnce, QoS::AtLeastOnce, QoS::AtLeastOnce),
            (QoS::AtLeastOnce, QoS::AtMostOnce, QoS::AtMostOnce),
            (QoS::ExactlyOnce, QoS::ExactlyOnce, QoS::ExactlyOnce),
        ] {
            let found = Match {
                qos: granted,
                ..PLAIN
            };
            let delivery = Delivery::merge(published, false, [found]).unwrap();
            assert_eq!(delivery.qos, delivered);
        }
    }

    #[test]
    fn overlapping_subscriptions_give_one_copy_with_all_identifiers() {
        let with = |qos, identifier| Match {
            qos,
            identifier,
            ..PLAIN
        };
        let delivery = Delivery::merge(
            QoS::AtLeastOnce,
            false,
            [
                with(QoS::AtMostOnce, Some(7)),
                with(QoS::ExactlyOnce, None),
                with(QoS::AtMostOnce, Some(3)),
                with(QoS::AtMostOnce, Some(7)),
            ],
        )
        .unwrap();
        assert_eq!(delivery.qos, QoS::AtLeastOnce);
        assert_eq!(delivery.identifiers.as_slice(), [7, 3]);
    }

    /// With a search per match this takes minutes, and every node applies it.
    #[test]
    fn as_many_identifiers_as_subscriptions_are_merged_in_linear_time() {
        let identifiers = (1..=60_000).chain((1..=60_000).rev());
        let matches = identifiers.map(|identifier| Match {
            identifier: Some(identifier),
            ..PLAIN
        });
        let delivery = Delivery::merge(QoS::AtLeastOnce, false, matches).unwrap();
        assert!(delivery.identifiers.into_iter().eq(1..=60_000));
    }

    #[test]
    fn mqtt_3_8_3_3_no_local_leaves_only_the_others() {
        let own = Match {
            is_own: true,
            identifier: Some(1),
            ..PLAIN
        };
        assert_eq!(Delivery::merge(QoS::AtLeastOnce, false, [own]), None);
        let other = Match {
            qos: QoS::AtMostOnce,
            identifier: Some(2),
            ..PLAIN
        };
        let delivery = Delivery::merge(QoS::AtLeastOnce, false, [own, other]).unwrap();
        assert_eq!(delivery.qos, QoS::AtMostOnce);
        assert_eq!(delivery.identifiers.as_slice(), [2]);
    }

    #[test]
    fn mqtt_3_3_1_12_and_13_retain_is_passed_on_as_asked() {
        let kept = Match {
            retain_as_published: true,
            ..PLAIN
        };
        let retain = |retain, found| {
            Delivery::merge(QoS::AtMostOnce, retain, [found])
                .unwrap()
                .retain
        };
        assert!(!retain(true, PLAIN) && retain(true, kept) && !retain(false, kept));
    }

    #[test]
    fn mqtt_3_3_2_6_expiry_counts_down() {
        let deadline = expires_at(Millis(1_000), 10);
        assert_eq!(remaining_s(deadline, Millis(1_000)), Some(10));
        assert_eq!(remaining_s(deadline, Millis(1_001)), Some(10));
        assert_eq!(remaining_s(deadline, Millis(2_000)), Some(9));
        assert_eq!(remaining_s(deadline, Millis(10_999)), Some(1));
        assert_eq!(remaining_s(deadline, Millis(11_000)), Some(0));
        assert_eq!(remaining_s(deadline, Millis(11_001)), None);
        assert_eq!(remaining_s(deadline, Millis(99_000)), None);
        assert_eq!(remaining_s(Millis::NEVER, Millis(0)), Some(u32::MAX));
    }

    #[test]
    fn mqtt_3_3_1_9_to_11_retain_handling() {
        for (handling, is_new, sends) in [
            (0, true, true),
            (0, false, true),
            (1, true, true),
            (1, false, false),
            (2, true, false),
            (2, false, false),
        ] {
            assert_eq!(sends_retained(handling, is_new, false), sends);
            assert!(!sends_retained(handling, is_new, true));
        }
    }
}
