//! Reads of many rows run on threads of their own, and never many at once: pages and aggregates of queries, lists.
//!
//! Invariant: at most [`MOST_PAGES`] pages, one aggregate and [`MOST_LISTS`] lists are made at once, and none keeps the
//! others from their turn. A read whose back end has gone away, or whose state is not needed any more, ends soon.
//! Invariant: a page ends itself in time for its answer, and says where to go on: any query can be finished.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::error::{Code, Refusal};
use super::turns::{Turn, Turns};
use crate::machine::tables::Backing;
use crate::raft::Raft;
use crate::storage::StateView;

/// Pages that are made at once.
const MOST_PAGES: usize = 4;

/// Lists that are made at once.
const MOST_LISTS: usize = 2;

/// Reads of each kind that may wait for their turn.
const MOST_WAITING: usize = 256;

/// How long a read may take, its turn included.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a page looks at rows before it ends itself.
const PAGE_TIME: Duration = Duration::from_secs(5);

/// How long before its back end is given up a page ends itself at the latest.
const PAGE_MARGIN: Duration = Duration::from_secs(2);

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A page of rows.
    Page,
    /// All rows of a collection.
    Aggregate,
    /// Identities.
    List,
}

/// What reads take turns for.
pub(super) struct QueryThreads {
    pages: Turns,
    aggregates: Turns,
    lists: Turns,
}

impl Default for QueryThreads {
    fn default() -> Self {
        QueryThreads {
            pages: Turns::new(MOST_PAGES, MOST_WAITING),
            aggregates: Turns::new(1, MOST_WAITING),
            lists: Turns::new(MOST_LISTS, MOST_WAITING),
        }
    }
}

/// How a read goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    On,
    /// A page has taken long enough.
    EndPage,
    /// Nobody wants it.
    GiveUp,
}

/// Whether a read is still wanted; asked for every row.
pub(super) struct Wanted {
    is_given_up: Arc<AtomicBool>,
    until: Instant,
    page_until: Instant,
}

impl Wanted {
    /// Of a read whose turn has come at `now`, and whose back end waits until `until`.
    fn new(is_given_up: Arc<AtomicBool>, now: Instant, until: Instant) -> Wanted {
        Wanted {
            is_given_up,
            until,
            page_until: (now + PAGE_TIME).min(until - PAGE_MARGIN),
        }
    }

    /// How to go on. Whoever reads a view says which, so that it is not kept for longer than it is needed.
    pub(super) fn pace(&self, view: Option<&StateView<'_>>) -> Pace {
        let now = Instant::now();
        let is_given_up = self.is_given_up.load(Ordering::Relaxed) || now >= self.until;
        match is_given_up || view.is_some_and(|view| !view.is_needed()) {
            true => Pace::GiveUp,
            false if now >= self.page_until => Pace::EndPage,
            false => Pace::On,
        }
    }
}

