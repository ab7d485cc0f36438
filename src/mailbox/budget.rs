//! What one connection makes the node keep, against [`OutboxLimits::connection_bytes`] and the memory of the node: the
//! contents of its mailbox with what is remembered of each packet, deferred acknowledgements, withheld messages, and
//! what its task keeps.
//!
//! Invariant: packets that exceed the budget are refused, those of the session's queue are read again later
//! ([`Mailbox::withheld`]), and an item that exceeds it ends the connection. What is remembered of packets and of
//! messages counts for the node, and makes publishers wait as packets do ([`super::back_pressure`]), but ends nobody: a
//! client that is only slow does not end because its messages are small.

use std::sync::atomic::Ordering;

#[cfg(doc)]
use super::back_pressure::OutboxLimits;
use super::{Inner, Mailbox, Withheld};

impl Inner {
    /// Bytes of everything.
    fn len(&self) -> usize {
        self.contents.len() + self.remembered()
    }

    /// Bytes of what is remembered of messages whose packets are elsewhere.
    fn remembered(&self) -> usize {
        self.back_pressure.bytes() + self.withheld.len() * size_of::<Withheld>()
    }

    /// Charges the node for what is there now.
    pub(super) fn account(&mut self) {
        let bytes = self.contents.owned_len() + self.remembered();
        self.charge.set(bytes);
    }
}

impl Mailbox {
    /// Whether the connection has more memory than it may, what is remembered of packets left out.
    pub(super) fn exceeds_memory(&self, inner: &Inner) -> bool {
        let bytes = inner.contents.len() - inner.contents.tracked_bytes();
        bytes + self.kept.load(Ordering::Relaxed) >= self.limits.connection_bytes
    }

    /// Bytes that wait for the connection, what is remembered of them, and bytes that its task keeps.
    pub fn memory(&self) -> usize {
        self.inner.lock().len() + self.kept.load(Ordering::Relaxed)
    }

    /// Notes how many bytes the connection's task keeps. Called by that task.
    pub fn keep(&self, bytes: usize) {
        if self.kept.load(Ordering::Relaxed) != bytes {
            self.kept.store(bytes, Ordering::Relaxed);
        }
    }
}
