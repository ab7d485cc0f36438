//! The memory that clients make this node hold, counted for all of its connections together.
//!
//! Whatever is kept for a client has a [`Charge`]: what waits in its mailbox, what its connection's task keeps, a large
//! message body, a CONNECT that has not arrived whole. A connection counts [`CONNECTION_BYTES`] from its beginning.
//! What handshakes make the node hold has a share of its own: nobody has proved anything yet, and connections that are
//! open must not have to give way to it.
//!
//! Invariant: a charge is given back when its owner is dropped, so the sum cannot drift.
//! Invariant: what grows byte by byte is charged in steps of [`STEP_BYTES`], so that a connection that keeps up changes
//! nothing that other threads look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each connection is charged for from the beginning: its task, its mailbox, small buffers, and what is below one
/// step of its charges.
pub const CONNECTION_BYTES: usize = 4 << 10;

/// The step of a charge that changes.
const STEP_BYTES: usize = 4 << 10;

/// The part of the memory that handshakes have for themselves: one in so many.
const HANDSHAKE_SHARE: usize = 4;

/// The memory of one node for its clients, or a share of it.
#[derive(Debug)]
pub struct NodeMemory {
    /// Bytes that may be used (`runtime.client_memory_bytes`).
    limit: usize,
    used: AtomicUsize,
}

impl NodeMemory {
    /// Nothing is used of `limit` bytes.
    pub fn new(limit: usize) -> Arc<NodeMemory> {
        Arc::new(NodeMemory {
            limit,
            used: AtomicUsize::new(0),
        })
    }

    /// The two shares of `limit` bytes: that of open connections, and that of handshakes.
    pub fn shares(limit: usize) -> (Arc<NodeMemory>, Arc<NodeMemory>) {
        let handshakes = limit / HANDSHAKE_SHARE;
        (
            NodeMemory::new(limit - handshakes),
            NodeMemory::new(handshakes),
        )
    }

    /// Bytes that are used.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether nobody else may come.
    pub fn is_exhausted(&self) -> bool {
        self.used() >= self.limit
    }

    /// Bytes that are to be given back when the memory is exhausted: an eighth of it is to be free afterwards.
    pub fn excess(&self) -> usize {
        // Other threads give memory back meanwhile: what is decided and what is subtracted is one number.
        let used = self.used();
        match used >= self.limit {
            true => used.saturating_sub(self.limit - self.limit / 8),
            false => 0,
        }
    }

    fn change(&self, from: usize, to: usize) {
        if to > from {
            self.used.fetch_add(to - from, Ordering::Relaxed);
        } else if from > to {
            self.used.fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

/// A part of the memory that is in use.
#[derive(Debug)]
pub struct Charge {
    memory: Arc<NodeMemory>,
    bytes: usize,
}

impl Charge {
    /// A charge of `bytes`.
    pub fn new(memory: &Arc<NodeMemory>, bytes: usize) -> Charge {
        memory.change(0, bytes);
        Charge {
            memory: memory.clone(),
            bytes,
        }
    }

    /// Bytes that are charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The charged bytes are about `bytes` now.
    pub fn set(&mut self, bytes: usize) {
        let bytes = bytes / STEP_BYTES * STEP_BYTES;
        if bytes != self.bytes {
            self.memory.change(self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.change(self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_is_of_one_moment() {
        let memory = NodeMemory::new(1_000);
        let other = memory.clone();
        let changing = std::thread::spawn(move || {
            for _ in 0..200_000 {
                drop(Charge::new(&other, 1_000));
            }
        });
        while !changing.is_finished() {
            assert!(matches!(memory.excess(), 0 | 125));
        }
        changing.join().expect("it does not panic");
    }

    #[test]
    fn the_shares_are_the_whole_memory() {
        let (connections, handshakes) = NodeMemory::shares(1_000_001);
        assert_eq!((connections.limit, handshakes.limit), (750_001, 250_000));
    }

    #[test]
    fn what_is_charged_is_given_back() {
        let memory = NodeMemory::new(100_000);
        let body = Charge::new(&memory, 70_001);
        let mut growing = Charge::new(&memory, 0);
        growing.set(STEP_BYTES - 1);
        assert_eq!(memory.used(), 70_001, "below one step nothing changes");
        growing.set(3 * STEP_BYTES + 5);
        assert_eq!(memory.used(), 70_001 + 3 * STEP_BYTES);
        assert_eq!(memory.excess(), 0);
        let rest = Charge::new(&memory, 30_000);
        assert!(memory.is_exhausted());
        assert_eq!(memory.excess(), memory.used() - 87_500);
        drop((body, rest));
        growing.set(1);
        assert_eq!(memory.used(), 0);
        growing.set(STEP_BYTES);
        drop(growing);
        assert_eq!(memory.used(), 0);
    }
}
