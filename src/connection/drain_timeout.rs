//! How long publishers wait for a client that reads slowly.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::mailbox::back_pressure::{BackPressureState, OutboxLimits};
use crate::mailbox::{Mailbox, WakeList};

/// Runs while acknowledgements of publishers are deferred because of this client. The client must drain its outbox at
/// [`OutboxLimits::minimum_drain_rate`]; otherwise it counts as stalled, and publishers wait for it no longer.
#[derive(Default)]
pub(super) struct DrainTimeout {
    running: Option<Running>,
}

struct Running {
    timer: Pin<Box<Sleep>>,
    /// Bytes that the client had got when the timer began.
    drained: u64,
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
        limits: &OutboxLimits,
        wake: &mut WakeList,
    ) {
        let drained = mailbox.drained();
        let deadline = Instant::now() + limits.stall;
        let Some(running) = &mut self.running else {
            let timer = Box::pin(sleep_until(deadline));
            self.running = Some(Running { timer, drained });
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
        } else if drained.saturating_sub(running.drained) < limits.minimum_drain_rate() {
            tracing::info!(
                client_id,
                "the client hardly reads: publishers do not wait for it any more"
            );
            limits.metrics.subscribers_stalled.increment();
            mailbox.stall(wake);
            wake.wake();
            self.running = None;
        } else {
            running.drained = drained;
            running.timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::base::ids::ConnectionId;
    use crate::codec::{QoS, Version};
    use crate::mailbox::NewPacket;

    #[tokio::test]
    async fn a_client_is_judged_only_when_the_time_is_over() {
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
        let mut timeout = DrainTimeout::default();
        let mut update = || timeout.update("client", &mailbox, &limits, &mut WakeList::default());
        update();
        update();
        assert_eq!(mailbox.state(), BackPressureState::Full, "it had no time");
        tokio::time::sleep(limits.stall * 2).await;
        update();
        assert_eq!(mailbox.state(), BackPressureState::Stalled);
    }
}
