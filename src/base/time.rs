//! Wall-clock time as the log knows it.
//!
//! Cores take time as an argument; only the runtime layers call [`wall_now`].

use std::time::{SystemTime, UNIX_EPOCH};

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
