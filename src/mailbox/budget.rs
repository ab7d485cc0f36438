//! What one connection makes the node keep, against [`OutboxLimits::connection_bytes`] and the memory of the node: the
//! contents of its mailbox with what is remembered of each packet, deferred acknowledgements, withheld messages, and
//! what its task keeps.
//!
//! Invariant: packets that exceed the budget are refused, those of the session's queue are read again later
//! ([`Mailbox::withheld`]), and an item that exceeds it ends the connection.
//! Invariant: publishers of this node wait before that, however small their packets are.

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
    /// Whether the connection has more memory than it may.
    pub(super) fn exceeds_memory(&self, inner: &Inner) -> bool {
        inner.len() + self.kept.load(Ordering::Relaxed) >= self.limits.connection_bytes
    }

    /// Whether packets take half of the budget here, with what is remembered of each: small ones may be few bytes for
    /// the client. Nothing else counts: publishers wait until this is over, and are told when the client has read.
    pub(super) fn is_crowded(&self, inner: &Inner) -> bool {
        let bytes = inner.contents.packet_bytes() + inner.back_pressure.bytes();
        bytes >= self.limits.connection_bytes / 2
    }

    /// Bytes that wait for the connection, and bytes that its task keeps.
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
