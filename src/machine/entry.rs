//! What a log entry holds, read so that nothing that comes out of the log can stop every replica for ever.
//!
//! The leader lets into the log only what [`check_commands`] accepts, so the rest of this file is a second line: what
//! no replica can decode does nothing, on all replicas alike. A command of a kind that is not known here is another
//! matter: a newer version can apply it, so this replica must stop ([`Decoded::Newer`]). See docs/spec/replication.md,
//! What can't be decoded.
//!
//! Invariant: what is passed over follows from the bytes alone. The decoder is part of the machine's version.

use bytes::{Buf as _, Bytes};
use prost::Message as _;

use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::command_schema;
use crate::base::wire::{Fields, Malformed, Value};

/// Fields of `command.Batch`.
const STAMP: u32 = 1;
const PROPOSALS: u32 = 2;
const TERM: u32 = 3;

/// Commands that are decoded together, at most.
const GROUP_COMMANDS: usize = 64;

/// Bytes of them, encoded; the last one may exceed them.
const GROUP_BYTES: usize = 64 << 10;

/// Why commands are not let into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// They are not commands, each behind its length.
    #[error("command {command} can't be decoded: {error}")]
    Malformed {
        /// How many commands come before it.
        command: usize,
        /// What is wrong with it.
        error: Malformed,
    },
    /// A command has no kind, or more than one.
    #[error("command {0} has not one kind")]
    NotOneKind(usize),
    /// Together they are larger than what can be replicated.
    #[error("{0} bytes of commands are more than can be replicated")]
    TooLarge(usize),
}

/// Whether every replica of this version can decode these length-delimited commands. Allocates nothing.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_commands(commands: &[u8]) -> Result<(), Undecodable> {
    if commands.len() > limits::LARGEST_PROPOSAL_BYTES {
        return Err(Undecodable::TooLarge(commands.len()));
    }
    let mut rest = Fields(commands);
    let mut command = 0;
    while !rest.0.is_empty() {
        let malformed = |error| Undecodable::Malformed { command, error };
        let bytes = rest.delimited().map_err(malformed)?;
        command_schema::COMMAND.check(bytes).map_err(malformed)?;
        // Every field of `Command` is one of its kinds.
        let mut fields = Fields(bytes);
        let is_one = matches!(fields.next_field(), Ok(Some(_))) && fields.0.is_empty();
        if !is_one {
            return Err(Undecodable::NotOneKind(command));
        }
        command += 1;
    }
    Ok(())
}

/// A log entry.
pub(super) struct Entry {
    pub stamp_ms: u64,
    /// Of the leader that built it; 0 in what was written before it was told.
    pub term: u64,
    pub proposals: Vec<command::Proposal>,
}

impl Entry {
    /// `None` when the bytes are not a batch of proposals, or hold more of them than a leader puts into one.
    pub fn decode(bytes: &Bytes) -> Option<Entry> {
        let mut entry = Entry {
            stamp_ms: 0,
            term: 0,
            proposals: Vec::new(),
        };
        let mut fields = Fields(bytes);
        while let Some((number, value)) = fields.next_field().ok()? {
            match (number, value) {
                (STAMP, Value::Varint(stamp_ms)) => entry.stamp_ms = stamp_ms,
                (TERM, Value::Varint(term)) => entry.term = term,
                (PROPOSALS, Value::Delimited(proposal)) => {
                    let proposal = command::Proposal::decode(bytes.slice_ref(proposal)).ok()?;
                    entry.proposals.push(proposal);
                }
                (STAMP | PROPOSALS | TERM, _) => return None,
                _ => {}
            }
            if entry.proposals.len() > limits::PROPOSALS_PER_ENTRY {
                return None;
            }
        }
        Some(entry)
    }
}

/// One command of a proposal.
#[expect(
    clippy::large_enum_variant,
    reason = "there are few at a time, and a box would cost an allocation per command"
)]
pub(super) enum Decoded {
    Known(Kind),
    /// A kind that a newer version knows.
    Newer,
    /// Nothing that any version has written.
    Garbage,
}

/// The commands of a proposal. When a length is wrong, where the next one begins is not known: the rest is one piece of
/// garbage.
pub(super) struct Commands(pub Bytes);

impl Iterator for Commands {
    type Item = Decoded;

    fn next(&mut self) -> Option<Decoded> {
        if self.0.is_empty() {
            return None;
        }
        let mut rest = Fields(&self.0);
        let Ok(bytes) = rest.delimited() else {
            self.0 = Bytes::new();
            return Some(Decoded::Garbage);
        };
        let bytes = self.0.slice_ref(bytes);
        self.0.advance(self.0.len() - rest.0.len());
        Some(decode(bytes))
    }
}

impl Commands {
    /// The next commands, none when there are no more: as many as may be decoded before the first is carried out.
    /// Decoded, they may take a hundred times as much memory, so the first that ends beyond [`GROUP_BYTES`] is the
    /// last.
    pub fn group(&mut self) -> Vec<Decoded> {
        let all = self.0.len();
        let mut group = Vec::new();
        while group.len() < GROUP_COMMANDS && all - self.0.len() < GROUP_BYTES {
            let Some(command) = self.next() else {
                break;
            };
            group.push(command);
        }
        group
    }
}

fn decode(bytes: Bytes) -> Decoded {
    match command::Command::decode(bytes.clone()) {
        Ok(command::Command { kind: Some(kind) }) => Decoded::Known(kind),
        Ok(command::Command { kind: None }) if is_one_message(&bytes) => Decoded::Newer,
        _ => Decoded::Garbage,
    }
}

/// Whether the bytes are one field that holds a message, which is how every kind of command is written.
fn is_one_message(bytes: &[u8]) -> bool {
    let mut fields = Fields(bytes);
    matches!(fields.next_field(), Ok(Some((_, Value::Delimited(_))))) && fields.0.is_empty()
}
