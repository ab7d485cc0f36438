//! Files that the configuration names, read whole: how large they may be, and who else may read or write them.
//!
//! Invariant: every file of keys, secrets and certificates that a node is configured with is read here, so none is used
//! that everybody may change.
//! Invariant: who may do what with a file is judged by the file that is read, and what was read is wiped from memory
//! when it is dropped.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// The user who may read and change everything anyway.
const ROOT: u32 = 0;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Everybody may know it: certificates, public keys. Whoever could write it would decide whom this node trusts.
    Trusted,
    /// A private key, or a token that orchestrators hand out. It is read, and warned of, if every user of the machine
    /// can read it, because secrets that are mounted into containers often are like that.
    Key,
    /// A secret of this node: nobody else may read it, as OpenSSH and PostgreSQL ask of keys.
    Secret,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system does not let it be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is something else.
    #[error("{}: it is larger than {most} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// As large as it may be.
        most: u64,
    },
    /// A pipe or a device: reading it may never end, or take away what is another's.
    #[error("{}: it is no file", .0.display())]
    NoFile(PathBuf),
    /// Others can read it, so it is no secret.
    #[error("{}: every user of this machine can read it: chmod o-rwx", .0.display())]
    Readable(PathBuf),
    /// Others can write it, so what it says is theirs.
    #[error("{}: every user of this machine can write it: chmod o-w", .0.display())]
    Writable(PathBuf),
    /// It is somebody else's secret.
    #[error("{}: it belongs to user {owner}, who is neither root nor the user of this process: chown", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Number of the user.
        owner: u32,
    },
}

/// Whether this process is a node. A node that runs as root asks whom a secret belongs to. `sudo quorumq check` does
/// not, because the node may run as the user who owns it.
static IS_NODE: AtomicBool = AtomicBool::new(false);

/// From now on, files are read for a node that runs in this process.
pub fn read_for_node() {
    IS_NODE.store(true, Ordering::Relaxed);
}

/// Files that were warned of: some are read again and again.
static WARNED: Mutex<BTreeMap<PathBuf, &'static str>> = Mutex::new(BTreeMap::new());

fn warn(path: &Path, text: &'static str) {
    // Paths come from the configuration, so they are few.
    if WARNED.lock().insert(path.to_owned(), text).is_none() {
        tracing::warn!(file = %path.display(), "{text}");
    }
}

/// What there was to warn of in files that this process has read: the file and the warning of each.
pub fn warnings() -> Vec<String> {
    let warned = WARNED.lock();
    let text = |(path, text): (&PathBuf, &&str)| format!("{}: {text}", path.display());
    warned.iter().map(text).collect()
}

