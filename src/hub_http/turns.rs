//! Turns: how many do something at once, and how many wait until they may.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Code, Refusal};

/// Somebody's turn, until it is dropped.
pub(super) type Turn = OwnedSemaphorePermit;

/// The turns of one kind of work.
pub(super) struct Turns {
    free: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

fn busy() -> Refusal {
    Refusal::new(Code::Throttled, "too many wait for their turn to read")
}

impl Turns {
    /// For so many at once; so many more may wait.
    pub(super) fn new(at_once: usize, waiting: usize) -> Turns {
        Turns {
            free: Arc::new(Semaphore::new(at_once)),
            waiting: Arc::new(Semaphore::new(waiting)),
        }
    }

    /// A turn.
    ///
    /// # Errors
    /// Enough wait for one.
    pub(super) async fn take(&self) -> Result<Turn, Refusal> {
        let waiting = self.waiting.clone().try_acquire_owned();
        let waiting = waiting.map_err(|_| busy())?;
        let turn = self.wait().await;
        drop(waiting);
        turn
    }

    /// A turn, however many wait: for what must not be refused any more.
    pub(super) async fn wait(&self) -> Result<Turn, Refusal> {
        // Nobody closes them.
        self.free.clone().acquire_owned().await.map_err(|_| busy())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn turns_and_waiting_are_bounded() {
        let turns = Turns::new(1, 2);
        let take = || Box::pin(turns.take());
        let turn = take().now_or_never().expect("it is free");
        let (mut second, mut third) = (take(), take());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        let refused = take().now_or_never().expect("two wait").expect_err("busy");
        assert_eq!(refused.code, Code::Throttled);
        let mut patient = Box::pin(turns.wait());
        assert!((&mut patient).now_or_never().is_none());
        drop(turn);
        let second = second.now_or_never().expect("its turn");
        assert!((&mut third).now_or_never().is_none());
        // Who goes waits no more.
        drop(third);
        drop(second);
        let _turn = patient.now_or_never().expect("its turn").expect("open");
        assert!(take().now_or_never().is_none());
    }
}
