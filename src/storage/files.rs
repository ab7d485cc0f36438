//! Files and directories that are durable when they have to be.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::faults::{self, Step};

/// Mode of the directories: what is in them is clients' messages, and hashes of passwords.
pub const DIRECTORY_MODE: u32 = 0o700;

/// Replaces `path` with `content` so that after a crash it holds either the old or the new bytes, whole.
pub fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial)?;
    file.write_all(content)?;
    sync_file(&file, &partial)?;
    drop(file);
    fs::rename(&partial, path)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Creates the directory `path`, and those above it that are missing. All of them are durable on return, also when an
/// earlier process made `path` and ended before it was.
pub fn create_dir(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        create_dir(parent)?;
    }
    if let Err(error) = fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path)
        && !(error.kind() == io::ErrorKind::AlreadyExists && path.is_dir())
    {
        return Err(error);
    }
    // A directory above may belong to another user, who keeps it closed.
    match sync_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Removes a directory if it is there. When that fails, the next start tries again.
pub fn remove_dir(path: &Path) {
    let removed = faults::step(Step::DirectoryRemoving, path);
    if let Err(error) = removed.and_then(|()| fs::remove_dir_all(path))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an unused directory was not removed; the next start tries again");
    }
}

/// The extension of directories that are being removed.
pub const REMOVED: &str = "removed";

/// As [`remove_dir`], on a thread of its own, because gigabytes take their time. The name is free on return; until it
/// is gone, the directory has the extension [`REMOVED`].
pub fn remove_dir_later(path: &Path) {
    let aside = path.with_added_extension(REMOVED);
    if fs::rename(path, &aside).is_err() {
        // Not there, or its namesake is not gone yet.
        return remove_dir(path);
    }
    let target = aside.clone();
    let spawned = std::thread::Builder::new()
        .name("remove".into())
        .spawn(move || remove_dir(&target));
    if spawned.is_err() {
        remove_dir(&aside);
    }
}

/// Makes what was written to `file`, which is at `path`, durable.
pub fn sync_file(file: &File, path: &Path) -> io::Result<()> {
    faults::step(Step::FileWritten, path)?;
    file.sync_all()?;
    faults::step(Step::FileSynced, path)
}

/// Makes renames, creations and removals in `path` durable.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    faults::step(Step::DirectoryChanged, path)?;
    File::open(path)?.sync_all()?;
    faults::step(Step::DirectorySynced, path)
}
