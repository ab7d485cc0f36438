//! Whether the client is still there: keep-alive, and the time that one packet may take to arrive.
//!
//! Invariant: only whole packets count as a sign of life `[MQTT-3.1.2-22]`.
//! Invariant: a client is not judged for a time in which this node did not read it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::end::Ended;
use crate::codec::ReasonCode;
use crate::telemetry::labels::DisconnectReason;

/// While a packet is incomplete, [`INCOMPLETE_BYTES`] of it must arrive in each interval of this length. It holds for
/// clients without a keep-alive, too.
const INCOMPLETE_INTERVAL: Duration = Duration::from_secs(60);

/// Less than this in a minute is no progress: the slowest radio links carry it in seconds.
const INCOMPLETE_BYTES: usize = 4096;

/// A packet that has not arrived whole.
#[derive(Debug)]
struct Incomplete {
    /// The present interval.
    since: Instant,
    /// Bytes that were there when it began.
    bytes: usize,
}

/// The client's signs of life.
pub(super) struct Liveness {
    /// One and a half times the keep-alive; zero when there is none.
    keep_alive_ms: u32,
    is_read: bool,
    last_packet: Instant,
    packets: u64,
    /// Boxed, because most connections have none most of the time.
    incomplete: Option<Box<Incomplete>>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Liveness {
    /// A client that has just connected.
    pub(super) fn new(keep_alive_s: u16, now: Instant) -> Liveness {
        let mut liveness = Liveness {
            keep_alive_ms: u32::from(keep_alive_s) * 1500,
            last_packet: now,
            packets: 0,
            incomplete: None,
            is_read: true,
            timer: None,
        };
        liveness.schedule();
        liveness
    }

    /// Something was read: `packets` have arrived whole since the beginning, and `bytes` are there of the next one.
    pub(super) fn arrived(&mut self, packets: u64, bytes: usize, now: Instant) {
        let is_new = packets != self.packets;
        if is_new {
            self.packets = packets;
            self.last_packet = now;
        }
        if bytes == 0 {
            self.incomplete = None;
        } else if is_new || self.incomplete.is_none() {
            let incomplete = Incomplete { since: now, bytes };
            match &mut self.incomplete {
                Some(known) => **known = incomplete,
                None => self.incomplete = Some(Box::new(incomplete)),
            }
            self.schedule();
        }
    }

    /// Whether the client is read from now on.
    pub(super) fn set_read(&mut self, is_read: bool) {
        if self.is_read != is_read {
            self.is_read = is_read;
            self.begin_again(Instant::now());
        }
    }

    /// The client's time begins again.
    fn begin_again(&mut self, now: Instant) {
        self.last_packet = now;
        if let Some(incomplete) = &mut self.incomplete {
            incomplete.since = now;
        }
    }

    /// Ready when [`Liveness::check`] must be called.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(context),
            None => Poll::Pending,
        }
    }

    /// The timer went off; `bytes` are there of a packet that is incomplete.
    ///
    /// # Errors
    /// When the client counts as gone.
    pub(super) fn check(&mut self, bytes: usize, now: Instant) -> Result<(), Ended> {
        if !self.is_read {
            self.begin_again(now);
        }
        if self.keep_alive_due().is_some_and(|due| now >= due) {
            return Err(Ended::disconnect(
                DisconnectReason::KeepAlive,
                ReasonCode::KeepAliveTimeout,
                "no packet arrived for one and a half times the keep-alive",
            ));
        }
        if let Some(incomplete) = &mut self.incomplete
            && now >= incomplete.since + INCOMPLETE_INTERVAL
        {
            if bytes < incomplete.bytes + INCOMPLETE_BYTES {
                return Err(Ended::disconnect(
                    DisconnectReason::KeepAlive,
                    ReasonCode::KeepAliveTimeout,
                    "a packet arrives more slowly than it may",
                ));
            }
            **incomplete = Incomplete { since: now, bytes };
        }
        self.timer = None;
        self.schedule();
        Ok(())
    }

    fn keep_alive_due(&self) -> Option<Instant> {
        let keep_alive = Duration::from_millis(self.keep_alive_ms.into());
        (!keep_alive.is_zero()).then(|| self.last_packet + keep_alive)
    }

    /// Sees that the timer goes off in time. It may go off early.
    fn schedule(&mut self) {
        let incomplete = &self.incomplete;
        let incomplete = incomplete
            .as_ref()
            .map(|found| found.since + INCOMPLETE_INTERVAL);
        let Some(next) = self.keep_alive_due().into_iter().chain(incomplete).min() else {
            return;
        };
        if self
            .timer
            .as_ref()
            .is_none_or(|timer| timer.deadline() > next)
        {
            self.timer = Some(Box::pin(sleep_until(next)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[tokio::test]
    async fn mqtt_3_1_2_22_only_whole_packets_are_signs_of_life() {
        let start = Instant::now();
        let mut liveness = Liveness::new(10, start);
        liveness.arrived(1, 0, after(start, 5));
        for second in 6..20 {
            // One byte per second of the next packet.
            liveness.arrived(1, second as usize - 5, after(start, second));
            liveness.check(15, after(start, second)).expect("in time");
        }
        let ended = liveness.check(15, after(start, 20));
        let reason = ended.expect_err("15 s without a packet").reason;
        assert_eq!(reason, Some(ReasonCode::KeepAliveTimeout));
        liveness.arrived(2, 0, after(start, 20));
        liveness.check(0, after(start, 34)).expect("in time");
    }

    #[tokio::test]
    async fn a_packet_that_trickles_ends_a_client_without_keep_alive() {
        let start = Instant::now();
        let mut liveness = Liveness::new(0, start);
        assert!(liveness.timer.is_none(), "nothing to wait for");
        liveness.arrived(0, 10, start);
        assert_eq!(
            liveness.timer.as_ref().map(|timer| timer.deadline()),
            Some(after(start, 60))
        );
        liveness.arrived(0, 10 + INCOMPLETE_BYTES, after(start, 50));
        liveness
            .check(10 + INCOMPLETE_BYTES, after(start, 60))
            .expect("progress");
        liveness.arrived(0, 70 + INCOMPLETE_BYTES, after(start, 110));
        let ended = liveness.check(70 + INCOMPLETE_BYTES, after(start, 120));
        assert!(ended.is_err(), "60 bytes in a minute");
        liveness.arrived(1, 0, after(start, 121));
        liveness.check(0, after(start, 500)).expect("it is whole");
        assert!(liveness.timer.is_none());
    }

    #[tokio::test]
    async fn nobody_is_judged_while_the_node_does_not_read() {
        let start = Instant::now();
        let mut liveness = Liveness::new(10, start);
        liveness.arrived(0, 10, start);
        liveness.set_read(false);
        liveness.check(10, after(start, 15)).expect("not read");
        liveness.check(10, after(start, 75)).expect("not read");
        assert_eq!(liveness.last_packet, after(start, 75));
    }
}
