//! Drives a replica as the Raft library does, at random.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use openraft::storage::{RaftLogStorage, RaftStateMachine};
use parking_lot::Mutex;
use prost::Message;

use super::crash::{Shared, length};
use super::replica::{Replica, entry, membership, record, rows};
use crate::machine::tables::{Change, Changes};
use crate::raft::core::applier;
use crate::raft::core::encoding;
use crate::raft::core::state_machine::SnapshotData;
use crate::raft::core::type_config::{LogId, SnapshotMeta, StoredMembership, Vote};
use crate::storage::{SnapshotFile, StateDb};

/// Drives a replica as the Raft library does.
pub struct Driver {
    pub replica: Replica,
    pub shared: Arc<Mutex<Shared>>,
    pub scratch: PathBuf,
    pub term: u64,
    /// Terms of the entries in the log and below, by index.
    pub log: Vec<u64>,
    /// Indexes below are committed.
    pub committed: u64,
    pub applied: u64,
    pub purged: u64,
}

impl Driver {
    pub fn below(&self, end: u64) -> u64 {
        self.shared.lock().random.below(end)
    }

    pub async fn append(&mut self) {
        let count = 1 + self.below(6);
        let first = self.log.len() as u64;
        let term = self.term;
        let records = (first..first + count)
            .map(|index| record(term, index))
            .collect();
        self.log.extend((0..count).map(|_| term));
        let shared = Arc::clone(&self.shared);
        let durable = Box::new(move || {
            let mut shared = shared.lock();
            let entries = (first..first + count).map(|index| (index, term));
            shared.acknowledged.durable.extend(entries);
        });
        let appended = self.replica.stores.log.append(records, durable).await;
        appended.expect("the log is open");
    }

    /// Waits until everything queued is written.
    pub async fn settle(&self) {
        let log = self.replica.stores.log.clone();
        let synced = tokio::task::spawn_blocking(move || log.sync_blocking());
        synced.await.expect("the log is open");
    }

    /// A new term, whose leader may replace what is not committed.
    pub async fn vote(&mut self) {
        self.term += 1;
        let vote = Vote::new_committed(self.term, 2);
        self.replica
            .log
            .save_vote(&vote)
            .await
            .expect("the log is open");
        self.shared.lock().acknowledged.vote = self.term;
        let keep = self.committed + self.below(self.log.len() as u64 - self.committed + 1);
        if keep > 0 && self.below(2) == 0 {
            // A callback that is still to come is for an entry that is gone.
            self.settle().await;
            self.log.truncate(keep as usize);
            self.shared.lock().acknowledged.durable.split_off(&keep);
            let last = encoding::log_id(self.log[keep as usize - 1], keep - 1);
            let truncated = self.replica.log.truncate_after(Some(last)).await;
            truncated.expect("the log is open");
        }
    }

    pub async fn commit(&mut self) {
        let open = self.log.len() as u64 - self.committed;
        // The last entry of a majority may still be queued here.
        self.committed += self.below(open + 1);
        if self.committed <= self.applied {
            return;
        }
        let last = self.log[self.committed as usize - 1];
        let id = encoding::log_id(last, self.committed - 1);
        self.shared.lock().acknowledged.committed = self.log[..self.committed as usize].to_vec();
        self.replica
            .log
            .save_committed(Some(id))
            .await
            .expect("noted");
        let entries: Vec<_> = (self.applied..self.committed)
            .map(|index| Ok((entry(self.log[index as usize], index), None)))
            .collect();
        let applied = self.replica.machine.apply(futures::stream::iter(entries));
        applied.await.expect("the applier runs");
        self.applied = self.committed;
    }

