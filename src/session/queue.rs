//! The replicated state of a session's outgoing queue: what may enter it, and which entries may be sent now.
//!
//! The entries themselves are rows of their own, in the order of their sequences; the machine shows them to the queue
//! one by one. The queue *grants* them to the owning connection in order, as far as the client's receive maximum and
//! the packet ids allow.
//!
//! Invariant: a granted entry may have reached the client. It is sent again with DUP 1 after a loss of the connection,
//! and it neither expires nor is dropped for others.

use std::num::NonZeroU16;

use super::entry::{Entry, Queued};
use super::{QoS, Sequence};

/// What a queue may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most messages.
    pub max_messages: u64,
    /// The most bytes of messages.
    pub max_bytes: u64,
    /// What happens to a message that finds the queue full.
    pub policy: DropPolicy,
}

/// What is dropped when a queue is full. Whoever carries a drop out counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropPolicy {
    /// The oldest messages that were not sent yet; the new one if there are none, or if it would take the place of more
    /// than may be dropped at once.
    #[default]
    Oldest,
    /// The new message.
    Newest,
    /// The session.
    Session,
}

/// Whether a message may enter the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There is room: [`Queue::push`] it.
    Accepted,
    /// Drop the first entry after this sequence and ask again; if there is none, drop the new message.
    DropFirstAfter(Sequence),
    /// Drop the new message.
    DropNew,
    /// End the session.
    EndSession,
}

/// What to do with the entry after the last granted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Send it as PUBLISH. One with QoS 0 is thereby finished: remove it with [`Queue::finish`].
    Publish {
        /// The packet id; none for QoS 0 `[MQTT-2.2.1-2]`.
        packet_id: Option<NonZeroU16>,
        /// DUP: it may have been sent before `[MQTT-3.3.1-1]`; never for QoS 0 `[MQTT-3.3.1-2]`.
        dup: bool,
    },
    /// Its PUBREL was sent when the connection began; go on with the next entry.
    Passed,
    /// It has to wait until an earlier one is finished.
    Wait,
}

/// The state of a session's outgoing queue. Every field is replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The last sequence given to a message.
    pub last: Sequence,
    /// Not younger than any unfinished entry.
    pub oldest: Sequence,
    /// The last entry granted to the present connection.
    pub granted_through: Sequence,
    /// The last entry an earlier connection may have sent.
    pub sent_through: Sequence,
    /// Unfinished entries with QoS above 0 that count against the receive maximum of the present connection: those
    /// granted and all released ones.
    pub in_flight: u32,
    /// Unfinished entries whose PUBREC was received.
    pub released: u32,
    /// Messages in the queue; released entries hold none.
    pub messages: u64,
    /// Bytes of those messages.
    pub bytes: u64,
    /// How many PUBRECs the session has received, which is the order of the next one.
    pub receptions: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            last: Sequence::NONE,
            oldest: Sequence::NONE.next(),
            granted_through: Sequence::NONE,
            sent_through: Sequence::NONE,
            in_flight: 0,
            released: 0,
            messages: 0,
            bytes: 0,
            receptions: 0,
        }
    }
}

impl Queue {
    /// Whether nothing is queued or unfinished.
    pub fn is_empty(&self) -> bool {
        self.messages == 0 && self.released == 0
    }

    /// Decides whether a message of `bytes` bytes may enter.
    pub fn admit(&self, bytes: u64, bounds: &Bounds) -> Admission {
        let fits = self.messages < bounds.max_messages
            && self
                .bytes
                .checked_add(bytes)
                .is_some_and(|sum| sum <= bounds.max_bytes);
        if fits {
            return Admission::Accepted;
        }
        match bounds.policy {
            DropPolicy::Session => Admission::EndSession,
            DropPolicy::Newest => Admission::DropNew,
            // Dropping others would not make room for it.
            DropPolicy::Oldest if bytes > bounds.max_bytes || self.messages == 0 => {
                Admission::DropNew
            }
            DropPolicy::Oldest => Admission::DropFirstAfter(self.boundary()),
        }
    }

    /// Takes in an admitted message; its entry is stored under the sequence.
    pub fn push(&mut self, bytes: u64) -> Sequence {
        if self.is_empty() {
            self.oldest = self.last.next();
        }
        self.last = self.last.next();
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.last
    }

