//! Shared subscriptions: every share name with its filter is a group, and every message for it goes to one member
//! (MQTT 5, 4.8.2).
//!
//! A member gets a message when it can be sent it at once: it has a connection, and its client's receive maximum has room.
//! When no member can, the message waits with the group. Members take turns in the order of their sessions. What a
//! member was sent with QoS 1 and has not acknowledged goes back to the front of the group when its connection ends and
//! another member is connected, or when its session ends; QoS 2 under way stays with its session `[MQTT-4.8.2-5]`.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use prost::Message as _;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::effect::{DropReason, Output};
use super::messages::Storing;
use super::queues::{drop_policy, is_over};
use super::schema::timer::Kind;
use super::subscriptions::Subscriber;
use super::tables::Backing;
use super::{Context, Machine, schema};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::base::proto::state;
use crate::session::delivery::{Delivery, remaining_s};
use crate::session::{DropPolicy, Entry, QoS, Queued};

/// The number of a new group's first message: what goes back is numbered below it.
const FIRST: u64 = 1 << 40;

struct Member {
    subscriber: Arc<Subscriber>,
    qos: QoS,
    retain_as_published: bool,
    identifier: u32,
}

impl Member {
    fn delivery(&self, qos: QoS, retain: bool) -> Delivery {
        let mut identifiers = SmallVec::new();
        if self.identifier != 0 {
            identifiers.push(self.identifier);
        }
        Delivery {
            qos: qos.min(self.qos),
            retain: retain && self.retain_as_published,
            identifiers,
        }
    }
}

struct Group {
    row: state::Group,
    members: BTreeMap<SessionId, Member>,
}

impl Group {
    fn id(&self) -> u64 {
        self.row.group_id
    }

    /// Members in turn, the one after the last chosen first.
    fn in_turn(&self) -> impl Iterator<Item = (SessionId, &Member)> {
        let turn = SessionId(self.row.turn);
        self.members
            .range((Excluded(turn), Unbounded))
            .chain(self.members.range(..=turn))
            .map(|(session, member)| (*session, member))
    }

    /// Whether messages with QoS 0 wait for a member, when none is connected: some member asks for it.
    fn keeps_qos_0(&self) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.subscriber.queues(QoS::AtMostOnce))
    }

    fn has_other(&self, session: SessionId, connected: bool) -> bool {
        self.members.iter().any(|(member, found)| {
            *member != session && (!connected || found.subscriber.owner().is_some())
        })
    }
}

/// All groups; derived from the tables.
#[derive(Default)]
pub(super) struct Groups {
    by_filter: FxHashMap<Arc<str>, Group>,
    filters: FxHashMap<u64, Arc<str>>,
    of_session: FxHashMap<SessionId, Vec<Arc<str>>>,
}

impl Groups {
    /// The shared filters of a session.
    pub fn of_session(&self, session: SessionId) -> Vec<Arc<str>> {
        self.of_session.get(&session).cloned().unwrap_or_default()
    }

    fn add_member(&mut self, filter: &Arc<str>, session: SessionId, member: Member) {
        if let Some(group) = self.by_filter.get_mut(filter) {
            group.members.insert(session, member);
            let filters = self.of_session.entry(session).or_default();
            // In one order on all replicas, those that read it from the tables included: it is the order in which groups
            // feed their member.
            if let Err(at) = filters.binary_search(filter) {
                filters.insert(at, filter.clone());
            }
        }
    }

    /// Forgets everything and reads the groups; their members follow with [`Groups::restore_member`].
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = Groups::default();
        let (from, to) = schema::group::all();
        backing.scan(&from, &to, &mut |row_key, row| {
            let filter = schema::group::decode(row_key).expect("this machine wrote the key");
            let row = state::Group::decode(row).expect("this machine wrote the row");
            let filter: Arc<str> = filter.into();
            self.filters.insert(row.group_id, filter.clone());
            let members = BTreeMap::new();
            self.by_filter.insert(filter, Group { row, members });
            true
        });
    }

    pub fn restore_member(
        &mut self,
        filter: &str,
        subscriber: Arc<Subscriber>,
        row: &state::Subscription,
    ) {
        let session = subscriber.session;
        self.add_member(&filter.into(), session, member(subscriber, row));
    }
}

fn member(subscriber: Arc<Subscriber>, row: &state::Subscription) -> Member {
    Member {
        subscriber,
        qos: QoS::from_number(row.qos),
        retain_as_published: row.retain_as_published,
        identifier: row.identifier,
    }
}

