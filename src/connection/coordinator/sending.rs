//! What goes to the client, and what waits until that has left.

use super::Connection;
use crate::mailbox::Contents;

impl Connection {
    /// Sends packets that are counted.
    pub(super) fn send(&mut self, contents: &mut Contents) {
        self.context
            .count_sent(std::mem::take(&mut contents.counts));
        if !contents.packets.is_empty() {
            self.outbound.send(contents, self.context.output.packets());
        }
    }

    /// What waits until everything else has left goes on, if it has. Packets that wait for acknowledgements of the
    /// client hold nothing up: it may acknowledge them when it has its answers.
    pub(super) fn note_sent(&mut self) {
        if self.context.output.unsent() == 0 {
            self.store_requests.handle_sent(&mut self.context);
        }
    }
}
