//! What the rates of a client mean for its connection: when it is not read, and when it is sent nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::Task;

/// Before a packet that could not be taken is offered again although nothing has said that it may be taken now.
const OFFER_AGAIN_AFTER: Duration = Duration::from_millis(250);

impl Task {
    /// Until when the connection waits, if nothing happens.
    pub(super) fn deadline(&mut self, paused_until: Option<Instant>) -> Option<Instant> {
        let is_waiting = self.input.is_waiting();
        let deadlines = [
            is_waiting.then(|| Instant::now() + OFFER_AGAIN_AFTER),
            paused_until,
            self.unread.look_at(),
            self.input.paused_until().map(Instant::from_std),
            self.held_back_until(),
            self.connection.authentication_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Counts bytes that were read.
    pub(super) fn count_received(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        let metrics = &self.connection.context().broker.metrics;
        metrics.bytes_received.add(bytes);
        let rates = self.rates.as_mut();
        if let Some(rate) = rates.and_then(|rates| rates.received.as_mut()) {
            rate.passed(0, bytes, Instant::now().into_std());
        }
    }

    /// Until when the client is not read, because it has sent more bytes than its rate.
    pub(super) fn paused_until(&mut self) -> Option<Instant> {
        let rates = self.rates.as_mut()?;
        rates
            .paused_until(Instant::now().into_std())
            .map(Instant::from_std)
    }

    /// Until when the client is sent nothing more, because it has got more than its rate.
    pub(super) fn held_back_until(&mut self) -> Option<Instant> {
        let rate = self.rates.as_mut()?.sent.as_mut()?;
        rate.paused_until(Instant::now().into_std())
            .map(Instant::from_std)
    }

    /// Whether the client is sent nothing more for now.
    pub(super) fn is_held_back(&mut self) -> bool {
        let is_held_back = self.held_back_until().is_some();
        if let Some(rates) = &mut self.rates {
            rates.was_held_back = is_held_back;
        }
        is_held_back
    }

    /// Whether it was held back when its turn came: it may not be any more, and nothing else has told so.
    pub(super) fn was_held_back(&self) -> bool {
        let rates = self.rates.as_ref();
        rates.is_some_and(|rates| rates.was_held_back)
    }
}
