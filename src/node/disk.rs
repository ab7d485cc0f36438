//! The disk guard: what is to be stored is refused before a disk is full.
//!
//! All replicas store everything, so all disks fill together, and a replica whose disk is full must stop. Each node
//! looks at its volume once a second and tells the others through the log when its state changes. While its own disk
//! is low, or too many others are, a node refuses what would be stored; reads, deletions, acknowledgements, the ends of
//! sessions and expiry go on, and make room. See docs/spec/replication.md, Disk guard.
//!
//! Invariant: a node stops in order before RocksDB has to stop it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::base::ids::NodeId;
use crate::base::proto::command::{self, command::Kind};
use crate::config::DiskConfig;
use crate::connection::broker::Broker;
use crate::raft::{Raft, Role};
use crate::replica::share::Share;
use crate::storage::Space;

/// How often the disk is looked at, at least.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often at most: what is left when it is close to a bound.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(20);

/// No node writes faster than this, bytes per second.
const FASTEST_WRITES: u64 = 2 << 30;

/// The reserve of a small volume, or half the volume if that is less: RocksDB writes what it has in memory even when
/// nothing more is stored.
const LEAST_RESERVE_BYTES: u64 = 256 << 20;

/// How long the others may take to learn of a change before they are told again.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The disk has room again when this many quarters of the reserve are free.
const RECOVERED_QUARTERS: u64 = 5;

/// A node stops when a quarter of the reserve is left, or this many bytes.
const STOP_AT_BYTES: u64 = 512 << 20;

/// Or so many, if that is more, and no more than half the reserve: RocksDB writes a memtable of 64 MiB while another
/// one fills.
const STOP_AT_LEAST_BYTES: u64 = 128 << 20;

/// Files that must be free, or one in a hundred if that is less. RocksDB needs dozens.
const RESERVED_FILES: u64 = 10_000;

/// How full the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// There is room.
    Fine,
    /// The reserve is touched.
    Low,
    /// The node must stop.
    Full,
}

/// The reserve of a volume, bytes: a share of it, or a fixed size if that is less.
fn reserve(config: &DiskConfig, space: &Space) -> u64 {
    if config.reserve_percent == 0 {
        return 0;
    }
    let percent = u128::from(config.reserve_percent);
    let share = u128::from(space.total_bytes) * percent / 100;
    let share = u64::try_from(share).unwrap_or(u64::MAX);
    let least = LEAST_RESERVE_BYTES.min(space.total_bytes / 2);
    share.max(least).min(config.reserve_bytes)
}

/// Below how many free bytes a node stops.
fn stop_at(reserve: u64) -> u64 {
    let quarter = (reserve / 4).min(STOP_AT_BYTES);
    quarter.max(STOP_AT_LEAST_BYTES.min(reserve / 2))
}

/// When to look again at a disk: before it can have passed the next bound.
fn pause(config: &DiskConfig, level: Level, space: &Space) -> Duration {
    let reserve = reserve(config, space);
    let bound = match level {
        Level::Fine => reserve,
        Level::Low | Level::Full => stop_at(reserve),
    };
    let millis = space.free_bytes.saturating_sub(bound) / (FASTEST_WRITES / 1_000);
    Duration::from_millis(millis).clamp(SHORTEST_INTERVAL, INTERVAL)
}

/// How full a disk is that was found `before` the last time.
pub(super) fn judge(config: &DiskConfig, before: Level, space: &Space) -> Level {
    let reserve = reserve(config, space);
    let files = RESERVED_FILES.min(space.total_files / 100);
    if space.free_bytes < stop_at(reserve) || space.free_files < files / 4 {
        return Level::Full;
    }
    // What was low must recover by more than what a deletion gives back at once.
    let quarters = match before {
        Level::Fine => 4,
        _ => RECOVERED_QUARTERS,
    };
    let is_below = |free: u64, wanted: u64| free < wanted.saturating_mul(quarters) / 4;
    match is_below(space.free_bytes, reserve) || is_below(space.free_files, files) {
        true => Level::Low,
        false => Level::Fine,
    }
}

/// Whether the cluster must not store more: so many voters have low disks that it could not lose a further one.
fn refuses(voters: usize, low: usize) -> bool {
    let wanted = (voters / 2 + 2).min(voters);
    voters - low.min(voters) < wanted
}

