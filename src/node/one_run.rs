//! What runs once at a time, however many ask for it.
//!
//! Invariant: who asks while it is under way gets the answer of that run. Who has asked for it may leave: it goes on as
//! long as anybody waits for it, and no longer.

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

/// A run, as all who wait for it have it.
pub(super) type Run<T> = Shared<BoxFuture<'static, T>>;

/// The run that is under way, if there is one.
pub(super) struct OneRun<T: Clone>(Mutex<Option<WeakShared<BoxFuture<'static, T>>>>);

impl<T: Clone> Default for OneRun<T> {
    fn default() -> OneRun<T> {
        OneRun(Mutex::default())
    }
}

impl<T: Clone> OneRun<T> {
    /// Joins the run that is under way, or the one that `begin` begins.
    pub(super) fn join(&self, begin: impl FnOnce() -> BoxFuture<'static, T>) -> Run<T> {
        let mut under_way = self.0.lock();
        let present = under_way.as_ref().and_then(WeakShared::upgrade);
        // One that has ended may be held by somebody who has not looked at it yet.
        let present = present.filter(|run| run.peek().is_none());
        let run = present.unwrap_or_else(|| begin().shared());
        *under_way = run.downgrade();
        run
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::oneshot;

    use super::*;

    /// Joins, and counts what begins: a run that ends when it is told a number.
    fn join(
        one: &OneRun<Option<u8>>,
        begun: &Cell<u8>,
        tell: &mut Option<oneshot::Sender<u8>>,
    ) -> Run<Option<u8>> {
        one.join(|| {
            begun.set(begun.get() + 1);
            let (sender, told) = oneshot::channel();
            *tell = Some(sender);
            async move { told.await.ok() }.boxed()
        })
    }

    #[test]
    fn who_asks_while_it_runs_gets_its_answer() {
        let (one, begun, mut tell) = (OneRun::default(), Cell::new(0), None);
        let first = join(&one, &begun, &mut tell);
        let second = join(&one, &begun, &mut tell);
        assert!(first.clone().now_or_never().is_none());
        // Who began it leaves.
        drop(first);
        let third = join(&one, &begun, &mut tell);
        assert_eq!(begun.get(), 1);
        assert!(tell.take().expect("it began").send(7).is_ok());
        assert_eq!(second.now_or_never(), Some(Some(7)));
        // It has ended, although somebody has not looked yet.
        let next = join(&one, &begun, &mut tell);
        assert_eq!(begun.get(), 2);
        assert_eq!(third.now_or_never(), Some(Some(7)));
        assert!(next.now_or_never().is_none());
    }

    #[test]
    fn nobody_waits_for_what_everybody_has_left() {
        let (one, begun, mut tell) = (OneRun::default(), Cell::new(0), None);
        drop(join(&one, &begun, &mut tell));
        assert!(tell.take().expect("it began").is_closed(), "it is over");
        drop(join(&one, &begun, &mut tell));
        assert_eq!(begun.get(), 2);
    }
}
