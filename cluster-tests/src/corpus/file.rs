//! The files of the corpus.

use std::path::{Path, PathBuf};

/// The folder of conversations with a node that knows [`USERS`] and nobody else.
pub const LOG_IN: &str = "log_in/";

/// The user of RFC 7677's example, whose password is "pencil".
pub const USERS: &str = "user:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==\
    $WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=\n";

/// The folders of conversations that need a node of their own.
pub const APART: [&str; 4] = [LIMITS, LOG_IN, EVENTS, HUB];

/// The folder of conversations with nodes that publish events of the life of clients.
pub const EVENTS: &str = "events/";

/// The `[mqtt]` section of those nodes.
pub const SHORT_QUEUES: &str = "\
queue_max_messages = 2
queue_full = \"end_session\"
receive_maximum = 2
max_packet_size_bytes = 1024
";

/// The folder of conversations with a hub.
pub const HUB: &str = "hub/";

/// The folder of conversations with a node whose limits are low.
pub const LIMITS: &str = "limits/";

/// The `[mqtt]` section of that node.
pub const LOW_LIMITS: &str = "\
receive_maximum = 2
max_packet_size_bytes = 256
topic_alias_maximum = 0
max_keep_alive_s = 2
session_expiry_max_s = 1
";

/// A conversation and its text.
#[derive(Debug, Clone)]
pub struct File {
    /// `folder/name`.
    pub name: String,
    pub path: PathBuf,
    pub text: String,
}

impl File {
    /// Whether it wants the broker for itself.
    pub fn is_alone(&self) -> bool {
        self.text.lines().any(|line| line.trim() == "alone")
    }

    /// Why a broker is known to answer otherwise.
    pub fn unlike(&self, broker: &str) -> Option<&str> {
        self.text.lines().find_map(|line| {
            let rest = line.strip_prefix("unlike ")?.strip_prefix(broker)?;
            rest.strip_prefix(' ')
        })
    }
}

/// Where the conversations are.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The conversations whose name begins with one of these, by name; all without any. [`APART`] are among them.
pub fn files(picked: &[String]) -> Vec<File> {
    let mut found = Vec::new();
    for folder in sorted(&directory()) {
        if folder.is_dir() {
            found.extend(sorted(&folder).into_iter().filter_map(read));
        }
    }
    let is_picked = |file: &File| picked.iter().any(|name| file.name.starts_with(name));
    found.retain(|file| picked.is_empty() || is_picked(file));
    found
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a directory can be read").path())
        .collect();
    found.sort();
    found
}

fn read(path: PathBuf) -> Option<File> {
    if path.extension().is_none_or(|extension| extension != "txt") {
        return None;
    }
    let folder = path.parent()?.file_name()?.to_string_lossy().into_owned();
    let name = format!("{folder}/{}", path.file_stem()?.to_string_lossy());
    let text = std::fs::read_to_string(&path).expect("a file of the corpus can be read");
    Some(File { name, path, text })
}
