//! Which version of the machine has applied the log to the state, so that no other version goes on where it must not.
//!
//! Invariant: all entries that one version has applied on some node are applied by that version on every node. A newer
//! version therefore takes over only a state that has everything that is known to be committed. It then keeps neither
//! the entries nor the snapshot of the older one, so that others who lack those entries get what they made of the state
//! instead.

use super::applier::{self, MACHINE};
use super::encoding;
use super::log_store;
use crate::machine::tables::Changes;
use crate::storage::{GroupLog, Snapshots, StateDb};

/// What a state without the row was written by.
const FIRST: u32 = 1;

/// Why the state is not taken over.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// It was written by a newer version.
    #[error(
        "the state was written by machine version {stored}, this is version {own}: start the newer release again"
    )]
    Newer {
        /// What it was written by.
        stored: u32,
        /// The present version.
        own: u32,
    },
    /// An older version has committed more than it has applied here.
    #[error(
        "the state was written by machine version {stored} up to entry {applied}, but the log is committed up to \
         {committed}, and version {own} may apply the rest in another way: start the older release once more, wait \
         until all nodes have applied the same index, and stop them all in order (docs/operations.md)"
    )]
    NotApplied {
        /// What it was written by.
        stored: u32,
        /// The present version.
        own: u32,
        /// How far it has applied.
        applied: u64,
        /// What it knew to be committed.
        committed: u64,
    },
    /// The log is there, the state is not.
    #[error(
        "the log is committed up to entry {committed}, but there is no state: the directory state/ is lost or empty. \
         Put it back; or empty the data directory, and the node gets everything from the others (docs/operations.md)"
    )]
    NoState {
        /// What is known to be committed.
        committed: u64,
    },
    /// What the older version has left could not be removed.
    #[error("removing the log and the snapshot of the older machine version: {0}")]
    Remove(#[from] std::io::Error),
    /// One of the rows can't be read.
    #[error(transparent)]
    Malformed(#[from] encoding::Malformed),
}

/// Checks that the machine of version `own` may go on with this state, and marks the state as written by it. When an
/// older one wrote it, the log begins after what that has applied, and there is no snapshot: the start takes one.
/// Blocks.
pub fn take_over(
    state: &StateDb,
    log: &GroupLog,
    snapshots: &Snapshots,
    own: u32,
) -> Result<(), VersionError> {
    let (last, _) = applier::stored(state)?;
    let applied = last.map_or(0, |id| id.index);
    let committed = log_store::committed(log)?.map_or(0, |id| id.index);
    let stored = match state.reserved(MACHINE) {
        Some(row) => {
            row[..]
                .try_into()
                .map(u32::from_be_bytes)
                .map_err(|_| encoding::Malformed {
                    what: "machine version",
                })?
        }
        // A new directory.
        None if applied == 0 && committed == 0 => 0,
        None if applied == 0 => return Err(VersionError::NoState { committed }),
        None => FIRST,
    };
    if stored > own {
        return Err(VersionError::Newer { stored, own });
    }
    if stored == own {
        return Ok(());
    }
    if applied < committed {
        return Err(VersionError::NotApplied {
            stored,
            own,
            applied,
            committed,
        });
    }
    if stored != 0 {
        tracing::warn!(
            stored,
            own,
            applied,
            "the state was written by an older version of the machine; this one goes on from here"
        );
        // Before the mark: after a crash the next start does it again.
        if let Some(last) = last {
            // Only what is on disk may leave the log.
            state.flush();
            log.purge_blocking(last.index, encoding::log_id_to_bytes(&last))?;
        }
        snapshots.discard()?;
    }
    // On disk before anything is applied: after a crash the state may be empty, but it was written by this version.
    state.write(Changes::new(), &[(MACHINE, &own.to_be_bytes())]);
    state.flush();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::base::ids::GROUP_ZERO;
    use crate::storage::metrics::LogMetrics;
    use crate::storage::{Directory, NodeLog, Record};

    fn record(index: u64) -> Record {
        let payload = super::super::type_config::Payload::Blank;
        let log_id = encoding::log_id(1, index);
        encoding::record_to(&super::super::type_config::Entry { log_id, payload })
    }

    /// What version 1 has left: ten entries, all applied, and a snapshot of them.
    async fn left(data: &Path, log: &GroupLog) -> (StateDb, Snapshots) {
        let (done, durable) = tokio::sync::oneshot::channel();
        let called = Box::new(move || done.send(()).expect("it is waited for"));
        let appended = log.append((0..10).map(record).collect(), called).await;
        appended.expect("the log is open");
        durable.await.expect("the log is written");
        let state = StateDb::open(data).expect("an empty directory");
        let applied = encoding::log_id_to_bytes(&encoding::log_id(1, 9));
        state.write(
            Changes::new(),
            &[(b"applied", &applied), (MACHINE, &1u32.to_be_bytes())],
        );
        let snapshots = Snapshots::open(data).expect("an empty directory");
        let path = snapshots.prepare("9").expect("a directory");
        state.checkpoint(&path).expect("a checkpoint");
        snapshots.finish("9", applied).expect("a snapshot");
        (state, snapshots)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_of_an_older_version_is_left_for_others_to_apply() {
        let root = Directory::new();
        let data = root.path().to_owned();
        let counters = Arc::new(LogMetrics::default());
        let node_log =
            NodeLog::open(&data.join("log"), counters, None).expect("an empty directory");
        let log = node_log.group(GROUP_ZERO, 1 << 20);
        let (state, snapshots) = left(&data, &log).await;
        let taken = tokio::task::spawn_blocking(move || {
            take_over(&state, &log, &snapshots, 1).expect("the same version");
            assert_eq!(log.bounds().start, 0, "nothing changes");
            assert!(snapshots.current().is_some());
            take_over(&state, &log, &snapshots, 2).expect("everything is applied");
            assert_eq!(log.bounds().start, 10);
            assert!(snapshots.current().is_none());
            assert_eq!(
                state.reserved(MACHINE).as_deref(),
                Some(&2u32.to_be_bytes()[..])
            );
        });
        taken.await.expect("it does not panic");
        let found = Snapshots::open(&data).expect("well-formed");
        assert!(found.current().is_none(), "nor after a restart");
        node_log.close().await;
    }
}
