//! Counters of storage, written without locks. Nothing here knows how they are exported.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of [`Histogram`]'s buckets for latencies, in microseconds; one more bucket takes the rest.
pub const LATENCY_BOUNDS_US: [u64; 16] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 409_600,
    1_000_000, 5_000_000,
];

/// Upper bounds of [`Histogram`]'s buckets for counts; one more bucket takes the rest.
pub const COUNT_BOUNDS: [u64; 16] = [
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768,
];

/// A histogram with fixed bounds, written without locks.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64; 16],
    buckets: [AtomicU64; 17],
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram over `bounds`.
    pub const fn new(bounds: &'static [u64; 16]) -> Self {
        Histogram {
            bounds,
            buckets: [const { AtomicU64::new(0) }; 17],
            sum: AtomicU64::new(0),
        }
    }

    /// Counts one observation.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// Counts one latency, in microseconds.
    pub fn observe_latency(&self, latency: Duration) {
        self.observe(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// Per bucket its upper bound, and the observations at or below it and above the previous bound. The last bound is
    /// `u64::MAX`.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([u64::MAX]);
        bounds.zip(self.buckets.iter().map(|bucket| bucket.load(Relaxed)))
    }

    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Sum of all observations.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

/// Counters of the log.
#[derive(Debug)]
pub struct LogMetrics {
    /// Microseconds of one synced write.
    pub fsync_us: Histogram,
    /// Entries made durable by one synced write.
    pub append_entries: Histogram,
    /// Bytes of entries written.
    pub append_bytes: AtomicU64,
    /// Entries read from disk because memory did not hold them any more.
    pub disk_reads: AtomicU64,
}

impl Default for LogMetrics {
    fn default() -> Self {
        LogMetrics {
            fsync_us: Histogram::new(&LATENCY_BOUNDS_US),
            append_entries: Histogram::new(&COUNT_BOUNDS),
            append_bytes: AtomicU64::new(0),
            disk_reads: AtomicU64::new(0),
        }
    }
}
