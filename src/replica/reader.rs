//! Linearizable reads on this node: all reads that wait share one ReadIndex round, then read the local state.
//!
//! Invariant: a read sees every write that was acknowledged anywhere before the read was submitted, and no expiry that
//! is not in the log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::proto::command;
use crate::base::time::Millis;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::mailbox::{Item, Mailbox, RequestId, WakeList};
use crate::raft::{Raft, ReadError};
use crate::replica::clock::Clock;
use crate::replica::proposer::Proposer;
use crate::store::Reply;
use crate::store::scan::PageBudget;

/// Before a round that failed is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// What is to be read.
#[derive(Clone, Debug)]
pub enum Query {
    /// GET of a key.
    Get(bytes::Bytes),
    /// SCAN: a pattern, where the previous page ended, and how much a page may read.
    Scan(bytes::Bytes, Option<bytes::Bytes>, PageBudget),
}

struct Waiting {
    query: Query,
    mailbox: Arc<Mailbox>,
    request_id: RequestId,
}

/// The reads of this node.
#[derive(Default)]
pub struct Reader {
    waiting: Mutex<Vec<Waiting>>,
    arrived: Notify,
}

impl Reader {
    /// Submits a read; the answer goes to the mailbox. There is no answer while no majority can be reached: if that
    /// lasts, the node ends its connections, and the client asks again elsewhere.
    pub fn submit(&self, query: Query, mailbox: &Arc<Mailbox>, request_id: RequestId) {
        let mut waiting = self.waiting.lock();
        waiting.push(Waiting {
            query,
            mailbox: mailbox.clone(),
            request_id,
        });
        let first = waiting.len() == 1;
        drop(waiting);
        if first {
            self.arrived.notify_one();
        }
    }

    /// Number of reads that wait for a round.
    pub fn depth(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Answers reads until the node stops.
    pub async fn run(self: Arc<Self>, raft: Raft, proposer: Arc<Proposer>, clock: Arc<Clock>) {
        loop {
            let round = std::mem::take(&mut *self.waiting.lock());
            if round.is_empty() {
                self.arrived.notified().await;
                continue;
            }
            while let Err(error) = raft.read_barrier().await {
                tracing::debug!(%error, reads = round.len(), "reads wait for a leader");
                if matches!(error, ReadError::Stopped) {
                    return;
                }
                tokio::time::sleep(RETRY).await;
            }
            let backing = raft.backing();
            let mut wake = WakeList::default();
            let mut due = Vec::new();
            for read in round {
                match answer(&*backing, &read.query, clock.now()) {
                    Some(reply) => deliver(&read, reply, &mut wake),
                    None => due.push(read),
                }
            }
            drop(wake);
            if !due.is_empty() {
                tokio::spawn(answer_after_tick(due, backing, proposer.clone()));
            }
        }
    }
}

fn deliver(read: &Waiting, reply: Reply, wake: &mut WakeList) {
    if read.mailbox.push_item(Item::Read(read.request_id, reply)) {
        wake.add(&read.mailbox);
    }
}

/// The answer to a read. `None` when the key has expired by this node's clock, but its expiry is not yet in the log.
fn answer(backing: &dyn Backing, query: &Query, now: Millis) -> Option<Reply> {
    match query {
        Query::Get(key) => {
            let found = read::get(backing, key);
            let over = found.expires_at.is_some_and(|deadline| deadline <= now);
            (!over).then_some(found.reply)
        }
        Query::Scan(pattern, token, page) => {
            Some(read::scan(backing, pattern, token.as_deref(), *page))
        }
    }
}

/// Answers reads of keys that may have expired. The leader's clock decides, so an empty command is committed first: it
/// fires the timers that are due.
async fn answer_after_tick(
    reads: Vec<Waiting>,
    backing: Arc<dyn Backing>,
    proposer: Arc<Proposer>,
) {
    let tick = command::command::Kind::Nothing(command::Nothing {});
    if proposer.propose(tick).await.is_none() {
        return;
    }
    let mut wake = WakeList::default();
    for read in &reads {
        if let Query::Get(key) = &read.query {
            deliver(read, read::get_at_log_time(&*backing, key), &mut wake);
        }
    }
}
