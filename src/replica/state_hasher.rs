//! Hashes this node's state beside apply, and proposes what came out. See [`crate::machine::state_hash`].
//!
//! Invariant: it reads no faster than [`BYTES_PER_S`], and one state is hashed at a time: a newer request ends the
//! older one. A view of the state is held for [`HASH_TIMEOUT`] at most, because RocksDB can remove nothing that it
//! shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::base::ids::LogIndex;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::state_hash::hash_tables;
use crate::raft::Look;
use crate::replica::proposer::Proposer;
use crate::replica::reply_to::ReplyTo;
use crate::storage::StateView;
use crate::telemetry::metrics::Metrics;

/// Bytes of rows that are hashed per second: a fraction of what a core can do.
const BYTES_PER_S: u64 = 64 << 20;

/// How long one hashing may take; a state of 50 GB is hashed within it.
pub const HASH_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Hashes the state of this node.
pub struct StateHasher {
    proposer: Arc<Proposer>,
    metrics: Arc<Metrics>,
    /// The log entry of the newest request.
    newest: AtomicU64,
    /// Held while a state is hashed.
    busy: Mutex<()>,
}

impl StateHasher {
    /// A hasher that proposes what it finds.
    pub fn new(proposer: Arc<Proposer>, metrics: Arc<Metrics>) -> Arc<StateHasher> {
        Arc::new(StateHasher {
            proposer,
            metrics,
            newest: AtomicU64::new(0),
            busy: Mutex::new(()),
        })
    }

    /// The work on the state as it is after the log entry `index`.
    pub fn request(self: &Arc<Self>, index: LogIndex) -> Look {
        self.newest.store(index.0, Ordering::Release);
        let hasher = Arc::clone(self);
        Box::new(move |view| hasher.run(index, view))
    }

    fn run(&self, index: LogIndex, view: &StateView<'_>) {
        let _busy = self.busy.lock();
        let started = Instant::now();
        let mut total = 0;
        let tables = hash_tables(view, &mut |bytes| {
            let bytes = bytes as u64;
            total += bytes;
            self.metrics.state_hashed_bytes.add(bytes);
            let ahead = ahead(total, started.elapsed());
            if !ahead.is_zero() {
                std::thread::sleep(ahead);
            }
            let is_newest = self.newest.load(Ordering::Acquire) == index.0;
            is_newest && started.elapsed() < HASH_TIMEOUT && view.is_needed()
        });
        let Some(tables) = tables else {
            tracing::info!(%index, "hashing the state was given up");
            return;
        };
        self.metrics.state_hashes.increment();
        tracing::debug!(%index, bytes = total, took = ?started.elapsed(), "the state is hashed");
        let found = command::StateHash {
            index: index.0,
            tables,
        };
        // One per round. If it is lost with this incarnation, the round lacks this node.
        self.proposer
            .submit_always(Kind::StateHash(found), ReplyTo::Nobody, 0);
    }
}

/// How long to wait when so many bytes have taken so long.
fn ahead(bytes: u64, took: Duration) -> Duration {
    let due = Duration::from_micros(bytes.saturating_mul(1_000_000) / BYTES_PER_S);
    due.saturating_sub(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quicker_than_its_pace_waits() {
        let second = Duration::from_secs(1);
        assert_eq!(ahead(BYTES_PER_S, Duration::ZERO), second);
        assert_eq!(ahead(BYTES_PER_S, second / 4), second * 3 / 4);
        assert_eq!(ahead(BYTES_PER_S, second * 2), Duration::ZERO);
    }
}