    pub async fn snapshot(&mut self) {
        if self.applied == 0 {
            return;
        }
        let state = Arc::clone(&self.replica.stores.state);
        let flushed = tokio::task::spawn_blocking(move || state.flush());
        flushed.await.expect("flushed");
        let (applier, snapshots) = (&self.replica.applier, &self.replica.stores.snapshots);
        let (meta, _) = applier::take_snapshot(applier, snapshots)
            .await
            .expect("taken");
        let covered = meta.last_log_id.expect("something is applied").index;
        let upto = self.purged + self.below(covered + 1 - self.purged.min(covered));
        if upto > self.purged {
            self.purge(upto).await;
        }
    }

    pub async fn purge(&mut self, upto: u64) {
        let id = encoding::log_id(self.log[upto as usize], upto);
        self.replica.log.purge(id).await.expect("the log is open");
        self.purged = upto;
    }

    /// The leader sends a snapshot that is ahead of this log.
    pub async fn install(&mut self) {
        self.settle().await;
        let ahead = self.committed + 1 + self.below(20);
        let keep = self.committed as usize;
        if self.log.len() > keep {
            let last = keep.checked_sub(1);
            let last = last.map(|last| encoding::log_id(self.log[last], last as u64));
            let kept = keep as u64;
            drop(self.shared.lock().acknowledged.durable.split_off(&kept));
            let truncated = self.replica.log.truncate_after(last).await;
            truncated.expect("the log is open");
        }
        self.log.truncate(keep);
        self.log.resize(ahead as usize, self.term);
        let last = encoding::log_id(self.term, ahead - 1);
        let meta = SnapshotMeta {
            last_log_id: Some(last),
            last_membership: StoredMembership::new(
                Some(encoding::log_id(self.log[0], 0)),
                membership(),
            ),
        };
        let machine = Some(crate::machine::VERSION);
        let database = self.receive(&meta, last, machine).await;
        self.shared.lock().acknowledged.committed = self.log.clone();
        let received = SnapshotData::Received(database);
        let installed = self.replica.machine.install_snapshot(&meta, received).await;
        installed.expect("a whole snapshot");
        (self.committed, self.applied) = (ahead, ahead);
        self.purge(ahead - 1).await;
    }

    /// A leader sends a snapshot up to `held`, which `machine` has applied, and says that it is one up to `announced`.
    /// Returns whether it was installed.
    pub async fn install_other(&mut self, machine: Option<u32>, held: u64, announced: u64) -> bool {
        let id = |index| encoding::log_id(self.term, index);
        let meta = SnapshotMeta {
            last_log_id: Some(id(announced)),
            last_membership: StoredMembership::new(Some(id(0)), membership()),
        };
        let database = self.receive(&meta, id(held), machine).await;
        let received = SnapshotData::Received(database);
        let installed = self.replica.machine.install_snapshot(&meta, received);
        installed.await.is_ok()
    }

    async fn receive(&self, meta: &SnapshotMeta, last: LogId, machine: Option<u32>) -> PathBuf {
        let source = self.scratch.join(format!("leader-{}", last.index));
        let checkpoint = self.scratch.join(format!("sent-{}", last.index));
        for former in [&source, &checkpoint] {
            let _ = fs::remove_dir_all(former);
        }
        let state = StateDb::open(&source).expect("an empty directory");
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
        let files: Vec<SnapshotFile> = fs::read_dir(&checkpoint)
            .expect("the checkpoint")
            .map(|file| {
                let path = file.expect("a file").path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let bytes = length(&path);
                SnapshotFile {
                    name: name.into_owned(),
                    bytes,
                    crc: None,
                }
            })
            .collect();
        let snapshots = &self.replica.stores.snapshots;
        let id = format!("leader-{:020}", last.index);
        let mut incoming = snapshots.receive(&id, files.clone()).expect("received");
        for (position, file) in (0..).zip(&files) {
            let data = fs::read(checkpoint.join(&file.name)).expect("a file");
            let crc = crc32c::crc32c(&data);
            if !data.is_empty() {
                incoming.chunk(position, 0, &data, crc).expect("whole");
            }
            incoming.end_file(position, crc).expect("whole");
        }
        incoming.done().expect("all files")
    }
}
