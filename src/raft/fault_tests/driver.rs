//! Drives a replica as the Raft library does, at random.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::storage::{RaftLogStorage, RaftStateMachine};
use prost::Message;
use tokio::task::JoinHandle;

use super::journal::Event;
use super::random::Random;
use super::replica::{Replica, entry, membership, record, rows};
use super::run::Faults;
use crate::machine::VERSION;
use crate::machine::tables::{Change, Changes};
use crate::raft::core::applier::{self, SnapshotError};
use crate::raft::core::encoding;
use crate::raft::core::state_machine::SnapshotData;
use crate::raft::core::type_config::{LogId, SnapshotMeta, StoredMembership, Vote};
use crate::storage::{Snapshot, SnapshotFile, StateDb};

/// A snapshot that is being taken.
type Building = JoinHandle<Result<(SnapshotMeta, Snapshot), SnapshotError>>;

/// Drives a replica as the Raft library does.
pub struct Driver {
    random: Random,
    pub faults: Arc<Faults>,
    /// Set by [`Driver::open`].
    replica: Option<Replica>,
    /// The version of the machine.
    machine: u32,
    building: Option<Building>,
    term: u64,
    /// Terms of the entries in the log and below, by index.
    log: Vec<u64>,
    /// Indexes below are committed.
    committed: u64,
    applied: u64,
    purged: u64,
}

impl Driver {
    pub fn new(random: Random, faults: Arc<Faults>) -> Driver {
        Driver {
            random,
            faults,
            replica: None,
            machine: VERSION,
            building: None,
            term: 0,
            log: Vec::new(),
            committed: 0,
            applied: 0,
            purged: 0,
        }
    }

