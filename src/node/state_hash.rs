//! The comparison of the replicas' states: when the leader has them hashed, and how an operator has.
//!
//! What is found is judged by apply on every node ([`crate::replica::applier`]); here it is only asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::base::ids::{LogIndex, NodeId};
use crate::base::proto::command::{self, command::Kind};
use crate::connection::broker::Broker;
use crate::http::{AdminError, Differs, VerifyAnswer};
use crate::machine::effect::Reply;
use crate::machine::state_hash::{HashRound, verdict};
use crate::raft::Raft;
use crate::replica::state_hasher::HASH_TIMEOUT;

/// How often it is looked whether the states are to be compared.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the proposal may take before the leader goes on; it may take effect later.
const PROPOSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an operator's request waits for the nodes; shorter than the request itself may take.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(25);

/// How often such a request looks.
const ANSWER_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// After a snapshot the states are compared when this part of the interval has passed.
const AFTER_SNAPSHOT: u32 = 10;

/// Has the states compared.
pub(super) struct StateComparison {
    pub(super) broker: Arc<Broker>,
    pub(super) raft: Raft,
}

/// What is known when it is decided whether the states are to be compared.
#[derive(Clone, Copy, Debug, Default)]
struct Situation {
    /// Time since the last round began; without one, since this task did.
    passed: Duration,
    /// Nodes that are live have not answered yet.
    is_under_way: bool,
    /// Something was applied since the last answer.
    has_changed: bool,
    /// A snapshot was built since the last round began.
    has_snapshot: bool,
}

fn is_due(interval: Duration, now: Situation) -> bool {
    let wait = match now.has_snapshot {
        true => interval / AFTER_SNAPSHOT,
        false => interval,
    };
    let is_busy = now.is_under_way && now.passed < HASH_TIMEOUT;
    now.has_changed && !is_busy && now.passed >= wait
}

impl StateComparison {
    /// Runs until the node stops; proposes while it leads.
    pub(super) async fn run(self, interval: Duration) {
        if interval.is_zero() {
            return;
        }
        let since = self.broker.services.clock.now();
        let (mut round, mut snapshots) = (None, 0);
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let voters = self.raft.voters();
            if !self.raft.leadership().borrow().is_leader || voters.len() < 2 {
                continue;
            }
            let services = &self.broker.services;
            let last = services.view.hash_round();
            let built = self.raft.metrics().snapshots_built.load(Relaxed);
            let present = last.as_ref().map(|(_, last)| last.index);
            if round != present {
                (round, snapshots) = (present, built);
            }
            let started_ms = last.as_ref().map_or(since.0, |(_, last)| last.started_ms);
            let passed = services.clock.now().0.saturating_sub(started_ms);
            let changed_at = last
                .as_ref()
                .map_or(LogIndex(0), |(changed_at, _)| *changed_at);
            let now = Situation {
                passed: Duration::from_millis(passed),
                is_under_way: last.is_some_and(|(_, last)| !self.missing(&last).is_empty()),
                has_changed: services.view.applied() > changed_at,
                has_snapshot: built > snapshots,
            };
            if is_due(interval, now) {
                let asked = tokio::time::timeout(PROPOSAL_TIMEOUT, self.begin(voters));
                // Without an answer it is due again in the next round.
                let _ = asked.await;
            }
        }
    }

    /// Begins a round; the log entry that names it.
    async fn begin(&self, voters: Vec<NodeId>) -> Option<LogIndex> {
        let command = Kind::HashState(command::HashState {
            voters: voters.into_iter().map(|voter| voter.0).collect(),
        });
        match self.broker.services.proposer.propose(command).await {
            Some(Reply::HashesState(index)) => Some(index),
            _ => None,
        }
    }

    /// Live voters that have not answered.
    fn missing(&self, round: &HashRound) -> Vec<u64> {
        let live = self.broker.services.view.live_nodes();
        let live = live.into_iter().map(|(node, _)| node.0);
        live.filter(|node| {
            let has_answered = round.nodes.iter().any(|said| said.node == *node);
            round.voters.contains(node) && !has_answered
        })
        .collect()
    }

    /// Compares the states now.
    ///
    /// # Errors
    /// When no round could be begun.
    pub(super) async fn verify(&self) -> Result<VerifyAnswer, AdminError> {
        let Some(index) = self.begin(self.raft.voters()).await else {
            return Err(AdminError::NoLeader(
                "the states were not compared".to_owned(),
            ));
        };
        let deadline = tokio::time::Instant::now() + VERIFY_TIMEOUT;
        loop {
            let last = self.broker.services.view.hash_round();
            // A newer round covers what this one would have.
            if let Some((_, round)) = last.filter(|(_, round)| round.index >= index.0) {
                let missing = self.missing(&round);
                if missing.is_empty() || tokio::time::Instant::now() >= deadline {
                    return Ok(answer(&round, missing));
                }
            }
            tokio::time::sleep(ANSWER_CHECK_INTERVAL).await;
        }
    }
}

fn answer(round: &HashRound, missing: Vec<u64>) -> VerifyAnswer {
    let verdict = verdict(round);
    let differ = verdict.odd.into_iter().map(|odd| Differs {
        node: odd.node.0,
        tables: odd.tables,
    });
    VerifyAnswer {
        index: round.index,
        same: verdict.right.into_iter().map(|node| node.0).collect(),
        differ: differ.collect(),
        disputed: verdict.disputed,
        missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_compared_when_something_has_changed_and_nobody_is_at_it() {
        let interval = Duration::from_secs(600);
        let due = Situation {
            passed: interval,
            has_changed: true,
            ..Situation::default()
        };
        assert!(is_due(interval, due));
        for early in [
            Situation {
                passed: interval - CHECK_INTERVAL,
                ..due
            },
            Situation {
                has_changed: false,
                ..due
            },
            Situation {
                is_under_way: true,
                ..due
            },
            Situation {
                has_snapshot: true,
                passed: interval / 20,
                ..due
            },
        ] {
            assert!(!is_due(interval, early), "{early:?}");
        }
        let after_snapshot = Situation {
            has_snapshot: true,
            passed: interval / 10,
            ..due
        };
        assert!(is_due(interval, after_snapshot));
        let given_up = Situation {
            is_under_way: true,
            passed: HASH_TIMEOUT,
            ..due
        };
        assert!(is_due(interval, given_up));
    }
}
