//! What a run was told, written down outside of its data directory: the run's process may end at any moment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::storage::Step;

/// What a run was told, or did, in its order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// A machine of this version opens the directory.
    Machine(u32),
    /// It is open.
    Opened,
    /// Entries of a term are durable.
    Durable { first: u64, count: u64, term: u64 },
    /// Entries from this index on are about to be removed.
    Truncated(u64),
    /// The vote for this term is durable.
    Vote(u64),
    /// Terms of the committed entries, by index.
    Committed(Vec<u64>),
    /// The snapshot of this id is complete.
    Snapshot(String),
    /// At this step the operation failed.
    Failed { step: Step, path: PathBuf },
    /// At this step an image was taken.
    Image { step: Step, path: PathBuf },
}

/// What must be there after a crash.
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// Version of the machine that opened the directory last.
    pub machine: u32,
    /// Terms of the durable entries, by index.
    pub durable: BTreeMap<u64, u64>,
    pub vote: u64,
    pub committed: Vec<u64>,
    /// The newest complete snapshot.
    pub snapshot: Option<String>,
}

impl Acknowledged {
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Machine(version) => {
                // It keeps no snapshot of an older one.
                if *version != self.machine {
                    self.snapshot = None;
                }
                self.machine = *version;
            }
            Event::Durable { first, count, term } => {
                let entries = (*first..first + count).map(|index| (index, *term));
                self.durable.extend(entries);
            }
            Event::Truncated(from) => drop(self.durable.split_off(from)),
            Event::Vote(term) => self.vote = *term,
            Event::Committed(terms) => self.committed.clone_from(terms),
            Event::Snapshot(id) => {
                self.snapshot = self.snapshot.take().max(Some(id.clone()));
            }
            Event::Opened | Event::Failed { .. } | Event::Image { .. } => {}
        }
    }
}

/// Writes events, a line each.
pub struct Journal(File);

impl Journal {
    pub fn create(path: &Path) -> Journal {
        Journal(File::create(path).expect("a new file"))
    }

    pub fn note(&mut self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("no keys but strings");
        line.push(b'\n');
        self.0.write_all(&line).expect("there is room");
    }
}

/// The events at `path`. What the end of the process has cut short was told to nobody.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = fs::read_to_string(path)?;
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).map_err(io::Error::other))
        .collect()
}
