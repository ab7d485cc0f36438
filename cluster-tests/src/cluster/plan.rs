//! What to start.

use super::watchdog::DEADLINE;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The binary under test: `QUORUMQ_BIN`, or the release binary in cargo's target directory.
pub fn binary() -> PathBuf {
    if let Ok(path) = std::env::var("QUORUMQ_BIN") {
        return PathBuf::from(path);
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| {
        let home = std::env::var("HOME").expect("HOME is set");
        format!("{home}/.cache/quorumq/target")
    });
    let path = Path::new(&target).join("release/quorumq");
    assert!(
        path.exists(),
        "no binary at {}; run `make build`, or set QUORUMQ_BIN",
        path.display()
    );
    path
}

/// A cluster to start.
pub struct Plan {
    pub size: usize,
    /// TOML put at the end of every node's file. `{mqtt}` in it stands for the address that [`Node::mqtt`] tells, for
    /// `[[listeners]]`, which replace the one listener of a node, `{mqtt_port}` for its port.
    ///
    /// [`Node::mqtt`]: super::Node::mqtt
    pub extra: String,
    /// Lines of its `[mqtt]` section.
    pub mqtt: String,
    /// Whether [`Cluster::network`] is wanted.
    pub network: bool,
    /// How long bytes between nodes are under way; more than nothing brings the network along.
    pub delay: Duration,
    /// Whether [`Node::set_disk`] is wanted; without a C compiler it has no effect, which
    /// [`Cluster::disks_can_stall`] tells.
    ///
    /// [`Node::set_disk`]: super::Node::set_disk
    /// [`Cluster::disks_can_stall`]: super::Cluster::disks_can_stall
    pub stalls: bool,
    /// Environment of single nodes, by index.
    pub environment: Vec<(usize, String, String)>,
    /// After this time the test has hung and is ended.
    pub deadline: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            size: 3,
            extra: String::new(),
            mqtt: String::new(),
            network: false,
            delay: Duration::ZERO,
            stalls: false,
            environment: Vec::new(),
            deadline: DEADLINE,
        }
    }
}
