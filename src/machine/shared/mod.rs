//! Shared subscriptions: every share name with its filter is a group, and every message for it goes to one member
//! (MQTT 5, 4.8.2).
//!
//! A member gets a message when it can be sent it at once: it has a connection, and its client's receive maximum and
//! its queue have room. When no member can, the message waits with the group. Members take turns in the order of their
//! sessions. What a member was sent with QoS 1 and has not acknowledged goes back to the front of the group when its
//! connection ends and another member is connected, or when its session ends; QoS 2 under way stays with its session
//! `[MQTT-4.8.2-5]`.

mod give_back;
mod group;
mod purge;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::batch::Batch;
use super::effect::{ApplicationMessage, DropReason, Output};
use super::queue::message::{self, Storing};
use super::queue::{DROP_COST, Queues, drop_policy, most_drops};
use super::schema;
use super::schema::timer::Kind;
use super::subscriptions::Subscriber;
use super::tables::Backing;
use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::session::delivery::{Delivery, remaining_s};
use crate::session::{DropPolicy, MessageId, QoS, Queued};
use group::{Group, GroupMember};
pub(super) use purge::go_on_purging;

/// Row operations that giving a waiting message to a member takes.
const GIVE_COST: usize = 8;

/// Shared filters of a session, or groups in which messages wait, that are looked through for nothing: nearly every
/// session has fewer.
const LOOKED_THROUGH_FREE: usize = 64;

/// How many of them are looked through in the time of a row operation.
const LOOKED_THROUGH_PER_ROW_OPERATION: usize = 8;

/// All groups; derived from the tables.
#[derive(Default)]
pub(super) struct SharedGroups {
    /// Clients choose filters, so they are hashed with a random seed; nothing visits them in the order of the table.
    by_filter: HashMap<Arc<str>, Group>,
    filters: FxHashMap<u64, Arc<str>>,
    /// The shared filters of each session, in one order on all replicas. Invariant: no set is empty.
    of_session: FxHashMap<SessionId, BTreeSet<Arc<str>>>,
    /// The groups in which messages wait.
    waiting: BTreeSet<Arc<str>>,
}