    /// Whether an entry can't have reached the client: only then may it expire `[MQTT-4.3.3-7]` or be dropped.
    pub fn is_unsent(&self, sequence: Sequence) -> bool {
        sequence > self.boundary()
    }

    /// Whether there may be an entry to grant: a reason to look for the one after [`Queue::granted_through`].
    pub fn has_ungranted(&self) -> bool {
        !self.is_empty() && self.granted_through < self.last
    }

    /// There is no entry after [`Queue::granted_through`]: what was there is finished.
    pub fn no_more_to_grant(&mut self) {
        self.granted_through = self.last;
    }

    /// Decides on the first entry after [`Queue::granted_through`]. `oldest` finds the first unfinished entry; it is
    /// called only when the known bound is not enough.
    pub fn grant(
        &mut self,
        sequence: Sequence,
        entry: &Entry,
        receive_maximum: NonZeroU16,
        oldest: impl FnOnce() -> Sequence,
    ) -> Grant {
        let queued = match entry {
            Entry::Queued(queued) => queued,
            Entry::Released { .. } => {
                self.granted_through = sequence;
                return Grant::Passed;
            }
        };
        if queued.qos == QoS::AtMostOnce {
            self.granted_through = sequence;
            return Grant::Publish {
                packet_id: None,
                dup: false,
            };
        }
        // `[MQTT-4.9.0-2]`
        if self.in_flight >= u32::from(receive_maximum.get()) {
            return Grant::Wait;
        }
        if !sequence.fits_with(self.oldest) {
            self.oldest = oldest();
            if !sequence.fits_with(self.oldest) {
                return Grant::Wait;
            }
        }
        self.granted_through = sequence;
        self.in_flight += 1;
        Grant::Publish {
            packet_id: Some(sequence.packet_id()),
            dup: sequence <= self.sent_through,
        }
    }

    /// The connection has ended; another may resume the session. `sent_through` is the last entry it did send,
    /// if it could still say so; without it, everything granted counts as sent.
    pub fn end_connection(&mut self, sent_through: Option<Sequence>) {
        let sent = sent_through.map_or(self.granted_through, |sent| sent.min(self.granted_through));
        self.sent_through = self.sent_through.max(sent);
        self.granted_through = Sequence::NONE;
        // The client still counts exchanges past their PUBREC.
        self.in_flight = self.released;
    }

    /// Whether the client may acknowledge this entry, because it was sent at some time.
    pub fn may_be_acknowledged(&self, sequence: Sequence) -> bool {
        !self.is_unsent(sequence)
    }

    /// PUBREC of a QoS 2 entry: the entry to store in its place. The message of `bytes` bytes is no longer needed.
    pub fn receive(&mut self, sequence: Sequence, bytes: u64) -> Entry {
        // It was sent, and so was what was granted before it.
        self.sent_through = self.sent_through.max(sequence);
        let order = self.receptions;
        self.receptions += 1;
        self.released += 1;
        if sequence > self.granted_through {
            // Sent by an earlier connection, and not yet again.
            self.in_flight += 1;
        }
        self.forget_message(bytes);
        Entry::Released { order }
    }

    /// An entry is finished: PUBACK, PUBCOMP, PUBREC of 0x80 or more `[MQTT-4.4.0-2]`, expiry, drop, or QoS 0 sent.
    /// `bytes` is the size of its message. The row is removed.
    pub fn finish(&mut self, sequence: Sequence, entry: &Entry, bytes: u64) {
        let counted = match entry {
            Entry::Released { .. } => {
                self.released = self.released.saturating_sub(1);
                true
            }
            Entry::Queued(Queued { qos, .. }) => {
                self.forget_message(bytes);
                *qos != QoS::AtMostOnce && sequence <= self.granted_through
            }
        };
        if counted {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        if sequence == self.oldest {
            self.oldest = self.oldest.next();
        }
    }

    fn forget_message(&mut self, bytes: u64) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// The last entry that may have reached the client.
    fn boundary(&self) -> Sequence {
        self.sent_through.max(self.granted_through)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "queue_model_tests.rs"]
mod model_tests;
