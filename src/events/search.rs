//! Where in the outbox another event is looked for, because there is no answer to the first one that is wanted.
//!
//! It may be far behind: there is no bound to the events that are not wanted in between, nor to those that get no
//! answer, either. So it is looked for in the whole outbox, page by page. The next one is taken after each that was
//! answered. After one that was not, it is somewhere else: many that get no answer may stand together.
//!
//! Invariant: it is said that there is no other event only after every one behind the first was looked at. Invariant:
//! between two requests the outbox is read at most twice, and where nothing else is wanted, no event is read twice.

use super::page::Looked;
use super::schedule::share;

/// The golden ratio as a part of 2^32: its multiples, less whole ones, come near to every place, and to none too often
/// (Knuth, The Art of Computer Programming, volume 3, 6.4).
const GOLDEN: u32 = 2_654_435_769;

/// Where it is looked.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Behind this one.
    after: u64,
    /// It began in the middle, so it goes on at the beginning before it ends.
    is_partial: bool,
    /// Requests in a row with other events, none of which was answered.
    in_vain: u32,
}

impl Search {
    /// Another event than the first one is looked for behind this one.
    pub(super) fn after(&self, first: u64) -> u64 {
        self.after.max(first)
    }

    /// A page holds nothing that is wanted. Whether it is looked on.
    pub(super) fn looks_on(&mut self, looked: Looked) -> bool {
        if looked.is_end && self.is_partial {
            (self.after, self.is_partial) = (0, false);
            return true;
        }
        self.after = looked.through;
        !looked.is_end
    }

    /// The event that was found was not answered, either: the next one is somewhere else.
    pub(super) fn unanswered(&mut self, first: u64, newest: u64) {
        self.in_vain = self.in_vain.wrapping_add(1);
        let span = newest.saturating_sub(first);
        self.after = first.saturating_add(share(span, self.in_vain.wrapping_mul(GOLDEN)));
        self.is_partial = true;
    }

    /// The event that was found was answered: it need not come many times.
    pub(super) fn answered(&mut self, number: u64) {
        *self = Search {
            after: number,
            is_partial: true,
            in_vain: 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn looked(through: u64, is_end: bool) -> Looked {
        Looked { through, is_end }
    }

    #[test]
    fn it_ends_when_all_was_looked_at_and_goes_on_with_what_is_new() {
        let mut search = Search::default();
        assert_eq!(search.after(7), 7);
        assert!(search.looks_on(looked(100, false)));
        assert!(!search.looks_on(looked(200, true)));
        assert_eq!(search.after(7), 200);
        // It has begun in the middle.
        search.answered(150);
        assert!(search.looks_on(looked(200, true)));
        assert_eq!(search.after(7), 7);
        assert!(!search.looks_on(looked(200, true)));
    }

    /// However those that are answered are spread.
    #[test]
    fn every_place_is_tried_at_last_and_most_soon() {
        for (first, newest) in [(0, 10), (5, 400), (1_000_000, 1_003_000)] {
            let mut search = Search::default();
            let span = newest - first;
            let mut seen = BTreeSet::new();
            for tries in 1..3 * span {
                search.unanswered(first, newest);
                let after = search.after(first);
                assert!((first..newest).contains(&after));
                seen.insert(after);
                // A tenth of the outbox in a row, wherever it is, is met in some twenty requests.
                if tries == 20 {
                    let mut all: Vec<u64> = seen.iter().copied().collect();
                    all.push(newest);
                    let widest = all.windows(2).map(|pair| pair[1] - pair[0]).max();
                    assert!(widest.is_some_and(|gap| gap <= span / 10 + 1));
                }
            }
            assert_eq!(seen.len() as u64, span, "all of them");
        }
    }
}
