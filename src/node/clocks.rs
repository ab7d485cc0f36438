//! Names the nodes whose wall clock is wrong, in the log and the metrics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::base::ids::NodeId;
use crate::connection::broker::Broker;
use crate::raft::Raft;
use crate::replica::clock::{Clock, WRONG_BY_MS};

/// How often the clocks are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the node stops.
pub(super) async fn run(broker: Arc<Broker>, raft: Raft) {
    let mut wrong = BTreeSet::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let clock = &broker.services.clock;
        let local = broker.settings.node;
        let leads = raft.leadership().borrow().is_leader;
        let members: Vec<NodeId> = match leads {
            true => {
                let members = raft.status().members.into_iter();
                members.map(|member| NodeId(member.node)).collect()
            }
            false => vec![local],
        };
        let clocks = members
            .into_iter()
            .filter_map(|node| Some((node, ahead_ms(clock, node, local, leads)?)));
        name(clocks, &mut wrong);
        let own = clock.own_ahead_ms().unwrap_or_default();
        broker.metrics.clock_off_ms.set(own.unsigned_abs());
        let count = if leads { wrong.len() } else { 0 };
        broker.metrics.clocks_wrong.set(count as u64);
    }
}

fn ahead_ms(clock: &Clock, node: NodeId, local: NodeId, leads: bool) -> Option<i64> {
    match leads {
        true => clock.ahead_ms(node),
        false => (node == local).then(|| clock.own_ahead_ms()).flatten(),
    }
}

/// Names each clock once when it turns out to be wrong, and once when it is right again.
fn name(clocks: impl Iterator<Item = (NodeId, i64)>, wrong: &mut BTreeSet<NodeId>) {
    let former = std::mem::take(wrong);
    for (node, ahead_ms) in clocks {
        if ahead_ms.unsigned_abs() > WRONG_BY_MS {
            wrong.insert(node);
            if !former.contains(&node) {
                tracing::error!(
                    node = node.0,
                    ahead_ms,
                    "the wall clock of the node that is named is wrong: a majority of the nodes' clocks shows another time; \
                     log time does not follow it"
                );
            }
        } else if former.contains(&node) {
            tracing::info!(
                node = node.0,
                ahead_ms,
                "the wall clock of the node that is named is right again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_is_known_until_it_is_right() {
        let mut wrong = BTreeSet::new();
        let clocks = |off| [(NodeId(1), 20), (NodeId(2), off)].into_iter();
        name(clocks(-300_000), &mut wrong);
        assert_eq!(wrong, BTreeSet::from([NodeId(2)]));
        name(clocks(-300_000), &mut wrong);
        assert_eq!(wrong.len(), 1);
        name(clocks(300), &mut wrong);
        assert!(wrong.is_empty());
    }
}
