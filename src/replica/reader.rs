//! Linearizable reads on this node: all reads that wait share one ReadIndex round, then read the local state.
//!
//! A page of SCAN may look at thousands of rows, so pages are read one after the other on a thread of their own, once
//! their round has succeeded. No GET waits for a SCAN.
//!
//! Invariant: a read sees every write that was acknowledged anywhere before the read was submitted, and no expiry that
//! is not in the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
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
    Get(Bytes),
    /// SCAN: a pattern, where the previous page ended, and how much a page may read.
    Scan(Bytes, Option<Bytes>, PageBudget),
}

/// Whom the answer goes to.
struct Asker {
    mailbox: Arc<Mailbox>,
    request_id: RequestId,
}

/// A GET that waits.
struct Get {
    key: Bytes,
    asker: Asker,
}

/// A SCAN that waits.
struct Scan {
    pattern: Bytes,
    token: Option<Bytes>,
    budget: PageBudget,
    asker: Asker,
}

/// Reads that wait for one round.
#[derive(Default)]
struct Round {
    gets: Vec<Get>,
    scans: Vec<Scan>,
}

impl Round {
    fn len(&self) -> usize {
        self.gets.len() + self.scans.len()
    }
}

/// The reads of this node. Each belongs to a request of a connection, whose receive maximum bounds them.
#[derive(Default)]
pub struct Reader {
    waiting: Mutex<Round>,
    arrived: Notify,
    /// SCANs whose round has succeeded.
    scans: Mutex<VecDeque<Scan>>,
    scans_arrived: Notify,
}

impl Reader {
    /// Submits a read; the answer goes to the mailbox. There is no answer while no majority can be reached: if that
    /// lasts, the node ends its connections, and the client asks again elsewhere.
    pub fn submit(&self, query: Query, mailbox: &Arc<Mailbox>, request_id: RequestId) {
        let asker = Asker {
            mailbox: mailbox.clone(),
            request_id,
        };
        let mut waiting = self.waiting.lock();
        match query {
            Query::Get(key) => waiting.gets.push(Get { key, asker }),
            Query::Scan(pattern, token, budget) => waiting.scans.push(Scan {
                pattern,
                token,
                budget,
                asker,
            }),
        }
        let first = waiting.len() == 1;
        drop(waiting);
        if first {
            self.arrived.notify_one();
        }
    }

    /// Number of reads that wait.
    pub fn depth(&self) -> usize {
        self.waiting.lock().len() + self.scans.lock().len()
    }

    /// Answers reads until the node stops.
    pub async fn run(self: Arc<Self>, raft: Raft, proposer: Arc<Proposer>, clock: Arc<Clock>) {
        let scanning = tokio::spawn(self.clone().run_scans(raft.backing()));
        loop {
            let mut round = std::mem::take(&mut *self.waiting.lock());
            if round.len() == 0 {
                self.arrived.notified().await;
                continue;
            }
            while let Err(error) = raft.read_barrier().await {
                tracing::debug!(%error, reads = round.len(), "reads wait for a leader");
                if matches!(error, ReadError::Stopped) {
                    scanning.abort();
                    return;
                }
                tokio::time::sleep(RETRY).await;
            }
            if !round.scans.is_empty() {
                self.scans.lock().extend(round.scans.drain(..));
                self.scans_arrived.notify_one();
            }
            let backing = raft.backing();
            let due = answer_all(&*backing, round.gets, clock.now());
            if !due.is_empty() {
                tokio::spawn(answer_after_tick(due, backing, proposer.clone()));
            }
        }
    }

    /// Reads the pages of SCANs, one after the other.
    async fn run_scans(self: Arc<Self>, backing: Arc<dyn Backing>) {
        loop {
            let next = self.scans.lock().pop_front();
            let Some(scan) = next else {
                self.scans_arrived.notified().await;
                continue;
            };
            let backing = backing.clone();
            let page = tokio::task::spawn_blocking(move || scan.answer(&*backing));
            if let Err(error) = page.await {
                tracing::error!(%error, "a SCAN failed");
            }
        }
    }
}

impl Asker {
    fn answer(&self, reply: Reply, wake: &mut WakeList) {
        if self.mailbox.push_item(Item::Read(self.request_id, reply)) {
            wake.add(&self.mailbox);
        }
    }
}

impl Scan {
    fn answer(&self, backing: &dyn Backing) {
        let token = self.token.as_deref();
        let reply = read::scan(backing, &self.pattern, token, self.budget);
        self.asker.answer(reply, &mut WakeList::default());
    }
}

/// Answers GETs. Those of keys that have expired by this node's clock, while their expiry is not yet in the log, are
/// returned.
fn answer_all(backing: &dyn Backing, gets: Vec<Get>, now: Millis) -> Vec<Get> {
    let mut wake = WakeList::default();
    let mut due = Vec::new();
    for get in gets {
        let found = read::get(backing, &get.key);
        match found.expires_at.is_some_and(|deadline| deadline <= now) {
            true => due.push(get),
            false => get.asker.answer(found.reply, &mut wake),
        }
    }
    due
}

/// Answers reads of keys that may have expired. The leader's clock decides, so an empty command is committed first: it
/// fires the timers that are due.
async fn answer_after_tick(gets: Vec<Get>, backing: Arc<dyn Backing>, proposer: Arc<Proposer>) {
    let tick = command::command::Kind::Nothing(command::Nothing {});
    if proposer.propose(tick).await.is_none() {
        return;
    }
    let mut wake = WakeList::default();
    for get in &gets {
        let reply = read::get_at_log_time(&*backing, &get.key);
        get.asker.answer(reply, &mut wake);
    }
}
