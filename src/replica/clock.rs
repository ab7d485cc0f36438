//! The time that a leader stamps batches with.
//!
//! Log time follows elapsed time, not wall clocks. Every replica keeps the newest stamp it has seen and how long ago
//! that was, so a new leader continues where the former one stopped, whatever its own wall clock says. The wall clock
//! draws log time towards itself by at most [`SLEW`]. It is believed outright only in a process that has not yet seen a
//! stamp of a live leader, which has nothing better.
//!
//! Invariant: no expiry is early, also after a leader change between nodes whose clocks differ (P8;
//! `docs/adr/0004-log-time-follows-elapsed-time.md`).

use std::time::Instant;

use parking_lot::Mutex;

use crate::base::time::{Millis, wall_now};

/// Log time runs faster or slower than elapsed time by at most one part in this number, which is less than the
/// oscillators of two machines differ.
const SLEW: i64 = 10_000;

/// How often the correction becomes the new reference, microseconds.
const REBASE_US: i64 = 1_000_000;

#[derive(Clone, Copy)]
struct Known {
    at: Instant,
    log_us: i64,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    /// This process has seen a stamp of a live leader.
    live: bool,
}

/// This replica's idea of log time.
#[derive(Default)]
pub struct Clock {
    state: Mutex<State>,
}

impl Clock {
    /// A batch with this log time was applied.
    pub fn observe(&self, log_time: Millis) {
        self.observe_at(log_time, Instant::now());
    }

    /// From now on stamps are known to be fresh: this process's own registration came back through the log.
    pub fn set_live(&self) {
        self.state.lock().live = true;
    }

    /// What to stamp a batch with now.
    pub fn now(&self) -> Millis {
        self.now_at(Instant::now(), wall_now())
    }

    fn observe_at(&self, log_time: Millis, at: Instant) {
        let log_us = i64::try_from(log_time.0.saturating_mul(1000)).unwrap_or(i64::MAX);
        let mut state = self.state.lock();
        if state.known.is_none_or(|known| log_us > estimate(known, at)) {
            state.known = Some(Known { at, log_us });
        }
    }

    fn now_at(&self, at: Instant, wall: Millis) -> Millis {
        let wall_us = i64::try_from(wall.0.saturating_mul(1000)).unwrap_or(i64::MAX);
        let mut state = self.state.lock();
        let log_us = match state.known {
            None => wall_us,
            Some(known) if !state.live => wall_us.max(estimate(known, at)),
            Some(known) => {
                let elapsed = elapsed_us(known, at);
                let estimate = known.log_us.saturating_add(elapsed);
                let bound = elapsed / SLEW;
                let log_us = estimate + wall_us.saturating_sub(estimate).clamp(-bound, bound);
                if elapsed >= REBASE_US {
                    state.known = Some(Known { at, log_us });
                }
                log_us
            }
        };
        Millis(u64::try_from(log_us / 1000).unwrap_or(0))
    }
}

fn elapsed_us(known: Known, at: Instant) -> i64 {
    i64::try_from(at.saturating_duration_since(known.at).as_micros()).unwrap_or(i64::MAX)
}

fn estimate(known: Known, at: Instant) -> i64 {
    known.log_us.saturating_add(elapsed_us(known, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_first_leader_believes_its_wall_clock() {
        assert_eq!(
            Clock::default().now_at(Instant::now(), Millis(5_000)),
            Millis(5_000)
        );
    }

    #[test]
    fn a_restarted_cluster_believes_the_wall_clock_but_never_goes_back() {
        let (clock, start) = (Clock::default(), Instant::now());
        clock.observe_at(Millis(10_000), start);
        assert_eq!(clock.now_at(start, Millis(3_600_000)), Millis(3_600_000));
        assert_eq!(clock.now_at(start, Millis(1)), Millis(10_000));
    }

    #[test]
    fn a_new_leader_whose_clock_is_an_hour_ahead_goes_on_with_elapsed_time() {
        let (clock, start) = (Clock::default(), Instant::now());
        clock.observe_at(Millis(10_000), start);
        clock.set_live();
        let later = start + Duration::from_secs(100);
        assert_eq!(
            clock.now_at(later, Millis(3_710_000)),
            Millis(110_010),
            "10 ms in 100 s is all it gives way"
        );
    }

    #[test]
    fn a_leader_whose_clock_is_behind_slows_down_and_never_goes_back() {
        let (clock, start) = (Clock::default(), Instant::now());
        clock.observe_at(Millis(10_000), start);
        clock.set_live();
        let mut last = Millis(0);
        for step in 0..5_000 {
            let now = clock.now_at(start + Duration::from_millis(step), Millis(0));
            assert!(now >= last);
            last = now;
        }
        assert_eq!(last, Millis(14_998));
    }

    #[test]
    fn an_old_stamp_does_not_move_it() {
        let (clock, start) = (Clock::default(), Instant::now());
        clock.set_live();
        clock.observe_at(Millis(10_000), start);
        clock.observe_at(Millis(9_000), start);
        assert_eq!(clock.now_at(start, Millis(10_000)), Millis(10_000));
    }
}
