//! When a client is read.
//!
//! Invariant: however many messages wait for acknowledgements of the client, it is read: they may be behind what it has
//! sent and asked for. That takes no memory that messages on their way to it may take.

use tokio::time::Instant;

use super::Task;
use crate::connection::context::Memory;
use crate::connection::end::Ended;
use crate::connection::publish_rate::LEAVING_TIMEOUT;
use crate::connection::unread::TooLong;
use crate::mailbox::End;

impl Task {
    /// Whether the client may be read, its rate left out. One that does not take its answers is not read, nor is one of
    /// which much is held.
    pub(super) fn may_read(&mut self, kept: &Memory) -> bool {
        if !self.input.takes_more() {
            return false;
        }
        let context = self.connection.context();
        let settings = &context.broker.settings;
        if self.input.has_room() && kept.answers < settings.mqtt.outbox_max_bytes {
            return true;
        }
        kept.all < settings.outbox.read_up_to(kept.backlog)
            && (self.connection.awaits_client() || self.may_be_writing())
    }

    /// Whether the client may not take what it is sent because it writes, and takes nothing before all is written: the
    /// rest of it is behind messages that wait for others. Two such clients that publish to each other would wait for
    /// each other.
    fn may_be_writing(&mut self) -> bool {
        let is_behind = self.connection.context().output.unsent() > 0;
        is_behind && self.input.holds_messages()
    }

    /// Notes whether the client is read, and whether it is not because of its rate.
    ///
    /// # Errors
    /// It has not been read for too long.
    pub(super) fn watch_unread(
        &mut self,
        is_read: bool,
        is_paused: bool,
        kept: &Memory,
    ) -> Result<(), Ended> {
        if is_read {
            return Ok(());
        }
        let now = Instant::now();
        let is_gone = self.input.is_closed() || self.stream.is_read_closed();
        if is_gone {
            // What it has sent waits for its rate no longer than that of a client that is read.
            self.input.leave();
            if let Some(rates) = &mut self.rates {
                rates.leave(LEAVING_TIMEOUT, now.into_std());
            }
        }
        let is_paused =
            is_paused || self.input.paused_until().is_some() || self.held_back_until().is_some();
        let is_paused = is_paused || self.stream.is_unsent();
        let may_go_on = is_gone || is_paused || !self.input.takes_more();
        let awaits_client = !may_go_on && self.connection.awaits_only_client();
        match self.unread.go_on(kept.all, awaits_client, is_gone, now) {
            None => Ok(()),
            Some(TooLong::Stuck) => Err(End::ConnectionMemory.into()),
            Some(TooLong::Gone) => Err(Ended::of_stream(self.stream.end())),
        }
    }
}
