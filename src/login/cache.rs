//! Answers that are remembered for a while.
//!
//! Invariant: no password is kept, and no hash of one that could be tried against outside of this process: the key of
//! an entry is keyed with random bytes of this start.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::answer::Judgement;
use crate::base::time::Elapsed;

/// What an answer is about.
pub(super) type About = [u8; 32];

/// Answers, at most so many; the oldest goes first.
pub(super) struct Cache {
    secret: [u8; 32],
    most: usize,
    entries: HashMap<About, Entry>,
    /// In the order in which they came, some of them replaced since.
    order: VecDeque<(About, u64)>,
    next: u64,
}

struct Entry {
    judgement: Judgement,
    until: Elapsed,
    number: u64,
}

impl Cache {
    /// An empty one.
    pub(super) fn new(secret: [u8; 32], most: usize) -> Cache {
        Cache {
            secret,
            most,
            entries: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
        }
    }

    /// What an answer about these fields is kept under; a field that is not there differs from an empty one.
    pub(super) fn about(&self, fields: &[Option<&[u8]>]) -> About {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        for field in fields {
            match field {
                Some(bytes) => {
                    mac.update(&[1]);
                    mac.update(&(bytes.len() as u64).to_be_bytes());
                    mac.update(bytes);
                }
                None => mac.update(&[0]),
            }
        }
        mac.finalize().into_bytes().into()
    }

    /// The answer, if it still holds.
    pub(super) fn get(&self, about: &About, now: Elapsed) -> Option<&Judgement> {
        let entry = self.entries.get(about)?;
        (now < entry.until).then_some(&entry.judgement)
    }

    /// Remembers an answer for a while.
    pub(super) fn put(&mut self, about: About, judgement: Judgement, held: Duration, now: Elapsed) {
        if held.is_zero() {
            return;
        }
        let number = self.next;
        self.next += 1;
        let until = now.plus(held);
        let entry = Entry {
            judgement,
            until,
            number,
        };
        self.entries.insert(about, entry);
        self.order.push_back((about, number));
        // An entry that was replaced stands in the order twice.
        while self.entries.len() > self.most || self.order.len() > 2 * self.most {
            let Some((oldest, number)) = self.order.pop_front() else {
                return;
            };
            if self
                .entries
                .get(&oldest)
                .is_some_and(|entry| entry.number == number)
            {
                self.entries.remove(&oldest);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Elapsed {
        Elapsed::from_duration(Duration::from_secs(seconds))
    }

    #[test]
    fn answers_hold_for_a_while_and_are_bounded() {
        let mut cache = Cache::new([7; 32], 3);
        let about = |cache: &Cache, name: &str| cache.about(&[Some(name.as_bytes())]);
        for name in ["a", "b", "c"] {
            let key = about(&cache, name);
            cache.put(key, Judgement::Deny, 2 * SECOND, at(0));
        }
        let (a, b, d) = (about(&cache, "a"), about(&cache, "b"), about(&cache, "d"));
        assert_eq!(cache.get(&a, at(1)), Some(&Judgement::Deny));
        assert_eq!(cache.get(&a, at(2)), None);
        cache.put(a, Judgement::Ignore, 9 * SECOND, at(2));
        cache.put(d, Judgement::Deny, 9 * SECOND, at(2));
        assert_eq!(cache.get(&b, at(1)), None, "the oldest has gone");
        assert_eq!(cache.get(&a, at(3)), Some(&Judgement::Ignore));
        cache.put(b, Judgement::Deny, Duration::ZERO, at(0));
        assert_eq!(cache.get(&b, at(0)), None);
        for round in 0..1000 {
            cache.put(a, Judgement::Deny, SECOND, at(round));
            let key = cache.about(&[Some(&round.to_be_bytes())]);
            cache.put(key, Judgement::Deny, SECOND, at(round));
            assert!(cache.len() <= 3 && cache.order.len() <= 6);
        }
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let cache = Cache::new([7; 32], 3);
        let all = [
            cache.about(&[Some(b"ab"), Some(b"")]),
            cache.about(&[Some(b"a"), Some(b"b")]),
            cache.about(&[Some(b"ab"), None]),
            cache.about(&[None, Some(b"ab")]),
            Cache::new([8; 32], 3).about(&[Some(b"a"), Some(b"b")]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one));
        }
    }
}