impl Machine {
    /// A session subscribes to a shared filter, or does so again with other options.
    pub(super) fn join_group(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &str,
        subscriber: Arc<Subscriber>,
        row: &state::Subscription,
    ) {
        let session = subscriber.session;
        if !self.load_queue(context, session, &subscriber.client_id) {
            return;
        }
        let filter: Arc<str> = filter.into();
        if !self.groups.by_filter.contains_key(&filter) {
            let Some(queue) = self.queues.get(&session) else {
                return;
            };
            self.meta.next_group_id += 1;
            let row = state::Group {
                group_id: self.meta.next_group_id,
                first: FIRST,
                next: FIRST,
                max_messages: queue.bounds.max_messages,
                max_bytes: queue.bounds.max_bytes,
                drop_policy: match queue.bounds.policy {
                    DropPolicy::Newest => 1,
                    // A group has no one session that could be ended.
                    DropPolicy::Oldest | DropPolicy::Session => 0,
                },
                ..Default::default()
            };
            self.groups.filters.insert(row.group_id, filter.clone());
            let members = BTreeMap::new();
            self.groups
                .by_filter
                .insert(filter.clone(), Group { row, members });
            self.put_group(context, &filter);
        }
        self.groups
            .add_member(&filter, session, member(subscriber, row));
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.groups = self.groups.of_session(session);
        }
        self.touched.insert(session);
    }

    /// A session does not subscribe to a shared filter any more.
    pub(super) fn leave_group(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &str,
        session: SessionId,
    ) {
        if let Some(filters) = self.groups.of_session.get_mut(&session) {
            filters.retain(|known| &**known != filter);
            if filters.is_empty() {
                self.groups.of_session.remove(&session);
            }
        }
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.groups.retain(|known| &**known != filter);
        }
        let Some(group) = self.groups.by_filter.get_mut(filter) else {
            return;
        };
        group.members.remove(&session);
        if group.members.is_empty() {
            let id = group.id();
            self.groups.by_filter.remove(filter);
            self.groups.filters.remove(&id);
            context.tables.delete(schema::group::encode(filter));
            self.purge_group(context, id);
        }
    }

    fn put_group(&self, context: &mut Context<'_, '_>, filter: &str) {
        if let Some(group) = self.groups.by_filter.get(filter) {
            context
                .tables
                .put(schema::group::encode(filter), group.row.encode_to_vec());
        }
    }

    /// Gives a message to one member, or keeps it until one can take it.
    pub(super) fn publish_to_group(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &Arc<str>,
        storing: &mut Storing,
    ) {
        let Some(group) = self.groups.by_filter.get(filter) else {
            return;
        };
        let (qos, retain) = (storing.message.qos, storing.message.retain);
        let waits = group.row.messages > 0 && qos != QoS::AtMostOnce;
        let chosen = if waits {
            None
        } else {
            self.choose(context, filter, qos)
        };
        let Some(session) = chosen else {
            let group = self.groups.by_filter.get(filter);
            if qos != QoS::AtMostOnce || group.is_some_and(Group::keeps_qos_0) {
                self.keep_waiting(context, filter, storing);
            }
            return;
        };
        let Some(group) = self.groups.by_filter.get_mut(filter) else {
            return;
        };
        group.row.turn = session.0;
        let id = group.id();
        let Some(member) = group.members.get(&session) else {
            return;
        };
        let delivery = member.delivery(qos, retain);
        let subscriber = member.subscriber.clone();
        self.put_group(context, filter);
        if delivery.qos == QoS::AtMostOnce {
            self.send_from_group(context, &subscriber, delivery, &storing.message);
        } else {
            let client_id = &subscriber.client_id;
            self.enqueue(context, session, client_id, delivery, Some(id), storing);
        }
    }

    fn send_from_group(
        &mut self,
        context: &Context<'_, '_>,
        subscriber: &Subscriber,
        delivery: Delivery,
        message: &Arc<super::effect::ApplicationMessage>,
    ) {
        if let Some(owner) = subscriber.owner().filter(|owner| owner.node == self.local) {
            self.outputs.push(Output::Send {
                connection: owner.connection,
                retain: delivery.retain,
                expiry_s: message
                    .expires_at
                    .and_then(|at| remaining_s(at, context.now)),
                identifiers: delivery.identifiers,
                message: message.clone(),
            });
        }
    }

    /// The next member in turn that can be sent a message at once.
    fn choose(
        &mut self,
        context: &Context<'_, '_>,
        filter: &Arc<str>,
        qos: QoS,
    ) -> Option<SessionId> {
        loop {
            let group = self.groups.by_filter.get(filter)?;
            let (session, member) = group.in_turn().find(|(session, member)| {
                member.subscriber.owner().is_some()
                    && (qos.min(member.qos) == QoS::AtMostOnce
                        || self
                            .queues
                            .get(session)
                            .is_none_or(super::queues::SessionQueue::has_credit))
            })?;
            if qos.min(member.qos) == QoS::AtMostOnce || self.queues.contains_key(&session) {
                return Some(session);
            }
            // After a restart its queue may not be in memory yet; look again with it.
            let client_id = member.subscriber.client_id.clone();
            if !self.load_queue(context, session, &client_id) {
                return None;
            }
        }
    }

    /// Adds a message to those that wait for a member.
    fn keep_waiting(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &Arc<str>,
        storing: &mut Storing,
    ) {
        let size = storing.size();
        if !self.make_room_in_group(context, filter, size) {
            return;
        }
        let queued = Queued {
            message: self.message_id(storing),
            qos: storing.message.qos,
            retain: storing.message.retain,
            size,
            expires_at: storing.message.expires_at,
            group: None,
            identifiers: SmallVec::new(),
        };
        storing.refer();
        let Some(group) = self.groups.by_filter.get_mut(filter) else {
            return;
        };
        let number = group.row.next;
        group.row.next += 1;
        put_waiting(context, &mut group.row, number, queued);
        self.count_in(size);
        self.put_group(context, filter);
    }

    /// Drops waiting messages as the group's bounds ask for; `false` when the new one is to be dropped.
    fn make_room_in_group(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &Arc<str>,
        size: u32,
    ) -> bool {
        loop {
            let Some(group) = self.groups.by_filter.get(filter) else {
                return false;
            };
            let row = &group.row;
            if row.messages < row.max_messages
                && row.bytes.saturating_add(size.into()) <= row.max_bytes
            {
                return true;
            }
            if context.node == self.local {
                self.outputs.push(Output::Dropped {
                    reason: DropReason::QueueFull,
                    count: 1,
                });
            }
            let keeps_old = drop_policy(row.drop_policy) != DropPolicy::Oldest;
            let hopeless = keeps_old || u64::from(size) > row.max_bytes || row.messages == 0;
            if let Some(group) = self.groups.by_filter.get_mut(filter) {
                group.row.dropped += 1;
            }
            if hopeless {
                self.put_group(context, filter);
                return false;
            }
            match self.take_waiting(context, filter, 1).pop() {
                Some(oldest) => self.release_message(context, oldest.message),
                None => return false,
            }
        }
    }

    /// Takes the first waiting messages of a group; their messages keep their reference.
    fn take_waiting(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &Arc<str>,
        most: usize,
    ) -> Vec<Queued> {
        let Some(group) = self.groups.by_filter.get_mut(filter) else {
            return Vec::new();
        };
        let found = waiting(context, group.id(), group.row.first, most);
        for (number, queued) in &found {
            context
                .tables
                .delete(schema::waiting::encode(group.id(), *number));
            group.row.first = number + 1;
            group.row.messages = group.row.messages.saturating_sub(1);
            group.row.bytes = group.row.bytes.saturating_sub(queued.size.into());
        }
        self.put_group(context, filter);
        for (_, queued) in &found {
            self.count_out(queued.size);
        }
        found.into_iter().map(|(_, queued)| queued).collect()
    }

    /// Gives a session what waits in its groups, while it can be sent it at once.
    pub(super) fn feed_from_groups(&mut self, context: &mut Context<'_, '_>, session: SessionId) {
        let Some(queue) = self.queues.get(&session) else {
            return;
        };
        if queue.groups.is_empty() || !queue.has_credit() {
            return;
        }
        for filter in queue.groups.clone() {
            loop {
                let Some(queue) = self.queues.get(&session).filter(|queue| queue.has_credit())
                else {
                    return;
                };
                let room =
                    u32::from(queue.receive_maximum.get()).saturating_sub(queue.queue.in_flight);
                let waits = self
                    .groups
                    .by_filter
                    .get(&filter)
                    .is_some_and(|group| group.row.messages > 0);
                if !waits {
                    break;
                }
                if let Some(group) = self.groups.by_filter.get_mut(&filter) {
                    group.row.turn = session.0;
                }
                let taken = self.take_waiting(context, &filter, room as usize);
                if taken.is_empty() {
                    break;
                }
                for queued in taken {
                    self.give(context, &filter, session, queued);
                }
            }
        }
    }

    fn give(
        &mut self,
        context: &mut Context<'_, '_>,
        filter: &Arc<str>,
        session: SessionId,
        queued: Queued,
    ) {
        let Some(group) = self.groups.by_filter.get_mut(filter) else {
            return;
        };
        let id = group.id();
        let Some(member) = group.members.get(&session) else {
            return;
        };
        if is_over(queued.expires_at, context.now) {
            if context.node == self.local {
                self.outputs.push(Output::Dropped {
                    reason: DropReason::Expired,
                    count: 1,
                });
            }
            self.release_message(context, queued.message);
            return;
        }
        let delivery = member.delivery(queued.qos, queued.retain);
        if delivery.qos == QoS::AtMostOnce {
            let subscriber = member.subscriber.clone();
            if let Some(message) = self.message(context, queued.message, QoS::AtMostOnce) {
                self.send_from_group(context, &subscriber, delivery, &message);
            }
            self.release_message(context, queued.message);
            return;
        }
        let queued = Queued {
            qos: delivery.qos,
            retain: delivery.retain,
            identifiers: delivery.identifiers,
            group: Some(id),
            ..queued
        };
        self.push(context, session, queued, None);
    }

    /// The session has lost its connection, or ends: what it was sent and others can take goes back.
    pub(super) fn give_back(
        &mut self,
        context: &mut Context<'_, '_>,
        session: SessionId,
        ends: bool,
    ) {
        if !self.groups.of_session.contains_key(&session) {
            return;
        }
        let groups = std::mem::take(&mut self.groups);
        let shared = self.take_shared(context, session, |id| {
            let group = groups
                .filters
                .get(&id)
                .and_then(|filter| groups.by_filter.get(filter));
            !group.is_some_and(|group| group.has_other(session, !ends))
        });
        self.groups = groups;
        // The oldest goes back last, and so to the very front.
        for queued in shared.into_iter().rev() {
            let Some(filter) = queued
                .group
                .and_then(|id| self.groups.filters.get(&id).cloned())
            else {
                continue;
            };
            if let Some(group) = self.groups.by_filter.get_mut(&filter) {
                let number = group.row.first - 1;
                group.row.first = number;
                let queued = Queued {
                    group: None,
                    identifiers: SmallVec::new(),
                    ..queued
                };
                let size = queued.size;
                put_waiting(context, &mut group.row, number, queued);
                let others = group.members.keys().filter(|member| **member != session);
                self.touched.extend(others);
                self.count_in(size);
            }
            self.put_group(context, &filter);
        }
    }

    pub(super) fn purge_group_later(&mut self, context: &mut Context<'_, '_>, subject: &[u8]) {
        if let Ok(id) = subject.try_into() {
            self.purge_group(context, u64::from_be_bytes(id));
        }
    }

    fn purge_group(&mut self, context: &mut Context<'_, '_>, id: u64) {
        let found = waiting(context, id, 0, limits::PURGED_AT_ONCE);
        let more = found.len() == limits::PURGED_AT_ONCE;
        for (number, queued) in found {
            context.tables.delete(schema::waiting::encode(id, number));
            self.count_out(queued.size);
            self.release_message(context, queued.message);
        }
        if more {
            let soon = context.now.plus(1);
            self.set_timer(context, soon, Kind::PurgeGroup, &id.to_be_bytes());
        }
    }
}

fn put_waiting(
    context: &mut Context<'_, '_>,
    group: &mut state::Group,
    number: u64,
    queued: Queued,
) {
    group.messages += 1;
    group.bytes = group.bytes.saturating_add(queued.size.into());
    let mut row = Vec::with_capacity(16);
    Entry::Queued(queued).encode(&mut row);
    context
        .tables
        .put(schema::waiting::encode(group.group_id, number), row);
}

/// The first waiting messages of a group from a number on.
fn waiting(context: &Context<'_, '_>, id: u64, from: u64, most: usize) -> Vec<(u64, Queued)> {
    let (from, to) = schema::waiting::from(id, from);
    let mut found = Vec::new();
    context.tables.scan(&from, &to, |row_key, row| {
        let number = schema::waiting::decode(row_key).expect("this machine wrote the key");
        let entry = Entry::decode(row).expect("this machine wrote the row");
        if let Entry::Queued(queued) = entry {
            found.push((number, queued));
        }
        found.len() < most
    });
    found
}
