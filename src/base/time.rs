//! Wall-clock time as the log knows it, and the time that has passed on this machine.
//!
//! Cores take time as an argument; only the runtime layers call [`wall_now`] and [`elapsed_now`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// A deadline that is never reached.
    pub const NEVER: Millis = Millis(u64::MAX);

    /// This time plus `ms` milliseconds, or [`Millis::NEVER`] when that cannot be represented.
    pub fn plus(self, ms: u64) -> Millis {
        Millis(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this time, zero when `earlier` is later.
    pub fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// This machine's wall clock. Never called while a batch is applied.
pub fn wall_now() -> Millis {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// A reading of the clock that counts the time since this machine started, the time it was suspended included. Nobody
/// sets this clock, so readings of one machine can be compared, and those of two machines can't.
///
/// `std::time::Instant` stands still while a machine is suspended: a lease that is measured with it would go on when
/// the machine wakes up, although the others have seen it run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elapsed(Duration);

impl Elapsed {
    /// This long after the machine's start.
    pub const fn from_duration(since_start: Duration) -> Elapsed {
        Elapsed(since_start)
    }

    /// `duration` later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Elapsed {
        Elapsed(self.0.saturating_add(duration))
    }

    /// The time from `earlier` to this reading, zero when `earlier` is later.
    pub fn since(self, earlier: Elapsed) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Microseconds since the machine's start.
    pub fn micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The clock behind [`Elapsed`]. Linux answers without entering the kernel.
pub fn elapsed_now() -> Elapsed {
    let now = clock_gettime(CLOCK);
    // Neither part is ever negative.
    Elapsed(Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    ))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Elsewhere the clock that comes closest.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;
