//! Match sets: who gets the messages of one topic, remembered for recent topics.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::effect::ApplicationMessage;
use super::subscriptions::{Subscriber, SubscriptionIndex};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::session::delivery::{Delivery, Match};

/// The matching subscriptions of one session.
pub(super) struct MatchedSession {
    pub subscriber: Arc<Subscriber>,
    /// Each with No Local.
    matches: SmallVec<[(Match, bool); 1]>,
}

impl MatchedSession {
    /// What the session gets of the message, if anything.
    pub fn delivery(&self, message: &ApplicationMessage) -> Option<Delivery> {
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
    /// In the order of sessions, so that all replicas number messages alike; those of groups excepted.
    pub sessions: Vec<MatchedSession>,
    /// The shared filters, sorted.
    pub groups: Vec<Arc<str>>,
}

impl MatchSet {
    fn find(index: &SubscriptionIndex, topic: &str) -> MatchSet {
        let mut match_set = MatchSet {
            generation: index.generation(),
            ..MatchSet::default()
        };
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
        for session in sessions.values_mut() {
            // The trie's order is not the same on all replicas.
            session
                .matches
                .sort_unstable_by_key(|(found, no_local)| (found.identifier, found.qos, *no_local));
        }
        match_set.sessions = sessions.into_values().collect();
        match_set.groups.sort_unstable();
        match_set
    }
}

/// The match sets of recent topics.
#[derive(Default)]
pub(super) struct MatchSets(FxHashMap<Box<str>, Arc<MatchSet>>);

impl MatchSets {
    pub fn of(&mut self, index: &SubscriptionIndex, topic: &str) -> Arc<MatchSet> {
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