/// Where the room is read.
pub(super) type Source = Arc<dyn Fn() -> io::Result<Space> + Send + Sync>;

/// The volume of the data directory.
pub(super) fn volume(path: PathBuf) -> Source {
    Arc::new(move || Space::of(&path))
}

/// What the others are being told. The disk goes on filling meanwhile, so nobody waits for it.
#[derive(Default)]
struct Reports(JoinSet<()>);

impl Reports {
    /// Begins a report, unless the one before is still under way.
    fn begin(&mut self, report: impl Future<Output = ()> + Send + 'static) {
        while self.0.try_join_next().is_some() {}
        if self.0.is_empty() {
            self.0.spawn(report);
        }
    }
}

/// Looks at this node's disk.
pub(super) struct DiskGuard {
    pub(super) config: DiskConfig,
    pub(super) source: Source,
    pub(super) broker: Arc<Broker>,
    pub(super) raft: Raft,
}

impl DiskGuard {
    /// Runs until the node stops, and says so once the node must stop because its disk is full.
    pub(super) async fn run(self, full: oneshot::Sender<Space>) {
        let mut level = Level::Fine;
        let mut reports = Reports::default();
        loop {
            let mut next = INTERVAL;
            if let Some(space) = self.look().await {
                level = self.note(level, &space);
                next = pause(&self.config, level, &space);
                if level == Level::Full {
                    // The receiver is gone only when the node stops anyway.
                    let _ = full.send(space);
                    return;
                }
            }
            self.update(level);
            if let Some(report) = self.report(level) {
                reports.begin(report);
            }
            tokio::time::sleep(next).await;
        }
    }

