//! A look-up in the subscription index: from a topic name to who gets its messages.
//!
//! Invariant: what a client of this node may not get is not in what is found. Every node judges its own clients; a
//! change of the rules outdates all look-ups, so no message is judged by itself.
//! Invariant: a look-up costs no more than sorting its matches, whatever they are: many sessions with one filter, one
//! session with many, or many groups. Only the few are compared one by one.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::local::LocalSubscriber;
use super::route::{Found, Logged, Own};
use super::shared::{Group, RoundRobins};
use crate::acl::Share;
use crate::base::ids::{ConnectionId, NodeId, SessionId};
use crate::base::limits;
use crate::codec::QoS;
use crate::machine::subscriptions::{Subscription, SubscriptionIndex};
use crate::mailbox::Mailbox;

/// Up to so many, the one that is looked for is found by looking at all of them.
const FEW: usize = 16;

/// Positions in a list, by session.
#[derive(Default)]
struct Positions(FxHashMap<SessionId, usize>);

impl Positions {
    /// The position of the one of `session` in `list`, if it is there. `list` only grows by [`Positions::push`].
    fn find<T>(
        &self,
        list: &[T],
        session: SessionId,
        session_of: impl Fn(&T) -> SessionId,
    ) -> Option<usize> {
        // Matches of one filter follow each other.
        if list.last().is_some_and(|last| session_of(last) == session) {
            return Some(list.len() - 1);
        }
        match list.len() {
            0..=FEW => list.iter().position(|known| session_of(known) == session),
            _ => self.0.get(&session).copied(),
        }
    }

    /// Appends to the list; returns the position.
    fn push<T>(
        &mut self,
        list: &mut Vec<T>,
        new: T,
        session_of: impl Fn(&T) -> SessionId,
    ) -> usize {
        let at = list.len();
        list.push(new);
        if at == FEW {
            let all = list.iter().enumerate();
            self.0
                .extend(all.map(|(at, known)| (session_of(known), at)));
        } else if at > FEW {
            self.0.insert(session_of(&list[at]), at);
        }
        at
    }
}

/// One look-up.
pub(super) struct LookUp<'a> {
    /// The node that looks up.
    node: NodeId,
    /// The connections of this node.
    connections: &'a FxHashMap<ConnectionId, Arc<Mailbox>>,
    /// Whose turn it is in groups.
    round_robins: &'a RoundRobins,
    found: Found,
    sessions: Positions,
    own: Positions,
    /// Members of groups, each with the filter of its group.
    members: Vec<(Arc<str>, Subscription)>,
    topic: &'a str,
    /// Sessions that keep a message with QoS 1 or 2, and with QoS 0: as many as are counted.
    queued: SmallVec<[SessionId; 4]>,
    queued_qos_0: SmallVec<[SessionId; 4]>,
}

/// Counts a session once, up to as many as count in a proposal.
fn count(seen: &mut SmallVec<[SessionId; 4]>, session: SessionId) {
    if seen.len() < limits::QUEUES_AT_LEAST && !seen.contains(&session) {
        seen.push(session);
    }
}

impl<'a> LookUp<'a> {
    /// Looks a topic name up.
    pub(super) fn find(
        node: NodeId,
        connections: &'a FxHashMap<ConnectionId, Arc<Mailbox>>,
        round_robins: &'a RoundRobins,
        subscriptions: &SubscriptionIndex,
        topic: &'a str,
    ) -> Found {
        let mut look_up = LookUp {
            node,
            connections,
            round_robins,
            // The validity is taken first: a change during the look-up makes what is found outdated.
            found: Found {
                validity: subscriptions.validity(topic),
                ..Found::default()
            },
            sessions: Positions::default(),
            own: Positions::default(),
            members: Vec::new(),
            topic,
            queued: SmallVec::new(),
            queued_qos_0: SmallVec::new(),
        };
        let mut matches = 0;
        let looked_at = subscriptions.for_each_match(topic, |group, subscription| {
            matches += 1;
            match group {
                Some(group) => look_up.members.push((group.clone(), subscription.clone())),
                None => look_up.add_match(subscription),
            }
        });
        look_up.found.looked_at = looked_at;
        look_up.found.matches = matches;
        look_up.add_groups();
        look_up.finish()
    }

    fn finish(self) -> Found {
        let mut found = self.found;
        for subscriber in found.every_local() {
            subscriber.identifiers.finish();
        }
        found.own.sort_unstable_by_key(|own| own.session);
        if found.groups.iter().any(Group::must_queue) {
            found.logged_qos_0 = Logged::All;
        }
        found.queued = self.queued.len() + found.groups.len();
        found.queued_qos_0 = self.queued_qos_0.len() + found.groups.len();
        found.count_work();
        let local: usize = found
            .every_local()
            .map(|subscriber| subscriber.bytes())
            .sum();
        let groups: usize = found.groups.iter().map(Group::bytes).sum();
        found.bytes = size_of::<Found>() + local + groups + found.own.len() * size_of::<Own>();
        found
    }

