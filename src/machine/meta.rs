//! The machine's clock, its counters, and the numbers it has given out: one row.

use super::schema;
use super::tables::{Backing, Tables};
use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::session::MessageId;
use crate::store::Usage;

/// The longest time between entries of two leaders that is served time.
const LONGEST_GAP_MS: u64 = 60_000;

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

/// What is kept of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventUsage {
    /// Events.
    pub events: u64,
    /// Their rows, bytes.
    pub bytes: u64,
    /// Rows with numbers of sessions.
    pub sequences: u64,
    /// Parked events of all event subscriptions.
    pub parked: u64,
    /// Their dead letters.
    pub dead_letters: u64,
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

    /// Moves the log time on to the stamp of a leader; it never goes back.
    pub fn advance_clock(&mut self, stamp_ms: u64, term: u64) -> Millis {
        let former = self.row.clock_ms;
        self.row.clock_ms = former.max(stamp_ms);
        let is_another = std::mem::replace(&mut self.row.leader_term, term) != term;
        if former != 0 && is_another {
            let gap = self.row.clock_ms - former;
            self.row.not_served_ms += gap.saturating_sub(LONGEST_GAP_MS);
        }
        self.clock()
    }

    /// Served time: log time, of which no more than [`LONGEST_GAP_MS`] counts between the last entry of one leader and
    /// the first of the next. However long a cluster has no power, its clients find it no older than that; as long as
    /// one leader leads, all time counts, though nothing happens.
    pub fn served(&self) -> Millis {
        Millis(self.row.clock_ms.saturating_sub(self.row.not_served_ms))
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

    /// The number of an event.
    pub fn new_event(&mut self) -> u64 {
        self.row.last_event += 1;
        self.row.last_event
    }

    /// The last one that was given out.
    pub fn last_event(&self) -> u64 {
        self.row.last_event
    }

    /// Before it there is none in the outbox.
    pub fn first_event(&self) -> u64 {
        self.row.first_event
    }

    pub fn set_first_event(&mut self, number: u64) {
        self.row.first_event = number;
    }

    /// What the outbox of events holds.
    pub fn outbox(&self) -> EventUsage {
        EventUsage {
            events: self.row.outbox_events,
            bytes: self.row.outbox_bytes,
            sequences: self.row.event_sequences,
            ..EventUsage::default()
        }
    }

    /// An event has entered the outbox.
    pub fn count_event(&mut self, size: u64) {
        self.row.outbox_events += 1;
        self.row.outbox_bytes += size;
    }

    /// An event has left the outbox.
    pub fn uncount_event(&mut self, size: u64) {
        self.row.outbox_events = self.row.outbox_events.saturating_sub(1);
        self.row.outbox_bytes = self.row.outbox_bytes.saturating_sub(size);
    }

    /// When a timer has the outbox trimmed.
    pub fn trim_at(&self) -> Option<Millis> {
        (self.row.outbox_trim_ms != 0).then_some(Millis(self.row.outbox_trim_ms))
    }

    pub fn set_trim_at(&mut self, at: Option<Millis>) {
        self.row.outbox_trim_ms = at.map_or(0, |at| at.0);
    }

    /// Rows with numbers of sessions.
    pub fn sequences(&self) -> u64 {
        self.row.event_sequences
    }

    /// Their bytes.
    pub fn sequence_bytes(&self) -> u64 {
        self.row.event_sequence_bytes
    }

    pub fn count_sequence(&mut self, size: u64) {
        self.row.event_sequences += 1;
        self.row.event_sequence_bytes += size;
    }

    pub fn uncount_sequence(&mut self, size: u64) {
        self.row.event_sequences = self.row.event_sequences.saturating_sub(1);
        self.row.event_sequence_bytes = self.row.event_sequence_bytes.saturating_sub(size);
    }

    /// The highest number in a row that has gone.
    pub fn sequence_floor(&self) -> u64 {
        self.row.event_sequence_floor
    }

    /// The number above which the connections of a client begin that comes back with an id that the server has made,
    /// when nothing is known of it.
    pub fn assigned_sequence_floor(&self) -> u64 {
        // Its row may have gone after its first connection.
        let first = self.row.event_sequence_floor + 1;
        first.max(self.row.event_assigned_sequence_floor)
    }

    pub fn raise_assigned_sequence_floor(&mut self, number: u64) {
        let floor = &mut self.row.event_assigned_sequence_floor;
        *floor = number.max(*floor);
    }

    pub fn raise_sequence_floor(&mut self, number: u64) {
        self.row.event_sequence_floor = self.row.event_sequence_floor.max(number);
    }

    /// When a timer has numbers of sessions removed.
    pub fn sequences_end_at(&self) -> Option<Millis> {
        let at = self.row.event_sequences_end_ms;
        (at != 0).then_some(Millis(at))
    }

    pub fn set_sequences_end_at(&mut self, at: Option<Millis>) {
        self.row.event_sequences_end_ms = at.map_or(0, |at| at.0);
    }

    /// Tells an identity from all former ones.
    pub fn new_generation(&mut self) -> u64 {
        self.row.last_generation += 1;
        self.row.last_generation
    }

    pub fn new_identity_etag(&mut self) -> u64 {
        self.row.last_identity_etag += 1;
        self.row.last_identity_etag
    }

    /// Devices that have an identity.
    pub fn devices(&self) -> u64 {
        self.row.devices
    }

    pub fn count_device(&mut self) {
        self.row.devices += 1;
    }

    pub fn uncount_device(&mut self) {
        self.row.devices = self.row.devices.saturating_sub(1);
    }

    pub fn count_module(&mut self) {
        self.row.modules += 1;
    }

    pub fn uncount_modules(&mut self, modules: u64) {
        self.row.modules = self.row.modules.saturating_sub(modules);
    }

    /// Counts the bytes that sections of a twin had, and those that they have now.
    pub fn count_twin_bytes(&mut self, before: u64, after: u64) {
        self.row.twin_bytes = (self.row.twin_bytes + after).saturating_sub(before);
    }

    /// Bytes of all sections of twins.
    pub fn twin_bytes(&self) -> u64 {
        self.row.twin_bytes
    }

    /// Devices and modules that have an identity.
    pub fn identities(&self) -> (u64, u64) {
        (self.row.devices, self.row.modules)
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
