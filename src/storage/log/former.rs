//! Takes over the log of a data directory of format 1, which is a RocksDB database.
//!
//! | family | key | value |
//! |---|---|---|
//! | `default` | `group u32 BE \| index u64 BE` | `kind u8 \| term u64 BE \| payload` |
//! | `meta` | `group u32 BE \| 1` | the vote |
//! | `meta` | `group u32 BE \| 2` | the last purged index u64 BE, and its log id |
//! | `meta` | `group u32 BE \| 3` | the committed log id |
//!
//! The new log is made beside the former one, which it replaces when it is whole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{DB, DBRecoveryMode, IteratorMode, Options};

use super::change::Change;
use super::frame;
use super::node_log::open_writer;
use super::segment;
use super::writer::Writer;
use crate::base::ids::GroupId;
use crate::storage::database::Database;
use crate::storage::faults::{self, Step};
use crate::storage::files::{remove_dir, sync_dir};
use crate::storage::open_error::OpenError;

/// The file that names the others of a database.
const CURRENT: &str = "CURRENT";

/// Bytes of a frame of entries.
const FRAME_BYTES: usize = 1 << 20;

/// The former log while its name is the new one's.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("rocksdb")
}

/// Whether the former log is in the directory `path`, or was until it was taken over.
pub fn is_there(path: &Path) -> bool {
    path.join(CURRENT).exists() || aside(path).exists()
}

/// Makes the log in the directory `path` one of segments, if it is a database. Calls `note` before that can't be undone
/// any more.
///
/// # Errors
/// When it can't be read or written, or `note` says so; the former log is as it was then.
pub fn take_over(
    path: &Path,
    note: impl FnOnce() -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::io(path, error);
    let parent = path.parent().unwrap_or(Path::new("."));
    let (new, old) = (path.with_extension("new"), aside(path));
    if old.exists() && !new.exists() && !has_segments(path).map_err(failed)? {
        // The new log is gone.
        if path.exists() {
            fs::remove_dir(path).map_err(failed)?;
        }
        fs::rename(&old, path).map_err(failed)?;
    }
    if path.join(CURRENT).exists() {
        // Half a copy must not be there while the name is another one: it would be taken for a whole one.
        remove_dir(&new);
        sync_dir(parent).map_err(failed)?;
        if new.exists() || !can_be_renamed(path, &old).map_err(failed)? {
            let reason = "it can't be renamed, as a link or a volume of its own can't, or log.new can't be removed: move \
                          its files to a plain directory of this name before it is taken over";
            return Err(failed(io::Error::new(io::ErrorKind::Unsupported, reason)));
        }
        tracing::info!(directory = %path.display(), "the log is taken over from an earlier format");
        if let Err(error) = copy(path, &new) {
            remove_dir(&new);
            return Err(error);
        }
        note()?;
        fs::rename(path, &old).map_err(failed)?;
        sync_dir(parent).map_err(failed)?;
    } else {
        note()?;
    }
    if old.exists() {
        if new.exists() {
            fs::rename(&new, path).map_err(failed)?;
        }
        sync_dir(parent).map_err(failed)?;
        // A node never runs beside it: should its log be lost one day, nobody must take this one for it.
        let removing = faults::step(Step::DirectoryRemoving, &old);
        let removed = removing.and_then(|()| fs::remove_dir_all(&old));
        removed.map_err(|error| OpenError::io(&old, error))?;
    }
    Ok(())
}

/// Whether a directory can be renamed, which a link or a mount point must not or can't be. A crash amid this leaves it
/// where it is looked for.
fn can_be_renamed(path: &Path, name: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_dir() || fs::rename(path, name).is_err() {
        return Ok(false);
    }
    fs::rename(name, path)?;
    Ok(true)
}

fn has_segments(path: &Path) -> io::Result<bool> {
    match segment::list(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        numbers => Ok(!numbers?.is_empty()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), OpenError> {
    let mut options = Options::default();
    // As it was opened by the release that wrote it: what a crash has torn off is no damage, anything else is.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    let (_, mut writer) = open_writer(to)?;
    let families = DB::list_cf(&options, from);
    let families = families.map_err(|error| OpenError::database(from, &error))?;
    if !families.iter().any(|family| family == "meta") {
        // A crash came before there was anything in it.
        return writer.close().map_err(|error| OpenError::io(to, error));
    }
    let families = families
        .into_iter()
        .map(|family| (family, Options::default()));
    let open = || DB::open_cf_with_opts_for_read_only(&options, from, families, false);
    let db = Database::open(from, open).map_err(|error| OpenError::database(from, &error))?;
    copy_rows(&db, from, &mut writer)
}

fn copy_rows(db: &DB, path: &Path, writer: &mut Writer) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::io(path, error);
    let meta = db.cf_handle("meta");
    let meta = meta.ok_or_else(|| OpenError::damaged(path, "the log has no meta family"))?;
    let mut buffer = Vec::new();
    frame::begin(&mut buffer);
    let mut purged = BTreeMap::new();
    // The purged log id comes before the entries: it says where they begin.
    for row in db.iterator_cf(meta, IteratorMode::Start) {
        let (key, value) = row.map_err(|error| OpenError::database(path, &error))?;
        let change = meta_of(&key, &value);
        let change = change.ok_or_else(|| OpenError::damaged(path, "the log's metadata"))?;
        if let Change::Purge { group, upto, .. } = change {
            purged.insert(group, upto);
        }
        change.encode(&mut buffer);
    }
    for row in db.iterator(IteratorMode::Start) {
        let (key, value) = row.map_err(|error| OpenError::database(path, &error))?;
        let change = entry_of(&key, &value);
        let change = change.ok_or_else(|| OpenError::damaged(path, "a log entry is cut short"))?;
        // RocksDB may show rows of a purge again whose range tombstone was in a file that was deleted.
        if let Change::Append { group, index, .. } = change
            && purged.get(&group).is_some_and(|upto| index <= *upto)
        {
            continue;
        }
        change.encode(&mut buffer);
        if buffer.len() >= FRAME_BYTES {
            writer.write(&mut buffer, false).map_err(failed)?;
            frame::begin(&mut buffer);
        }
    }
    writer.write(&mut buffer, true).map_err(failed)?;
    writer.close().map_err(failed)
}

fn group_of(key: &[u8]) -> Option<(GroupId, &[u8])> {
    let (group, rest) = key.split_first_chunk()?;
    Some((GroupId(u32::from_be_bytes(*group)), rest))
}

fn meta_of<'a>(key: &[u8], value: &'a [u8]) -> Option<Change<'a>> {
    Some(match group_of(key)? {
        (group, [1]) => Change::Vote { group, vote: value },
        (group, [2]) => {
            let (upto, log_id) = value.split_first_chunk()?;
            Change::Purge {
                group,
                upto: u64::from_be_bytes(*upto),
                log_id,
            }
        }
        (group, [3]) => Change::Committed {
            group,
            log_id: value,
        },
        _ => return None,
    })
}

fn entry_of<'a>(key: &[u8], value: &'a [u8]) -> Option<Change<'a>> {
    let (group, index) = group_of(key)?;
    let (kind, rest) = value.split_first()?;
    let (term, payload) = rest.split_first_chunk()?;
    Some(Change::Append {
        group,
        index: u64::from_be_bytes(index.try_into().ok()?),
        term: u64::from_be_bytes(*term),
        kind: *kind,
        payload,
    })
}
