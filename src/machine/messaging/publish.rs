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

/// What became of a message at its own log entry.
struct HandedOut {
    /// How far it has come, if it goes on with later ones.
    goes_on_at: Option<Position>,
    /// Somebody gets it.
    matched: bool,
    /// Somebody may get it straight to its connection.
    live: bool,
}

/// What became of a message in a later entry.
#[derive(Default)]
struct WentOn {
    /// How far it has come, if that is not the end.
    goes_on_at: Option<Position>,
    /// Number of queues.
    used: usize,
    /// The look-up of its topic, as so many queues.
    looking_up: usize,
}

impl Messaging {
    /// Whether a message would be queued although `max_queued_bytes` wait in all queues; 0 is no bound.
    pub fn exceeds(
        &mut self,
        batch: &mut Batch<'_, '_>,
        message: &command::PublishedMessage,
        max_queued_bytes: u64,
    ) -> bool {
        if max_queued_bytes == 0 || batch.meta.queue_usage().bytes < max_queued_bytes {
            return false;
        }
        let match_set = self.look_up_to_judge(batch, &message.topic);
        match_set.has_queue(QoS::from_number(message.qos))
    }

    /// Who gets the messages of a topic, so that it can be judged whether one is refused. Nobody is refused because a
    /// look-up would be one too many in the batch: it counts in what the batch may do instead.
    fn look_up_to_judge(&mut self, batch: &mut Batch<'_, '_>, topic: &str) -> Arc<MatchSet> {
        if let Some(match_set) = self.look_ups.within_batch(batch, &self.index, topic) {
            return match_set;
        }
        let match_set = self.look_ups.needed(&self.index, topic);
        batch.spend(match_set.cost(&self.index, topic));
        match_set
    }

    /// The same as [`Messaging::publish`] for a message that the machine itself publishes, such as a will. Nothing has
    /// weighed it in a proposal, so what it costs is counted against the batch's budget.
    pub fn publish_own(
        &mut self,
        batch: &mut Batch<'_, '_>,
        publisher: Option<SessionId>,
        message: command::PublishedMessage,
    ) {
        let match_set = self.look_ups.needed(&self.index, &message.topic);
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
        let match_set = self
            .look_ups
            .within_batch(batch, &self.index, &message.topic);
        let publication = Publication {
            index: batch.index,
            number: None,
            retained: self.replays.retained(batch, &message.topic),
        };
        if message.retain {
            retained::retain(batch, &message);
        }
        let mut storing = match match_set.as_ref().is_some_and(|set| set.targets() == 1) {
            true => Storing::for_one(message.clone()),
            false => Storing::new(message.clone()),
        };
        let handed_out = match &match_set {
            Some(match_set) if match_set.is_empty() => return false,
            Some(match_set) => self.hand_out(batch, match_set, &publication, &mut storing),
            // Whether anybody gets it shows later.
            None => HandedOut {
                goes_on_at: Some(Position::default()),
                matched: true,
                live: true,
            },
        };
        let HandedOut {
            goes_on_at,
            matched,
            live,
        } = handed_out;
        if let Some(position) = goes_on_at {
            let id = storing.refer_for_more(batch);
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

    /// The first portion of a message: as many queues as the batch's budget allows.
    fn hand_out(
        &mut self,
        batch: &mut Batch<'_, '_>,
        match_set: &MatchSet,
        publication: &Publication,
        storing: &mut Storing,
    ) -> HandedOut {
        let message = storing.message.clone();
        // What goes into no queue has nothing to wait for.
        let is_next =
            !self.fan_outs.has(&message.topic) || !self.is_more_work(match_set, message.qos, 0);
        let most = batch.queues(QUEUE_COST);
        let mut position = Position::default();
        let mut portion = self.portion(match_set, publication, most, false);
        let is_done = is_next && portion.hand_out(batch, storing, &mut position);
        let (used, matched, live) = (portion.used, portion.matched, portion.live);
        batch.spend_queues(used, QUEUE_COST);
        match is_done {
            true => HandedOut {
                goes_on_at: None,
                matched,
                live,
            },
            // It was not looked whether there are others.
            false => HandedOut {
                goes_on_at: Some(position),
                matched: matched || match_set.has_receiver(&message),
                live: true,
            },
        }
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
        batch: &mut Batch<'_, '_>,
        message: &command::PublishedMessage,
    ) -> bool {
        if !self.fan_outs.is_full(&message.topic) {
            return false;
        }
        let at_once = match self.fan_outs.has(&message.topic) {
            true => 0,
            false => batch.queues(QUEUE_COST),
        };
        let match_set = self.look_up_to_judge(batch, &message.topic);
        self.is_more_work(&match_set, QoS::from_number(message.qos), at_once)
    }

    /// A timer asks to go on with a message on its way into queues; the next ones of its topic follow it, as far as the
    /// batch's budget allows.
    pub fn go_on_fanning_out(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        let mut next = fan_out::of_subject(subject);
        let proposer = batch.node;
        // Others that are due get something of what timers may do.
        let most = (batch.allowance(QUEUE_COST) / 2).max(1);
        let (mut all_used, mut looking_up) = (0, 0);
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
            let went_on = self.fan_out(batch, id, &row, left);
            all_used += went_on.used.max(1);
            // All are of one topic.
            looking_up = looking_up.max(went_on.looking_up);
            next = None;
            match went_on.goes_on_at {
                None => next = self.fan_outs.end(batch, id, &row),
                Some(position) => self.fan_outs.keep(batch, id, row, position),
            }
        }
        batch.node = proposer;
        batch.spend((all_used + looking_up) * QUEUE_COST);
    }

    /// One portion of a message on its way into queues.
    fn fan_out(
        &mut self,
        batch: &mut Batch<'_, '_>,
        id: MessageId,
        row: &state::FanOut,
        most: usize,
    ) -> WentOn {
        let Some(message) = fan_out::message(batch, id, row) else {
            return WentOn::default();
        };
        if message.expires_at.is_some_and(|at| at < batch.now) {
            batch.count_dropped(DropReason::Expired, 1);
            return WentOn::default();
        }
        let match_set = self.look_ups.of(&self.index, &message.topic);
        let looking_up = match_set.weight_again(&self.index, &message.topic);
        let publication = Publication {
            index: fan_out::index_of(row),
            number: Some(id),
            retained: self.replays.retained(batch, &message.topic),
        };
        let mut storing = Storing::go_on(batch, id, Arc::new(message), most);
        let mut position = fan_out::position(row);
        let mut portion = self.portion(&match_set, &publication, most, true);
        let is_done = portion.hand_out(batch, &mut storing, &mut position);
        let used = portion.used;
        storing.store(batch);
        WentOn {
            goes_on_at: (!is_done).then_some(position),
            used,
            looking_up,
        }
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
