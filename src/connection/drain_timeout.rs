//! How long publishers wait for a client that reads slowly.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::mailbox::back_pressure::{BackPressureState, OutboxLimits};
use crate::mailbox::{Mailbox, WakeList};

/// Runs while acknowledgements of publishers are deferred because of this client. The client must drain its outbox at
/// [`OutboxLimits::minimum_drain_rate`]; otherwise it counts as stalled, and publishers wait for it no longer.
///
/// Either of two measures will do: what its socket has taken, and how far its acknowledgements say that it has read.
/// The socket of a client that reads slowly may take nothing for long, because the client's system holds much for it.
#[derive(Default)]
pub(super) struct DrainTimeout {
    /// Boxed, because most connections have none.
    running: Option<Box<Running>>,
}

struct Running {
    timer: Pin<Box<Sleep>>,
    /// When the timer began.
    before: Progress,
}

/// How far a client has come, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// What its socket has taken.
    pub(super) drained: u64,
    /// What it has read, as its acknowledgements tell.
    pub(super) read: u64,
}

impl Progress {
    fn since(self, before: Progress) -> u64 {
        let drained = self.drained.saturating_sub(before.drained);
        drained.max(self.read.saturating_sub(before.read))
    }
}

impl DrainTimeout {
    /// Ready when [`DrainTimeout::update`] must be called: publishers have begun to wait, wait no longer, or have
    /// waited long enough.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, state: BackPressureState) -> Poll<()> {
        let is_waited_for = matches!(
            state,
            BackPressureState::Throttled | BackPressureState::Full
        );
        match &mut self.running {
            Some(_) if !is_waited_for => Poll::Ready(()),
            Some(running) => running.timer.as_mut().poll(context),
            None if is_waited_for => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    /// Starts, stops or prolongs the timer, or declares the client stalled.
    pub(super) fn update(
        &mut self,
        client_id: &str,
        mailbox: &Mailbox,
        progress: Progress,
        limits: &OutboxLimits,
        wake: &mut WakeList,
    ) {
        let deadline = Instant::now() + limits.stall;
        let Some(running) = &mut self.running else {
            let timer = Box::pin(sleep_until(deadline));
            self.running = Some(Box::new(Running {
                timer,
                before: progress,
            }));
            return;
        };
        let state = mailbox.state();
        if matches!(
            state,
            BackPressureState::Normal | BackPressureState::Stalled
        ) {
            self.running = None;
        } else if Instant::now() < running.timer.deadline() {
            // The state left these two and came back since it was polled: nobody has waited long enough.
        } else if progress.since(running.before) < limits.minimum_drain_rate() {
            tracing::info!(
                client_id,
                "the client hardly reads: publishers do not wait for it any more"
            );
            limits.metrics.subscribers_stalled.increment();
            mailbox.stall(wake);
            wake.wake();
            self.running = None;
        } else {
            running.before = progress;
            running.timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::base::ids::ConnectionId;
    use crate::codec::{QoS, Version};
    use crate::mailbox::NewPacket;

    /// A client with a full mailbox, which publishers wait for.
    struct Slow {
        limits: Arc<OutboxLimits>,
        mailbox: Arc<Mailbox>,
        timeout: DrainTimeout,
    }

    impl Slow {
        fn new() -> Slow {
            let limits = Arc::new(OutboxLimits {
                stall: Duration::from_millis(100),
                ..Arc::into_inner(OutboxLimits::dropping(100)).expect("just made")
            });
            let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits.clone());
            let packet = NewPacket::of(QoS::AtLeastOnce);
            let pushed = mailbox.push_packet(packet, |out| {
                out.extend_from_slice(&[0; 100]);
                Ok(())
            });
            pushed.expect("it fits");
            assert_eq!(mailbox.state(), BackPressureState::Full);
            let mut slow = Slow {
                limits,
                mailbox,
                timeout: DrainTimeout::default(),
            };
            slow.judge(0, 0);
            slow
        }

        fn judge(&mut self, drained: u64, read: u64) {
            let progress = Progress { drained, read };
            let wake = &mut WakeList::default();
            self.timeout
                .update("client", &self.mailbox, progress, &self.limits, wake);
        }

        /// Judges it when its time is over.
        async fn judge_later(&mut self, drained: u64, read: u64) {
            poll_fn(|context| self.timeout.poll(context, self.mailbox.state())).await;
            self.judge(drained, read);
        }
    }

    #[tokio::test]
    async fn a_client_is_judged_only_when_the_time_is_over() {
        let mut slow = Slow::new();
        slow.judge(0, 0);
        assert_eq!(slow.mailbox.state(), BackPressureState::Full, "no time yet");
        slow.judge_later(0, 0).await;
        assert_eq!(slow.mailbox.state(), BackPressureState::Stalled);
    }

    /// The socket's buffers, here and at the client, hide what is read.
    #[tokio::test]
    async fn a_client_that_reads_and_whose_socket_takes_nothing_is_not_stalled() {
        let mut slow = Slow::new();
        let least = slow.limits.minimum_drain_rate();
        slow.judge_later(0, least).await;
        slow.judge_later(least, least).await;
        slow.judge_later(least, 2 * least).await;
        assert_eq!(slow.mailbox.state(), BackPressureState::Full);
        slow.judge_later(2 * least - 1, 3 * least - 1).await;
        assert_eq!(slow.mailbox.state(), BackPressureState::Stalled);
    }
}
