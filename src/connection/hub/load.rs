//! What the patches of one connection that are under way make every node do.
//!
//! Invariant: a patch weighs what its section may be when it is applied, so it counts what those before it may make of
//! the section. Nobody else writes reported properties, and a session has one connection.
//! Invariant: the patches of one connection that are under way weigh no more than a proposal and the last of them.

use std::ops::{AddAssign, SubAssign};

use crate::base::limits;

/// Of one patch, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Bytes by which the section may grow.
    growth: usize,
    /// What the proposals count beyond their bytes.
    weight: usize,
}

impl Load {
    /// Of a patch of so many bytes, for a section of which so many are stored, when these patches are under way.
    pub(super) fn of_patch(under_way: Load, stored: usize, patch: usize) -> Load {
        let growth = patch * limits::PATCH_GROWTH;
        let section = stored + under_way.growth + growth;
        Load {
            growth,
            weight: section * limits::SECTION_WEIGHT,
        }
    }

    /// As [`crate::replica::proposer::Proposer::submit_weighing`] takes it.
    pub(super) fn weight(self) -> usize {
        self.weight
    }

    /// Whether a further patch has to wait.
    pub(super) fn is_full(self) -> bool {
        self.weight >= limits::PROPOSAL_BYTES
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.growth += other.growth;
        self.weight += other.weight;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Load) {
        self.growth -= other.growth;
        self.weight -= other.weight;
    }
}