impl SharedGroups {
    /// Forgets everything and reads the groups; their members follow with [`SharedGroups::restore_member`].
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = SharedGroups::default();
        backing.rows::<schema::Group>(&schema::Range::all(), |filter, row| {
            self.add_group(&filter.into(), Group::stored(row.decode()));
            true
        });
    }

    /// A member as it is stored; nothing happens when the filter is not shared.
    pub fn restore_member(
        &mut self,
        filter: &str,
        subscriber: Arc<Subscriber>,
        row: &state::Subscription,
    ) {
        self.add_member(&filter.into(), subscriber, row);
    }

    fn add_group(&mut self, filter: &Arc<str>, group: Group) {
        self.filters.insert(group.id(), filter.clone());
        if group.row.messages > 0 {
            self.waiting.insert(filter.clone());
        }
        self.by_filter.insert(filter.clone(), group);
    }

    fn add_member(
        &mut self,
        filter: &Arc<str>,
        subscriber: Arc<Subscriber>,
        row: &state::Subscription,
    ) {
        let session = subscriber.session;
        let Some(group) = self.by_filter.get_mut(filter) else {
            return;
        };
        let member = GroupMember::new(subscriber, row);
        group.members.insert(session, member);
        let filters = self.of_session.entry(session).or_default();
        filters.insert(filter.clone());
    }

    /// Number of groups.
    pub fn count(&self) -> u64 {
        self.by_filter.len() as u64
    }

    /// Number of members of a group.
    pub fn members(&self, filter: &str) -> usize {
        let group = self.by_filter.get(filter);
        group.map_or(0, |group| group.members.len())
    }

    /// Whether a shared filter has a group.
    pub fn has(&self, filter: &str) -> bool {
        self.by_filter.contains_key(filter)
    }

    /// A session subscribes to a shared filter, or does so again with other options.
    pub fn join(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        filter: &str,
        subscriber: Arc<Subscriber>,
        row: &state::Subscription,
    ) {
        let session = subscriber.session;
        if !queues.load(batch, session, &subscriber.client_id) {
            return;
        }
        let filter: Arc<str> = filter.into();
        if !self.by_filter.contains_key(&filter) {
            let Some(bounds) = queues.bounds(session) else {
                return;
            };
            let group = Group::new(batch.meta.new_group(), batch.meta.last_message(), &bounds);
            self.add_group(&filter, group);
            self.put_row(batch, &filter);
        }
        self.add_member(&filter, subscriber, row);
        queues.touch(session);
    }

    /// A session does not subscribe to a shared filter any more.
    pub fn leave(&mut self, batch: &mut Batch<'_, '_>, filter: &str, session: SessionId) {
        if let Some(filters) = self.of_session.get_mut(&session) {
            filters.remove(filter);
            if filters.is_empty() {
                self.of_session.remove(&session);
            }
        }
        let Some(group) = self.by_filter.get_mut(filter) else {
            return;
        };
        group.members.remove(&session);
        if group.members.is_empty() {
            let (id, has_messages) = (group.id(), group.row.messages > 0);
            self.by_filter.remove(filter);
            self.filters.remove(&id);
            self.waiting.remove(filter);
            batch.tables.delete::<schema::Group>(filter);
            if has_messages {
                purge::purge(batch, id);
            }
        }
    }

    fn put_row(&mut self, batch: &mut Batch<'_, '_>, filter: &Arc<str>) {
        let Some(group) = self.by_filter.get(filter) else {
            return;
        };
        batch.tables.put::<schema::Group>(filter, &group.row);
        match group.row.messages {
            0 => self.waiting.remove(filter),
            _ => self.waiting.insert(filter.clone()),
        };
    }

    /// Row operations that it takes to find out in which groups of a session messages wait. The fewer of both are
    /// looked through, and it may be that none of them is among the others.
    fn cost_of_looking(&self, session: SessionId) -> usize {
        let filters = self.of_session.get(&session).map_or(0, BTreeSet::len);
        let looked_through = filters.min(self.waiting.len());
        looked_through.saturating_sub(LOOKED_THROUGH_FREE) / LOOKED_THROUGH_PER_ROW_OPERATION
    }

    /// The first groups of a session in which messages wait.
    fn waiting_for(&self, session: SessionId, most: usize) -> Vec<Arc<str>> {
        let Some(filters) = self.of_session.get(&session) else {
            return Vec::new();
        };
        let (few, many) = match self.waiting.len() < filters.len() {
            true => (&self.waiting, filters),
            false => (filters, &self.waiting),
        };
        let both = few.iter().filter(|filter| many.contains(*filter));
        both.take(most).cloned().collect()
    }

    /// Gives a message to one member, or keeps it until one can take it. With the number that the message has in
    /// queues, only if the group was there when it was published.
    pub fn publish(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        filter: &Arc<str>,
        storing: &mut Storing,
        number: Option<MessageId>,
    ) {
        let group = self.by_filter.get(filter);
        let in_time = |group: &&Group| number.is_none_or(|number| group.is_older_than(number));
        let Some(group) = group.filter(in_time) else {
            return;
        };
        let (qos, retain) = (storing.message.qos, storing.message.retain);
        let waits = group.row.messages > 0 && qos != QoS::AtMostOnce;
        let chosen = match waits {
            true => None,
            false => choose(batch, queues, group, qos, storing.size()),
        };
        let Some(session) = chosen else {
            if qos != QoS::AtMostOnce || group.keeps_qos_0() {
                self.keep_waiting(batch, filter, storing);
            }
            return;
        };
        let Some(group) = self.by_filter.get_mut(filter) else {
            return;
        };
        group.row.turn = session.0;
        let id = group.id();
        let Some(member) = group.members.get(&session) else {
            return;
        };
        let delivery = member.delivery(qos, retain);
        let subscriber = member.subscriber.clone();
        self.put_row(batch, filter);
        if delivery.qos == QoS::AtMostOnce {
            send(batch, &subscriber, delivery, &storing.message);
        } else {
            let client_id = &subscriber.client_id;
            queues.enqueue(batch, session, client_id, delivery, Some(id), storing);
        }
    }

    /// Adds a message to those that wait for a member.
    fn keep_waiting(
        &mut self,
        batch: &mut Batch<'_, '_>,
        filter: &Arc<str>,
        storing: &mut Storing,
    ) {
        let size = storing.size();
        if !self.make_room(batch, filter, size) {
            return;
        }
        let queued = Queued {
            message: storing.refer(batch),
            qos: storing.message.qos,
            retain: storing.message.retain,
            size,
            expires_at: storing.message.expires_at,
            group: None,
            identifiers: SmallVec::new(),
        };
        if let Some(group) = self.by_filter.get_mut(filter) {
            group.append(batch, queued);
        }
        self.put_row(batch, filter);
    }

    /// Drops waiting messages as the group's bounds ask for; `false` when the new one is to be dropped.
    fn make_room(&mut self, batch: &mut Batch<'_, '_>, filter: &Arc<str>, size: u32) -> bool {
        let mut left = most_drops(batch);
        loop {
            let Some(group) = self.by_filter.get_mut(filter) else {
                return false;
            };
            let row = &mut group.row;
            if row.messages < row.max_messages
                && row.bytes.saturating_add(size.into()) <= row.max_bytes
            {
                return true;
            }
            batch.count_dropped(DropReason::QueueFull, 1);
            row.dropped += 1;
            let keeps_old = drop_policy(row.drop_policy) != DropPolicy::Oldest;
            let hopeless = keeps_old || u64::from(size) > row.max_bytes || row.messages == 0;
            if hopeless || left == 0 {
                self.put_row(batch, filter);
                return false;
            }
            left -= 1;
            batch.spend(DROP_COST);
            match self.take_waiting(batch, filter, 1).pop() {
                Some(oldest) => message::release(batch, oldest.message),
                None => return false,
            }
        }
    }

    fn take_waiting(
        &mut self,
        batch: &mut Batch<'_, '_>,
        filter: &Arc<str>,
        most: usize,
    ) -> Vec<Queued> {
        let Some(group) = self.by_filter.get_mut(filter) else {
            return Vec::new();
        };
        let taken = group.take_waiting(batch, most);
        self.put_row(batch, filter);
        taken
    }

    /// Gives a session what waits in its groups, while it can be sent it at once and the batch's budget allows it. One
    /// that is a member of very many groups has to wait for a later batch where this one has done too much already.
    pub fn give_waiting(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        session: SessionId,
    ) {
        if self.waiting.is_empty() || queues.credit(session) == 0 {
            return;
        }
        let cost = self.cost_of_looking(session);
        if cost > 0 && batch.is_overdrawn() {
            batch.set_timer(batch.now, Kind::Grant, &session.0.to_be_bytes());
            return;
        }
        batch.spend(cost);
        let mut allowance = batch.allowance(GIVE_COST);
        for filter in self.waiting_for(session, allowance + 1) {
            loop {
                let room = (queues.credit(session) as usize).min(allowance);
                if room == 0 {
                    if allowance == 0 {
                        batch.set_timer(batch.now, Kind::Grant, &session.0.to_be_bytes());
                    }
                    return;
                }
                let Some(group) = self.by_filter.get_mut(&filter) else {
                    break;
                };
                if group.row.messages == 0 {
                    break;
                }
                group.row.turn = session.0;
                let taken = self.take_waiting(batch, &filter, room);
                if taken.is_empty() {
                    break;
                }
                allowance -= taken.len();
                batch.spend(taken.len() * GIVE_COST);
                for queued in taken {
                    self.give(batch, queues, &filter, session, queued);
                }
            }
        }
    }

    fn give(
        &self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        filter: &Arc<str>,
        session: SessionId,
        queued: Queued,
    ) {
        let Some(group) = self.by_filter.get(filter) else {
            return;
        };
        let Some(member) = group.members.get(&session) else {
            return;
        };
        if queued.expires_at.is_some_and(|at| at < batch.now) {
            batch.count_dropped(DropReason::Expired, 1);
            message::release(batch, queued.message);
            return;
        }
        let delivery = member.delivery(queued.qos, queued.retain);
        if delivery.qos == QoS::AtMostOnce {
            if let Some(message) = message::read(batch, queued.message, QoS::AtMostOnce) {
                send(batch, &member.subscriber, delivery, &message);
            }
            message::release(batch, queued.message);
            return;
        }
        let queued = Queued {
            qos: delivery.qos,
            retain: delivery.retain,
            identifiers: delivery.identifiers,
            group: Some(group.id()),
            ..queued
        };
        queues.push(batch, session, queued, None);
    }

    /// Whether a session is a member of any group.
    pub fn has_member(&self, session: SessionId) -> bool {
        self.of_session.contains_key(&session)
    }
}

