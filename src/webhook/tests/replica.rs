//! A leader without a cluster: the machine over a map, with a majority that can be taken away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use tokio::sync::watch;

use super::super::leader::Leader;
use crate::base::ids::{CLUSTER, LogIndex, NodeId};
use crate::base::proto::command;
use crate::base::proto::command::command::Kind;
use crate::base::proto::state::{EventSubscription, EventSubscriptionOptions};
use crate::base::time::{Millis, wall_now};
use crate::events::options::State;
use crate::machine::tables::{Backing, Tables};
use crate::machine::{Machine, read_events};

/// How far a majority's clocks are behind that of this machine.
pub(super) const WALL_BEHIND_MS: u64 = 3_600_000;

/// The stored rows.
#[derive(Clone, Default)]
struct Stored(Arc<RwLock<BTreeMap<Vec<u8>, Vec<u8>>>>);

/// The stored rows, as those see them who are tested: it is counted how often they look.
struct Counted {
    stored: Stored,
    looks: Arc<Looks>,
}

#[derive(Default)]
struct Looks {
    gets: AtomicU64,
    scans: AtomicU64,
    visits: AtomicU64,
}

impl Backing for Counted {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.looks.gets.fetch_add(1, SeqCst);
        self.stored.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        self.looks.scans.fetch_add(1, SeqCst);
        let looks = &self.looks;
        self.stored.scan(from, to, &mut |key, row| {
            looks.visits.fetch_add(1, SeqCst);
            visit(key, row)
        });
    }
}

impl Backing for Stored {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        Backing::get(&*self.0.read(), key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        Backing::scan(&*self.0.read(), from, to, visit);
    }
}

/// The node that has the clients.
const NODE: NodeId = NodeId(1);
const INCARNATION: u64 = 7;

pub(super) struct Replica {
    machine: Mutex<(Machine, u64, u64)>,
    stored: Stored,
    changes: watch::Sender<u64>,
    /// Whether a majority confirms it.
    pub(super) is_confirmed: AtomicBool,
    /// Accounts that get lost from now on.
    pub(super) accounts_lost: AtomicU64,
    /// Whether what is proposed is applied and changes nothing.
    pub(super) refuses: AtomicBool,
    /// Accounts that were applied.
    pub(super) accounts: AtomicU64,
    /// How often it was asked whether a majority confirms it.
    pub(super) confirmations: AtomicU64,
    /// The next time that it is asked, an operator stops the deliveries.
    pub(super) pauses: AtomicBool,
    /// Scans before that.
    pub(super) scans_before_pause: AtomicU64,
    /// Log time, where it does not go on by itself; 0: it does.
    stopped_ms: AtomicU64,
    looks: Arc<Looks>,
}

impl Replica {
    pub(super) fn new() -> Arc<Replica> {
        let machine = Machine::new(NODE, Arc::default(), 1 << 20);
        let replica = Replica {
            machine: Mutex::new((machine, 0, 0)),
            stored: Stored::default(),
            changes: watch::channel(0).0,
            is_confirmed: AtomicBool::new(true),
            accounts_lost: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            accounts: AtomicU64::new(0),
            confirmations: AtomicU64::new(0),
            pauses: AtomicBool::new(false),
            scans_before_pause: AtomicU64::new(0),
            stopped_ms: AtomicU64::new(0),
            looks: Arc::default(),
        };
        replica.run(NODE, Kind::Nothing(command::Nothing {}));
        let cluster: uuid::Uuid = "c10d02db-7b08-5db2-9567-c8f511cca2f6"
            .parse()
            .expect("a UUID");
        let settings = command::SetEvents {
            namespace: "quorumq".to_owned(),
            source: "/namespaces/quorumq".to_owned(),
            cluster_id: Bytes::copy_from_slice(cluster.as_bytes()),
            dead_letters_max: 100,
            ..command::SetEvents::default()
        };
        replica.run(CLUSTER, Kind::SetEvents(settings));
        Arc::new(replica)
    }

