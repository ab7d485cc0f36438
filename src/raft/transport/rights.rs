//! What a caller may do: everything only as itself, and only what its place in the membership allows.
//!
//! Raft's messages are believed by the library, so who may send them is judged here. The membership that a node knows
//! may be old: a node that was away for several changes has to accept a leader that it does not know as a voter, or it
//! would never learn of the changes. So a voter is believed at once, and so is the leader that this node follows
//! already; anybody else only when a voter that this node knows says that it votes ([`Vouching`]), and then it leads
//! only while no other leader is heard, and gets a vote only with a log that is longer than this node's, which may hold
//! the membership that makes it a voter. A node that was removed, and a learner, have nobody who says so.
//!
//! Invariant: what is refused here has changed nothing: no term, no vote, no entry, no lease.
//! Invariant: nobody, whether it votes or not, takes back what this node knows to be committed. The library takes
//! entries at or below that index for those that it has, whatever they are, and ends the process over some.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use openraft::{Instant as _, ServerState};
use tonic::Status;

use super::identity::Call;
use super::vouching::Vouching;
use super::wellformed::{self, IllFormed};
use crate::base::proto::raft::{self as pb, change_request::Change};
use crate::config::Address;
use crate::config::bounds::MAX_NODE_ID;
use crate::raft::core::encoding;
use crate::raft::core::fast_election::FastElection;
use crate::raft::core::roster::Roster;
use crate::raft::core::state_machine::CoreRaft;

/// Why a call has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRight {
    /// It speaks for another node.
    #[error("node {from} speaks for node {named}")]
    NotItself {
        /// Who calls.
        from: u64,
        /// Whom the call names.
        named: u64,
    },
    /// It leads nobody.
    #[error("node {0} has not been elected")]
    NotElected(u64),
    /// It is no voter as far as this node knows, and nothing speaks for it.
    #[error("node {0} is not a voter")]
    NotAVoter(u64),
    /// What it sends differs from what is committed.
    #[error("node {0} would take back what is committed")]
    TakesBack(u64),
    /// It is no member.
    #[error("node {0} is not a member of the cluster")]
    NotAMember(u64),
    /// A node that is no member asks for something else than to be added itself.
    #[error("node {0} may ask only to be added itself")]
    OnlyItself(u64),
    /// No working node sends such a thing.
    #[error("node {from} has sent what can't be: {why}")]
    IllFormed {
        /// Who calls.
        from: u64,
        /// What is wrong.
        why: IllFormed,
    },
}

impl From<NoRight> for Status {
    fn from(refused: NoRight) -> Status {
        match refused {
            NoRight::IllFormed { .. } => Status::invalid_argument(refused.to_string()),
            _ => Status::permission_denied(refused.to_string()),
        }
    }
}

/// Whether log ids, as index and term, can be of a log that has the entry `committed`: up to it none is of a later
/// term, and behind it none of an earlier one.
fn keeps(committed: (u64, u64), mut ids: impl Iterator<Item = (u64, u64)>) -> bool {
    let (index, term) = committed;
    ids.all(|id| match id.0.cmp(&index) {
        Ordering::Less => id.1 <= term,
        Ordering::Equal => id.1 == term,
        Ordering::Greater => id.1 >= term,
    })
}

/// Judges callers by the membership that this node has in force.
pub struct Rights {
    pub own: u64,
    pub core: CoreRaft,
    pub roster: Roster,
    pub election: Arc<FastElection>,
    pub vouching: Arc<Vouching>,
    /// How long a leader counts as heard.
    pub lease: Duration,
}

impl Rights {
    /// Whether `from` may speak as the leader that `vote` names.
    ///
    /// # Errors
    /// Why not.
    pub fn lead(&self, from: u64, vote: Option<&pb::Vote>) -> Result<(), NoRight> {
        let vote = vote.ok_or(NoRight::NotElected(from))?;
        self.believe(from, vote)?;
        if !vote.committed {
            return Err(NoRight::NotElected(from));
        }
        if !self.roster.has_voters() || self.roster.is_voter(from) || self.follows(vote) {
            return Ok(());
        }
        match !self.hears_another(from) && self.vouching.says_voter(from) {
            true => Ok(()),
            false => Err(NoRight::NotAVoter(from)),
        }
    }

    /// Whether a leader's entries leave what is committed as it is.
    ///
    /// # Errors
    /// When they don't: an elected leader has everything that is committed.
    pub fn keeps_committed(&self, from: u64, request: &pb::AppendRequest) -> Result<(), NoRight> {
        let Some(committed) = self.committed() else {
            return Ok(());
        };
        let previous = request.previous.as_ref().map(|id| (id.index, id.term));
        let entries = request
            .entries
            .iter()
            .map(|entry| (entry.index, entry.term));
        match keeps(committed, previous.into_iter().chain(entries)) {
            true => Ok(()),
            false => Err(NoRight::TakesBack(from)),
        }
    }