/// Tells the thread that nobody waits any more.
struct GivesUp(Arc<AtomicBool>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn late() -> Refusal {
    let text = "the query takes too long: ask for less, or name the devices";
    Refusal::new(Code::TimedOut, text)
}

/// A read whose turn has come.
struct Job<T> {
    wanted: Wanted,
    turn: Turn,
    sender: oneshot::Sender<Option<T>>,
}

impl<T> Job<T> {
    fn done(self, found: Option<T>) {
        drop(self.turn);
        // Whoever waited may have gone.
        let _ = self.sender.send(found);
    }
}

impl QueryThreads {
    fn turns(&self, work: Work) -> &Turns {
        match work {
            Work::Page => &self.pages,
            Work::Aggregate => &self.aggregates,
            Work::List => &self.lists,
        }
    }

    /// Has `read` look at the state as it is when the turn comes, and returns what it finds; it returns `None` when it
    /// was not to go on.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        raft: &Raft,
        work: Work,
        read: impl FnOnce(&StateView<'_>, &Wanted) -> Option<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let state = raft.clone();
        let start = move |job: Job<T>| {
            state.look(move |view| {
                let found = read(view, &job.wanted);
                job.done(found);
            })
        };
        self.run(raft, work, start).await
    }

    /// As [`QueryThreads::look`], on the rows that apply writes meanwhile: it costs the state nothing, see
    /// [`crate::machine::hub::read::at_one_moment`].
    pub(super) async fn look_live<T: Send + 'static>(
        &self,
        raft: &Raft,
        work: Work,
        backing: Arc<dyn Backing>,
        read: impl FnOnce(&dyn Backing, &Wanted) -> Option<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let start = move |job: Job<T>| {
            let found = read(&*backing, &job.wanted);
            job.done(found);
            Ok(())
        };
        self.run(raft, work, start).await
    }

    /// Waits for a turn, and has `start` begin on a thread where it may take its time.
    async fn run<T: Send + 'static>(
        &self,
        raft: &Raft,
        work: Work,
        start: impl FnOnce(Job<T>) -> io::Result<()> + Send + 'static,
    ) -> Result<T, Refusal> {
        let until = Instant::now() + QUERY_TIMEOUT;
        let is_given_up = Arc::new(AtomicBool::new(false));
        let _gives_up = GivesUp(is_given_up.clone());
        let found = async {
            let turn = self.turns(work).take().await?;
            let barrier = raft.read_barrier().await;
            barrier.map_err(|error| Refusal::new(Code::Unavailable, error))?;
            let (sender, receiver) = oneshot::channel();
            let job = Job {
                wanted: Wanted::new(is_given_up, Instant::now(), until),
                turn,
                sender,
            };
            let started = tokio::task::spawn_blocking(move || start(job)).await;
            let started = started.map_err(io::Error::other).flatten();
            started.map_err(|error| Refusal::new(Code::Internal, error))?;
            receiver.await.ok().flatten().ok_or_else(late)
        };
        let found = tokio::time::timeout_at(until.into(), found).await;
        found.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// For a read whose page is to end at once.
    pub(in crate::hub_http) fn in_a_hurry() -> Wanted {
        let now = Instant::now();
        Wanted::new(Arc::default(), now, now + PAGE_MARGIN)
    }

    #[test]
    fn aggregates_that_wait_keep_nobody_else_waiting() {
        let threads = QueryThreads::default();
        let _turn = threads.turns(Work::Aggregate).take().now_or_never();
        let mut waiting = Vec::new();
        for _ in 0..MOST_WAITING {
            let mut next = Box::pin(threads.turns(Work::Aggregate).take());
            assert!((&mut next).now_or_never().is_none());
            waiting.push(next);
        }
        let next = threads.turns(Work::Aggregate).take().now_or_never();
        assert!(next.is_some_and(|refused| refused.is_err()));
        for work in [Work::Page, Work::List] {
            let turn = threads.turns(work).take().now_or_never();
            assert!(turn.is_some_and(|turn| turn.is_ok()), "{work:?}");
        }
    }

    #[test]
    fn a_page_ends_before_its_back_end_is_given_up() {
        let now = Instant::now();
        let wanted = |turn_at, until| Wanted::new(Arc::default(), turn_at, until);
        let soon = wanted(now, now + QUERY_TIMEOUT);
        assert_eq!(soon.page_until, now + PAGE_TIME);
        assert_eq!(soon.pace(None), Pace::On);
        let late = wanted(now + QUERY_TIMEOUT / 10 * 9, now + QUERY_TIMEOUT);
        assert_eq!(late.page_until, now + QUERY_TIMEOUT - PAGE_MARGIN);
        assert_eq!(in_a_hurry().pace(None), Pace::EndPage);
        assert_eq!(wanted(now, now).pace(None), Pace::GiveUp);
        let gone = wanted(now, now + QUERY_TIMEOUT);
        drop(GivesUp(gone.is_given_up.clone()));
        assert_eq!(gone.pace(None), Pace::GiveUp);
    }
}