    /// Applies a command of a node, or of the leader itself.
    pub(super) fn run(&self, node: NodeId, kind: Kind) {
        let (machine, index, sequence) = &mut *self.machine.lock();
        *index += 1;
        if node == NODE {
            *sequence += 1;
        }
        let command = command::Command { kind: Some(kind) };
        let proposal = command::Proposal {
            node: node.0,
            incarnation: if node == NODE { INCARNATION } else { 0 },
            sequence: if node == NODE { *sequence } else { 0 },
            commands: command.encode_length_delimited_to_vec().into(),
            refused: false,
        };
        let entry = command::Batch {
            stamp_ms: self.log_time().0,
            proposals: vec![proposal],
            term: 1,
        };
        let changes = {
            let mut tables = Tables::new(&self.stored);
            let applied =
                machine.apply(LogIndex(*index), entry.encode_to_vec().into(), &mut tables);
            applied.expect("a batch");
            tables.into_changes()
        };
        let mut stored = self.stored.0.write();
        for (key, change) in changes {
            match change.value() {
                Some(value) => stored.insert(key, value.to_vec()),
                None => stored.remove(&key),
            };
        }
        drop(stored);
        machine.take_outputs();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Log time goes on only when it is told to: how long a test takes says nothing then.
    pub(super) fn stop_clock(&self) {
        self.stopped_ms.store(wall_now().0, SeqCst);
    }

    /// Log time, once it is stopped, goes on.
    pub(super) fn pass(&self, ms: u64) {
        self.stopped_ms.fetch_add(ms, SeqCst);
    }

    /// A client connects: one event.
    pub(super) fn connect(&self, client_id: &str) {
        let open = command::OpenSession {
            client_id: client_id.to_owned(),
            connection: self.machine.lock().1 + 1,
            clean_start: true,
            protocol_level: 5,
            ..command::OpenSession::default()
        };
        self.run(NODE, Kind::OpenSession(open));
    }

    /// Makes or changes the event subscription `ops`.
    pub(super) fn subscribe(&self, options: &EventSubscriptionOptions) {
        self.subscribe_as("ops", options);
    }

    pub(super) fn subscribe_as(&self, name: &str, options: &EventSubscriptionOptions) {
        let put = command::PutEventSubscription {
            name: name.to_owned(),
            expected_revision: None,
            options: options.encode_to_vec().into(),
            from_oldest: false,
        };
        self.run(NODE, Kind::PutEventSubscription(put));
    }

    pub(super) fn row(&self) -> EventSubscription {
        read_events::subscription(&self.stored, "ops").expect("it was made")
    }

    /// An operator stops the deliveries, or has them go on.
    pub(super) fn set_state(&self, state: State) {
        let progress = command::EventProgress {
            state: state.number(),
            ..crate::events::next::no_progress("ops", &self.row())
        };
        self.run(CLUSTER, Kind::EventProgress(progress));
    }

    /// An operator clears what is said of the endpoint.
    pub(super) fn clear_error(&self) {
        let progress = command::EventProgress {
            last_error: Some(String::new()),
            ..crate::events::next::no_progress("ops", &self.row())
        };
        self.run(CLUSTER, Kind::EventProgress(progress));
    }

    /// Waits until rows were scanned so many times, from the beginning.
    pub(super) async fn until_scanned(&self, times: u64) {
        self.until_count("rows are scanned", times, &self.looks.scans)
            .await;
    }

    /// How often rows were scanned so far.
    pub(super) fn scans(&self) -> u64 {
        self.looks.scans.load(SeqCst)
    }

    /// How many rows they had.
    pub(super) fn visits(&self) -> u64 {
        self.looks.visits.load(SeqCst)
    }

    /// Waits until the rows were looked at once more.
    pub(super) async fn until_looked_at(&self) {
        let before = self.looks.gets.load(SeqCst);
        self.until_count("the rows are looked at", before + 1, &self.looks.gets)
            .await;
    }

    /// Waits until a majority was asked for so many times.
    pub(super) async fn until_asked(&self, times: u64) {
        self.until_count("it is confirmed", times, &self.confirmations)
            .await;
    }

    async fn until_count(&self, what: &str, count: u64, counter: &AtomicU64) {
        let wait = async {
            while counter.load(SeqCst) < count {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(30), wait).await;
        assert!(waited.is_ok(), "{what}");
    }

    /// Waits until the row of the event subscription is so.
    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&EventSubscription) -> bool) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while !is_so(&self.row()) {
                changes.changed().await.expect("the replica is there");
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(30), wait).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.row());
    }
}

impl Leader for Replica {
    fn backing(&self) -> Arc<dyn Backing> {
        Arc::new(Counted {
            stored: self.stored.clone(),
            looks: self.looks.clone(),
        })
    }

    fn confirm(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            if self.pauses.swap(false, SeqCst) {
                self.set_state(State::Paused);
                self.scans_before_pause.store(self.scans(), SeqCst);
            }
            self.confirmations.fetch_add(1, SeqCst);
            self.is_confirmed.load(SeqCst)
        })
    }

    fn account(&self, command: Kind) -> BoxFuture<'_, bool> {
        Box::pin(async {
            let lost = |left: u64| left.checked_sub(1);
            if self
                .accounts_lost
                .fetch_update(SeqCst, SeqCst, lost)
                .is_ok()
            {
                return false;
            }
            if !self.refuses.load(SeqCst) {
                self.accounts.fetch_add(1, SeqCst);
                self.run(CLUSTER, command);
            }
            true
        })
    }

    fn log_time(&self) -> Millis {
        match self.stopped_ms.load(SeqCst) {
            0 => wall_now(),
            stopped => Millis(stopped),
        }
    }

    /// Neither log time nor the clock of this machine.
    fn wall_time(&self) -> Millis {
        Millis(wall_now().0 - WALL_BEHIND_MS)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
