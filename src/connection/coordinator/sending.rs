//! What goes to the client, and what waits until that has left.

use super::Connection;
use crate::base::limits;
use crate::mailbox::Contents;

impl Connection {
    /// Sends what was taken from the mailbox, or as much of it as may be sent now.
    pub(super) fn send(&mut self, contents: &mut Contents) {
        if !contents.packets.is_empty() {
            self.outbound.send(contents, self.context.output.packets());
            self.count_sent();
        }
        self.note_rest();
    }

    /// Counts the messages that went to the output.
    pub(super) fn count_sent(&mut self) {
        let counts = self.outbound.take_counts();
        self.context.count_sent(counts);
    }

    /// What was taken from the mailbox is among the packets, unless it waits.
    pub(super) fn note_rest(&mut self) {
        if !self.outbound.has_rest() {
            self.context.output.note_sent();
        }
    }

    /// Sends more of what was taken from the mailbox before, if something is left. Returns whether that goes before
    /// anything else.
    pub(super) fn send_rest(&mut self) -> bool {
        if !self.outbound.has_rest() {
            return false;
        }
        let out = self.context.output.packets();
        self.outbound.send_rest(out, limits::EXPIRING_OUTPUT_BYTES);
        self.count_sent();
        self.note_rest();
        self.context.output.unsent() > 0
    }

    /// Whether all that was taken from the mailbox is sent, or the connection ends: more may be taken.
    pub(super) fn takes_more(&self) -> bool {
        !self.outbound.has_rest() || self.context.mailbox.is_ending()
    }

    /// Sends acknowledgements behind the answers that they follow.
    pub(in crate::connection) fn send_acknowledgements(&mut self) {
        // Answers that are not there went to others alone.
        if !self.context.mailbox.is_filled() {
            self.context.output.note_taken();
            self.note_rest();
        }
        self.context.output.flush_acknowledgements();
    }

    /// Whether something waits for acknowledgements of the client: messages for it, or its next message because others
    /// with QoS 2 are as many as there may be.
    pub(in crate::connection) fn awaits_client(&self) -> bool {
        self.outbound.awaits_client() || self.publishing.awaits_client()
    }

    /// The same, and whether nothing is under way that goes on without it.
    pub(in crate::connection) fn awaits_only_client(&self) -> bool {
        let requests = &self.context.requests;
        let is_sent = self.context.output.unsent() == 0;
        let goes_on = requests.len() > requests.stores() || self.publishing.awaits_room();
        is_sent && !goes_on && self.awaits_client()
    }

    /// What waits until everything else has left goes on, if it has. Messages that wait for acknowledgements of the
    /// client hold nothing up: it may acknowledge them when it has its answers. Answers that wait for that do.
    pub(super) fn note_sent(&mut self) {
        let waits = self.outbound.has_rest() || self.outbound.has_answers();
        if self.context.output.unsent() == 0 && !waits {
            self.store_requests.handle_sent(&mut self.context);
        }
    }
}
