//! Which look-ups count in a proposal: apply remembers those of recent topics, so a topic counts again once so many
//! others have counted that it may be forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::limits;

/// What may count before a topic counts again, matches: what apply remembers for certain, shared by so many nodes.
const REMEMBERED: u64 = limits::REMEMBERED_MATCHES as u64 / 2 / NODES;

/// Nodes whose publishers' topics may all be remembered together; with more of them some look-ups count too little.
const NODES: u64 = 8;

/// What a topic with few matches counts: so many topics take the place of that many matches.
const TOPIC: u64 = (limits::REMEMBERED_MATCHES / limits::CACHED_MATCH_SETS) as u64;

/// When the look-up of one topic has counted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// What all topics of this node have counted so far.
    all: Arc<AtomicU64>,
    /// The same after this one counted last; 0 if it has not.
    last: AtomicU64,
}

impl Counted {
    /// Of another topic of the node, which has not counted.
    pub(super) fn of_another(&self) -> Counted {
        Counted {
            all: self.all.clone(),
            last: AtomicU64::new(0),
        }
    }

    /// Whether it counts now, with so many matches; the next ones do not for a while. Of two threads that ask at once,
    /// both may be told so.
    pub(super) fn is_due(&self, matches: usize) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        if last != 0 && self.all.load(Ordering::Relaxed).saturating_sub(last) < REMEMBERED {
            return false;
        }
        let added = TOPIC.max(matches as u64);
        let all = self.all.fetch_add(added, Ordering::Relaxed) + added;
        self.last.store(all, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_among(topics: usize, matches: usize) -> usize {
        let first = Counted::default();
        let topics: Vec<Counted> = (0..topics).map(|_| first.of_another()).collect();
        for topic in &topics {
            assert!(topic.is_due(matches), "nobody has looked it up");
        }
        topics.iter().filter(|topic| topic.is_due(matches)).count()
    }

    #[test]
    fn what_is_remembered_counts_once_and_what_may_be_forgotten_again() {
        assert_eq!(due_among(1, 10_000_000), 0);
        assert_eq!(due_among(200, 1), 0);
        assert_eq!(due_among(5_000, 1), 5_000);
        assert_eq!(due_among(5, 50_000), 5);
        // As many topics as apply remembers are not more than it does.
        let most = REMEMBERED * NODES / TOPIC;
        assert_eq!(most, limits::CACHED_MATCH_SETS as u64 / 2);
    }
}
