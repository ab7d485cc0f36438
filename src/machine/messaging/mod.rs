//! How messages reach sessions: subscriptions, queues, groups and retained replays, and the order in which they act on
//! one another. Each of them knows at most the queues beside itself; what takes more than one is routed here.

mod bounds;
mod look_ups;
mod portion;
mod publish;

pub(super) use portion::QUEUE_COST;

use std::sync::Arc;

use super::batch::Batch;
use super::fan_out::{FanOutUsage, FanOuts};
use super::queue::{Queues, purge};
use super::retained::replay::RetainedReplays;
use super::schema;
use super::schema::timer::Kind;
use super::session::{owner_of, queueing_of};
use super::shared::SharedGroups;
use super::subscriptions::{Queueing, Subscriber, SubscriptionIndex};
use super::tables::Backing;
use crate::base::ids::{Incarnation, LogIndex, NodeId, SessionId};
use crate::base::proto::{command, state};
use crate::session::delivery;
use crate::session::{Queue, Sequence};
use crate::topic::Filter;
use bounds::SubscriptionBounds;
use look_ups::LookUps;

/// Row operations that making or ending a subscription takes: its own row, those of its group and of its retained
/// replay.
const SUBSCRIPTION_COST: usize = 8;

/// What a SUBSCRIBE has made, as far as it was applied.
#[derive(Default)]
pub(super) struct Made {
    /// One entry per filter: whether it is new.
    pub new: Vec<bool>,
    /// Positions of those that were one too many.
    pub refused: Vec<usize>,
}

/// Subscriptions and what follows from them.
pub(super) struct Messaging {
    /// Derived from the rows of sessions and subscriptions; shared with the router.
    index: Arc<SubscriptionIndex>,
    look_ups: LookUps,
    queues: Queues,
    groups: SharedGroups,
    fan_outs: FanOuts,
    replays: RetainedReplays,
}

/// What an ended session may have had. Most had neither, and nothing is looked for.
#[derive(Clone, Copy)]
struct Left {
    subscriptions: bool,
    /// Also packet ids of QoS 2 that it has not released.
    queue: bool,
}

impl Left {
    const ANYTHING: Left = Left {
        subscriptions: true,
        queue: true,
    };
}

impl Messaging {
    pub fn new(index: Arc<SubscriptionIndex>) -> Self {
        Messaging {
            index,
            look_ups: LookUps::default(),
            queues: Queues::default(),
            groups: SharedGroups::default(),
            fan_outs: FanOuts::default(),
            replays: RetainedReplays::default(),
        }
    }

