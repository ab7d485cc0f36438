//! The connections of each principal on this node, where the rules bound them.
//!
//! Invariant: only principals with a bound are counted, and one without connections is forgotten as soon as its rate
//! would not hold anything back any more. So the table is as large as there are such principals with connections, and
//! those of the last second.

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
    /// New connections are refused before.
    paused_until: Option<Instant>,
}

impl Principal {
    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| now < until)
    }
}

/// The connections of each principal on this node.
#[derive(Debug, Default)]
pub(crate) struct PrincipalPlaces {
    /// Names may be the clients' choice, so they are hashed with a random seed.
    by_name: Mutex<HashMap<Arc<str>, Principal>>,
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
        let mut by_name = self.by_name.lock();
        if !by_name.contains_key(name) {
            by_name.retain(|_, principal| principal.connections > 0 || principal.is_paused(now));
        }
        let principal = by_name.entry(name.clone()).or_default();
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
        if let Some(principal) = self.places.by_name.lock().get_mut(&self.name) {
            principal.connections -= 1;
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
        assert_eq!(places.by_name.lock().len(), 2);
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
        assert_eq!(
            places.by_name.lock().len(),
            1,
            "those without connections are forgotten"
        );
    }
}
