//! The comparison of the replicas' states: when the leader has them hashed, and how an operator has.
//!
//! What is found is judged by apply on every node ([`crate::replica::applier`]); here it is only asked for.
//!
//! Invariant: whoever may ask for comparisons keeps none from coming to its end by asking again: it joins the one that
//! is under way. A newer round would have every node begin anew.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;

use super::one_run::{OneRun, Run};
use crate::base::ids::{Incarnation, LogIndex, NodeId};
use crate::base::proto::command::{self, command::Kind};
use crate::connection::broker::Broker;
use crate::http::{AdminError, Differs, VerifyAnswer};
use crate::machine::effect::Reply;
use crate::machine::state_hash::{HashRound, verdict};
use crate::raft::Raft;
use crate::replica::share::Share;
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

/// And when this many times as long has passed as the last comparison took, or the interval: a large state is read for
/// a good part of a minute, by processors that clients need, too.
const REST: u32 = 10;

/// Has the states compared.
pub(super) struct StateComparison {
    broker: Arc<Broker>,
    raft: Raft,
    asked: OneRun<Result<VerifyAnswer, AdminError>>,
    /// The last round that somebody was waiting for.
    seen: Mutex<Option<Seen>>,
}

/// A round, and who was live when it was seen first.
#[derive(Clone, Debug)]
struct Seen {
    index: u64,
    live: Vec<(NodeId, Incarnation)>,
}

impl Seen {
    /// Whether `missing` may still answer: a node that has started anew since does not.
    fn goes_on(&self, missing: &[u64], live: &[(NodeId, Incarnation)]) -> bool {
        let was_live = |node: &u64| {
            let mut present = live.iter().filter(|(id, _)| id.0 == *node);
            present.any(|present| self.live.contains(present))
        };
        !missing.is_empty() && missing.iter().all(was_live)
    }
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
    /// How long the last round took, as far as this node has seen it.
    took: Duration,
}

/// What this node has seen of the last round while it led.
#[derive(Debug, Default)]
struct Observed {
    round: Option<u64>,
    /// Snapshots that this node had built when it saw the round first.
    snapshots: u64,
    took: Duration,
}

impl Observed {
    /// Looks at the last round, which began `passed` ago. A round that is given up, because a node has not answered
    /// for [`HASH_TIMEOUT`], says nothing of how long one takes.
    fn look(&mut self, round: Option<u64>, snapshots: u64, is_under_way: bool, passed: Duration) {
        if self.round != round {
            *self = Observed {
                round,
                snapshots,
                took: Duration::ZERO,
            };
        }
        if is_under_way {
            self.took = match passed < HASH_TIMEOUT {
                true => passed,
                false => Duration::ZERO,
            };
        }
    }
}

fn is_due(interval: Duration, now: Situation) -> bool {
    let wait = match now.has_snapshot {
        true => interval.min((interval / AFTER_SNAPSHOT).max(REST * now.took)),
        false => interval,
    };
    let is_busy = now.is_under_way && now.passed < HASH_TIMEOUT;
    now.has_changed && !is_busy && now.passed >= wait
}

impl StateComparison {
    pub(super) fn new(broker: Arc<Broker>, raft: Raft) -> Arc<StateComparison> {
        Arc::new(StateComparison {
            broker,
            raft,
            asked: OneRun::default(),
            seen: Mutex::default(),
        })
    }

