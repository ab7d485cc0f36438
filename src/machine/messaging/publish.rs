//! Publishing: a message goes into the queues of the sessions and groups that it matches. What is more than one log
//! entry may do follows in later ones, in order, see [`crate::machine::fan_out`].
//!
//! Invariant: nothing below [`hub::PREFIX`] reaches anybody or is retained, whatever the node that proposed it knows.
//! Invariant: connections that get the message without a queue get it at its own log entry, whatever is on its way.

use std::sync::Arc;

use super::Messaging;
use super::portion::{Portion, QUEUE_COST, group_weight, weight};
use crate::base::ids::{NodeId, SessionId};
use crate::base::proto::{command, state};
use crate::machine::batch::Batch;
use crate::machine::effect::{ApplicationMessage, DropReason, Output};
use crate::machine::fan_out::{self, Position};
use crate::machine::hub;
use crate::machine::match_set::MatchSet;
use crate::machine::queue::message::Storing;
use crate::machine::retained;
use crate::machine::retained::publication::Publication;
use crate::machine::schema;
use crate::session::delivery::{expires_at, remaining_s};
use crate::session::{MessageId, QoS};

impl Messaging {
    /// Whether a message would be queued although `max_queued_bytes` wait in all queues; 0 is no bound.
    pub fn exceeds(
        &mut self,
        batch: &Batch<'_, '_>,
        message: &command::PublishedMessage,
        max_queued_bytes: u64,
    ) -> bool {
        if max_queued_bytes == 0 || batch.meta.queue_usage().bytes < max_queued_bytes {
            return false;
        }
        let match_set = self.match_sets.of(&self.index, &message.topic);
        match_set.has_queue(QoS::from_number(message.qos))
    }

    /// The same as [`Messaging::publish`] for a message that the machine itself publishes, such as a will. Nothing has
    /// weighed it in a proposal, so what it costs is counted against the batch's budget.
    pub fn publish_own(
        &mut self,
        batch: &mut Batch<'_, '_>,
        publisher: Option<SessionId>,
        message: command::PublishedMessage,
    ) {
        let match_set = self.match_sets.of(&self.index, &message.topic);
        let cost = match_set.cost(&self.index, &message.topic);
        self.publish(batch, publisher, message);
        batch.spend(cost);
    }

    /// Retains a message as far as it asks for it, and hands it to whoever is subscribed; tells whether anybody is.
    pub fn publish(
        &mut self,
        batch: &mut Batch<'_, '_>,
        publisher: Option<SessionId>,
        message: command::PublishedMessage,
    ) -> bool {
        if message.topic.starts_with(hub::PREFIX) {
            return false;
        }
        let expires_at = message
            .expiry_interval_s
            .map(|seconds| expires_at(batch.now, seconds));
        let message = Arc::new(ApplicationMessage {
            topic: message.topic,
            qos: QoS::from_number(message.qos),
            retain: message.retain,
            payload: message.payload,
            properties: message.properties,
            expires_at,
            publisher,
        });
        let match_set = self.match_sets.of(&self.index, &message.topic);
        let publication = Publication {
            index: batch.index,
            number: None,
            retained: self.replays.retained(batch, &message.topic),
        };
        if message.retain {
            retained::retain(batch, &message);
        }
        if match_set.is_empty() {
            return false;
        }
        // What goes into no queue has nothing to wait for.
        let is_next =
            !self.fan_outs.has(&message.topic) || !self.is_more_work(&match_set, message.qos, 0);
        let most = batch.queues(QUEUE_COST);
        let mut storing = Storing::new(message.clone());
        let mut position = Position::default();
        let mut portion = self.portion(&match_set, &publication, most, false);
        let is_done = is_next && portion.hand_out(batch, &mut storing, &mut position);
        let used = portion.used;
        let (mut matched, mut live) = (portion.matched, portion.live);
        batch.spend_queues(used, QUEUE_COST);
        if !is_done {
            matched |= match_set.has_receiver(&message);
            // It was not looked whether there are others.
            live = true;
            let id = storing.refer(batch);
            self.fan_outs
                .add(batch, id, &message, storing.size(), position);
        }
        storing.store(batch);
        if live {
            let expiry_s = expires_at.and_then(|at| remaining_s(at, batch.now));
            batch.outputs.push(Output::Publish {
                message,
                expiry_s,
                index: batch.index,
            });
        }
        matched
    }