    /// The open replica.
    pub fn replica(&mut self) -> &mut Replica {
        self.replica.as_mut().expect("it is open")
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    pub fn begin(&self) {
        self.faults.begin();
    }

    /// Starts the replica, with a newer machine now and then. Returns whether it has started.
    pub async fn open(&mut self) -> bool {
        let takes_over = self.below(2) == 0;
        self.open_as(self.machine + u32::from(takes_over)).await
    }

    /// Starts the replica with this machine.
    pub async fn open_as(&mut self, machine: u32) -> bool {
        let takes_over = machine != self.machine;
        self.machine = machine;
        self.faults.note(&Event::Machine(machine));
        let data = self.faults.places().data.clone();
        match Replica::open(&data, self.machine).await {
            Ok(replica) => {
                self.faults.note(&Event::Opened);
                self.replica = Some(replica);
            }
            Err(error) => {
                assert!(self.faults.has_failed(), "{error}");
                return false;
            }
        }
        if takes_over && self.applied > 0 {
            self.purged = self.applied - 1;
        }
        true
    }

    /// The snapshot that is being taken may cover more than the log if it was taken after one was installed that then
    /// could not be kept: this replica ends, and removes nothing more.
    pub async fn close(&mut self) {
        self.taken().await;
        let replica = self.replica.take().expect("it is open");
        replica.close().await;
    }

    pub async fn append(&mut self) {
        let count = 1 + self.below(6);
        let first = self.log.len() as u64;
        let term = self.term;
        let records = (first..first + count)
            .map(|index| record(term, index))
            .collect();
        self.log.extend((0..count).map(|_| term));
        let faults = Arc::clone(&self.faults);
        let durable = Box::new(move || faults.note(&Event::Durable { first, count, term }));
        let appended = self.replica().stores.log.append(records, durable).await;
        appended.expect("the log is open");
    }

    /// Waits until everything queued is written.
    pub async fn settle(&mut self) {
        let log = self.replica().stores.log.clone();
        let synced = tokio::task::spawn_blocking(move || log.sync_blocking());
        synced.await.expect("the log is open");
    }

    /// Removes what is not committed from the log, from `keep` on.
    async fn truncate(&mut self, keep: u64) {
        // A callback that is still to come is for an entry that is gone.
        self.settle().await;
        self.log.truncate(keep as usize);
        self.faults.note(&Event::Truncated(keep));
        let last = keep.checked_sub(1);
        let last = last.map(|last| encoding::log_id(self.log[last as usize], last));
        let truncated = self.replica().log.truncate_after(last).await;
        truncated.expect("the log is open");
    }

    /// A new term, whose leader may replace what is not committed.
    pub async fn vote(&mut self) {
        self.term += 1;
        let vote = Vote::new_committed(self.term, 2);
        let saved = self.replica().log.save_vote(&vote).await;
        saved.expect("the log is open");
        self.faults.note(&Event::Vote(self.term));
        let open = self.log.len() as u64 - self.committed;
        let keep = self.committed + self.below(open + 1);
        if keep > 0 && self.below(2) == 0 {
            self.truncate(keep).await;
        }
    }

    pub async fn commit(&mut self) {
        let open = self.log.len() as u64 - self.committed;
        // The last entry of a majority may still be queued here.
        self.committed += self.below(open + 1);
        if self.committed <= self.applied {
            return;
        }
        let committed = self.log[..self.committed as usize].to_vec();
        let last = encoding::log_id(committed[committed.len() - 1], self.committed - 1);
        self.faults.note(&Event::Committed(committed));
        let noted = self.replica().log.save_committed(Some(last)).await;
        noted.expect("noted");
        let entries: Vec<_> = (self.applied..self.committed)
            .map(|index| Ok((entry(self.log[index as usize], index), None)))
            .collect();
        let entries = futures::stream::iter(entries);
        let applied = self.replica().machine.apply(entries).await;
        applied.expect("the applier runs");
        self.applied = self.committed;
    }

    pub async fn write_committed(&mut self) {
        let written = self.replica().stores.log.write_committed().await;
        written.expect("the log is open");
    }

    /// Ends the snapshot that is being taken, and begins another one.
    pub async fn snapshot(&mut self) {
        self.built().await;
        if self.applied == 0 {
            return;
        }
        let replica = self.replica();
        let state = Arc::clone(&replica.stores.state);
        let (applier, snapshots) = (
            replica.applier.clone(),
            Arc::clone(&replica.stores.snapshots),
        );
        let faults = Arc::clone(&self.faults);
        self.building = Some(tokio::spawn(async move {
            let flushed = tokio::task::spawn_blocking(move || state.flush());
            flushed.await.expect("flushed");
            let (meta, snapshot) = applier::take_snapshot(&applier, &snapshots).await?;
            faults.note(&Event::Snapshot(snapshot.id.clone()));
            Ok((meta, snapshot))
        }));
    }

    /// Waits for the snapshot that is being taken.
    async fn taken(&mut self) -> Option<(SnapshotMeta, Snapshot)> {
        let taken = self.building.take()?.await.expect("it takes its time");
        if let Err(error) = &taken {
            assert!(self.faults.has_failed(), "{error}");
        }
        taken.ok()
    }

    /// Waits for the snapshot that is being taken, and removes some of what it covers from the log.
    async fn built(&mut self) -> Option<(SnapshotMeta, Snapshot)> {
        let (meta, snapshot) = self.taken().await?;
        let covered = meta.last_log_id.expect("something is applied").index;
        let upto = self.purged + self.below((covered + 1).saturating_sub(self.purged));
        if upto > self.purged {
            self.purge(upto).await;
        }
        Some((meta, snapshot))
    }

    async fn purge(&mut self, upto: u64) {
        let id = encoding::log_id(self.log[upto as usize], upto);
        let purged = self.replica().log.purge(id).await;
        purged.expect("the log is open");
        self.purged = upto;
    }

    /// Replaces the state with the snapshot of it. Returns whether the replica goes on.
    pub async fn install_kept(&mut self) -> bool {
        self.snapshot().await;
        let Some((meta, snapshot)) = self.built().await else {
            return true;
        };
        let kept = SnapshotData::Kept(snapshot);
        let installed = self.replica().machine.install_snapshot(&meta, kept).await;
        self.is_installed(installed)
    }

    /// A replica that can't install a snapshot ends.
    fn is_installed(&self, installed: io::Result<()>) -> bool {
        if let Err(error) = &installed {
            assert!(self.faults.has_failed(), "{error}");
        }
        installed.is_ok()
    }

    /// The leader sends a snapshot that is ahead of this log. Returns whether the replica goes on.
    pub async fn install(&mut self) -> bool {
        let ahead = self.committed + 1 + self.below(20);
        if self.log.len() as u64 > self.committed {
            self.truncate(self.committed).await;
        }
        let mut log = self.log.clone();
        log.resize(ahead as usize, self.term);
        let last = encoding::log_id(self.term, ahead - 1);
        let first = encoding::log_id(log[0], 0);
        let (machine, meta) = (Some(self.machine), meta(first, last));
        let source = Source::new(&self.faults.places().scratch, machine, last, &meta);
        let database = match self.receive(&source) {
            Ok(database) => database,
            // The leader tries again, and the transfer goes on where it broke off.
            Err(error) => {
                assert!(self.faults.has_failed(), "{error}");
                match self.receive(&source) {
                    Ok(database) => database,
                    Err(_) => return true,
                }
            }
        };
        self.faults.note(&Event::Committed(log.clone()));
        let received = SnapshotData::Received(database);
        let installed = self
            .replica()
            .machine
            .install_snapshot(&meta, received)
            .await;
        if !self.is_installed(installed) {
            return false;
        }
        self.log = log;
        (self.committed, self.applied) = (ahead, ahead);
        self.purge(ahead - 1).await;
        true
    }

    /// A leader sends a snapshot up to `held`, which `machine` has applied, and says that it is one up to `announced`.
    /// Returns whether it was installed.
    pub async fn install_other(&mut self, machine: Option<u32>, held: u64, announced: u64) -> bool {
        let id = |index| encoding::log_id(self.term, index);
        let meta = meta(id(0), id(announced));
        let source = Source::new(&self.faults.places().scratch, machine, id(held), &meta);
        let database = self.receive(&source).expect("a whole snapshot");
        let received = SnapshotData::Received(database);
        let installed = self.replica().machine.install_snapshot(&meta, received);
        installed.await.is_ok()
    }

    /// Receives what is not there yet.
    pub fn receive(&mut self, source: &Source) -> io::Result<PathBuf> {
        let snapshots = &self.replica().stores.snapshots;
        let mut incoming = snapshots.receive(&source.id, source.files.clone())?;
        let have = incoming.have();
        let files = (0..).zip(&source.files);
        for (position, file) in files.filter(|(position, _)| !have.contains(position)) {
            let data = fs::read(source.checkpoint.join(&file.name))?;
            let crc = crc32c::crc32c(&data);
            if !data.is_empty() {
                incoming.chunk(position, 0, &data, crc)?;
            }
            incoming.end_file(position, crc)?;
        }
        incoming.done()
    }
}

/// What a snapshot covers, the first entry being the membership.
pub fn meta(first: LogId, last: LogId) -> SnapshotMeta {
    SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(first), membership()),
    }
}

