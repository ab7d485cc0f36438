//! Threads that hash passwords, of which each log-in takes tens of milliseconds: a few of their own, below the others
//! in priority, with a bounded queue.
//!
//! Invariant: whoever waits for nothing any more costs nothing: work that nobody waits for is not begun.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

/// How much the threads give way to those that serve clients: as much as they can and keep a share. Linux weighs such a
/// thread 15 and one that serves 1,024, so where both want a processor, hashing gets 1.5 % of it, and log-ins go on,
/// slowly, on a node that is never idle. `SCHED_IDLE` would leave 0.3 %: a hash would take longer than clients wait.
const NICE: i32 = 19;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that have been started.
    threads: usize,
    /// Those that wait for a job.
    idle: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

/// As many log-ins wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many passwords wait to be hashed as may")]
pub struct Busy;

/// The threads.
pub struct Pool {
    shared: Arc<Shared>,
    most_threads: usize,
    most_waiting: usize,
}

impl Pool {
    /// At most so many threads, started when they are needed, and so many jobs that wait for them.
    pub fn new(most_threads: usize, most_waiting: usize) -> Pool {
        Pool {
            shared: Arc::default(),
            most_threads,
            most_waiting,
        }
    }

    /// Has a thread do this. The receiver fails when the work could not be done at all.
    ///
    /// # Errors
    /// Too much waits already.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, Busy> {
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            if !sender.is_closed() {
                // It may have gone away meanwhile.
                let _ = sender.send(work());
            }
        };
        let state = &mut *self.shared.state.lock();
        if state.jobs.len() >= self.most_waiting + state.idle {
            return Err(Busy);
        }
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() > state.idle && state.threads < self.most_threads {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("passwords".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    tracing::error!(%error, "no thread for passwords can be started");
                    state.jobs.pop_back();
                    return Err(Busy);
                }
            }
        }
        self.shared.arrived.notify_one();
        Ok(receiver)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        state.jobs.clear();
        drop(state);
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        // On Linux this is the thread's own, and everybody may lower it. Without it everything works all the same.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "threads that hash passwords have the priority of all others");
        }
        while let Some(job) = self.next() {
            // Whoever waits for it is told by the sender that is dropped.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            self.arrived.wait(&mut state);
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_is_asked_for_is_done_and_no_more_waits_than_may() {
        let pool = Pool::new(1, 2);
        let (go, gate) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let first = pool.run(move || {
            begun.send(()).expect("the test waits");
            gate.recv().is_ok()
        });
        let first = first.expect("there is room");
        begins.recv().expect("the thread begins");
        let second = pool.run(|| 2).expect("there is room");
        let dropped = pool.run(|| panic!("nobody waits")).expect("there is room");
        assert_eq!(pool.run(|| 4).err(), Some(Busy));
        drop::<oneshot::Receiver<()>>(dropped);
        go.send(()).expect("the thread waits");
        assert_eq!((first.await, second.await), (Ok(true), Ok(2)));
    }

    /// The nice value of the thread that asks: the 19th field of its line, the 17th after the name.
    fn nice() -> i32 {
        let line = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
        let (_, fields) = line.rsplit_once(") ").expect("a name in parentheses");
        let field = fields.split(' ').nth(16).expect("more than 17 fields");
        field.parse().expect("a number")
    }

    #[tokio::test]
    async fn its_threads_give_way_to_all_others_and_no_other_thread_does() {
        let own = nice();
        let pool = Pool::new(1, 1);
        let of_pool = pool.run(nice).expect("there is room").await;
        assert_eq!((of_pool, nice()), (Ok(19), own));
    }

    #[tokio::test]
    async fn a_panic_ends_no_thread() {
        let pool = Pool::new(1, 2);
        let failed = pool.run(|| -> u8 { panic!("for the test") });
        assert!(failed.expect("there is room").await.is_err());
        assert_eq!(pool.run(|| 1).expect("there is room").await, Ok(1));
    }
}
