//! Counters of the replica that `telemetry` reads. Nothing here knows how they are exported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use crate::storage::metrics::{COUNT_BOUNDS, Histogram, LATENCY_BOUNDS_US, LogMetrics};

/// Counters of one replica.
#[derive(Debug)]
pub struct Metrics {
    /// Counters of the log below.
    pub log: Arc<LogMetrics>,
    /// Microseconds from the first entry of an applied batch until it is written to `state/`.
    pub apply_us: Histogram,
    /// Entries applied by one write of `state/`.
    pub apply_entries: Histogram,
    /// Bytes of the entries applied.
    pub apply_bytes: AtomicU64,
    /// Linearizable read rounds asked of the leader (each may serve many readers).
    pub read_rounds: AtomicU64,
    /// Readers those rounds served.
    pub reads: AtomicU64,
    /// Snapshots taken.
    pub snapshots_built: AtomicU64,
    /// Snapshots sent to a follower to the end.
    pub snapshots_sent: AtomicU64,
    /// Snapshots installed from a leader.
    pub snapshots_installed: AtomicU64,
    /// Bytes of snapshots received.
    pub snapshot_bytes_received: AtomicU64,
    /// Connections refused because cluster id, node id, data directory or format did not match.
    pub peers_refused: AtomicU64,
    /// Times this replica learned of another leader or term.
    pub leader_changes: AtomicU64,
}

impl Metrics {
    /// All counters at zero, over those of the log.
    pub fn new(log: Arc<LogMetrics>) -> Self {
        Metrics {
            log,
            apply_us: Histogram::new(&LATENCY_BOUNDS_US),
            apply_entries: Histogram::new(&COUNT_BOUNDS),
            apply_bytes: AtomicU64::new(0),
            read_rounds: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            snapshots_built: AtomicU64::new(0),
            snapshots_sent: AtomicU64::new(0),
            snapshots_installed: AtomicU64::new(0),
            snapshot_bytes_received: AtomicU64::new(0),
            peers_refused: AtomicU64::new(0),
            leader_changes: AtomicU64::new(0),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}
