//! A trial: a cluster with publishers and subscribers suffers a fault, and everything that they recorded is judged.

use super::load::{Load, Shape};
use crate::check::kv::assert_none;
use crate::check::{delivery, redelivery};
use crate::cluster::Cluster;
use crate::record::Record;
use std::time::Duration;

/// How long a cluster may take to acknowledge again after a fault.
pub const RECOVERY: Duration = Duration::from_secs(20);

/// How many violations are printed. The first ones say what went wrong; most others follow from them.
const PRINTED: usize = 40;

/// What a trial showed.
#[derive(Debug, Clone, Copy)]
pub struct TrialResult {
    pub accepted: usize,
    pub refused: usize,
    pub delivered: usize,
    /// PUBLISHes with DUP 1 that subscribers got.
    pub duplicates: usize,
    /// Connections beyond the first of each client.
    pub reconnects: usize,
    /// Longest time between two acknowledgements.
    pub longest_gap_ms: u64,
}

impl TrialResult {
    pub fn of(record: &Record) -> Self {
        use crate::record::Event;
        let mut result = Self {
            accepted: record.accepted().count(),
            refused: 0,
            delivered: 0,
            duplicates: 0,
            reconnects: 0,
            longest_gap_ms: record.longest_gap_ms(),
        };
        for publisher in &record.publishers {
            let refused = |sent: &&crate::record::Sent| sent.refused.is_some();
            result.refused += publisher.messages.iter().filter(refused).count();
            result.reconnects += publisher.present.len().saturating_sub(1);
        }
        for subscriber in &record.subscribers {
            result.delivered += subscriber.deliveries().len();
            let mut connections = 0_usize;
            for (_, event) in &subscriber.events {
                match event {
                    Event::Connected { .. } => connections += 1,
                    Event::Publish(arrival) if arrival.duplicate => result.duplicates += 1,
                    _ => {}
                }
            }
            result.reconnects += connections.saturating_sub(1);
        }
        result
    }
}

/// Loads the cluster, applies `fault`, which must leave all nodes running, and judges D1 to D7, D9, S1 to S3. A
/// violation is reported with the seed.
#[track_caller]
pub fn with(
    cluster: &mut Cluster,
    shape: &Shape,
    fault: impl FnOnce(&mut Cluster, &Load),
) -> TrialResult {
    eprintln!("trial {} begins, seed {}", shape.name, shape.seed);
    let load = Load::start(&cluster.addresses(), shape);
    load.wait_progress(100, RECOVERY);
    fault(cluster, &load);
    load.wait_progress(100, RECOVERY);
    cluster.wait_ready();
    cluster.assert_states_agree();
    let result = judge(shape, &load.stop());
    for node in &cluster.nodes {
        let panicked = node.log_text().contains("panicked at");
        assert!(!panicked, "C2: node {} has panicked", node.id);
    }
    result
}

/// D1 to D7, D9, S1 to S3: every violation, one line each.
pub fn violations(record: &Record) -> Vec<String> {
    let packets = record.subscribers.iter().flat_map(redelivery::violations);
    let mut found = delivery::violations(record);
    found.extend(packets);
    found
}

/// Judges what the clients of a load wrote down; panics with every violation.
#[track_caller]
pub fn judge(shape: &Shape, record: &Record) -> TrialResult {
    let result = TrialResult::of(record);
    eprintln!("trial {}, seed {}: {result:?}", shape.name, shape.seed);
    let mut violations = violations(record);
    let count = violations.len();
    if count > 0 && std::env::var_os("QUORUMQ_KEEP").is_some() {
        keep(shape, record);
    }
    violations.truncate(PRINTED);
    if count > 0 {
        violations.insert(
            0,
            format!("{} with seed {}: {count} in all", shape.name, shape.seed),
        );
    }
    assert_none(&violations);
    result
}

/// Writes the record to a file, one line per message or event, for the analysis of a violation.
fn keep(shape: &Shape, record: &Record) {
    use std::fmt::Write as _;
    let mut text = String::new();
    for publisher in &record.publishers {
        for sent in &publisher.messages {
            let _ = writeln!(text, "{}: {sent:?}", publisher.client_id);
        }
    }
    for subscriber in &record.subscribers {
        for (at, event) in &subscriber.events {
            let _ = writeln!(text, "{} {at} ms: {event:?}", subscriber.shape.client_id);
        }
    }
    let path = std::env::temp_dir().join(format!("quorumq-record-{}.txt", shape.name));
    match std::fs::write(&path, text) {
        Ok(()) => eprintln!("kept: {}", path.display()),
        Err(error) => eprintln!("{}: {error}", path.display()),
    }
}
