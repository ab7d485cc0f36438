//! Messages with QoS 0 for shared subscriptions. They do not go through the log: the publisher's node chooses.
//!
//! The index is replicated, so every node knows all members of a group and where each is connected. A node gives them
//! its publishers' messages in turn. When it is the turn of a member elsewhere, that member's node gets the message with
//! the group's name and chooses among its own members, whose mailboxes it knows; so no message can reach a client that
//! has left the group since.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::LocalSubscriber;
use crate::base::ids::{NodeId, SessionId};
use crate::base::limits;
use crate::forward::wire::Message;
use crate::mailbox::{Refused, WakeList};

/// Whose turn it is in one group, for all publishers of this node.
#[derive(Debug)]
struct Turn {
    /// Among all members.
    everywhere: AtomicUsize,
    /// Among this node's, for other nodes' messages.
    here: AtomicUsize,
}

/// Whose turn it is, by group.
#[derive(Debug)]
pub struct Turns {
    /// Nodes begin at different members.
    first: usize,
    groups: Mutex<FxHashMap<Arc<str>, Arc<Turn>>>,
}

impl Turns {
    /// The turns of a node.
    pub fn new(local: NodeId) -> Turns {
        Turns {
            first: local.0 as usize,
            groups: Mutex::default(),
        }
    }

    fn of(&self, filter: &Arc<str>) -> Arc<Turn> {
        let mut groups = self.groups.lock();
        if let Some(turn) = groups.get(filter) {
            return turn.clone();
        }
        if groups.len() >= limits::CACHED_ROUTES {
            // No route needs it.
            groups.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        let turn = Arc::new(Turn {
            everywhere: AtomicUsize::new(self.first),
            here: AtomicUsize::new(0),
        });
        groups.insert(filter.clone(), turn.clone());
        turn
    }
}

#[derive(Debug)]
enum Place {
    Here(LocalSubscriber),
    There(NodeId),
}

/// A group that a topic name matches, and those of its members that are connected.
#[derive(Debug)]
pub struct Group {
    filter: Arc<str>,
    turn: Arc<Turn>,
    /// In the order of their sessions, which is the same on all nodes.
    members: Vec<(SessionId, Place)>,
    /// Some member that is away wants messages with QoS 0 to be kept.
    keeps: bool,
}

impl Group {
    /// A group without members.
    pub fn new(filter: &Arc<str>, turns: &Turns) -> Group {
        Group {
            filter: filter.clone(),
            turn: turns.of(filter),
            members: Vec::new(),
            keeps: false,
        }
    }

    /// `$share/{name}/{filter}`.
    pub fn filter(&self) -> &Arc<str> {
        &self.filter
    }

    /// Whether a message must wait in the log until a member is connected.
    pub fn waits(&self) -> bool {
        self.members.is_empty() && self.keeps
    }

    /// Some member that is away wants messages with QoS 0 to be kept.
    pub fn keep(&mut self) {
        self.keeps = true;
    }

    /// Adds a member of this node.
    pub fn add_here(&mut self, target: LocalSubscriber) {
        self.add(target.session, Place::Here(target));
    }

    /// Adds a member of another node.
    pub fn add_there(&mut self, session: SessionId, node: NodeId) {
        self.add(session, Place::There(node));
    }

    fn add(&mut self, session: SessionId, place: Place) {
        let at = self.members.partition_point(|(known, _)| *known < session);
        self.members.insert(at, (session, place));
    }

    /// Sends a message to the member whose turn it is, or to the next one that can take it; the other node that is to do
    /// so, if that member is not here.
    pub fn send(&self, message: &Message<'_>, wake: &mut WakeList) -> Option<NodeId> {
        let turn = self.turn.everywhere.fetch_add(1, Ordering::Relaxed);
        let mut full = None;
        for (_, place) in in_turn(&self.members, turn) {
            match place {
                Place::There(node) => return Some(*node),
                Place::Here(target) => match target.push_qos_0(message, wake) {
                    Ok(()) => return None,
                    Err(refused) => full = full.or(Some((target, refused))),
                },
            }
        }
        count(full);
        None
    }

    /// The same for a message of another node, among the members of this one.
    pub fn send_here(&self, message: &Message<'_>, wake: &mut WakeList) {
        let turn = self.turn.here.fetch_add(1, Ordering::Relaxed);
        let here: SmallVec<[&LocalSubscriber; 8]> = self
            .members
            .iter()
            .filter_map(|(_, place)| match place {
                Place::Here(target) => Some(target),
                Place::There(_) => None,
            })
            .collect();
        let mut full = None;
        for &target in in_turn(&here, turn) {
            match target.push_qos_0(message, wake) {
                Ok(()) => return,
                Err(refused) => full = full.or(Some((target, refused))),
            }
        }
        count(full);
    }
}

/// All of them, beginning with the one whose turn it is.
fn in_turn<T>(members: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let first = turn.checked_rem(members.len()).unwrap_or_default();
    let (later, now) = members.split_at(first);
    now.iter().chain(later)
}

/// Nobody could take the message; it counts for the first one that was asked.
fn count(full: Option<(&LocalSubscriber, Refused)>) {
    if let Some((target, refused)) = full {
        target.mailbox.count_refused(refused);
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
