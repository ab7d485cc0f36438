//! What waits to be proposed, by whose commands it is, and how much of each may wait.
//!
//! Invariant: each share has room of its own ([`Share::bound`]), and what waits of one takes none of another's. So
//! whatever clients publish, however much twins weigh, and whoever calls their requests urgent: a CONNECT, and what an
//! operator does to keep somebody out, are refused for what waits of their own kind alone.
//!
//! Invariant: a share never refuses its first command, however large it is.
//!
//! All of them are proposed in one order, so what is taken waits for what all shares hold together, at most.

use std::ops::SubAssign;

use crate::base::limits;

/// Whose commands they are, where what waits is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Those that have no other share: of clients, and what nodes do on their own account.
    Common,
    /// Writes to the state store of keys with very many watchers: a few bytes of one may weigh a megabyte.
    Watched,
    /// Sessions that are opened.
    Sessions,
    /// Patches of devices and modules: a few bytes of one may weigh a megabyte.
    Devices,
    /// Twins that back ends write.
    BackEnds,
    /// Writes to the state store with `$high_priority`, which any client may ask for.
    Urgent,
    /// Identities of the hub: back ends write them, and keep devices out by that.
    Identities,
    /// What operators change: users, bans, rules, tokens, sessions, event subscriptions.
    Administration,
}

impl Share {
    /// All of them.
    pub(super) const ALL: [Share; 8] = [
        Share::Common,
        Share::Watched,
        Share::Sessions,
        Share::Devices,
        Share::BackEnds,
        Share::Urgent,
        Share::Identities,
        Share::Administration,
    ];

    /// Bytes that may wait, the last command not counted.
    pub(super) const fn bound(self) -> usize {
        match self {
            Share::Common => limits::PROPOSAL_QUEUE_BYTES,
            Share::Watched => limits::PROPOSAL_QUEUE_WATCHED_BYTES,
            Share::Sessions => limits::PROPOSAL_QUEUE_SESSIONS_BYTES,
            Share::Devices | Share::BackEnds => limits::PROPOSAL_QUEUE_TWINS_BYTES,
            Share::Urgent => limits::PROPOSAL_QUEUE_URGENT_BYTES,
            Share::Identities | Share::Administration => {
                limits::PROPOSAL_QUEUE_ADMINISTRATION_BYTES
            }
        }
    }
}

/// Bytes that commands count, by their share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weights([usize; Share::ALL.len()]);

impl Weights {
    /// Counts a command.
    pub(super) fn add(&mut self, share: Share, bytes: usize) {
        self.0[share as usize] += bytes;
    }

    /// Of all shares.
    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.0.iter().sum()
    }

    /// Whether a command of this share may be added.
    pub(super) fn has_room(&self, share: Share) -> bool {
        self.0[share as usize] < share.bound()
    }

    /// Whether so much without room of its own waits that a client with much under way adds no more to them.
    pub(super) fn is_crowded(&self) -> bool {
        self.0[Share::Common as usize] >= limits::CROWDED_BYTES
    }
}

impl SubAssign for Weights {
    fn sub_assign(&mut self, other: Weights) {
        for (one, less) in self.0.iter_mut().zip(other.0) {
            *one -= less;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever waits of the others, and however much: each share takes what it takes alone.
        #[test]
        fn no_share_takes_the_room_of_another(
            commands in prop::collection::vec((0..Share::ALL.len(), 0..32_usize << 20), 0..200),
        ) {
            let mut together = Weights::default();
            let mut alone = Share::ALL.map(|_| Weights::default());
            for (share, bytes) in commands {
                let (share, alone) = (Share::ALL[share], &mut alone[share]);
                prop_assert_eq!(together.has_room(share), alone.has_room(share));
                if alone.has_room(share) {
                    together.add(share, bytes);
                    alone.add(share, bytes);
                }
            }
            let all = alone.iter().map(Weights::all).sum::<usize>();
            prop_assert_eq!(together.all(), all);
        }
    }

    #[test]
    fn what_has_room_of_its_own_is_no_crowd() {
        for share in Share::ALL {
            let mut weights = Weights::default();
            weights.add(share, limits::CROWDED_BYTES - 1);
            assert!(!weights.is_crowded(), "{share:?}");
            weights.add(share, 1);
            assert_eq!(weights.is_crowded(), share == Share::Common, "{share:?}");
        }
    }

    #[test]
    fn shares_are_counted_in_their_places() {
        for (place, share) in Share::ALL.into_iter().enumerate() {
            assert_eq!(share as usize, place);
            assert!(Weights::default().has_room(share), "{share:?}");
        }
    }
}
