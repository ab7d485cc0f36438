//! Which version of the machine has applied the log to the state, so that no other version goes on where it must not.
//!
//! Invariant: all entries that one version has applied on some node are applied by that version on every node. A newer
//! version therefore takes over only a state that has everything that is known to be committed.

use super::applier;
use super::encoding;
use crate::machine::tables::Changes;
use crate::storage::{GroupLog, StateDb};

/// The row of the state, of Raft's own. Its name is for ever.
const MACHINE: &[u8] = b"machine";

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
    /// One of the rows can't be read.
    #[error(transparent)]
    Malformed(#[from] encoding::Malformed),
}

/// Checks that the machine of version `own` may go on with this state, and marks the state as written by it.
pub fn take_over(state: &StateDb, log: &GroupLog, own: u32) -> Result<(), VersionError> {
    let (applied, _) = applier::stored(state)?;
    let applied = applied.map_or(0, |id| id.index);
    let committed = log.committed().map(encoding::log_id_from_bytes);
    let committed = committed.transpose()?.map_or(0, |id| id.index);
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
    }
    // On disk before anything is applied: after a crash the state may be empty, but it was written by this version.
    state.write(Changes::new(), &[(MACHINE, &own.to_be_bytes())]);
    state.flush();
    Ok(())
}