    /// Whether what a message does with queues, that of retained ones before it included, is more than `most`.
    fn is_more_work(&self, match_set: &MatchSet, qos: QoS, most: usize) -> bool {
        let mut work = 0;
        for group in &match_set.groups {
            if work > most {
                return true;
            }
            work += group_weight(&self.groups, group);
        }
        for target in &match_set.sessions {
            if work > most {
                break;
            }
            let replays = self.replays.of_session(target.subscriber.session);
            if replays > 0 || target.queues(qos) {
                work += weight(target, replays);
            }
        }
        work > most
    }

    /// Whether a message would go into queues later although as much as may wait for that does so.
    pub fn is_crowded(
        &mut self,
        batch: &Batch<'_, '_>,
        message: &command::PublishedMessage,
    ) -> bool {
        if !self.fan_outs.is_full(&message.topic) {
            return false;
        }
        let at_once = match self.fan_outs.has(&message.topic) {
            true => 0,
            false => batch.queues(QUEUE_COST),
        };
        let match_set = self.match_sets.of(&self.index, &message.topic);
        self.is_more_work(&match_set, QoS::from_number(message.qos), at_once)
    }

    /// A timer asks to go on with a message on its way into queues; the next ones of its topic follow it, as far as the
    /// batch's budget allows.
    pub fn go_on_fanning_out(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        let mut next = fan_out::of_subject(subject);
        let proposer = batch.node;
        // Others that are due get something of what timers may do.
        let most = (batch.allowance(QUEUE_COST) / 2).max(1);
        let mut all_used = 0;
        while let Some(id) = next {
            let left = most.saturating_sub(all_used);
            if left == 0 {
                fan_out::set_timer(batch, id);
                break;
            }
            let Some(row) = batch.tables.get::<schema::FanOut>(id) else {
                break;
            };
            // What is dropped is counted where it was published.
            batch.node = NodeId(row.node);
            let (position, is_done, used) = self.fan_out(batch, id, &row, left);
            all_used += used.max(1);
            next = None;
            if is_done {
                next = self.fan_outs.end(batch, id, &row);
            } else {
                self.fan_outs.keep(batch, id, row, position);
            }
        }
        batch.node = proposer;
        batch.spend(all_used * QUEUE_COST);
    }

    /// One portion of a message on its way into queues: where it has come, whether that is the end, and the number of
    /// queues.
    fn fan_out(
        &mut self,
        batch: &mut Batch<'_, '_>,
        id: MessageId,
        row: &state::FanOut,
        most: usize,
    ) -> (Position, bool, usize) {
        let mut position = fan_out::position(row);
        let Some(message) = fan_out::message(batch, id, row) else {
            return (position, true, 0);
        };
        if message.expires_at.is_some_and(|at| at < batch.now) {
            batch.count_dropped(DropReason::Expired, 1);
            return (position, true, 0);
        }
        let match_set = self.match_sets.of(&self.index, &message.topic);
        let publication = Publication {
            index: fan_out::index_of(row),
            number: Some(id),
            retained: self.replays.retained(batch, &message.topic),
        };
        let mut storing = Storing::go_on(batch, id, Arc::new(message), most);
        let mut portion = self.portion(&match_set, &publication, most, true);
        let is_done = portion.hand_out(batch, &mut storing, &mut position);
        // The topic may have had to be looked up again.
        let used = portion.used + match_set.weight_again();
        storing.store(batch);
        (position, is_done, used)
    }

    fn portion<'a>(
        &'a mut self,
        match_set: &'a MatchSet,
        publication: &'a Publication,
        most: usize,
        must_go_on: bool,
    ) -> Portion<'a> {
        Portion {
            queues: &mut self.queues,
            groups: &mut self.groups,
            replays: &mut self.replays,
            match_set,
            publication,
            most,
            used: 0,
            must_go_on,
            matched: false,
            live: false,
        }
    }
}