/// The next member in turn that can be sent a message of so many bytes at once.
fn choose(
    batch: &Batch<'_, '_>,
    queues: &mut Queues,
    group: &Group,
    qos: QoS,
    bytes: u32,
) -> Option<SessionId> {
    loop {
        let (session, member) = group.in_turn().find(|(session, member)| {
            member.subscriber.owner().is_some()
                && (member.qos(qos) == QoS::AtMostOnce
                    || !queues.is_loaded(*session)
                    || queues.takes(*session, bytes))
        })?;
        if member.qos(qos) == QoS::AtMostOnce || queues.is_loaded(session) {
            return Some(session);
        }
        // After a restart its queue may not be in memory yet; look again with it.
        if !queues.load(batch, session, &member.subscriber.client_id) {
            return None;
        }
    }
}

/// Sends a message with QoS 0 to a member, on the node of its connection.
fn send(
    batch: &mut Batch<'_, '_>,
    subscriber: &Subscriber,
    delivery: Delivery,
    message: &Arc<ApplicationMessage>,
) {
    let owner = subscriber.owner();
    if let Some(owner) = owner.filter(|owner| batch.outputs.has_connection(*owner)) {
        let expiry_s = message.expires_at.and_then(|at| remaining_s(at, batch.now));
        batch.outputs.push(Output::Send {
            connection: owner.connection,
            retain: delivery.retain,
            expiry_s,
            identifiers: delivery.identifiers,
            message: message.clone(),
        });
    }
}