    async fn look(&self) -> Option<Space> {
        let source = self.source.clone();
        let found = tokio::task::spawn_blocking(move || source()).await;
        match found {
            Ok(Ok(space)) => Some(space),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the room on the disk can't be read");
                None
            }
            Err(_) => None,
        }
    }

    fn note(&self, before: Level, space: &Space) -> Level {
        let metrics = &self.broker.metrics;
        metrics.disk_free_bytes.set(space.free_bytes);
        let level = judge(&self.config, before, space);
        metrics.disk_low.set(u64::from(level != Level::Fine));
        if level != before {
            let free_bytes = space.free_bytes;
            let free_files = space.free_files;
            match level {
                Level::Fine => tracing::info!(free_bytes, "the disk has room again"),
                _ => tracing::error!(
                    free_bytes,
                    free_files,
                    "the disk is nearly full: nothing more is stored until there is room"
                ),
            }
        }
        level
    }

    /// Tells the others when the log says something else of this node. They also learn of it after a restart.
    fn report(&self, level: Level) -> Option<impl Future<Output = ()> + Send + 'static> {
        let services = &self.broker.services;
        let low = level != Level::Fine;
        let known = services
            .view
            .low_disks()
            .contains(&self.broker.settings.node);
        if known == low || !self.broker.state.is_serving() {
            return None;
        }
        let command = Kind::NodeDisk(command::NodeDisk { low });
        let proposer = Arc::clone(&services.proposer);
        Some(async move {
            // It is told again in a later round.
            let _ = tokio::time::timeout(
                REPORT_TIMEOUT,
                proposer.propose(Share::Administration, command),
            )
            .await;
        })
    }

    fn update(&self, level: Level) {
        let own = self.broker.settings.node;
        let is_low = level != Level::Fine;
        let reported = self.broker.services.view.low_disks();
        let status = self.raft.status();
        let voters = status
            .members
            .iter()
            .filter(|member| member.role == Role::Voter);
        let voters: Vec<NodeId> = voters.map(|member| NodeId(member.node)).collect();
        let low = voters.iter().filter(|voter| match **voter == own {
            true => is_low,
            false => reported.contains(voter),
        });
        let refused = is_low || refuses(voters.len(), low.count());
        let state = &self.broker.state;
        state.set_disk_low(is_low);
        if state.set_refuses_writes(refused) != refused {
            match refused {
                true => tracing::error!(
                    ?reported,
                    own_disk_is_low = is_low,
                    "writes are refused: disks are nearly full"
                ),
                false => tracing::info!("writes are taken again: disks have room"),
            }
        }
        self.broker
            .metrics
            .writes_refused_now
            .set(u64::from(refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn config() -> DiskConfig {
        DiskConfig {
            reserve_percent: 5,
            reserve_bytes: 2 * GIB,
        }
    }

    fn space(total: u64, free: u64) -> Space {
        Space {
            free_bytes: free,
            total_bytes: total,
            free_files: 1_000_000,
            total_files: 2_000_000,
        }
    }

    #[tokio::test]
    async fn no_look_waits_for_a_report_and_there_is_one_at_a_time() {
        let mut reports = Reports::default();
        let (first_is_known, known) = oneshot::channel::<()>();
        let (told, mut is_told) = tokio::sync::mpsc::unbounded_channel();
        let report = |number: u32| {
            let told = told.clone();
            async move {
                // The test may be over.
                let _ = told.send(number);
            }
        };
        let first = report(1);
        reports.begin(async move {
            let _ = known.await;
            first.await;
        });
        for _ in 0..10 {
            reports.begin(report(2));
            tokio::task::yield_now().await;
        }
        first_is_known.send(()).expect("it waits");
        assert_eq!(is_told.recv().await, Some(1));
        while is_told.is_empty() {
            reports.begin(report(3));
            tokio::task::yield_now().await;
        }
        assert_eq!(is_told.recv().await, Some(3), "it is told again");
    }

    #[test]
    fn the_reserve_fits_the_volume() {
        assert_eq!(reserve(&config(), &space(1_000 * GIB, 0)), 2 * GIB);
        assert_eq!(reserve(&config(), &space(10 * GIB, 0)), GIB / 2);
        let off = DiskConfig {
            reserve_percent: 0,
            ..config()
        };
        assert_eq!(judge(&off, Level::Fine, &space(10 * GIB, 0)), Level::Fine);
    }

    #[test]
    fn a_small_volume_keeps_room_for_what_is_in_memory() {
        assert_eq!(reserve(&config(), &space(GIB, 0)), GIB / 4);
        assert_eq!(reserve(&config(), &space(GIB / 4, 0)), GIB / 8);
    }

    #[test]
    fn a_disk_that_is_nearly_low_is_looked_at_often() {
        let pause = |level, free_mib: u64| {
            pause(&config(), level, &space(1_000 * GIB, free_mib << 20)).as_millis()
        };
        assert_eq!(pause(Level::Fine, 100_000), 1_000);
        assert_eq!(pause(Level::Fine, 2_048 + 1_024), 500);
        assert_eq!(pause(Level::Fine, 2_048), 20);
        assert_eq!(pause(Level::Low, 512 + 1_024), 500);
        assert_eq!(pause(Level::Low, 512), 20);
    }

    /// A disk that fills and is emptied again.
    #[test]
    fn a_disk_is_low_until_it_has_clearly_more_than_the_reserve() {
        let mut level = Level::Fine;
        let mut judged = |free_mib: u64| {
            level = judge(&config(), level, &space(1_000 * GIB, free_mib << 20));
            level
        };
        assert_eq!(judged(2_048), Level::Fine);
        assert_eq!(judged(2_047), Level::Low);
        assert_eq!(judged(2_400), Level::Low, "a little more is not enough");
        assert_eq!(judged(2_560), Level::Fine);
        assert_eq!(judged(2_048), Level::Fine);
        assert_eq!(judged(600), Level::Low);
        assert_eq!(judged(511), Level::Full);
    }

    #[test]
    fn files_run_out_as_well() {
        let files = |free_files| Space {
            free_files,
            ..space(1_000 * GIB, 500 * GIB)
        };
        assert_eq!(judge(&config(), Level::Fine, &files(10_000)), Level::Fine);
        assert_eq!(judge(&config(), Level::Fine, &files(9_999)), Level::Low);
        assert_eq!(judge(&config(), Level::Low, &files(11_000)), Level::Low);
        assert_eq!(judge(&config(), Level::Low, &files(2_000)), Level::Full);
        let unbounded = Space {
            total_files: 0,
            free_files: 0,
            ..files(0)
        };
        assert_eq!(judge(&config(), Level::Fine, &unbounded), Level::Fine);
    }

    #[test]
    fn a_cluster_goes_on_while_it_could_lose_one_more_voter() {
        for (voters, most_low) in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (7, 2)] {
            assert!(!refuses(voters, most_low), "{most_low} of {voters}");
            assert!(
                voters == 0 || refuses(voters, most_low + 1),
                "{most_low} of {voters}"
            );
        }
    }
}