    /// Forgets what is in memory and reads groups and replays. Every session follows with
    /// [`Messaging::restore_session`], then come the subscriptions.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.index.clear();
        self.look_ups = LookUps::default();
        self.queues = Queues::default();
        self.groups.restore(backing);
        self.fan_outs.restore(backing);
        self.replays.restore(backing);
    }

    pub fn restore_session(&mut self, client_id: &str, row: &state::Session) {
        let (owner, queueing) = (owner_of(row), queueing_of(row));
        self.index
            .open(SessionId(row.session_id), client_id, owner, queueing);
    }

    /// Reads the subscriptions, those of sessions that have ended included.
    pub fn restore_subscriptions(&mut self, backing: &dyn Backing) {
        backing.rows::<schema::EndedSession>(&schema::Range::all(), |session, row| {
            let (client_id, queueing) = (row.decode().client_id, Queueing::default());
            self.index.open(session, &client_id, None, queueing);
            true
        });
        let all = schema::Range::all();
        backing.rows::<schema::Subscription>(&all, |(session, filter), row| {
            let row = row.decode();
            self.index
                .subscribe(session, filter, &row, LogIndex::default());
            if let Some(subscriber) = self.index.subscriber(session) {
                self.groups.restore_member(filter, subscriber, &row);
            }
            true
        });
    }

    /// A new batch begins.
    pub fn begin_batch(&mut self) {
        self.look_ups.begin_batch();
        self.replays.begin_batch();
    }

    /// The connections of an incarnation have ended, all at once.
    pub fn end_incarnation(&mut self, node: NodeId, incarnation: Incarnation) {
        self.index.end_incarnation(node, incarnation);
        self.queues.end_incarnation(node, incarnation);
    }

    /// No connection of an ended incarnation is known any more.
    pub fn released(&mut self, node: NodeId, incarnation: Incarnation) {
        self.index.forget_incarnation(node, incarnation);
        self.queues.released(node, incarnation);
    }

    /// A connection owns the session from now on.
    pub fn connect(&mut self, batch: &Batch<'_, '_>, client_id: &str, row: &state::Session) {
        let (owner, queueing) = (owner_of(row), queueing_of(row));
        let session = SessionId(row.session_id);
        self.index.open(session, client_id, owner, queueing);
        self.queues.connect(batch, client_id, row);
    }

    /// The connection of a session was taken over by another one, which follows.
    pub fn taken_over(&mut self, batch: &Batch<'_, '_>, session: SessionId, client_id: &str) {
        self.queues.disconnect(batch, session, client_id, None);
    }

    /// The session has lost its connection. `sent_through` is the last entry of its queue that was sent, if that is
    /// known.
    pub fn disconnect(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        client_id: &str,
        sent_through: Option<Sequence>,
    ) {
        self.index.close(session);
        self.queues
            .disconnect(batch, session, client_id, sent_through);
        if !self.groups.has_member(session) {
            return;
        }
        if batch.budget_left() == 0 {
            batch.set_timer(batch.now, Kind::GiveBack, &session.0.to_be_bytes());
            return;
        }
        self.groups
            .give_back(batch, &mut self.queues, session, None);
    }

    /// A timer says that what a session was sent through groups is to go back; the session may have been resumed or
    /// have ended since.
    pub fn go_on_giving_back(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        if let Some(session) = session_of(subject)
            && let Some(subscriber) = self.index.subscriber(session)
            && subscriber.owner().is_none()
            && self.queues.load(batch, session, &subscriber.client_id)
        {
            self.groups
                .give_back(batch, &mut self.queues, session, None);
        }
    }

    /// The session has ended: nothing reaches it from now on. Its subscriptions and what waits for it go, as much at
    /// once as the batch's budget allows.
    pub fn end_session(&mut self, batch: &mut Batch<'_, '_>, client_id: &str, of: &state::Session) {
        let session = SessionId(of.session_id);
        let (owner, queueing) = (None, Queueing::default());
        self.index.open(session, client_id, owner, queueing);
        let (held, _) = self.index.held(session);
        let oldest = self.queues.forget(batch, session);
        let left = Left {
            subscriptions: held.count > 0,
            queue: of.durable || oldest.is_some(),
        };
        let oldest = oldest.unwrap_or(Queue::default().oldest);
        let mut row = state::EndedSession {
            client_id: client_id.to_owned(),
            sequence: oldest.0,
            gives_back: self.groups.has_member(session),
            ..Default::default()
        };
        let put_off = row.gives_back && batch.budget_left() == 0;
        if !put_off && self.end_portion(batch, session, &mut row, left) {
            self.index.remove(session);
        } else {
            put_ended(batch, session, &row);
        }
    }

    /// A timer asks to go on with the rows of an ended session.
    pub fn go_on_ending(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        let Some(session) = session_of(subject) else {
            return;
        };
        let row = batch.tables.get::<schema::EndedSession>(session);
        let mut row = row.unwrap_or_else(|| {
            // A former version began, and has left the queue alone.
            self.queues.forget(batch, session);
            state::EndedSession::default()
        });
        if self.end_portion(batch, session, &mut row, Left::ANYTHING) {
            batch.tables.delete::<schema::EndedSession>(session);
            self.index.remove(session);
        } else {
            put_ended(batch, session, &row);
        }
    }

    /// Removes rows of an ended session, as many as the batch's budget allows; `false` when there may be more.
    fn end_portion(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        row: &mut state::EndedSession,
        left: Left,
    ) -> bool {
        if std::mem::take(&mut row.gives_back) {
            let queues = &mut self.queues;
            let first = Some(Sequence(row.sequence));
            self.groups.give_back(batch, queues, session, first);
        }
        if !self.replays.end_all(batch, session) {
            return false;
        }
        if left.subscriptions && !self.end_subscriptions(batch, session, row) {
            return false;
        }
        if !left.queue {
            return true;
        }
        match purge::purge(batch, session, Sequence(row.sequence)) {
            Some(next) => row.sequence = next.0,
            None => return true,
        }
        false
    }

    /// Removes subscriptions of an ended session, as many as the batch's budget allows; `false` when there may be more.
    fn end_subscriptions(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        row: &mut state::EndedSession,
    ) -> bool {
        let most = batch.allowance(SUBSCRIPTION_COST);
        let mut filters = Vec::new();
        let range = schema::Subscription::of_session(session).after((session, &row.filter));
        batch.tables.scan(&range, |(_, filter), _| {
            filters.push(filter.to_owned());
            filters.len() < most
        });
        batch.spend(filters.len() * SUBSCRIPTION_COST);
        for filter in &filters {
            self.index.unsubscribe(session, filter);
            self.look_ups.changed();
            self.groups.leave(batch, filter, session);
            let key = (session, filter.as_str());
            batch.tables.delete::<schema::Subscription>(key);
        }
        let more = filters.len() == most;
        if let Some(last) = filters.pop() {
            row.filter = last;
        }
        !more
    }

    /// Makes the subscriptions of a SUBSCRIBE, the first ones as far as the batch's budget allows; tells which are new.
    /// `None` when there is no such session.
    pub fn subscribe(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        command: command::Subscribe,
    ) -> Option<Made> {
        let subscriber = self.index.subscriber(session)?;
        let bounds = SubscriptionBounds::of(&command);
        let subscriptions = command.subscriptions.into_iter();
        let mut made = Made::default();
        for subscription in subscriptions.take(batch.allowance_of_request(SUBSCRIPTION_COST)) {
            batch.spend(SUBSCRIPTION_COST);
            let filter = &subscription.filter;
            if bounds.are_exceeded(&self.index, &self.groups, session, filter) {
                made.refused.push(made.new.len());
                made.new.push(false);
                continue;
            }
            let new = self.add_subscription(batch, &subscriber, subscription);
            made.new.push(new);
        }
        Some(made)
    }

    /// Adds or replaces one subscription, with the retained messages it asks for; tells whether it is new.
    fn add_subscription(
        &mut self,
        batch: &mut Batch<'_, '_>,
        subscriber: &Arc<Subscriber>,
        subscription: command::Subscription,
    ) -> bool {
        let session = subscriber.session;
        let filter = subscription.filter;
        let key = (session, filter.as_str());
        let former = batch.tables.get::<schema::Subscription>(key);
        let row = state::Subscription {
            qos: subscription.qos,
            no_local: subscription.no_local,
            retain_as_published: subscription.retain_as_published,
            retain_handling: subscription.retain_handling,
            identifier: subscription.identifier,
            after_message: match former {
                Some(former) => former.after_message,
                None => batch.meta.last_message().0,
            },
        };
        let new = self.index.subscribe(session, &filter, &row, batch.index);
        self.look_ups.changed();
        batch.tables.put::<schema::Subscription>(key, &row);
        let queues = &mut self.queues;
        let is_shared = Filter::parse(&filter).is_ok_and(|filter| filter.share.is_some());
        if is_shared {
            self.groups
                .join(batch, queues, &filter, subscriber.clone(), &row);
        }
        // Three values, two bits on the wire.
        if delivery::sends_retained(row.retain_handling as u8, new, is_shared) {
            let fan_outs = &self.fan_outs;
            self.replays
                .start(batch, queues, subscriber, &filter, &row, fan_outs);
        }
        new
    }

    /// Ends the subscriptions of an UNSUBSCRIBE, the first ones as far as the batch's budget allows; tells which were
    /// there.
    pub fn unsubscribe(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        filters: Vec<String>,
    ) -> Vec<bool> {
        let mut removed = Vec::with_capacity(filters.len());
        for filter in filters
            .into_iter()
            .take(batch.allowance_of_request(SUBSCRIPTION_COST))
        {
            batch.spend(SUBSCRIPTION_COST);
            let there = self.index.unsubscribe(session, &filter);
            if there {
                self.look_ups.changed();
                let key = (session, filter.as_str());
                batch.tables.delete::<schema::Subscription>(key);
                self.replays.end(batch, session, &filter);
                self.groups.leave(batch, &filter, session);
            }
            removed.push(there);
        }
        removed
    }

    /// What the client of a session has acknowledged.
    pub fn acknowledge(
        &mut self,
        batch: &mut Batch<'_, '_>,
        session: SessionId,
        client_id: &str,
        command: command::Acknowledge,
    ) {
        self.queues.acknowledge(batch, session, client_id, command);
    }

    /// A timer asks to go on with a queue.
    pub fn go_on_granting(&mut self, subject: &[u8]) {
        self.queues.go_on_granting(subject);
    }

    /// Whether the batch may go on with retained replays.
    pub fn may_replay(&self) -> bool {
        self.replays.has_budget()
    }

    /// A timer asks to go on with a retained replay.
    pub fn go_on_replaying(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        self.replays.go_on(
            batch,
            &mut self.queues,
            &self.index,
            &self.fan_outs,
            subject,
        );
    }

    /// Grants what may be granted after a batch, and writes the rows of the queues it has changed.
    pub fn finish_queues(&mut self, batch: &mut Batch<'_, '_>) {
        let queues = &mut self.queues;
        // Looking at one may touch other queues of a group; those have credit left and nothing waiting.
        while let Some(session) = queues.next_touched() {
            // After a restart it may not be in memory yet, and what follows must not depend on that.
            if let Some(subscriber) = self.index.subscriber(session) {
                queues.load(batch, session, &subscriber.client_id);
            }
            queues.grant_ready(batch, session);
            self.groups.give_waiting(batch, queues, session);
            self.replays.resume(batch, queues, session);
            queues.store(batch, session);
        }
    }

    /// What is still to go into queues.
    pub fn fan_outs(&self) -> FanOutUsage {
        self.fan_outs.usage()
    }

    #[cfg(test)]
    pub fn look_ups_made(&self) -> usize {
        self.look_ups.made()
    }

    #[cfg(test)]
    pub fn index(&self) -> &SubscriptionIndex {
        &self.index
    }

    #[cfg(test)]
    pub fn set_replay_budget(&mut self, budget: super::retained::replay::Budget) {
        self.replays.set_budget(budget);
    }
}

/// The session that is a timer's subject.
fn session_of(subject: &[u8]) -> Option<SessionId> {
    Some(SessionId(u64::from_be_bytes(subject.try_into().ok()?)))
}

/// Keeps what is left of an ended session.
fn put_ended(batch: &mut Batch<'_, '_>, session: SessionId, row: &state::EndedSession) {
    batch.tables.put::<schema::EndedSession>(session, row);
    let soon = batch.now.plus(1);
    batch.set_timer(soon, Kind::PurgeSession, &session.0.to_be_bytes());
}
