//! What the rates of a client mean for its connection: when it is not read, and when it is sent nothing.

use tokio::time::Instant;

use super::Task;
use crate::connection::publish_rate::LEAVING_TIMEOUT;

impl Task {
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
        let rate = self.rates.as_mut()?.received.as_mut()?;
        rate.paused_until(Instant::now().into_std())
            .map(Instant::from_std)
    }

    /// Until when the client is sent nothing more, because it has got more than its rate.
    pub(super) fn held_back_until(&mut self) -> Option<Instant> {
        let rate = self.rates.as_mut()?.sent.as_mut()?;
        rate.paused_until(Instant::now().into_std())
            .map(Instant::from_std)
    }

    /// Looks whether a client that is not read has closed its half: it has as long then as one that is.
    pub(super) fn look_for_end(&mut self) {
        if self.stream.is_read_closed() {
            self.input.leave();
            if let Some(rates) = &mut self.rates {
                rates.leave(LEAVING_TIMEOUT, Instant::now().into_std());
            }
        }
    }
}
