//! Which look-ups a change of a filter concerns: counters by the literal beginning of filters and names.
//!
//! A filter's *prefix* is what comes before its first wildcard, in whole levels: `a/b` of `a/b/+/c`, nothing of `#`,
//! and all of a filter without a wildcard. A filter can only match a name that begins with its prefix, so a look-up of
//! a name depends on the counters of the name's own prefixes and on no others. Counters are shared by prefixes with the
//! same hash, which costs a look-up now and then and nothing else.
//!
//! Invariant: when a change is made first and its filter's counter is raised afterwards, no look-up that missed the
//! change is current from then on, also one that was under way: its validity was taken before.

use std::hash::Hasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHasher;
use smallvec::SmallVec;

/// Number of counters: so many that thousands of clients with topics of their own hardly ever meet.
const BUCKETS: usize = 4096;

/// Prefixes of a name that have a counter, the empty one included. Longer prefixes share that of their beginning.
const PREFIXES: usize = 8;

/// The number of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u16);

impl Bucket {
    /// Of the empty prefix: filters that begin with a wildcard.
    const ROOT: Bucket = Bucket(0);

    fn of(hasher: &FxHasher) -> Bucket {
        Bucket((hasher.finish() % BUCKETS as u64) as u16)
    }

    /// The counter of a valid, unshared filter.
    pub fn of_filter(filter: &str) -> Bucket {
        let mut hasher = FxHasher::default();
        let mut bucket = Bucket::ROOT;
        for level in filter.split('/').take(PREFIXES - 1) {
            if level == "+" || level == "#" {
                break;
            }
            add_level(&mut hasher, level);
            bucket = Bucket::of(&hasher);
        }
        bucket
    }

    /// The counters that a look-up of a topic name depends on.
    fn of_name(name: &str) -> SmallVec<[Bucket; PREFIXES]> {
        let mut buckets = SmallVec::new();
        buckets.push(Bucket::ROOT);
        let mut hasher = FxHasher::default();
        for level in name.split('/').take(PREFIXES - 1) {
            add_level(&mut hasher, level);
            buckets.push(Bucket::of(&hasher));
        }
        buckets
    }
}

fn add_level(hasher: &mut FxHasher, level: &str) {
    hasher.write(level.as_bytes());
    hasher.write_u8(b'/');
}

/// When a look-up of a topic name was made, and what it depends on.
#[derive(Debug, Default)]
pub struct Validity {
    buckets: SmallVec<[Bucket; PREFIXES]>,
    /// The sum of their counters. Counters only rise, so the sum is the same while none of them has.
    sum: u64,
    /// The number of changes up to which nothing has concerned the look-up.
    seen: AtomicU64,
}

/// Counters of changes.
#[derive(Debug)]
pub struct Generations {
    buckets: Box<[AtomicU64]>,
    /// Raised with every change, after the change's own counters: while it stands still, every look-up is current.
    latest: AtomicU64,
}

impl Default for Generations {
    fn default() -> Self {
        Generations {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            latest: AtomicU64::new(0),
        }
    }
}

impl Generations {
    /// The validity of a look-up that follows. It must not go before: what changes in between would be missed.
    pub fn validity(&self, name: &str) -> Validity {
        let seen = AtomicU64::new(self.latest.load(Ordering::Acquire));
        let buckets = Bucket::of_name(name);
        Validity {
            sum: self.sum(&buckets),
            buckets,
            seen,
        }
    }

    /// Whether nothing has changed that concerns a look-up. Costs one load while nothing has changed at all.
    #[inline]
    pub fn is_current(&self, validity: &Validity) -> bool {
        let latest = self.latest.load(Ordering::Acquire);
        validity.seen.load(Ordering::Relaxed) == latest || self.is_unconcerned(validity, latest)
    }

    #[cold]
    fn is_unconcerned(&self, validity: &Validity, latest: u64) -> bool {
        let unconcerned = self.sum(&validity.buckets) == validity.sum;
        if unconcerned {
            validity.seen.store(latest, Ordering::Relaxed);
        }
        unconcerned
    }

    fn sum(&self, buckets: &[Bucket]) -> u64 {
        let counters = buckets
            .iter()
            .map(|bucket| &self.buckets[bucket.0 as usize]);
        counters
            .map(|counter| counter.load(Ordering::Acquire))
            .fold(0, u64::wrapping_add)
    }

