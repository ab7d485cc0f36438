//! PUBLISH: which sessions a message is for, and what becomes of it for each.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::effect::{ApplicationMessage, Output, Reply};
use super::messages::Storing;
use super::subscriptions::{Subscriber, SubscriptionIndex};
use super::{Context, Machine, schema};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::base::proto::command;
use crate::session::QoS;
use crate::session::delivery::{Delivery, Match, expires_at, remaining_s};

/// The matching subscriptions of one session.
struct MatchedSession {
    subscriber: Arc<Subscriber>,
    /// Each with No Local.
    matches: SmallVec<[(Match, bool); 1]>,
}

impl MatchedSession {
    /// What the session gets of the message, if anything.
    fn delivery(&self, message: &ApplicationMessage) -> Option<Delivery> {
        let is_own = message.publisher == Some(self.subscriber.session);
        let matches = self.matches.iter().map(|(found, no_local)| Match {
            is_own: is_own && *no_local,
            ..*found
        });
        Delivery::merge(message.qos, message.retain, matches)
    }
}

/// Who gets messages with one topic.
#[derive(Default)]
pub(super) struct MatchSet {
    generation: u64,
    sessions: Vec<MatchedSession>,
    groups: Vec<Arc<str>>,
}

impl MatchSet {
    /// The sessions, those of groups excepted.
    pub(super) fn subscribers(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.sessions.iter().map(|target| &target.subscriber)
    }

    fn find(index: &SubscriptionIndex, topic: &str) -> MatchSet {
        let mut match_set = MatchSet {
            generation: index.generation(),
            ..MatchSet::default()
        };
        // In the order of sessions, so that all replicas number messages alike.
        let mut sessions: BTreeMap<SessionId, MatchedSession> = BTreeMap::new();
        index.for_each_match(topic, |group, subscription| {
            if let Some(group) = group {
                if !match_set.groups.contains(group) {
                    match_set.groups.push(group.clone());
                }
                return;
            }
            let found = Match {
                qos: subscription.qos,
                is_own: false,
                retain_as_published: subscription.retain_as_published,
                identifier: (subscription.identifier != 0).then_some(subscription.identifier),
            };
            sessions
                .entry(subscription.subscriber.session)
                .or_insert_with(|| MatchedSession {
                    subscriber: subscription.subscriber.clone(),
                    matches: SmallVec::new(),
                })
                .matches
                .push((found, subscription.no_local));
        });
        for target in sessions.values_mut() {
            // The trie's order is not the same on all replicas.
            target
                .matches
                .sort_unstable_by_key(|(found, no_local)| (found.identifier, found.qos, *no_local));
        }
        match_set.sessions = sessions.into_values().collect();
        match_set.groups.sort_unstable();
        match_set
    }
}

/// MatchSets of recent topics.
#[derive(Default)]
pub(super) struct MatchSets(FxHashMap<Box<str>, Arc<MatchSet>>);

impl MatchSets {
    fn of(&mut self, index: &SubscriptionIndex, topic: &str) -> Arc<MatchSet> {
        if let Some(match_set) = self.0.get(topic)
            && match_set.generation == index.generation()
        {
            return match_set.clone();
        }
        let match_set = Arc::new(MatchSet::find(index, topic));
        if self.0.len() >= limits::CACHED_MATCH_SETS {
            self.0.clear();
        }
        self.0.insert(topic.into(), match_set.clone());
        match_set
    }
}

impl Machine {
    pub(super) fn publish(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::Publish,
    ) -> Reply {
        let Some(message) = command.message else {
            return Reply::Done;
        };
        let mut publisher = None;
        let mut received = None;
        if command.connection != 0 {
            let owner = context.owner(command.connection);
            let Some(connected) = self.connections.get(&owner) else {
                return Reply::NotOwner;
            };
            publisher = Some(connected.session);
            if command.packet_id != 0 && connected.durable {
                // A packet id is two bytes.
                let packet_id = command.packet_id as u16;
                let row = schema::received::encode(connected.session, packet_id);
                if context.tables.get(&row).is_some() {
                    // [MQTT-4.3.3-10]
                    return Reply::Published { matched: true };
                }
                received = Some(row);
            }
        }
        if self.exceeds_retained(context, &message, command.max_retained) {
            // [MQTT-4.3.3-9]: the packet id of what is refused is free again.
            return Reply::QuotaExceeded;
        }
        if let Some(row) = received {
            context.tables.put(row, Vec::new());
        }
        let matched = self.publish_message(context, publisher, message);
        Reply::Published { matched }
    }

    /// Retains a message as far as it asks for it, and hands it to whoever is subscribed; tells whether anybody is.
    pub(super) fn publish_message(
        &mut self,
        context: &mut Context<'_, '_>,
        publisher: Option<SessionId>,
        message: command::PublishedMessage,
    ) -> bool {
        let expires_at = message
            .expiry_interval_s
            .map(|seconds| expires_at(context.now, seconds));
        let message = Arc::new(ApplicationMessage {
            topic: message.topic,
            qos: QoS::from_number(message.qos),
            retain: message.retain,
            payload: message.payload,
            properties: message.properties,
            expires_at,
            publisher,
        });
        let index = self.subscriptions.clone();
        let match_set = self.match_sets.of(&index, &message.topic);
        self.feed_ahead(context, &match_set, &message);
        if message.retain {
            self.retain(context, &message);
        }
        let mut storing = Storing::new(message.clone());
        let mut live = false;
        let mut matched = !match_set.groups.is_empty();
        for target in &match_set.sessions {
            let Some(delivery) = target.delivery(&message) else {
                continue;
            };
            matched = true;
            let subscriber = &target.subscriber;
            if subscriber.queues(delivery.qos) {
                let (session, client_id) = (subscriber.session, &subscriber.client_id);
                self.enqueue(context, session, client_id, delivery, None, &mut storing);
            } else {
                live = true;
            }
        }
        for group in &match_set.groups {
            self.publish_to_group(context, group, &mut storing);
        }
        self.store_message(context, &storing);
        if live {
            let expiry_s = expires_at.and_then(|at| remaining_s(at, context.now));
            self.outputs.push(Output::Publish { message, expiry_s });
        }
        matched
    }
}
