//! The connections of each principal on this node, where the rules bound them.
//!
//! Invariant: only principals with a bound are counted, and one without connections is forgotten: at once, unless its
//! rate may still hold something back. Those are looked for when the table has doubled since the last time, so a
//! connect costs a few looks, however many principals there are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::rate::TokenBucket;
use crate::acl::Limits;

/// What becomes of one principal's connections.
#[derive(Debug, Default)]
struct Principal {
    connections: u32,
    rate: TokenBucket,
    /// The rate has been bounded: what it knows outlasts the connections.
    has_rate: bool,
    /// New connections are refused before.
    paused_until: Option<Instant>,
}

impl Principal {
    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}

/// Entries of the table before it is looked through for the first time.
const LEAST_ENTRIES: usize = 1024;

#[derive(Debug, Default)]
struct Table {
    /// Names may be the clients' choice, so they are hashed with a random seed.
    by_name: HashMap<Arc<str>, Principal>,
    /// So many may be there before those that nothing is known of go: twice as many as stayed the last time.
    most: usize,
}

impl Table {
    /// Makes room for one more name.
    fn tidy(&mut self, now: Instant) {
        if self.by_name.len() >= self.most.max(LEAST_ENTRIES) {
            self.by_name
                .retain(|_, principal| principal.connections > 0 || principal.is_paused(now));
            self.most = 2 * self.by_name.len();
        }
    }
}

/// The connections of each principal on this node.
#[derive(Debug, Default)]
pub(crate) struct PrincipalPlaces {
    table: Mutex<Table>,
}

/// Why a principal gets no further connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// It has as many as it may.
    TooMany,
    /// They come faster than they may.
    TooFast,
}

/// One connection of a principal; the place is free again when it is dropped.
#[derive(Debug)]
pub(super) struct PrincipalPlace {
    places: Arc<PrincipalPlaces>,
    name: Arc<str>,
}

impl PrincipalPlaces {
    /// A place for a connection; `None` where nothing bounds them. Clients that nobody asks for a name share one.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(
        self: &Arc<Self>,
        name: &Arc<str>,
        limits: &Limits,
        now: Instant,
    ) -> Result<Option<PrincipalPlace>, NoPlace> {
        if limits.connections.is_none() && limits.connects_per_s.is_none() {
            return Ok(None);
        }
        let mut table = self.table.lock();
        if !table.by_name.contains_key(name) {
            table.tidy(now);
        }
        let principal = table.by_name.entry(name.clone()).or_default();
        if principal.is_paused(now) {
            return Err(NoPlace::TooFast);
        }
        if limits
            .connections
            .is_some_and(|most| principal.connections >= most)
        {
            return Err(NoPlace::TooMany);
        }
        let rate = limits.connects_per_s.unwrap_or(0).into();
        let pause = principal.rate.take(1, rate, now);
        principal.has_rate |= rate > 0;
        principal.paused_until = (pause > Duration::ZERO).then(|| now + pause);
        principal.connections += 1;
        Ok(Some(PrincipalPlace {
            places: self.clone(),
            name: name.clone(),
        }))
    }
}

impl Drop for PrincipalPlace {
    fn drop(&mut self) {
        let mut table = self.places.table.lock();
        let Some(principal) = table.by_name.get_mut(&self.name) else {
            return;
        };
        principal.connections -= 1;
        if principal.connections == 0 && !principal.has_rate {
            table.by_name.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_has_as_many_connections_as_it_may() {
        let places = Arc::new(PrincipalPlaces::default());
        let limits = Limits {
            connections: Some(2),
            ..Limits::default()
        };
        let now = Instant::now();
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let take = |name: &Arc<str>| places.take(name, &limits, now);
        assert!(
            places
                .take(&ann, &Limits::default(), now)
                .expect("free")
                .is_none()
        );
        let first = take(&ann).expect("a place");
        let _second = take(&ann).expect("a place");
        assert_eq!(take(&ann).err(), Some(NoPlace::TooMany));
        let _other = take(&bob).expect("of its own");
        drop(first);
        assert!(take(&ann).is_ok());
        assert_eq!(places.table.lock().by_name.len(), 2);
    }

    #[test]
    fn connections_that_come_too_fast_are_refused_for_a_while() {
        let places = Arc::new(PrincipalPlaces::default());
        let limits = Limits {
            connects_per_s: Some(2),
            ..Limits::default()
        };
        let now = Instant::now();
        let ann: Arc<str> = "ann".into();
        for _ in 0..3 {
            drop(
                places
                    .take(&ann, &limits, now)
                    .expect("a second's worth and one"),
            );
        }
        assert_eq!(
            places.take(&ann, &limits, now).err(),
            Some(NoPlace::TooFast)
        );
        let later = now + Duration::from_secs(2);
        assert!(places.take(&ann, &limits, later).is_ok());
        assert!(
            places
                .take(&"bob".into(), &limits, later + Duration::from_secs(9))
                .is_ok()
        );
        for number in 0..3 * LEAST_ENTRIES {
            let late = later + Duration::from_secs(9 + number as u64);
            let name: Arc<str> = number.to_string().into();
            assert!(places.take(&name, &limits, late).is_ok());
            let kept = places.table.lock().by_name.len();
            assert!(kept <= LEAST_ENTRIES, "those without connections go");
        }
    }

    /// Many devices with names of their own that connect again at once.
    #[test]
    fn a_connect_costs_as_much_however_many_are_connected() {
        let limits = Limits {
            connections: Some(2),
            connects_per_s: Some(10),
            ..Limits::default()
        };
        let cost = |count: usize| {
            let names: Vec<Arc<str>> = (0..count).map(|name| name.to_string().into()).collect();
            let runs = (0..3).map(|_| {
                let places = Arc::new(PrincipalPlaces::default());
                let started = Instant::now();
                let taken: Vec<_> = names
                    .iter()
                    .map(|name| places.take(name, &limits, started).expect("free"))
                    .collect();
                drop(taken);
                started.elapsed()
            });
            runs.min().unwrap_or_default()
        };
        let (few, many) = (cost(1_000), cost(32_000));
        let bound = 32 * 8 * few.max(Duration::from_micros(500));
        assert!(many < bound, "{few:?}, {many:?}");
    }
}