    /// Runs until the node stops; proposes while it leads.
    pub(super) async fn run(self: Arc<Self>, interval: Duration) {
        if interval.is_zero() {
            return;
        }
        let since = self.broker.services.clock.now();
        let mut observed = Observed::default();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let voters = self.raft.voters();
            if !self.raft.leadership().borrow().is_leader || voters.len() < 2 {
                continue;
            }
            let services = &self.broker.services;
            let last = services.view.hash_round();
            let built = self.raft.metrics().snapshots_built.load(Relaxed);
            let started_ms = last.as_ref().map_or(since.0, |(_, last)| last.started_ms);
            let passed = services.clock.now().0.saturating_sub(started_ms);
            let passed = Duration::from_millis(passed);
            let is_under_way = last
                .as_ref()
                .is_some_and(|(_, last)| !self.missing(last).is_empty());
            let round = last.as_ref().map(|(_, last)| last.index);
            observed.look(round, built, is_under_way, passed);
            let changed_at = last
                .as_ref()
                .map_or(LogIndex(0), |(changed_at, _)| *changed_at);
            let now = Situation {
                passed,
                is_under_way,
                has_changed: services.view.applied() > changed_at,
                has_snapshot: built > observed.snapshots,
                took: observed.took,
            };
            if is_due(interval, now) {
                let asked = tokio::time::timeout(PROPOSAL_TIMEOUT, self.begin(voters));
                // Without an answer it is due again in the next round.
                let _ = asked.await;
            }
        }
    }

    /// Begins a round; the log entry that names it.
    async fn begin(&self, voters: Vec<NodeId>) -> Result<LogIndex, AdminError> {
        let command = Kind::HashState(command::HashState {
            voters: voters.into_iter().map(|voter| voter.0).collect(),
        });
        let proposer = &self.broker.services.proposer;
        match proposer.propose(Share::Administration, command).await? {
            Reply::HashesState(index) => Ok(index),
            reply => Err(AdminError::Internal(format!("{reply:?}"))),
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

    /// Compares the states now; who asks while they are compared gets that answer.
    ///
    /// # Errors
    /// When no round could be begun.
    pub(super) fn verify(self: &Arc<Self>) -> Run<Result<VerifyAnswer, AdminError>> {
        let comparison = self.clone();
        let begin = || async move { comparison.compare().await }.boxed();
        self.asked.join(begin)
    }

    /// The round that somebody has waited for in vain: the states are so large that it takes longer.
    fn unfinished(&self) -> Option<LogIndex> {
        let seen = self.seen.lock().clone()?;
        let services = &self.broker.services;
        let (_, round) = services.view.hash_round()?;
        let passed = services.clock.now().0.saturating_sub(round.started_ms);
        let goes_on = round.index == seen.index
            && Duration::from_millis(passed) < HASH_TIMEOUT
            && seen.goes_on(&self.missing(&round), &services.view.live_nodes());
        goes_on.then_some(LogIndex(round.index))
    }

    async fn compare(&self) -> Result<VerifyAnswer, AdminError> {
        let index = match self.unfinished() {
            Some(index) => index,
            None => self.begin(self.raft.voters()).await?,
        };
        let deadline = tokio::time::Instant::now() + VERIFY_TIMEOUT;
        loop {
            let last = self.broker.services.view.hash_round();
            // A newer round covers what this one would have.
            if let Some((_, round)) = last.filter(|(_, round)| round.index >= index.0) {
                self.see(&round);
                let missing = self.missing(&round);
                if missing.is_empty() || tokio::time::Instant::now() >= deadline {
                    return Ok(answer(&round, missing));
                }
            }
            tokio::time::sleep(ANSWER_CHECK_INTERVAL).await;
        }
    }

    fn see(&self, round: &HashRound) {
        let mut seen = self.seen.lock();
        if seen.as_ref().is_none_or(|seen| seen.index != round.index) {
            *seen = Some(Seen {
                index: round.index,
                live: self.broker.services.view.live_nodes(),
            });
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
        let of_large_states = Situation {
            took: interval / 40,
            ..after_snapshot
        };
        assert!(!is_due(interval, of_large_states));
        for (took, passed) in [(interval / 40, interval / 4), (interval, interval)] {
            let rested = Situation {
                took,
                passed,
                ..after_snapshot
            };
            assert!(is_due(interval, rested), "{took:?}");
        }
    }

    #[test]
    fn a_round_takes_as_long_as_it_was_seen_under_way() {
        let second = Duration::from_secs(1);
        let mut observed = Observed::default();
        observed.look(None, 3, false, 700 * second);
        assert_eq!((observed.snapshots, observed.took), (0, Duration::ZERO));
        observed.look(Some(7), 4, true, second);
        observed.look(Some(7), 5, true, 42 * second);
        observed.look(Some(7), 5, false, 43 * second);
        observed.look(Some(7), 6, false, 99 * second);
        assert_eq!((observed.snapshots, observed.took), (4, 42 * second));
        let after_snapshot = Situation {
            has_changed: true,
            has_snapshot: true,
            took: observed.took,
            ..Situation::default()
        };
        let is_due_after = |seconds| {
            let passed = seconds * second;
            let now = Situation {
                passed,
                ..after_snapshot
            };
            is_due(600 * second, now)
        };
        assert!(!is_due_after(419) && is_due_after(420));

        observed.look(Some(8), 6, false, second);
        assert_eq!((observed.snapshots, observed.took), (6, Duration::ZERO));
        observed.look(Some(8), 6, true, HASH_TIMEOUT - second);
        assert_eq!(observed.took, HASH_TIMEOUT - second);
        observed.look(Some(8), 6, true, HASH_TIMEOUT);
        assert_eq!(observed.took, Duration::ZERO, "it is given up");
        let given_up = Situation {
            passed: HASH_TIMEOUT,
            is_under_way: true,
            took: observed.took,
            ..after_snapshot
        };
        for interval in [600, 3_000] {
            assert!(is_due(interval * second, given_up), "{interval}");
        }
    }

    #[test]
    fn a_round_is_joined_while_all_that_are_missing_may_answer() {
        let node = |id, incarnation| (NodeId(id), Incarnation(incarnation));
        let seen = Seen {
            index: 7,
            live: vec![node(1, 1), node(2, 1), node(3, 4)],
        };
        let same = seen.live.clone();
        assert!(seen.goes_on(&[2], &same) && seen.goes_on(&[2, 3], &same));
        assert!(!seen.goes_on(&[], &same), "it has ended");
        let restarted = [node(1, 1), node(2, 2), node(3, 4)];
        assert!(!seen.goes_on(&[2, 3], &restarted));
        assert!(seen.goes_on(&[3], &restarted), "2 has answered before");
        assert!(!seen.goes_on(&[4], &[node(4, 1)]), "it came later");
    }
}
