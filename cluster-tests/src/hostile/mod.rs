//! Clients that do their worst, and clients beside them that behave.
//!
//! The promise (P12): whatever one client does, the others on every node go on, and every node's memory stays bounded.
//! [`beside`] runs an attack while behaving clients of every node ping, write to the state store and exchange messages,
//! and judges them afterwards by the bounds below, beyond what the machine itself took meanwhile. `make chaos` holds them
//! to these bounds; the ordinary run, on whatever machine, to more ([`allowed`](crate::wait::allowed)), which tells a
//! standstill from a machine that has other work.
//!
//! Invariant: an attack is bounded in count and in time, and stays on loopback.

mod bystander;
mod crowd;
mod flood;
mod memory;

pub use crowd::Crowd;
pub use flood::{Fate, Flood, flood, reason_of_end};

use crate::cluster::Cluster;
use crate::wait::{ORDINARY, allowed_times, is_strict};
use bystander::{Bystanders, Deed, Seen};
use memory::MemoryWatch;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// The longest time from a behaving client's PINGREQ to its PINGRESP.
pub const PINGRESP_WITHIN: Duration = Duration::from_secs(1);

/// 99 of 100 SETs of a behaving client are answered within this. An idle cluster takes a few milliseconds; two cores
/// that nodes, attackers and bystanders share need room.
pub const SET_P99: Duration = Duration::from_millis(250);

/// The longest time that a SET of a behaving client may take.
pub const SET_LONGEST: Duration = Duration::from_secs(1);

/// What an attack may cost a node in resident memory, unless a test says otherwise: what is written waits in memory
/// until it is flushed, whoever writes it.
pub const MEMORY_GROWTH: u64 = 160 << 20;

/// Attacks are measured for this long after their end, because what they left behind is work, too.
pub const AFTERWARDS: Duration = Duration::from_secs(2);

/// What an attack is allowed, and whom it must not touch.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Nodes on which clients behave; all of them when this is empty.
    pub nodes: Vec<usize>,
    /// Bytes by which each node's resident memory may grow.
    pub memory_growth: u64,
    /// How often the bounds of time fit into what the ordinary run allows.
    pub times: u32,
    pub afterwards: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            memory_growth: MEMORY_GROWTH,
            times: ORDINARY,
            afterwards: AFTERWARDS,
        }
    }
}

/// Runs an attack beside behaving clients, and judges them.
#[track_caller]
pub fn beside<T>(cluster: &mut Cluster, attack: impl FnOnce(&mut Cluster) -> T) -> T {
    beside_on(cluster, &Terms::default(), attack)
}

/// The same on other terms.
#[track_caller]
pub fn beside_on<T>(
    cluster: &mut Cluster,
    terms: &Terms,
    attack: impl FnOnce(&mut Cluster) -> T,
) -> T {
    let nodes: Vec<usize> = match terms.nodes.is_empty() {
        true => (0..cluster.nodes.len()).collect(),
        false => terms.nodes.clone(),
    };
    let bystanders = Bystanders::start(&cluster.addresses(), &nodes);
    let memory = MemoryWatch::start(nodes.iter().filter_map(|node| cluster.nodes[*node].pid()));
    let began = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| attack(cluster)));
    let attacked = began.elapsed();
    std::thread::sleep(terms.afterwards);
    let seen = bystanders.stop();
    let growth = memory.stop();
    let own = Own::of(&seen);
    let mut wrong: Vec<String> = seen
        .iter()
        .flat_map(|seen| violations(seen, &own, terms.times))
        .collect();
    for (node, growth) in nodes.iter().zip(&growth) {
        // When it goes back to the system is the allocator's choice.
        let bound = match is_strict() {
            true => terms.memory_growth,
            false => terms.memory_growth / 2 * 3,
        };
        if *growth > bound {
            let (grown, bound) = (growth >> 20, bound >> 20);
            wrong.push(format!(
                "node {node}: {grown} MiB more memory, {bound} MiB allowed"
            ));
        }
    }
    for node in &nodes {
        let node = &mut cluster.nodes[*node];
        if !node.is_running() {
            wrong.push(format!("node {} has ended", node.id));
        }
        if node.log_text().contains("panicked at") {
            wrong.push(format!("node {} has panicked", node.id));
        }
    }
    let grown: Vec<u64> = growth.iter().map(|bytes| bytes >> 20).collect();
    eprintln!("attacked for {attacked:.1?}; memory {grown:?} MiB more");
    for seen in &seen {
        eprintln!("  {seen}");
    }
    match outcome {
        Ok(value) if wrong.is_empty() => {
            // Where a node was killed, the others agree without it.
            if cluster.nodes.iter_mut().all(|node| node.is_running()) {
                cluster.assert_states_agree();
            }
            value
        }
        Ok(_) => panic!("beside a hostile client: {wrong:#?}"),
        Err(payload) => {
            eprintln!("besides: {wrong:#?}");
            resume_unwind(payload)
        }
    }
}

/// What the machine itself takes to wake a thread and to sync a file, both twice: the bounds are beyond that. A SET
/// waits for threads of two nodes, and for the sync that is under way besides its own. A machine whose processor or
/// disk is taken away for a moment is no node's fault.
#[derive(Default)]
struct Own {
    p99: Duration,
    longest: Duration,
}

impl Own {
    fn of(seen: &[Seen]) -> Own {
        let own = seen.iter().filter(|seen| seen.deed == Deed::Nothing);
        own.fold(Own::default(), |sum, seen| Own {
            p99: sum.p99 + 2 * seen.percentile(99),
            longest: sum.longest + 2 * seen.longest(),
        })
    }
}

/// What a behaving client must not have seen.
fn violations(seen: &Seen, own: &Own, times: u32) -> Vec<String> {
    let allowed = |bound| allowed_times(bound, times);
    let mut wrong = Vec::new();
    let who = &seen.who;
    if let Some(why) = &seen.ended {
        wrong.push(format!("{who}: {why}"));
    }
    let longest = seen.longest();
    match seen.deed {
        Deed::Ping if longest > allowed(PINGRESP_WITHIN) + own.longest => {
            wrong.push(format!("{who}: a PINGRESP after {longest:.3?}"));
        }
        Deed::Set => {
            let p99 = seen.percentile(99);
            if p99 > allowed(SET_P99) + own.p99 {
                wrong.push(format!("{who}: 99 of 100 SETs within {p99:.3?} only"));
            }
            if longest > allowed(SET_LONGEST) + own.longest {
                wrong.push(format!("{who}: a SET took {longest:.3?}"));
            }
        }
        Deed::Ping | Deed::Exchange | Deed::Nothing => {}
    }
    wrong
}

/// One node with one worker thread: whoever holds that thread up holds everybody up.
pub fn one_worker() -> Cluster {
    Cluster::start_with(crate::cluster::Plan {
        size: 1,
        extra: "[runtime]\nworker_threads = 1\n".into(),
        ..crate::cluster::Plan::default()
    })
}

/// Tests from attacks: each on three nodes, and on one node with one worker thread.
#[macro_export]
macro_rules! attacks {
    ($($attack:ident),+ $(,)?) => {
        mod three_nodes {
            $(#[test]
            fn $attack() {
                super::$attack(&mut $crate::cluster::Cluster::start());
            })+
        }
        mod one_worker {
            $(#[test]
            #[ignore = "belongs to the longer hunts: make chaos"]
            fn $attack() {
                super::$attack(&mut $crate::hostile::one_worker());
            })+
        }
    };
}