/// Whether a file may be used, by its mode and owner.
fn judge(path: &Path, data: &Metadata, guard: Guard) -> Result<(), FileError> {
    if data.mode() & 0o002 != 0 {
        return Err(FileError::Writable(path.to_owned()));
    }
    let user = rustix::process::geteuid().as_raw();
    let is_everybody = user == ROOT && !IS_NODE.load(Ordering::Relaxed);
    let is_strange = !is_everybody && ![user, ROOT].contains(&data.uid());
    let is_readable = data.mode() & 0o004 != 0;
    match guard {
        Guard::Secret if is_readable => Err(FileError::Readable(path.to_owned())),
        Guard::Secret if is_strange => Err(FileError::Owner {
            path: path.to_owned(),
            owner: data.uid(),
        }),
        Guard::Key if is_readable => {
            warn(path, "every user of this machine can read this key");
            Ok(())
        }
        Guard::Key if is_strange => {
            warn(path, "this key belongs to another user, who can change it");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The bytes of a file, `most` at most.
///
/// # Errors
/// It can't be used.
pub fn read(path: &Path, most: u64, guard: Guard) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let io = |error| FileError::Io {
        path: path.to_owned(),
        error,
    };
    let too_large = || FileError::TooLarge {
        path: path.to_owned(),
        most,
    };
    // Opening a pipe would wait for who writes to it.
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let mut open = File::options();
    let file = open
        .read(true)
        .custom_flags(no_wait)
        .open(path)
        .map_err(io)?;
    let data = file.metadata().map_err(io)?;
    if !data.is_file() {
        return Err(FileError::NoFile(path.to_owned()));
    }
    judge(path, &data, guard)?;
    if data.len() > most {
        return Err(too_large());
    }
    // The whole capacity at once: a buffer that grows leaves copies behind that nobody wipes.
    let capacity = usize::try_from(data.len()).unwrap_or(0) + 64;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    let mut limited = file.take(most.saturating_add(1));
    let read = limited.read_to_end(&mut bytes).map_err(io)?;
    match read as u64 > most {
        true => Err(too_large()),
        false => Ok(bytes),
    }
}

/// Whether somebody looks at files. What looks at them may wait for long, on a thread of its own, and nobody else is to
/// do so meanwhile. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Looking(Arc<AtomicBool>);

/// Somebody looks, as long as this is there.
#[derive(Debug)]
pub struct Look(Looking);

impl Looking {
    /// Begins to look; `None` when somebody does already.
    pub fn begin(&self) -> Option<Look> {
        let is_first = !self.0.swap(true, Ordering::AcqRel);
        is_first.then(|| Look(self.clone()))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// What tells that a file was replaced or written; `None` when it can't be looked at.
pub type Stamp = Option<[i64; 4]>;

/// The stamp of a file. A link is followed, so that the switch of a directory that holds a secret is a change, too.
pub fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    let inode = data.ino().cast_signed();
    let size = data.size().cast_signed();
    Some([data.mtime(), data.mtime_nsec(), inode, size])
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn each_guard_asks_for_its_mode() {
        use Guard::{Key, Secret, Trusted};
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        write(&path, "content").expect("it is written");
        for (mode, allowed) in [
            (0o600, &[Trusted, Key, Secret][..]),
            (0o440, &[Trusted, Key, Secret]),
            (0o644, &[Trusted, Key]),
            (0o666, &[]),
            (0o602, &[]),
        ] {
            set_permissions(&path, Permissions::from_mode(mode)).expect("its mode is set");
            for guard in [Trusted, Key, Secret] {
                let read = read(&path, 100, guard);
                assert_eq!(read.is_ok(), allowed.contains(&guard), "{mode:o} {guard:?}");
            }
        }
        assert!(matches!(
            read(&directory.path().join("absent"), 100, Trusted),
            Err(FileError::Io { .. })
        ));
    }

    /// Whoever a node runs as: root reads everybody's files, but does not trust them.
    #[test]
    fn a_secret_belongs_to_the_node_or_to_root() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        write(&path, "content").expect("it is written");
        set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode is set");
        assert!(read(&path, 100, Guard::Secret).is_ok());
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
            // Only root can give a file away.
            return;
        }
        let may_be_its_users = read(&path, 100, Guard::Secret);
        assert!(may_be_its_users.is_ok(), "this is no node");
        read_for_node();
        let refused = read(&path, 100, Guard::Secret);
        assert!(matches!(
            refused,
            Err(FileError::Owner { owner: 12_345, .. })
        ));
        assert!(read(&path, 100, Guard::Key).is_ok(), "it is warned of");
    }

    #[test]
    fn no_more_is_read_than_a_file_may_have() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        write(&path, [0; 10]).expect("it is written");
        assert_eq!(read(&path, 10, Guard::Trusted).expect("it fits").len(), 10);
        assert!(matches!(
            read(&path, 9, Guard::Trusted),
            Err(FileError::TooLarge { .. })
        ));
    }

    /// A device has no end, and nobody may ever write to a pipe.
    #[test]
    fn what_is_no_file_is_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join("pipe");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        );
        made.expect("it is made");
        for path in [Path::new("/dev/zero"), &pipe, directory.path()] {
            let read = read(path, 9, Guard::Trusted);
            assert!(matches!(read, Err(FileError::NoFile(_))), "{read:?}");
        }
    }

    #[test]
    fn one_looks_at_a_time() {
        let looking = Looking::default();
        let look = looking.begin().expect("nobody looks");
        assert!(looking.clone().begin().is_none());
        drop(look);
        assert!(looking.begin().is_some());
    }

    #[test]
    fn a_replaced_file_has_another_stamp() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        assert_eq!(stamp(&path), None);
        write(&path, "1").expect("it is written");
        let first = stamp(&path);
        assert_eq!(stamp(&path), first);
        write(directory.path().join("new"), "2").expect("it is written");
        std::fs::rename(directory.path().join("new"), &path).expect("it is moved");
        assert_ne!(stamp(&path), first);
    }
}
