//! Messages of the session's queue: sent at once, or read from the queue again when the connection has room.
//!
//! The machine grants as many messages as the client's receive maximum allows, however large they are. What does not
//! fit into the outbox is withheld: the mailbox keeps its number alone.
//!
//! Invariant: messages of the queue leave in the order in which they were granted. While one is withheld, so are all
//! that follow it.

use std::sync::atomic::Ordering;

use super::contents::{NewPacket, Refused, Withheld};
use super::{Inner, Mailbox};
use crate::codec::QoS;
use crate::telemetry::labels::DropReason;

impl Mailbox {
    /// Puts a packet of the session's queue in, or withholds it. Returns whether the connection must be woken.
    ///
    /// # Errors
    /// When the packet is larger than the client accepts.
    pub fn push_granted(
        &self,
        packet: NewPacket<'_>,
        granted: Withheld,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) -> Result<bool, Refused> {
        let inner = &mut *self.inner.lock();
        if inner.closed || self.is_ending() {
            return Ok(false);
        }
        if self.has_no_room(inner) {
            if packet.qos == QoS::AtMostOnce {
                // Nothing of it is left in the queue.
                self.count(DropReason::OutboxFull, 1);
                return Ok(false);
            }
            inner.withheld.push_back(granted);
        } else {
            inner
                .contents
                .append(packet, Some(granted.sequence), self.version, encode)?;
        }
        inner.account();
        Ok(!self.filled.swap(true, Ordering::AcqRel))
    }

    /// Whether the next packet of the session's queue would not be put in. A caller that does not take the packets
    /// out asks before it makes a costly one.
    pub fn withholds(&self) -> bool {
        let inner = self.inner.lock();
        inner.closed || self.has_no_room(&inner)
    }

    fn has_no_room(&self, inner: &Inner) -> bool {
        let level = inner.contents.packets.len() + self.unsent();
        !inner.withheld.is_empty() || level >= self.limits.bytes
    }

    /// The first messages that are withheld.
    pub fn withheld(&self, most: usize) -> Vec<Withheld> {
        let inner = self.inner.lock();
        inner.withheld.iter().take(most).copied().collect()
    }

    /// Puts in the packet of the first message that [`Mailbox::withheld`] names; with `None` the message is passed
    /// over. Called by the connection's task.
    ///
    /// # Errors
    /// When the packet is larger than the client accepts.
    pub fn push_withheld(
        &self,
        packet: Option<NewPacket<'_>>,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let inner = &mut *self.inner.lock();
        let (Some(first), Some(packet)) = (inner.withheld.pop_front(), packet) else {
            return Ok(());
        };
        inner
            .contents
            .append(packet, Some(first.sequence), self.version, encode)?;
        inner.account();
        self.filled.store(true, Ordering::Release);
        Ok(())
    }
}