    /// As [`Rights::keeps_committed`], for a snapshot.
    ///
    /// # Errors
    /// When it does not.
    pub fn covers_committed(&self, from: u64, begin: &pb::SnapshotBegin) -> Result<(), NoRight> {
        let last = begin.meta.as_ref().and_then(|meta| meta.last.as_ref());
        let last = last.map(|id| (id.index, id.term));
        match self.committed() {
            Some(committed) if !keeps(committed, last.into_iter()) => Err(NoRight::TakesBack(from)),
            _ => Ok(()),
        }
    }

    /// Whether `from` may ask for this node's vote.
    ///
    /// # Errors
    /// Why not.
    pub fn stand(&self, from: u64, request: &pb::VoteRequest) -> Result<(), NoRight> {
        wellformed::vote(request).map_err(|why| NoRight::IllFormed { from, why })?;
        let vote = request.vote.as_ref().ok_or(NoRight::NotElected(from))?;
        self.believe(from, vote)?;
        if !self.roster.has_voters() || self.roster.is_voter(from) {
            return Ok(());
        }
        // Only a leader asks a node to stand while it leads itself, and it asks voters.
        let known = self.core.data_metrics().borrow_watched().last_log;
        let known = known.map(|id| id.index);
        let asked = request.last.as_ref().map(|id| id.index);
        match !request.transfer && asked > known && self.vouching.says_voter(from) {
            true => Ok(()),
            false => Err(NoRight::NotAVoter(from)),
        }
    }

    /// Whether `from` is a member, with or without a vote.
    ///
    /// # Errors
    /// When it is none.
    pub fn take_part(&self, from: u64) -> Result<(), NoRight> {
        match self.roster.contains(from) {
            true => Ok(()),
            false => Err(NoRight::NotAMember(from)),
        }
    }

    /// Whether `from` may ask for a change. Whoever wants to be a member asks for itself; a member passes on what its
    /// operator, or a node that wants to be a member, has asked it for.
    ///
    /// # Errors
    /// Why not.
    pub fn change(
        &self,
        call: Call<'_>,
        from: u64,
        request: &pb::ChangeRequest,
    ) -> Result<(), NoRight> {
        if let Some(Change::Join(node)) = &request.change {
            let ill_formed = |why| NoRight::IllFormed { from, why };
            wellformed::node(node).map_err(ill_formed)?;
            if node.id > MAX_NODE_ID {
                return Err(ill_formed(IllFormed("a node's number is too high")));
            }
            if node.address.parse::<Address>().is_err() {
                return Err(ill_formed(IllFormed("a node's address is no host:port")));
            }
            if !request.forwarded {
                let is_own = node.id == from && node.directory == call.directory();
                return match is_own {
                    true => Ok(()),
                    false => Err(NoRight::OnlyItself(from)),
                };
            }
        }
        match request.forwarded {
            true => self.take_part(from),
            false => Err(NoRight::OnlyItself(from)),
        }
    }

    /// Whether a vote is of the caller itself, in a term that can be.
    fn believe(&self, from: u64, vote: &pb::Vote) -> Result<(), NoRight> {
        if vote.node != from {
            return Err(NoRight::NotItself {
                from,
                named: vote.node,
            });
        }
        let known = self.roster.term();
        wellformed::term(vote.term, known).map_err(|why| NoRight::IllFormed { from, why })
    }

    /// Whether this node has accepted that vote already, as that of its leader.
    fn follows(&self, vote: &pb::Vote) -> bool {
        let metrics = self.core.server_metrics();
        let metrics = metrics.borrow_watched();
        encoding::vote_to(&metrics.vote) == *vote
    }

    /// Index and term of what this node knows to be committed. It may know more meanwhile.
    fn committed(&self) -> Option<(u64, u64)> {
        let metrics = self.core.data_metrics();
        let committed = metrics.borrow_watched().local_committed;
        committed.map(|id| (id.index, encoding::term_of(&id)))
    }

    /// Whether this node leads, or hears a leader other than `from`.
    fn hears_another(&self, from: u64) -> bool {
        if self.election.hears_other_than(from) {
            return true;
        }
        let metrics = self.core.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return false;
        }
        let acknowledged = metrics.last_quorum_acked;
        let has_majority = acknowledged.is_some_and(|at| at.elapsed() < self.lease);
        // It changes no membership without the only voter.
        has_majority || self.roster.is_only_voter(self.own)
    }
}
