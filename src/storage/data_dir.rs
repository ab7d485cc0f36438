//! The data directory: layout, identity, format version, and the lock against a second process.
//!
//! ```text
//! DIR/LOCK        held by the process that uses the directory
//! DIR/meta        format, data-directory UUID, node id, cluster id
//! DIR/log/        the Raft log and vote, in segments
//! DIR/state/      the applied state (RocksDB, without a WAL); `state.current` says which of several
//! DIR/state.differs  why the directory must not be used any more, if that is so
//! DIR/snapshots/  checkpoints of the state, complete ones only
//! DIR/incoming/   a snapshot being received
//! ```
//!
//! The UUID is made once, with the directory. The cluster's membership records it with the node id, so a wiped disk
//! can't come back under its old id and vote a second time.
//!
//! Invariant: one process uses the directory, as one node of one cluster. Invariant: a directory that once had a log is
//! never used without it. The log holds the vote, and a voter that forgets its vote may give a second one in the same
//! term.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{create_dir, write_durably};
use super::log;
use super::open_error::OpenError;
use crate::base::ids::NodeId;

/// Version of the layout above. It rises with every change that an earlier release can't read.
pub const FORMAT: u32 = 2;
/// The oldest format that is taken over: its log is a RocksDB database.
const OLDEST_FORMAT: u32 = 1;

/// The file that says that the state is not what the other replicas have, and what differs.
pub const DIFFERS: &str = "state.differs";

/// Content of the file `meta`.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    format: u32,
    uuid: String,
    node: u64,
    cluster: String,
    /// Whether a log was made here.
    #[serde(default)]
    has_log: bool,
}

/// An open data directory, locked while this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    meta: Meta,
    _lock: File,
}

impl DataDir {
    /// Opens `path` for `node` of `cluster`, creating it when it does not exist yet.
    ///
    /// # Errors
    /// When another process uses it, it belongs to another node or cluster, has another format, or can't be
    /// read or written.
    pub fn open(path: &Path, node: NodeId, cluster: &str) -> Result<DataDir, OpenError> {
        create_dir(path).map_err(|error| OpenError::io(path, error))?;
        let meta_path = path.join("meta");
        if !meta_path.exists() {
            close_to_others(path);
        }
        check_mode(path)?;
        let lock = lock(path)?;
        let meta = match fs::read(&meta_path) {
            Ok(text) => read_meta(&meta_path, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_meta(path, node, cluster)?
            }
            Err(error) => return Err(OpenError::io(&meta_path, error)),
        };
        if !(OLDEST_FORMAT..=FORMAT).contains(&meta.format) {
            return Err(OpenError::Format {
                path: path.to_owned(),
                stored: meta.format,
                read: FORMAT,
            });
        }
        if meta.node != node.0 {
            return Err(OpenError::OtherNode {
                path: path.to_owned(),
                stored: meta.node,
                given: node.0,
            });
        }
        if meta.cluster != cluster {
            return Err(OpenError::OtherCluster {
                path: path.to_owned(),
                stored: meta.cluster,
                given: cluster.to_owned(),
            });
        }
        // The state is made after the log, so it proves that there was one; so directories of a release that did not
        // note it are checked, too.
        let had_log = meta.has_log || path.join("state").exists();
        if had_log && !log::is_there(&path.join("log")) {
            return Err(OpenError::LogLost {
                path: path.to_owned(),
                node: meta.node,
            });
        }
        check_state(path, meta.node)?;
        Ok(DataDir {
            path: path.to_owned(),
            meta,
            _lock: lock,
        })
    }

    /// Takes over a log of an earlier format.
    ///
    /// # Errors
    /// When it can't be read or copied; the directory is as it was then.
    pub fn take_over_log(&mut self) -> Result<(), OpenError> {
        let DataDir { path, meta, .. } = self;
        log::take_over(&path.join("log"), || {
            if meta.format == FORMAT {
                return Ok(());
            }
            // An earlier release must not take what it does not know for nothing.
            meta.format = FORMAT;
            write_meta(path, meta)
        })
    }

    /// Whether a log was made here.
    pub fn has_log(&self) -> bool {
        self.meta.has_log
    }

    /// Notes, durably, that the log was made. To be called before anything is written to the log.
    ///
    /// # Errors
    /// When the note can't be written.
    pub fn note_log(&mut self) -> Result<(), OpenError> {
        if self.meta.has_log {
            return Ok(());
        }
        self.meta.has_log = true;
        write_meta(&self.path, &self.meta)
    }

