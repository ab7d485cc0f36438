//! Linearizable reads on this node: all reads that wait share one ReadIndex round, then read the local state.
//!
//! Who reads more than a key asks for the round alone, and reads for itself.
//!
//! A page of SCAN may look at thousands of rows, so pages are read one after the other on a thread of their own, once
//! their round has succeeded. No GET waits for a SCAN. Connections take turns, page by page ([`super::turns`]), so that
//! who scans a lot holds up itself. Keys that a client may not read are left out where the rows are read: the thread
//! of its connection judges none of them.
//!
//! Invariant: a value is read only while its client has few of those that were read before on their way
//! ([`Answers`](crate::mailbox::Answers)). It asks again when they have left.
//! Invariant: a read sees every write that was acknowledged anywhere before the read was submitted, and no expiry that
//! is not in the log.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::acl::Rights;
use crate::base::ids::ConnectionId;
use crate::base::time::Millis;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::mailbox::{Item, Mailbox, RequestId, WakeList};
use crate::raft::{Raft, ReadError};
use crate::replica::clock::Clock;
use crate::replica::proposer::Proposer;
use crate::replica::turns::Turns;
use crate::store::Reply;
use crate::store::scan::{MayList, PageBudget};

/// Before a round that failed is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// What is to be read.
#[derive(Clone, Debug)]
pub enum Query {
    /// GET of a key, and bytes of the answer beside the value.
    Get(Bytes, usize),
    /// SCAN.
    Scan(ScanQuery),
}

/// A page of keys.
#[derive(Clone, Debug)]
pub struct ScanQuery {
    /// What the keys match.
    pub pattern: Bytes,
    /// Where the previous page ended.
    pub token: Option<Bytes>,
    /// Whose keys are listed: those that it may read.
    pub rights: Arc<Rights>,
    /// How much is read.
    pub budget: PageBudget,
}

/// Whom the answer goes to.
struct Asker {
    mailbox: Arc<Mailbox>,
    request_id: RequestId,
}

/// A GET that waits.
struct Get {
    key: Bytes,
    /// Bytes of the answer beside the value.
    beside: usize,
    asker: Asker,
}

/// A SCAN that waits.
struct Scan {
    query: ScanQuery,
    asker: Asker,
}

/// Who reads for itself when the round has succeeded.
enum Barrier {
    /// A request of a connection.
    Connection(Asker),
    /// A task, which may have gone away.
    Task(oneshot::Sender<()>),
}

impl Barrier {
    fn pass(self, wake: &mut WakeList) {
        match self {
            Barrier::Connection(Asker {
                mailbox,
                request_id,
            }) => {
                if mailbox.push_item(Item::BarrierPassed(request_id)) {
                    wake.add(&mailbox);
                }
            }
            Barrier::Task(passed) => drop(passed.send(())),
        }
    }
}

/// Reads that wait for one round.
#[derive(Default)]
struct Round {
    gets: Vec<Get>,
    scans: Vec<Scan>,
    barriers: Vec<Barrier>,
}

impl Round {
    fn len(&self) -> usize {
        self.gets.len() + self.scans.len() + self.barriers.len()
    }
}

/// The reads of this node. Each belongs to a request of a connection, whose receive maximum bounds them.
#[derive(Default)]
pub struct Reader {
    waiting: Mutex<Round>,
    arrived: Notify,
    /// SCANs whose round has succeeded.
    scans: Mutex<Turns<ConnectionId, Scan>>,
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
        self.add(|waiting| match query {
            Query::Get(key, beside) => waiting.gets.push(Get { key, beside, asker }),
            Query::Scan(query) => waiting.scans.push(Scan { query, asker }),
        });
    }

    /// Tells a connection ([`Item::BarrierPassed`]) when this node's state has everything that was acknowledged
    /// anywhere before now. It is told in the order in which it asks; without a majority it is told nothing.
    pub fn submit_barrier(&self, mailbox: &Arc<Mailbox>, request_id: RequestId) {
        let mailbox = mailbox.clone();
        let barrier = Barrier::Connection(Asker {
            mailbox,
            request_id,
        });
        self.add(|waiting| waiting.barriers.push(barrier));
    }

    /// Waits until this node's state has everything that was acknowledged anywhere before now. It does not come back
    /// without a majority, so the caller bounds it. `false`: the node stops.
    pub async fn barrier(&self) -> bool {
        let (passed, waits) = oneshot::channel();
        self.add(|waiting| waiting.barriers.push(Barrier::Task(passed)));
        waits.await.is_ok()
    }

    fn add(&self, read: impl FnOnce(&mut Round)) {
        let mut waiting = self.waiting.lock();
        read(&mut waiting);
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
                let mut scans = self.scans.lock();
                for scan in round.scans.drain(..) {
                    scans.push(scan.asker.mailbox.connection, scan);
                }
                drop(scans);
                self.scans_arrived.notify_one();
            }
            let mut wake = WakeList::default();
            for barrier in round.barriers {
                barrier.pass(&mut wake);
            }
            wake.wake();
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
            let next = self.scans.lock().pop();
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

