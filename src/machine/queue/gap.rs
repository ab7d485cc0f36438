//! Where a queue is known to hold no entries: looking for its next entry begins behind, not among those that were
//! removed. A queue whose client is away loses its oldest entries while nothing else about it moves; without this, each
//! search would pass every entry that was removed before.
//!
//! Invariant: a gap stays one, because entries are added behind all others only. It decides how long a search takes and
//! never what it finds, so it is in memory alone.

use crate::session::Sequence;

/// Sequences without entries: those after `after`, up to `through`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gap {
    after: Sequence,
    through: Sequence,
}

impl Gap {
    /// Where to look for the first entry from a sequence on.
    pub fn skip(&self, from: Sequence) -> Sequence {
        let begins_inside = from > self.after && from <= self.through;
        if begins_inside {
            self.through.next()
        } else {
            from
        }
    }

    /// The first entry from `from` on was that of `sequence`, and was removed.
    pub fn removed(&mut self, from: Sequence, sequence: Sequence) {
        let is_joined = from > self.after && from <= self.through.next();
        if !is_joined {
            self.after = Sequence(from.0.saturating_sub(1));
        }
        self.through = sequence;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_begin_behind_what_was_removed() {
        let mut gap = Gap::default();
        assert_eq!(gap.skip(Sequence(1)), Sequence(1));
        gap.removed(Sequence(5), Sequence(8));
        assert_eq!(gap.skip(Sequence(4)), Sequence(4));
        assert_eq!(gap.skip(Sequence(5)), Sequence(9));
        gap.removed(Sequence(9), Sequence(9));
        gap.removed(Sequence(6), Sequence(11));
        assert_eq!(gap.skip(Sequence(5)), Sequence(12));
        assert_eq!(gap.skip(Sequence(12)), Sequence(12));
        // Somewhere else: what was known of the former place is forgotten.
        gap.removed(Sequence(20), Sequence(20));
        assert_eq!(gap.skip(Sequence(5)), Sequence(5));
        assert_eq!(gap.skip(Sequence(20)), Sequence(21));
    }
}
