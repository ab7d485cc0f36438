//! Shared subscriptions, for messages with QoS 0. Such messages do not go through the log: the node of the publisher
//! chooses the member that gets each of them.
//!
//! The subscription index is replicated, so every node knows all members of a group and the node each is connected to.
//! A node gives the members its publishers' messages in turn. When it is the turn of a member of another node, that
//! node gets the message with the name of the group, and chooses among its own members, whose mailboxes it knows. So no
//! message reaches a client that has left the group in the meantime.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::local::LocalSubscriber;
use super::message::Message;
use crate::base::ids::{NodeId, SessionId};
use crate::base::limits;
use crate::mailbox::{Refused, WakeList};

/// The turns of one group, for all publishers of this node.
#[derive(Debug)]
struct RoundRobin {
    /// Among the members of all nodes, for messages that were published on this one.
    all: AtomicUsize,
    /// Among the members of this node, for messages that were published on others.
    local: AtomicUsize,
}

/// Members that are offered a message; those after them are not asked when none of these can take it.
const OFFERS: usize = 64;

/// The turns of all groups.
#[derive(Debug)]
pub(super) struct RoundRobins {
    /// The first turn in every group. Nodes begin with different members.
    first: usize,
    groups: Mutex<Turns>,
}

#[derive(Debug)]
struct Turns {
    /// Clients choose filters, so they are hashed with a random seed.
    of_group: HashMap<Arc<str>, Arc<RoundRobin>>,
    /// So many may be there before those that no route refers to go. Twice as many as stayed the last time, so that
    /// looking for them costs each new group a few looks, however many groups there are.
    most: usize,
}

impl RoundRobins {
    pub(super) fn new(local: NodeId) -> RoundRobins {
        RoundRobins {
            first: local.0 as usize,
            groups: Mutex::new(Turns {
                of_group: HashMap::new(),
                most: limits::CACHED_ROUTES,
            }),
        }
    }

    fn of(&self, filter: &Arc<str>) -> Arc<RoundRobin> {
        let mut groups = self.groups.lock();
        let Turns { of_group, most } = &mut *groups;
        if let Some(turns) = of_group.get(filter) {
            return turns.clone();
        }
        if of_group.len() >= *most {
            // Those that no route refers to begin anew when they are needed.
            of_group.retain(|_, turns| Arc::strong_count(turns) > 1);
            *most = limits::CACHED_ROUTES.max(2 * of_group.len());
        }
        let turns = Arc::new(RoundRobin {
            all: AtomicUsize::new(self.first),
            local: AtomicUsize::new(0),
        });
        of_group.insert(filter.clone(), turns.clone());
        turns
    }
}

#[derive(Debug)]
enum MemberLocation {
    Local(LocalSubscriber),
    Remote(NodeId),
}

/// A group that a topic name matches, with those of its members that are connected.
#[derive(Debug)]
pub(super) struct Group {
    filter: Arc<str>,
    turns: Arc<RoundRobin>,
    /// In the order of their sessions, which is the same on all nodes.
    members: Vec<(SessionId, MemberLocation)>,
    /// Positions of those that are connected to this node.
    local: Vec<u32>,
    /// Some member that is not connected wants messages with QoS 0 to be queued.
    queues: bool,
}

impl Group {
    /// A group without members.
    pub(super) fn new(filter: &Arc<str>, turns: &RoundRobins) -> Group {
        Group {
            filter: filter.clone(),
            turns: turns.of(filter),
            members: Vec::new(),
            local: Vec::new(),
            queues: false,
        }
    }

    /// `$share/{name}/{filter}`.
    pub(super) fn filter(&self) -> &Arc<str> {
        &self.filter
    }

    /// Whether a message must be queued in the log until a member is connected.
    pub(super) fn must_queue(&self) -> bool {
        self.members.is_empty() && self.queues
    }

    /// Adds a member that is not connected and wants messages with QoS 0 to be queued.
    pub(super) fn add_queueing(&mut self) {
        self.queues = true;
    }

    /// Members that are asked when all of them refuse.
    pub(super) fn offers(&self) -> usize {
        self.members.len().min(OFFERS)
    }

    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let member = size_of::<(SessionId, MemberLocation)>() + size_of::<u32>();
        size_of::<Group>() + self.members.len() * member
    }

    /// Adds a member that is connected to this node. Members are added in the order of their sessions.
    pub(super) fn add_local(&mut self, subscriber: LocalSubscriber) {
        self.local.push(self.members.len() as u32);
        self.add(subscriber.session, MemberLocation::Local(subscriber));
    }

    /// Adds a member that is connected to another node. Members are added in the order of their sessions.
    pub(super) fn add_remote(&mut self, session: SessionId, node: NodeId) {
        self.add(session, MemberLocation::Remote(node));
    }

    fn add(&mut self, session: SessionId, location: MemberLocation) {
        debug_assert!(self.members.last().is_none_or(|(last, _)| *last < session));
        self.members.push((session, location));
    }

    /// Delivers a message to the member whose turn it is, or to the next one that can take it. If that is a member of
    /// another node, returns the node, which is to deliver it.
    pub(super) fn deliver(&self, message: &Message<'_>, wake: &mut WakeList) -> Option<NodeId> {
        let turn = self.turns.all.fetch_add(1, Ordering::Relaxed);
        let mut first_refused = None;
        for (_, location) in in_turn(&self.members, turn).take(OFFERS) {
            match location {
                MemberLocation::Remote(node) => return Some(*node),
                MemberLocation::Local(subscriber) => {
                    match subscriber.push_qos_0(message, None, wake) {
                        Ok(()) => return None,
                        Err(refused) => {
                            first_refused = first_refused.or(Some((subscriber, refused)));
                        }
                    }
                }
            }
        }
        count(first_refused);
        None
    }

    /// Delivers a message that was published on another node to a member of this one.
    pub(super) fn deliver_local(&self, message: &Message<'_>, wake: &mut WakeList) {
        let turn = self.turns.local.fetch_add(1, Ordering::Relaxed);
        let mut first_refused = None;
        for at in in_turn(&self.local, turn).take(OFFERS) {
            let MemberLocation::Local(subscriber) = &self.members[*at as usize].1 else {
                continue;
            };
            match subscriber.push_qos_0(message, None, wake) {
                Ok(()) => return,
                Err(refused) => first_refused = first_refused.or(Some((subscriber, refused))),
            }
        }
        count(first_refused);
    }
}

/// All members, beginning with the one whose turn it is.
fn in_turn<T>(members: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let first = turn.checked_rem(members.len()).unwrap_or_default();
    let (later, now) = members.split_at(first);
    now.iter().chain(later)
}

/// Counts a message that no member could take, for the first one that refused it.
fn count(first_refused: Option<(&LocalSubscriber, Refused)>) {
    if let Some((subscriber, refused)) = first_refused {
        subscriber.mailbox.count_refused(refused);
    }
}

#[cfg(test)]
impl Group {
    /// What the group says, for comparison.
    pub(super) fn shown(&self) -> String {
        let place = |location: &MemberLocation| match location {
            MemberLocation::Local(subscriber) => format!("{:?}", subscriber.mailbox.connection),
            MemberLocation::Remote(node) => format!("{node:?}"),
        };
        let members: Vec<_> = self
            .members
            .iter()
            .map(|(session, at)| (*session, place(at)))
            .collect();
        format!("{} {members:?} {}", self.filter, self.queues)
    }
}
