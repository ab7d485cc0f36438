//! Connections to the HTTP port, bounded in number.
//!
//! Invariant: the next connection always finds a place. When all are taken, the connection that has been idle longest
//! gives its place up, and when none is idle, the one whose request has been under way longest. Otherwise a few hundred
//! silent clients would keep the probe of life from being answered.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The places of one server.
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Counts changes, so later ones have larger numbers.
    changes: u64,
    connections: HashMap<u64, State>,
}

struct State {
    is_busy: bool,
    /// The change that made it so.
    since: u64,
    leave: Arc<Notify>,
}

impl Taken {
    fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

impl Places {
    /// All of them are free.
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places {
            most,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for a new connection, from another one if there is none.
    pub(super) fn take(self: &Arc<Places>) -> Place {
        let taken = &mut *self.taken.lock();
        if taken.connections.len() >= self.most {
            let states = taken.connections.iter();
            let first = states.min_by_key(|(_, state)| (state.is_busy, state.since));
            let first = first.map(|(number, _)| *number);
            let state = first.and_then(|number| taken.connections.remove(&number));
            if let Some(state) = state {
                state.leave.notify_one();
            }
        }
        let number = taken.next_change();
        let leave = Arc::new(Notify::new());
        let state = State {
            is_busy: false,
            since: number,
            leave: leave.clone(),
        };
        taken.connections.insert(number, state);
        Place {
            places: self.clone(),
            number,
            leave,
        }
    }
}

/// The place of one connection, free again when it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    leave: Arc<Notify>,
}

impl Place {
    /// Notes whether a request is under way.
    pub(super) fn set_busy(&self, is_busy: bool) {
        let taken = &mut *self.places.taken.lock();
        let since = taken.next_change();
        if let Some(state) = taken.connections.get_mut(&self.number) {
            state.is_busy = is_busy;
            state.since = since;
        }
    }

    /// Completes when another connection has got the place.
    pub(super) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_longest_idle_gives_way_then_the_longest_request() {
        let places = Places::new(3);
        let [a, b, c] = [(); 3].map(|()| places.take());
        let leaves = |place: &Place| place.must_leave().now_or_never().is_some();
        a.set_busy(true);
        b.set_busy(true);
        b.set_busy(false);
        let d = places.take();
        assert!(leaves(&c) && !leaves(&a) && !leaves(&b) && !leaves(&d));
        b.set_busy(true);
        d.set_busy(true);
        drop(c);
        let e = places.take();
        assert!(leaves(&a) && !leaves(&b) && !leaves(&d) && !leaves(&e));
        drop((b, d));
        let f = places.take();
        assert!(!leaves(&e) && !leaves(&f), "there was room");
    }
}
