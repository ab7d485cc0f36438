//! Settings of a replica, checked before anything is opened.

use crate::base::ids::NodeId;
use crate::machine::VERSION;
use crate::peers::Trust;
use crate::raft::types::StartError;
use crate::storage::BeforeSync;

/// Timings of elections, in milliseconds.
///
/// A follower campaigns when it has heard nothing from the leader for `election_max_ms` (the leader's lease) plus its
/// own draw between `election_min_ms` and `election_max_ms`: with the defaults for 450 to 600 ms. When the leader's
/// connections broke, it campaigns as soon as the lease has ended ([`super::fast_election`]). A slow disk does not
/// count as silence: heartbeats are answered before anything is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval between a leader's heartbeats.
    pub heartbeat_ms: u64,
    /// Least time that a follower waits beyond the lease before it campaigns.
    pub election_min_ms: u64,
    /// Most time that it waits; each replica draws between the two. Also the leader's lease.
    pub election_max_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            heartbeat_ms: 50,
            election_min_ms: 150,
            election_max_ms: 300,
        }
    }
}

/// When snapshots are taken and how much log is kept.
///
/// What decides whether a follower that was away needs a whole snapshot is how much log is kept, so it is
/// kept by time and bytes rather than by a count of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// A snapshot is taken once this many bytes were appended since the last one.
    pub snapshot_bytes: u64,
    /// A snapshot is taken at least this often while anything is appended, milliseconds.
    pub snapshot_interval_ms: u64,
    /// Entries younger than this stay in the log, milliseconds, unless the log exceeds `max_log_bytes`.
    pub keep_ms: u64,
    /// The newest entries up to this many bytes stay in the log whatever their age.
    pub min_log_bytes: u64,
    /// Beyond this size, entries that a snapshot covers are purged however young they are.
    pub max_log_bytes: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            snapshot_bytes: 256 << 20,
            snapshot_interval_ms: 5 * 60 * 1000,
            keep_ms: 10 * 60 * 1000,
            min_log_bytes: 64 << 20,
            max_log_bytes: 4 << 30,
        }
    }
}

impl Retention {
    /// The same with a log that leaves a volume of this size to the state and its snapshots; 0 when that is not known.
    pub fn on_volume(self, bytes: u64) -> Retention {
        let share = match bytes {
            0 => u64::MAX,
            bytes => (bytes / 8).max(self.min_log_bytes),
        };
        let max_log_bytes = self.max_log_bytes.min(share);
        Retention {
            max_log_bytes,
            // Nothing is purged that no snapshot covers.
            snapshot_bytes: self.snapshot_bytes.min(max_log_bytes / 2),
            ..self
        }
    }
}

/// Settings of a replica.
#[derive(Clone)]
pub struct RaftConfig {
    /// This node.
    pub node: NodeId,
    /// UUID of the cluster; peers of another one are refused.
    pub cluster: String,
    /// `host:port` at which peers reach this node's cluster listener.
    pub address: String,
    /// Election timings.
    pub timing: Timing,
    /// Snapshot and log retention.
    pub retention: Retention,
    /// Entries that are applied in one write are no more once they have this many bytes.
    pub apply_bytes: usize,
    /// Bytes of the log's newest entries in memory; entries that are not yet durable and applied are kept beyond it.
    pub cache_bytes: usize,
    /// Fault injection of a slow disk; see [`BeforeSync`].
    pub before_sync: Option<BeforeSync>,
    /// The version of the machine above; peers of another one are refused.
    pub machine: u32,
    /// How nodes prove to each other who they are.
    pub trust: Trust,
    /// `host:port` of nodes that the operator has named as members: what they say of the membership is believed.
    pub named: Vec<String>,
}

impl RaftConfig {
    /// A configuration with default timings and limits.
    pub fn new(node: NodeId, cluster: String, address: String) -> Self {
        RaftConfig {
            node,
            cluster,
            address,
            timing: Timing::default(),
            retention: Retention::default(),
            apply_bytes: 4 << 20,
            cache_bytes: 64 << 20,
            before_sync: None,
            machine: VERSION,
            trust: Trust::open(),
            named: Vec::new(),
        }
    }

    /// Refuses settings that cannot work.
    pub fn check(&self) -> Result<(), StartError> {
        let Timing {
            heartbeat_ms,
            election_min_ms,
            election_max_ms,
        } = self.timing;
        let refuse = |text: String| Err(StartError::Config(text));
        if heartbeat_ms == 0 || election_min_ms < heartbeat_ms.saturating_mul(3) {
            return refuse(format!(
                "the election timeout ({election_min_ms} ms) must be at least three heartbeats ({heartbeat_ms} ms)"
            ));
        }
        if election_max_ms <= election_min_ms {
            return refuse(format!(
                "the longest election timeout ({election_max_ms} ms) must exceed the shortest ({election_min_ms} ms)"
            ));
        }
        if self.apply_bytes == 0 || self.cache_bytes < (1 << 20) {
            return refuse("apply_bytes must be positive and cache_bytes at least 1 MiB".into());
        }
        if self.retention.max_log_bytes < self.retention.min_log_bytes {
            return refuse("max_log_bytes must not be below min_log_bytes".into());
        }
        Ok(())
    }
}
