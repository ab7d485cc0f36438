//! Mailboxes whose connections are woken when a batch of work is done.
//!
//! A thread runs those that are woken in the order in which they were. What goes to thousands would so keep everybody
//! waiting that is answered after it: a connection of one thread would wait for a turn of all of them, twice for
//! each write. So those that only get messages, when they are many, are woken a few at a time, and whoever is
//! answered comes in between.
//!
//! Invariant: a mailbox that was added is woken. Who gets messages and is answered meanwhile hears of both together.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::Mailbox;
use crate::base::limits;

/// Connections that are woken at once because they get messages, for each thread of the runtime.
const AT_ONCE: usize = 64;

/// Whose connections are woken: one list after the other.
static TURN: Semaphore = Semaphore::const_new(1);

/// Mailboxes whose connections are woken together.
#[derive(Default)]
pub struct WakeList {
    /// Who waits for an answer.
    answered: Vec<Arc<Mailbox>>,
    /// Who gets messages.
    receiving: Vec<Arc<Mailbox>>,
}

impl WakeList {
    /// Adds a mailbox that somebody waits for.
    pub fn add(&mut self, mailbox: &Arc<Mailbox>) {
        self.answered.push(mailbox.clone());
    }

    /// Adds a mailbox that a message was put into, which may have gone to very many.
    pub fn add_receiving(&mut self, mailbox: &Arc<Mailbox>) {
        self.receiving.push(mailbox.clone());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.answered.len() + self.receiving.len()
    }

    /// Wakes them all: some of many later, on the runtime of the caller, if there is one.
    pub fn wake(&mut self) {
        for mailbox in self.answered.drain(..) {
            mailbox.wake();
        }
        if self.receiving.len() > AT_ONCE
            && let Ok(runtime) = Handle::try_current()
        {
            let many = std::mem::take(&mut self.receiving);
            runtime.spawn(wake_in_turn(many));
            return;
        }
        for mailbox in self.receiving.drain(..) {
            mailbox.wake();
        }
    }
}

impl Drop for WakeList {
    fn drop(&mut self) {
        self.wake();
    }
}

/// Returns when those that are woken a few at a time, and were to be before, have been.
pub async fn all_woken() {
    // Nobody closes it.
    let _turn = TURN.acquire().await;
}

/// Wakes many, a few at a time: the next ones when the thread has run those before.
async fn wake_in_turn(many: Vec<Arc<Mailbox>>) {
    let threads = Handle::current().metrics().num_workers();
    // A thread that does not come round may have the turn: the others do not wait for it.
    let _turn = tokio::time::timeout(limits::WAKE_TURN_WITHIN, TURN.acquire()).await;
    for some in many.chunks(AT_ONCE * threads) {
        for mailbox in some {
            mailbox.wake();
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Poll;

    use parking_lot::Mutex;

    use super::*;
    use crate::base::ids::ConnectionId;
    use crate::codec::Version;
    use crate::mailbox::Item;
    use crate::mailbox::back_pressure::OutboxLimits;

    const MANY: u64 = 10 * AT_ONCE as u64;

    /// Connections that wait, and in which order they had their turns.
    #[derive(Clone, Default)]
    struct Turns {
        waiting: Arc<AtomicU64>,
        taken: Arc<Mutex<Vec<u64>>>,
    }

    impl Turns {
        /// A connection that does something in its turn when it is woken.
        fn connection(&self, number: u64, turn: impl FnOnce() + Send + 'static) -> Arc<Mailbox> {
            let limits = OutboxLimits::of(100);
            let mailbox = Mailbox::new(ConnectionId(number), Version::V5, u32::MAX, 0, limits);
            let (turns, filled) = (self.clone(), mailbox.clone());
            tokio::spawn(async move {
                turns.waiting.fetch_add(1, Ordering::Relaxed);
                poll_fn(|context| {
                    filled.register(context.waker());
                    match filled.is_filled() {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                })
                .await;
                turns.taken.lock().push(number);
                turn();
            });
            mailbox
        }

        async fn all_wait(&self, count: u64) {
            while self.waiting.load(Ordering::Relaxed) < count {
                tokio::task::yield_now().await;
            }
        }

        async fn reach(&self, count: u64) -> Vec<u64> {
            while (self.taken.lock().len() as u64) < count {
                tokio::task::yield_now().await;
            }
            self.taken.lock().clone()
        }
    }

    fn fill(mailbox: &Arc<Mailbox>) {
        assert!(mailbox.push_item(Item::SendPubRel(Default::default())));
    }

    #[tokio::test]
    async fn an_answer_comes_in_between_what_very_many_are_told() {
        let turns = Turns::default();
        let answered = turns.connection(0, || {});
        let asks = answered.clone();
        let first = turns.connection(1, move || {
            fill(&asks);
            let mut wake = WakeList::default();
            wake.add(&asks);
        });
        let others = (2..=MANY).map(|number| turns.connection(number, || {}));
        let receiving: Vec<_> = std::iter::once(first).chain(others).collect();
        turns.all_wait(MANY + 1).await;
        let mut wake = WakeList::default();
        for mailbox in &receiving {
            fill(mailbox);
            wake.add_receiving(mailbox);
        }
        assert_eq!(wake.len() as u64, MANY);
        drop(wake);
        let seen = turns.reach(MANY + 1).await;
        let place = seen.iter().position(|number| *number == 0);
        let place = place.expect("it was woken");
        assert!(place <= 2 * AT_ONCE, "after {place} others");
        all_woken().await;
    }

    /// Nobody waits for a runtime that is not there.
    #[test]
    fn without_a_runtime_all_are_woken_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let turns = Turns::default();
        let context = runtime.enter();
        let receiving: Vec<_> = (0..MANY)
            .map(|number| turns.connection(number, || {}))
            .collect();
        drop(context);
        runtime.block_on(turns.all_wait(MANY));
        let mut wake = WakeList::default();
        for mailbox in &receiving {
            fill(mailbox);
            wake.add_receiving(mailbox);
        }
        drop(wake);
        let seen = runtime.block_on(turns.reach(MANY));
        assert!(seen.into_iter().eq(0..MANY));
    }
}