    /// Those of one group follow each other, in the order of their sessions.
    fn add_groups(&mut self) {
        let mut members = std::mem::take(&mut self.members);
        // They come sorted where one session has many of one inner filter, which a stable sort makes use of.
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (filter, subscription) in members {
            // With QoS 1 and 2, apply assigns the message to a member.
            let session = subscription.subscriber.session;
            self.found.logged.add(session, false);
            let groups = &self.found.groups;
            if groups.last().is_none_or(|last| *last.filter() != filter) {
                let new = Group::new(&filter, self.round_robins);
                self.found.groups.push(new);
            }
            self.add_member(&filter, &subscription);
        }
    }

    /// Adds a member to the last group.
    fn add_member(&mut self, filter: &str, subscription: &Subscription) {
        let Some(group) = self.found.groups.last_mut() else {
            return;
        };
        let subscriber = &subscription.subscriber;
        match subscriber.owner() {
            Some(owner) if owner.node != self.node => {
                group.add_remote(subscriber.session, owner.node);
            }
            Some(owner) => {
                if let Some(mailbox) = self.connections.get(&owner.connection)
                    && mailbox.may_receive(self.topic, share_of(filter))
                {
                    let mut member =
                        LocalSubscriber::new(subscriber.session, mailbox, QoS::AtMostOnce);
                    member.merge(subscription);
                    group.add_local(member);
                }
            }
            None if subscriber.queues(QoS::AtMostOnce) => group.add_queueing(),
            None => {}
        }
    }

    fn add_match(&mut self, subscription: &Subscription) {
        let subscriber = &subscription.subscriber;
        let (session, no_local) = (subscriber.session, subscription.no_local);
        let durable = subscriber.queues(QoS::AtLeastOnce);
        if durable && subscription.qos != QoS::AtMostOnce {
            self.found.logged.add(session, no_local);
            count(&mut self.queued, session);
        }
        if subscriber.queues(QoS::AtMostOnce) {
            self.found.logged_qos_0.add(session, no_local);
            count(&mut self.queued_qos_0, session);
        }
        let Some(owner) = subscriber.owner() else {
            return;
        };
        self.found.straight_qos_0 += 1;
        self.found.straight += usize::from(!durable || subscription.qos == QoS::AtMostOnce);
        if owner.node != self.node {
            if !self.found.remote.contains(&owner.node) {
                self.found.remote.push(owner.node);
            }
            return;
        }
        let Some(mailbox) = self.connections.get(&owner.connection) else {
            return;
        };
        let local = &mut self.found.local;
        let known = self.sessions.find(local, session, |known| known.session);
        // A client that is known was judged by its first match.
        if known.is_none() && !mailbox.may_receive(self.topic, Share::None) {
            return;
        }
        let new = || LocalSubscriber {
            durable,
            ..LocalSubscriber::new(session, mailbox, subscription.qos)
        };
        let others = known.map(|at| &local[at]);
        Self::add_own(
            &mut self.found.own,
            &mut self.own,
            others,
            subscription,
            new,
        );
        let at = match known {
            Some(at) => at,
            None => self.sessions.push(local, new(), |known| known.session),
        };
        local[at].merge(subscription);
    }

    /// Notes what No Local leaves to the session itself. `others` is what its matches so far ask for.
    fn add_own(
        own: &mut Vec<Own>,
        positions: &mut Positions,
        others: Option<&LocalSubscriber>,
        subscription: &Subscription,
        new: impl FnOnce() -> LocalSubscriber,
    ) {
        if own.is_empty() && !subscription.no_local {
            return;
        }
        let session = subscription.subscriber.session;
        let known = positions.find(own, session, |own| own.session);
        match known {
            Some(at) if !subscription.no_local => {
                own[at].copy.get_or_insert_with(new).merge(subscription);
            }
            None if subscription.no_local => {
                let copy = others.cloned();
                positions.push(own, Own { session, copy }, |own| own.session);
            }
            _ => {}
        }
    }
}

/// The share name of a group: `$share/{name}/{filter}`.
fn share_of(filter: &str) -> Share<'_> {
    let rest = filter.strip_prefix("$share/");
    let name = rest.and_then(|rest| rest.split_once('/'));
    name.map_or(Share::None, |(name, _)| Share::Of(name))
}

#[cfg(test)]
#[path = "look_up_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "look_up_work_tests.rs"]
mod work_tests;
