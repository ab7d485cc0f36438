//! A right that ends by itself: it holds until a deadline, which is moved on as long as something is confirmed.
//!
//! Invariant: nobody has to notice that a lease is over. Whoever uses the right looks at the clock, so it ends on time
//! also when every thread of the process was stopped in between.

use std::sync::atomic::{AtomicU64, Ordering};

use super::time::Elapsed;

/// A lease. It begins as one that has ended.
#[derive(Debug, Default)]
pub struct Lease {
    /// Microseconds, as [`Elapsed::micros`] counts them.
    until_us: AtomicU64,
}

impl Lease {
    /// The right holds until `deadline`.
    pub fn hold_until(&self, deadline: Elapsed) {
        self.until_us.store(deadline.micros(), Ordering::Release);
    }

    /// The right ends now.
    pub fn end(&self) {
        self.until_us.store(0, Ordering::Release);
    }

    /// Whether the right holds at `now`.
    pub fn holds_at(&self, now: Elapsed) -> bool {
        now.micros() < self.until_us.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Elapsed {
        Elapsed::from_duration(Duration::from_millis(ms))
    }

    #[test]
    fn a_lease_holds_until_its_deadline_and_not_at_it() {
        let lease = Lease::default();
        assert!(!lease.holds_at(at(0)));
        lease.hold_until(at(100));
        assert!(lease.holds_at(at(99)));
        assert!(!lease.holds_at(at(100)));
        lease.hold_until(at(200));
        assert!(lease.holds_at(at(150)));
        lease.end();
        assert!(!lease.holds_at(at(150)));
    }
}