    /// Why a directory without its log can't be used.
    pub fn log_lost(&self) -> OpenError {
        OpenError::LogLost {
            path: self.path.clone(),
            node: self.meta.node,
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The UUID made with the directory.
    pub fn uuid(&self) -> &str {
        &self.meta.uuid
    }
}

/// Takes the rights of every user of the machine from a directory that is new here: a volume that was just made often
/// is everybody's. Whoever does not own it can't; then [`check_mode`] judges it as it is.
fn close_to_others(path: &Path) {
    if let Ok(data) = fs::metadata(path) {
        let mode = data.permissions().mode() & 0o2770;
        // Refused where it is somebody else's.
        let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    }
}

/// Refuses a directory that every user of the machine may write; warns of one that others may read. Orchestrators give
/// volumes to a group, so that is left to them.
fn check_mode(path: &Path) -> Result<(), OpenError> {
    let data = fs::metadata(path).map_err(|error| OpenError::io(path, error))?;
    let mode = data.permissions().mode() & 0o777;
    if mode & 0o002 != 0 {
        return Err(OpenError::Writable {
            path: path.to_owned(),
        });
    }
    if mode & 0o005 != 0 {
        tracing::warn!(
            directory = %path.display(),
            mode = format!("{mode:o}"),
            "other users of this machine can read the data directory: chmod 700"
        );
    }
    Ok(())
}

/// Refuses a directory whose state is known to differ.
fn check_state(path: &Path, node: u64) -> Result<(), OpenError> {
    let mark = path.join(DIFFERS);
    match fs::read_to_string(&mark) {
        Ok(why) => Err(OpenError::StateDiffers {
            path: path.to_owned(),
            why: why.trim().to_owned(),
            node,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(OpenError::io(&mark, error)),
    }
}

/// Takes the lock, without waiting.
fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = path.join("LOCK");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|error| OpenError::io(&lock_path, error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let pid = fs::read_to_string(&lock_path).ok();
            return Err(OpenError::InUse {
                path: path.to_owned(),
                pid: pid
                    .map(|pid| pid.trim().to_owned())
                    .filter(|pid| !pid.is_empty()),
            });
        }
        Err(fs::TryLockError::Error(error)) => return Err(OpenError::io(&lock_path, error)),
    }
    // The process id only helps a person; the lock is what counts.
    let _ = file.set_len(0);
    let _ = writeln!(file, "{}", std::process::id());
    Ok(file)
}

fn read_meta(path: &Path, text: &[u8]) -> Result<Meta, OpenError> {
    let text = std::str::from_utf8(text).map_err(|_| OpenError::damaged(path, "not UTF-8"))?;
    toml::from_str(text).map_err(|error| OpenError::damaged(path, error.message()))
}

/// Makes the identity of a new directory, durably.
fn create_meta(path: &Path, node: NodeId, cluster: &str) -> Result<Meta, OpenError> {
    for name in ["log", "state", "snapshots"] {
        if path.join(name).exists() {
            return Err(OpenError::damaged(
                path,
                format!(
                    "holds {name}/ but no meta file; restore the file or remove the node and join under a new id"
                ),
            ));
        }
    }
    let meta = Meta {
        format: FORMAT,
        uuid: uuid::Uuid::new_v4().to_string(),
        node: node.0,
        cluster: cluster.to_owned(),
        has_log: false,
    };
    write_meta(path, &meta)?;
    Ok(meta)
}

fn write_meta(path: &Path, meta: &Meta) -> Result<(), OpenError> {
    let text =
        toml::to_string(meta).map_err(|error| OpenError::damaged(path, error.to_string()))?;
    let target = path.join("meta");
    write_durably(&target, text.as_bytes()).map_err(|error| OpenError::io(&target, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::files::DIRECTORY_MODE;

    fn mode(path: &Path) -> u32 {
        let data = fs::metadata(path).expect("it is there");
        data.permissions().mode() & 0o777
    }

    #[test]
    fn the_directory_is_its_owners() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("data");
        let opened = DataDir::open(&path, NodeId(1), "cluster").expect("a new directory");
        assert_eq!(mode(&path), DIRECTORY_MODE);
        drop(opened);
        let set = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, mode).expect("its mode is set");
            DataDir::open(&path, NodeId(1), "cluster")
        };
        // A group may have it, as volumes of orchestrators do.
        assert!(set(0o2770).is_ok());
        assert!(set(0o755).is_ok(), "it is warned of");
        assert!(matches!(set(0o777), Err(OpenError::Writable { .. })));
        assert_eq!(mode(&path), 0o777, "nothing is changed");
        let volume = parent.path().join("volume");
        fs::create_dir(&volume).expect("a new directory");
        let everybodys = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(&volume, everybodys).expect("its mode is set");
        DataDir::open(&volume, NodeId(1), "cluster").expect("a new volume");
        assert_eq!(mode(&volume), 0o770);
    }
}
