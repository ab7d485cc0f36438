//! The machine's clock, its counters, and the numbers it has given out: one row.

use super::schema;
use super::tables::{Backing, Tables};
use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::session::MessageId;
use crate::store::Usage;

/// What waits for clients in the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    /// Messages in all queues and groups; one that waits in two counts twice.
    pub messages: u64,
    /// Their size, bytes.
    pub bytes: u64,
    /// Retained messages.
    pub retained: u64,
}

/// The row, and nothing else.
#[derive(Default)]
pub(super) struct Meta {
    row: state::Meta,
}

impl Meta {
    /// Reads the row again.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.row = backing.row::<schema::Meta>(()).unwrap_or_default();
    }

    /// Writes the row.
    pub fn store(&self, tables: &mut Tables<'_>) {
        tables.put::<schema::Meta>((), &self.row);
    }

    /// Log time.
    pub fn clock(&self) -> Millis {
        Millis(self.row.clock_ms)
    }

    /// Moves the log time on to a leader's stamp; it never goes back.
    pub fn advance_clock(&mut self, stamp_ms: u64) -> Millis {
        self.row.clock_ms = self.row.clock_ms.max(stamp_ms);
        self.clock()
    }

    pub fn new_session(&mut self) -> SessionId {
        self.row.next_session_id += 1;
        SessionId(self.row.next_session_id)
    }

    pub fn new_message(&mut self) -> MessageId {
        self.row.next_message_id += 1;
        MessageId(self.row.next_message_id)
    }

    /// The last one that was given out.
    pub fn last_message(&self) -> MessageId {
        MessageId(self.row.next_message_id)
    }

    pub fn new_group(&mut self) -> u64 {
        self.row.next_group_id += 1;
        self.row.next_group_id
    }

    pub fn new_retained_replay(&mut self) -> u64 {
        self.row.next_retained_replay += 1;
        self.row.next_retained_replay
    }

    /// A message has entered a queue or a group.
    pub fn count_in(&mut self, size: u32) {
        self.row.queued_messages += 1;
        self.row.queued_bytes += u64::from(size);
    }

    /// A message has left a queue or a group.
    pub fn count_out(&mut self, size: u32) {
        self.row.queued_messages = self.row.queued_messages.saturating_sub(1);
        self.row.queued_bytes = self.row.queued_bytes.saturating_sub(size.into());
    }

    pub fn count_retained(&mut self) {
        self.row.retained += 1;
    }

    pub fn uncount_retained(&mut self) {
        self.row.retained = self.row.retained.saturating_sub(1);
    }

    /// What waits for clients.
    pub fn queue_usage(&self) -> QueueUsage {
        QueueUsage {
            messages: self.row.queued_messages,
            bytes: self.row.queued_bytes,
            retained: self.row.retained,
        }
    }

    /// Entries of the directory, and their bytes.
    pub fn directory_usage(&self) -> (u64, u64) {
        (self.row.directory_entries, self.row.directory_bytes)
    }

    pub fn set_directory_usage(&mut self, (entries, bytes): (u64, u64)) {
        self.row.directory_entries = entries;
        self.row.directory_bytes = bytes;
    }

    /// Keys of the state store that hold a value, and their bytes.
    pub fn store_usage(&self) -> Usage {
        Usage {
            keys: self.row.store_keys,
            bytes: self.row.store_bytes,
        }
    }

    pub fn set_store_usage(&mut self, usage: Usage) {
        self.row.store_keys = usage.keys;
        self.row.store_bytes = usage.bytes;
    }
}