#[cfg(test)]
impl Reader {
    /// Lets everybody pass who waits for a barrier: the only node of a test is its own majority.
    pub(crate) fn pass_barriers(&self) {
        let barriers = std::mem::take(&mut self.waiting.lock().barriers);
        for barrier in barriers {
            barrier.pass(&mut WakeList::default());
        }
    }

    /// Reads a page for every SCAN that waits, as it asks for it but for what `with` changes.
    pub(crate) fn answer_scans(&self, backing: &dyn Backing, with: impl Fn(&mut ScanQuery)) {
        let scans = std::mem::take(&mut self.waiting.lock().scans);
        for mut scan in scans {
            with(&mut scan.query);
            scan.answer(backing);
        }
    }
}

impl Asker {
    fn answer(&self, reply: Reply, wake: &mut WakeList) {
        self.tell(Item::Read(self.request_id, reply), wake);
    }

    fn tell(&self, item: Item, wake: &mut WakeList) {
        if self.mailbox.push_item(item) {
            wake.add(&self.mailbox);
        }
    }
}

impl Get {
    /// Answers, if the client has room for it; if not, it has to ask again.
    fn answer(&self, reply: Reply, wake: &mut WakeList) {
        let bytes = self.beside + reply.content_bytes();
        match self.asker.mailbox.answers.begin(bytes) {
            true => self.asker.answer(reply, wake),
            false => self.asker.tell(Item::ReadRefused, wake),
        }
    }
}

impl Scan {
    fn answer(&self, backing: &dyn Backing) {
        if self.asker.mailbox.is_closed() {
            return;
        }
        let ScanQuery {
            pattern,
            token,
            rights,
            budget,
        } = &self.query;
        let may_list = |key: &[u8], steps: &mut u64| rights.may_list(key, steps);
        let may_list: Option<MayList<'_>> = match rights.are_open() {
            true => None,
            false => Some(&may_list),
        };
        let reply = read::scan(backing, pattern, token.as_deref(), may_list, *budget);
        self.asker.answer(reply, &mut WakeList::default());
    }
}

/// Answers GETs. Those of keys that have expired by this node's clock, while their expiry is not yet in the log, are
/// returned.
fn answer_all(backing: &dyn Backing, gets: Vec<Get>, now: Millis) -> Vec<Get> {
    let mut wake = WakeList::default();
    let mut due = Vec::new();
    for get in gets {
        if get.asker.mailbox.answers.are_refused() {
            get.asker.tell(Item::ReadRefused, &mut wake);
            continue;
        }
        let found = read::get(backing, &get.key);
        match found.expires_at.is_some_and(|deadline| deadline <= now) {
            true => due.push(get),
            false => get.answer(found.reply, &mut wake),
        }
    }
    due
}

/// Answers reads of keys that may have expired. The leader's clock decides, so an empty command is committed first: it
/// fires the timers that are due.
async fn answer_after_tick(gets: Vec<Get>, backing: Arc<dyn Backing>, proposer: Arc<Proposer>) {
    let is_passed = proposer.pass().await;
    let mut wake = WakeList::default();
    for get in &gets {
        if !is_passed || get.asker.mailbox.answers.are_refused() {
            get.asker.tell(Item::ReadRefused, &mut wake);
            continue;
        }
        let reply = read::get_at_log_time(&*backing, &get.key);
        get.answer(reply, &mut wake);
    }
}
