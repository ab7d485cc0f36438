//! What others say of who votes, for a node whose own membership is old.
//!
//! A node that was away for several changes does not know the leader that the others have elected since. It must not
//! believe whoever says so: a node that was removed says the same. So it asks nodes that it knows to vote for the
//! membership that they have in force, and those that its operator has named (`cluster.join`) when none of the voters
//! says anything new. A named address may be that of a node that was removed since.
//!
//! Invariant: nobody vouches for itself, and a membership that is no newer than this node's own vouches for nobody.
//! Who has said something is who the connection has proved to be at its other end, whatever its answer says.
//! Invariant: who was removed, as far as this node knows, vouches for nobody.
//! Invariant: however many calls there are, one inquiry is under way, and between two there is a pause.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::channels::{ChannelPool, RaftClient};
use crate::base::ids::{GroupId, NodeId};
use crate::base::proto::raft as pb;
use crate::raft::core::encoding;
use crate::raft::core::removed::Removed;
use crate::raft::core::roster::Roster;
use crate::raft::core::type_config::LogId;

/// How long an answer counts: longer than a leader, or a candidate, takes to try again.
const HOLDS: Duration = Duration::from_secs(10);
/// Between two inquiries.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for an answer.
const VOUCH_TIMEOUT: Duration = Duration::from_secs(2);

/// What a node has in force.
struct Membership {
    /// Proved by the connection.
    said_by: u64,
    id: LogId,
    voters: BTreeSet<u64>,
    at: Instant,
}

#[derive(Default)]
struct Known {
    memberships: Vec<Membership>,
    is_asking: bool,
    asked: Option<Instant>,
}

/// Asks who votes.
pub struct Vouching {
    group: GroupId,
    roster: Roster,
    channels: Arc<ChannelPool>,
    /// Addresses of nodes that the operator has named.
    named: Vec<String>,
    removed: Removed,
    runtime: Handle,
    known: Mutex<Known>,
}

impl Vouching {
    /// Asks the voters of `roster`, and who is at the addresses `named`, in the runtime that this is called in.
    pub fn new(
        group: GroupId,
        roster: Roster,
        channels: Arc<ChannelPool>,
        named: Vec<String>,
        removed: Removed,
    ) -> Arc<Vouching> {
        Arc::new(Vouching {
            group,
            roster,
            channels,
            named,
            removed,
            runtime: Handle::current(),
            known: Mutex::default(),
        })
    }

    /// Whether another node has said lately that `node` votes, in a membership that this node lacks. When nobody has,
    /// all are asked; the answers count the next time.
    pub fn says_voter(self: &Arc<Self>, node: u64) -> bool {
        let own = self.roster.membership_id();
        let mut known = self.known.lock();
        known
            .memberships
            .retain(|said| said.at.elapsed() < HOLDS && Some(said.id) > own);
        if self.vouched(&known.memberships, node) {
            return true;
        }
        if !known.is_asking && known.asked.is_none_or(|at| at.elapsed() >= PAUSE) {
            known.is_asking = true;
            self.runtime.spawn(Arc::clone(self).ask(node));
        }
        false
    }

    /// Whether somebody who counts has said so, in a membership that this node lacks.
    fn vouched(&self, memberships: &[Membership], node: u64) -> bool {
        let own = self.roster.membership_id();
        memberships.iter().any(|said| {
            let counts = said.said_by != node && !self.removed.contains(said.said_by);
            counts && Some(said.id) > own && said.voters.contains(&node)
        })
    }

    /// The voters that this node knows may all be former ones, with a membership that is newer than this node's and
    /// older than the present one: then who is at the named addresses is asked, too.
    async fn ask(self: Arc<Self>, node: u64) {
        let mut memberships = self.of_voters().await;
        if !self.vouched(&memberships, node) {
            memberships.extend(self.of_named().await);
        }
        let mut known = self.known.lock();
        known.memberships = memberships;
        known.asked = Some(Instant::now());
        known.is_asking = false;
    }

    /// What the voters that this node knows have in force.
    async fn of_voters(&self) -> Vec<Membership> {
        let own = self.channels.identity().node.0;
        let voters = self.roster.voters().into_iter().filter(|id| *id != own);
        let voters = voters.filter_map(|id| {
            let mut client = self.channels.raft(id, &self.roster.node(id)?).ok()?;
            Some(async move { membership(id, self.hello(&mut client).await?) })
        });
        join_all(voters).await.into_iter().flatten().collect()
    }

    /// What the nodes at the named addresses have in force.
    async fn of_named(&self) -> Vec<Membership> {
        let named = self.named.iter().map(|address| self.named_at(address));
        join_all(named).await.into_iter().flatten().collect()
    }

    async fn named_at(&self, address: &str) -> Option<Membership> {
        let mut somebody = self.channels.stranger(address, None).ok()?;
        let says_to_be = self.hello(&mut somebody).await?.node;
        // Whoever is there may give any number: only a connection to that number proves it.
        let proved = NodeId(says_to_be);
        let mut proved = self.channels.stranger(address, Some(proved)).ok()?;
        membership(says_to_be, self.hello(&mut proved).await?)
    }

    async fn hello(&self, client: &mut RaftClient) -> Option<pb::HelloReply> {
        let mut request = tonic::Request::new(pb::HelloRequest {
            group: self.group.0,
        });
        request.set_timeout(VOUCH_TIMEOUT);
        let answer = tokio::time::timeout(VOUCH_TIMEOUT, client.hello(request)).await;
        Some(answer.ok()?.ok()?.into_inner())
    }
}

/// What `said_by` has answered.
fn membership(said_by: u64, reply: pb::HelloReply) -> Option<Membership> {
    Some(Membership {
        said_by,
        id: encoding::log_id_from(reply.membership.as_ref()?),
        voters: reply.voters.into_iter().collect(),
        at: Instant::now(),
    })
}