/// A leader's snapshot.
pub struct Source {
    id: String,
    checkpoint: PathBuf,
    files: Vec<SnapshotFile>,
}

impl Source {
    /// A snapshot below `scratch` of what `machine` has applied up to `last`.
    pub fn new(scratch: &Path, machine: Option<u32>, last: LogId, meta: &SnapshotMeta) -> Source {
        let database = scratch.join(format!("leader-{}", last.index));
        let checkpoint = scratch.join(format!("sent-{}", last.index));
        for former in [&database, &checkpoint] {
            let _ = fs::remove_dir_all(former);
        }
        let state = StateDb::open(&database).expect("an empty directory");
        let changes = rows(last.index).into_iter();
        let changes: Changes = changes
            .map(|(key, value)| (key, Change::Put(value.into())))
            .collect();
        let applied = encoding::log_id_to_bytes(&last);
        let machine = machine.map(u32::to_be_bytes);
        let membership = encoding::stored_to(&meta.last_membership).encode_to_vec();
        let mut reserved: Vec<(&[u8], &[u8])> =
            vec![(b"applied", &applied), (b"membership", &membership)];
        reserved.extend(machine.iter().map(|row| (&b"machine"[..], &row[..])));
        state.write(changes, &reserved);
        state.checkpoint(&checkpoint).expect("a checkpoint");
        let files = fs::read_dir(&checkpoint)
            .expect("the checkpoint")
            .map(|file| {
                let file = file.expect("a file");
                SnapshotFile {
                    name: file.file_name().to_string_lossy().into_owned(),
                    bytes: file.metadata().expect("a file").len(),
                    crc: None,
                }
            })
            .collect();
        Source {
            // No two have the same files.
            id: uuid::Uuid::new_v4().to_string(),
            checkpoint,
            files,
        }
    }
}
