//! Counting what comes too often, by name or address, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::base::time::Elapsed;

/// Names that are counted at once. With more, the oldest are forgotten: whoever comes with that many has to be bounded
/// in another way.
const MOST_NAMES: usize = 32_768;

/// How often something may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// So often in a window.
    pub most: u32,
    /// How long a window lasts.
    pub window: Duration,
    /// How long one has to wait after more.
    pub pause: Duration,
}

#[derive(Clone, Copy)]
struct Count {
    since: Elapsed,
    count: u32,
    /// Until when it has to wait.
    until: Option<Elapsed>,
}

/// How often each name has come lately. Names are kept in two generations; when the younger one is full, the older one
/// is forgotten.
pub struct Counters<K> {
    bound: Bound,
    young: HashMap<K, Count>,
    old: HashMap<K, Count>,
}

impl<K: Hash + Eq + Clone> Counters<K> {
    pub fn new(bound: Bound) -> Self {
        Counters {
            bound,
            young: HashMap::default(),
            old: HashMap::default(),
        }
    }

    /// How long a name still has to wait.
    pub(super) fn paused(&self, name: &K, now: Elapsed) -> Option<Duration> {
        let count = self.young.get(name).or_else(|| self.old.get(name))?;
        let until = count.until.filter(|until| *until > now)?;
        Some(until.since(now))
    }

    /// How often a name has come in its window.
    pub(super) fn known(&self, name: &K, now: Elapsed) -> u32 {
        let count = self.young.get(name).or_else(|| self.old.get(name));
        let is_recent = |count: &&Count| now.since(count.since) < self.bound.window;
        count.filter(is_recent).map_or(0, |count| count.count)
    }

    /// Counts a name. Returns how long it has to wait now; what it does while it waits is not counted.
    pub fn count(&mut self, name: &K, now: Elapsed) -> Option<Duration> {
        if let Some(left) = self.paused(name, now) {
            return Some(left);
        }
        let known = self.young.get(name).or_else(|| self.old.get(name)).copied();
        let recent = known
            .filter(|count| now.since(count.since) < self.bound.window && count.until.is_none());
        let mut count = recent.unwrap_or(Count {
            since: now,
            count: 0,
            until: None,
        });
        count.count = count.count.saturating_add(1);
        if count.count > self.bound.most {
            count.until = Some(now.plus(self.bound.pause));
        }
        if self.young.len() >= MOST_NAMES / 2 && !self.young.contains_key(name) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.clone(), count);
        count.until.map(|until| until.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound {
        most: 3,
        window: Duration::from_secs(10),
        pause: Duration::from_secs(60),
    };

    fn at(seconds: u64) -> Elapsed {
        Elapsed::default().plus(Duration::from_secs(seconds))
    }

    #[test]
    fn one_too_many_has_to_wait() {
        let mut counters = Counters::new(BOUND);
        for second in 0..3 {
            assert_eq!(counters.count(&"a", at(second)), None);
        }
        assert_eq!(counters.known(&"a", at(2)), 3);
        let minute = Duration::from_secs(60);
        assert_eq!(counters.count(&"a", at(5)), Some(minute));
        assert_eq!(counters.count(&"b", at(5)), None, "another name");
        let left = Duration::from_secs(1);
        assert_eq!(
            counters.count(&"a", at(64)),
            Some(left),
            "it is not prolonged"
        );
        assert_eq!(counters.paused(&"a", at(64)), Some(left));
        assert_eq!(counters.count(&"a", at(65)), None, "it begins anew");
        assert_eq!(counters.known(&"a", at(65)), 1);
    }

    #[test]
    fn what_comes_seldom_never_waits() {
        let mut counters = Counters::new(BOUND);
        for second in 0..100 {
            assert_eq!(counters.count(&"a", at(second * 4)), None);
        }
        assert_eq!(counters.known(&"a", at(1_000)), 0);
    }

    #[test]
    fn names_are_bounded() {
        let mut counters = Counters::new(BOUND);
        for number in 0..10 * MOST_NAMES {
            counters.count(&number, at(1));
        }
        assert!(counters.young.len() + counters.old.len() <= MOST_NAMES);
        let last = 10 * MOST_NAMES - 1;
        assert_eq!(counters.known(&last, at(1)), 1, "the youngest are known");
    }
}