    /// Something has changed that concerns the names which filters with these counters can match.
    pub fn advance(&self, buckets: impl IntoIterator<Item = Bucket>) {
        for bucket in buckets {
            self.buckets[bucket.0 as usize].fetch_add(1, Ordering::AcqRel);
        }
        self.latest.fetch_add(1, Ordering::AcqRel);
    }

    /// Everything has changed.
    pub fn advance_all(&self) {
        self.advance((0..BUCKETS).map(|bucket| Bucket(bucket as u16)));
    }
}

/// The counters of the filters of one session, each with the number of filters.
#[derive(Debug, Default)]
pub struct FilterBuckets(SmallVec<[(Bucket, u32); 2]>);

impl FilterBuckets {
    /// Adds that of one more filter.
    pub fn add(&mut self, bucket: Bucket) {
        match self.0.binary_search_by_key(&bucket, |(known, _)| *known) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (bucket, 1)),
        }
    }

    /// Removes that of a filter that was added.
    pub fn remove(&mut self, bucket: Bucket) {
        if let Ok(at) = self.0.binary_search_by_key(&bucket, |(known, _)| *known) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    /// Each once.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> {
        self.0.iter().map(|(bucket, _)| *bucket)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{check_filter, matches};
    use super::*;

    #[test]
    fn what_does_not_concern_a_name_leaves_its_look_up_current() {
        let generations = Generations::default();
        let validity = generations.validity("devices/7/state");
        for filter in [
            "devices/8/state",
            "devices/8/+",
            "other",
            "devices/7/state/x",
        ] {
            generations.advance([Bucket::of_filter(filter)]);
            assert!(generations.is_current(&validity), "{filter}");
        }
        for filter in ["#", "+/7/#", "devices/#", "devices/7/#", "devices/7/state"] {
            let validity = generations.validity("devices/7/state");
            generations.advance([Bucket::of_filter(filter)]);
            assert!(!generations.is_current(&validity), "{filter}");
            assert!(!generations.is_current(&validity), "it stays so: {filter}");
        }
        let validity = generations.validity("x");
        generations.advance_all();
        assert!(!generations.is_current(&validity));
    }

    #[test]
    fn clients_with_topics_of_their_own_hardly_share_counters() {
        let filters = (0..BUCKETS).map(|client| Bucket::of_filter(&format!("clients/{client}/#")));
        let distinct: std::collections::BTreeSet<Bucket> = filters.collect();
        // By chance alone they hit 63 in 100.
        assert!(distinct.len() > BUCKETS * 6 / 10, "{}", distinct.len());
    }

    fn level() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["a", "b", "", "$x", "+"])
    }

    proptest! {
        #[test]
        fn a_filter_has_a_counter_of_every_name_that_it_matches(
            mut levels in prop::collection::vec(level(), 0..11),
            below in any::<bool>(),
            name in prop::collection::vec(prop::sample::select(vec!["a", "b", "", "$x"]), 1..11),
        ) {
            if below || levels.is_empty() {
                levels.push("#");
            }
            // Names that match are rare by chance, so one is made from the filter.
            let made: Vec<&str> = levels.iter().map(|level| if *level == "+" || *level == "#" { "b" } else { level }).collect();
            let filter = levels.join("/");
            prop_assume!(check_filter(&filter).is_ok());
            for name in [name.join("/"), made.join("/"), made[..made.len() - 1].join("/")] {
                if !name.is_empty() && matches(&filter, &name) {
                    prop_assert!(Bucket::of_name(&name).contains(&Bucket::of_filter(&filter)), "{} {}", filter, name);
                }
            }
        }

        #[test]
        fn a_session_has_the_counters_of_its_filters(steps in prop::collection::vec((any::<bool>(), 0u16..9), 0..60)) {
            let mut buckets = FilterBuckets::default();
            let mut model = std::collections::BTreeMap::<u16, u32>::new();
            for (add, bucket) in steps {
                if add {
                    buckets.add(Bucket(bucket));
                    *model.entry(bucket).or_default() += 1;
                } else if let Some(count) = model.get_mut(&bucket) {
                    buckets.remove(Bucket(bucket));
                    *count -= 1;
                    model.retain(|_, count| *count > 0);
                }
                let known: Vec<u16> = buckets.iter().map(|bucket| bucket.0).collect();
                prop_assert_eq!(known, model.keys().copied().collect::<Vec<_>>());
            }
        }
    }
}
