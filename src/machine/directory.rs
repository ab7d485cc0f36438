//! The directory: what operators keep in the cluster (users, bans, rules, tokens), as entries that have a kind, a name,
//! a version, and a value that only their owner reads.
//!
//! Invariant: the version of an entry is the log index that has written it last, so no entry ever gets a version back
//! that it had before it was changed or deleted. A write that says the same in another way keeps it.
//! Invariant: an identity that rests on an entry opens a session only while the entry has the version that the identity
//! was proved with. A revocation that is in the log first wins, whatever the node of the client knows.

use super::batch::Batch;
use super::effect::{DirectoryChanged, DirectoryReply, Output};
use super::schema::timer::Kind as TimerKind;
use super::schema::{DirectoryEntry, directory_entry};
use super::tables::Tables;
use crate::base::directory::Kind;
use crate::base::limits;
use crate::base::proto::{command, state};
use crate::base::time::Millis;

/// A change whose form is right.
struct Change {
    kind: Kind,
    change: command::DirectoryChange,
}

impl Change {
    fn new(change: command::DirectoryChange) -> Option<Change> {
        let kind = Kind::of_number(change.kind)?;
        let is_named = !change.name.is_empty();
        let value = change.value.as_ref().map_or(0, |value| value.len());
        let fits = change.name.len() <= limits::DIRECTORY_NAME_BYTES
            && value <= limits::DIRECTORY_VALUE_BYTES;
        (is_named && fits).then_some(Change { kind, change })
    }

    fn row(&self, tables: &Tables<'_>) -> Option<state::DirectoryEntry> {
        tables.get::<DirectoryEntry>((self.kind, &self.change.name))
    }
}

/// Carries out all changes of a command, or none. Each is judged on what there was before the command.
pub(super) fn write(batch: &mut Batch<'_, '_>, command: command::WriteDirectory) -> DirectoryReply {
    if command.changes.len() > limits::DIRECTORY_CHANGES {
        return DirectoryReply::Invalid;
    }
    let changes: Option<Vec<Change>> = command.changes.into_iter().map(Change::new).collect();
    let Some(changes) = changes else {
        return DirectoryReply::Invalid;
    };
    let former = batch.meta.directory_usage();
    let mut usage = former;
    for (at, change) in changes.iter().enumerate() {
        let row = change.row(batch.tables);
        let version = row.as_ref().map_or(0, |row| row.version);
        let expected = change.change.expected_version;
        if expected.is_some_and(|expected| expected != version) {
            return DirectoryReply::Conflict { at, version };
        }
        let name = change.change.name.len();
        usage = counted(
            usage,
            name,
            row.as_ref().map(|row| row.value.len()),
            &change.change,
        );
    }
    let exceeds = |now: u64, was: u64, most: u64| most != 0 && now > most && now > was;
    if exceeds(usage.0, former.0, command.max_entries)
        || exceeds(usage.1, former.1, command.max_bytes)
    {
        return DirectoryReply::Full;
    }
    for change in changes {
        carry_out(batch, change);
    }
    DirectoryReply::Written(batch.index)
}

/// Entries and bytes after a change of an entry whose value has had so many bytes, if there was one.
fn counted(
    (mut entries, mut bytes): (u64, u64),
    name: usize,
    former: Option<usize>,
    change: &command::DirectoryChange,
) -> (u64, u64) {
    let size = |value: usize| (name + value) as u64;
    if let Some(former) = former {
        entries = entries.saturating_sub(1);
        bytes = bytes.saturating_sub(size(former));
    }
    if let Some(value) = &change.value {
        entries += 1;
        bytes += size(value.len());
    }
    (entries, bytes)
}

fn carry_out(batch: &mut Batch<'_, '_>, change: Change) {
    // Read again: a command may change an entry twice.
    let former = change.row(batch.tables);
    let Change { kind, change } = change;
    let former_bytes = former.as_ref().map(|row| row.value.len());
    let usage = batch.meta.directory_usage();
    let usage = counted(usage, change.name.len(), former_bytes, &change);
    batch.meta.set_directory_usage(usage);
    let subject = directory_entry::subject(kind, &change.name);
    let former_version = former.as_ref().map(|row| row.version);
    if let Some(expires_at_ms) = former.map(|row| row.expires_at_ms)
        && expires_at_ms != 0
    {
        batch.clear_timer(Millis(expires_at_ms), TimerKind::DirectoryExpiry, &subject);
    }
    let key = (kind, change.name.as_str());
    let Some(value) = change.value else {
        if former_version.is_some() {
            batch.tables.delete::<DirectoryEntry>(key);
            tell(batch, kind, change.name, None);
        }
        return;
    };
    let version = former_version
        .filter(|_| change.keeps_version)
        .unwrap_or(batch.index.0);
    let expires_at_ms = match change.expires_in_ms {
        0 => change.expires_at_ms,
        // Who asks for it need not know what time the log has.
        life => batch.now.plus(life).0,
    };
    let row = state::DirectoryEntry {
        version,
        value,
        expires_at_ms,
    };
    batch.tables.put::<DirectoryEntry>(key, &row);
    if row.expires_at_ms != 0 {
        // What is over already goes with the next batch.
        let deadline = Millis(row.expires_at_ms);
        batch.set_timer(deadline, TimerKind::DirectoryExpiry, &subject);
    }
    tell(batch, kind, change.name, Some(row));
}

/// A timer says that an entry expires; it may have been written since.
pub(super) fn expire(batch: &mut Batch<'_, '_>, subject: &[u8], deadline: Millis) {
    let Some((kind, name)) = directory_entry::of_subject(subject) else {
        return;
    };
    let row = batch.tables.get::<DirectoryEntry>((kind, name));
    let Some(row) = row.filter(|row| row.expires_at_ms == deadline.0) else {
        return;
    };
    let (entries, bytes) = batch.meta.directory_usage();
    let size = (name.len() + row.value.len()) as u64;
    let usage = (entries.saturating_sub(1), bytes.saturating_sub(size));
    batch.meta.set_directory_usage(usage);
    batch.tables.delete::<DirectoryEntry>((kind, name));
    tell(batch, kind, name.to_owned(), None);
}

/// Whether everything that an identity rests on is as it was when the identity was proved.
pub(super) fn proves(tables: &Tables<'_>, proofs: &[command::Proof]) -> bool {
    let holds = |proof: &command::Proof| {
        let kind = Kind::of_number(proof.kind);
        let row = kind.and_then(|kind| tables.get::<DirectoryEntry>((kind, &proof.name)));
        row.is_some_and(|row| row.version == proof.version)
    };
    proofs.len() <= limits::PROOFS && proofs.iter().all(holds)
}

fn tell(batch: &mut Batch<'_, '_>, kind: Kind, name: String, entry: Option<state::DirectoryEntry>) {
    let changed = DirectoryChanged { kind, name, entry };
    let changed = Output::DirectoryChanged(Box::new(changed));
    batch.outputs.push(changed);
}
