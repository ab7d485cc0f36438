//! Handing a message to the sessions and groups that it matches, as many as a log entry may serve.
//!
//! Invariant: the order is that of the match set, sessions by number and groups by filter, so a portion needs to know
//! no more of the former ones than where they ended, and replicas that restart in between go on at the same place.
//! Invariant: nobody gets a message who subscribed after it was published, or for whom it was sent without a queue
//! then.

use crate::machine::batch::Batch;
use crate::machine::fan_out::Position;
use crate::machine::match_set::{MatchSet, MatchedSession};
use crate::machine::queue::Queues;
use crate::machine::queue::message::Storing;
use crate::machine::retained::publication::Publication;
use crate::machine::retained::replay::RetainedReplays;
use crate::machine::session;
use crate::machine::shared::SharedGroups;
use crate::session::QoS;
use crate::session::delivery::Delivery;

/// Row operations that putting a message into a queue takes: the rows of the session, the queue and the entry, and that
/// of a message which makes room.
pub(in crate::machine) const QUEUE_COST: usize = 6;

/// Subscriptions of one session that match a message and take as long to be merged, and their identifiers to be
/// stored, as putting the message into a queue does.
const MERGED_PER_QUEUE: usize = 256;

/// Retained replays of one session that take as long to be looked at before a message as putting it into a queue does.
const REPLAYS_PER_QUEUE: usize = 2;

/// As how many queues a session counts that has so many retained replays to be looked at. Only those of subscriptions
/// that match are.
pub(super) fn weight(target: &MatchedSession, replays: usize) -> usize {
    let matches = target.subscriptions();
    1 + matches / MERGED_PER_QUEUE + replays.min(matches) / REPLAYS_PER_QUEUE
}

/// Members of a group that take as long to be asked for one that can take a message as putting it into a queue does.
const MEMBERS_PER_QUEUE: usize = 64;

/// As how many queues a group counts.
pub(super) fn group_weight(groups: &SharedGroups, filter: &str) -> usize {
    1 + groups.members(filter) / MEMBERS_PER_QUEUE
}

/// One go with one message.
pub(super) struct Portion<'a> {
    pub queues: &'a mut Queues,
    pub groups: &'a mut SharedGroups,
    pub replays: &'a mut RetainedReplays,
    pub match_set: &'a MatchSet,
    pub publication: &'a Publication,
    /// Queues that it may go into. One that takes longer than most counts as several.
    pub most: usize,
    /// How much of that it has used.
    pub used: usize,
    /// The first queue is served whatever it takes, or there would be no end.
    pub must_go_on: bool,
    /// Somebody gets the message, as far as it was looked.
    pub matched: bool,
    /// Somebody gets the message straight to its connection, as far as it was looked.
    pub live: bool,
}

impl Portion<'_> {
    /// Goes on from a position; `false` when there is more to do, and the position is where.
    pub fn hand_out(
        &mut self,
        batch: &mut Batch<'_, '_>,
        storing: &mut Storing,
        position: &mut Position,
    ) -> bool {
        if !position.groups {
            if !self.enqueue_for_sessions(batch, storing, position) {
                return false;
            }
            position.groups = true;
        }
        self.enqueue_for_groups(batch, storing, position)
    }

    fn enqueue_for_sessions(
        &mut self,
        batch: &mut Batch<'_, '_>,
        storing: &mut Storing,
        position: &mut Position,
    ) -> bool {
        let sessions = &self.match_set.sessions;
        let looks_at_replays = self.publication.concerns_replays(&storing.message);
        let has_it = |target: &MatchedSession| target.subscriber.session <= position.session;
        let from = match position.session.0 {
            0 => 0,
            _ => sessions.partition_point(has_it),
        };
        for target in &sessions[from..] {
            let subscriber = &target.subscriber;
            let session = subscriber.session;
            let delivery = target.delivery(&storing.message, self.publication.number);
            let is_matched = delivery.is_some();
            let queued = delivery.filter(|delivery| subscriber.queues(delivery.qos));
            self.matched |= is_matched;
            self.live |= is_matched && queued.is_none();
            let replays = match looks_at_replays {
                true => self.replays.of_session(session),
                false => 0,
            };
            let has_replays = replays > 0;
            if queued.is_none() && !has_replays {
                continue;
            }
            if !self.use_up(weight(target, replays)) {
                return false;
            }
            position.session = session;
            if has_replays {
                let (queues, message) = (&mut *self.queues, &storing.message);
                self.replays
                    .replay_first(batch, queues, subscriber, message, self.publication);
            }
            let client_id = &subscriber.client_id;
            if let Some(delivery) = queued
                && self.was_queued_for(batch, client_id, &delivery)
            {
                self.queues
                    .enqueue(batch, session, client_id, delivery, None, storing);
            }
        }
        true
    }

    /// Uses up what a queue takes of what this go may do; `false` when that is too much.
    fn use_up(&mut self, weight: usize) -> bool {
        let is_first = self.must_go_on && self.used == 0;
        if !is_first && self.used + weight > self.most {
            return false;
        }
        self.used += weight;
        true
    }

    /// Whether a message that goes into the queue of a session now would have done so when it was published. With QoS 0
    /// that is so without a connection only; one that has come or gone since may have been sent it.
    fn was_queued_for(&self, batch: &Batch<'_, '_>, client_id: &str, delivery: &Delivery) -> bool {
        if self.publication.number.is_none() || delivery.qos != QoS::AtMostOnce {
            return true;
        }
        let row = session::row(batch.tables, client_id);
        row.is_some_and(|row| session::is_away_since_before(&row, self.publication.index))
    }

    fn enqueue_for_groups(
        &mut self,
        batch: &mut Batch<'_, '_>,
        storing: &mut Storing,
        position: &mut Position,
    ) -> bool {
        let groups = &self.match_set.groups;
        let from = match position.group.is_empty() {
            true => 0,
            false => groups.partition_point(|group| **group <= *position.group),
        };
        self.matched |= from < groups.len();
        for (number, group) in groups.iter().enumerate().skip(from) {
            if !self.use_up(group_weight(self.groups, group)) {
                if let Some(last) = number.checked_sub(1).and_then(|last| groups.get(last)) {
                    position.group = last.to_string();
                }
                return false;
            }
            let number = self.publication.number;
            self.groups
                .publish(batch, self.queues, group, storing, number);
        }
        true
    }
}
