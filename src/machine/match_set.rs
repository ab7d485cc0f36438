//! Match sets: who gets the messages of one topic, remembered for recent topics.
//!
//! They name sessions, not connections, so a client that connects or disconnects changes none of them.
//!
//! Invariant: a look-up costs no more than sorting what it finds, and what is remembered is bounded by its size.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use super::effect::ApplicationMessage;
use super::subscriptions::{Subscriber, SubscriptionIndex};
use crate::base::ids::SessionId;
use crate::base::limits;
use crate::session::delivery::{Delivery, Match};
use crate::session::{MessageId, QoS};
use crate::topic::generations::Validity;

/// Matches that all remembered match sets may hold together, some 100 bytes each.
const REMEMBERED_MATCHES: usize = 1 << 19;

/// The matching subscriptions of one session.
pub(super) struct MatchedSession {
    pub subscriber: Arc<Subscriber>,
    matches: SmallVec<[Matching; 1]>,
}

/// A matching subscription.
struct Matching {
    found: Match,
    no_local: bool,
    /// The last message that was numbered before the subscription was made.
    after: MessageId,
}

impl MatchedSession {
    /// How many of its subscriptions match.
    pub fn subscriptions(&self) -> usize {
        self.matches.len()
    }

    /// Whether the session gets messages with this QoS through its queue. One of its own that is not for it counts all
    /// the same.
    pub fn queues(&self, qos: QoS) -> bool {
        let granted = self.matches.iter().map(|matching| matching.found.qos);
        granted
            .max()
            .is_some_and(|granted| self.subscriber.queues(qos.min(granted)))
    }

    /// What the session gets of the message, if anything: with the number that the message has in queues, only by
    /// subscriptions that were there when it was published; without, it is published now.
    pub fn delivery(
        &self,
        message: &ApplicationMessage,
        number: Option<MessageId>,
    ) -> Option<Delivery> {
        let is_own = message.publisher == Some(self.subscriber.session);
        let matches = self.matches.iter();
        let in_time =
            matches.filter(|matching| number.is_none_or(|number| matching.after < number));
        let matches = in_time.map(|matching| Match {
            is_own: is_own && matching.no_local,
            ..matching.found
        });
        Delivery::merge(message.qos, message.retain, matches)
    }
}

/// Who gets messages with one topic.
#[derive(Default)]
pub(super) struct MatchSet {
    validity: Validity,
    /// In the order of sessions, so that all replicas number messages alike; those of groups excepted.
    pub sessions: Vec<MatchedSession>,
    /// The shared filters, sorted.
    pub groups: Vec<Arc<str>>,
    /// Number of matches.
    matches: usize,
}

impl MatchSet {
    /// Whether nobody gets them.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.groups.is_empty()
    }

    /// Whether somebody gets a message that is published now.
    pub fn has_receiver(&self, message: &ApplicationMessage) -> bool {
        let gets_it = |target: &MatchedSession| target.delivery(message, None).is_some();
        !self.groups.is_empty() || self.sessions.iter().any(gets_it)
    }

    /// Whether a message with this QoS goes into any queue.
    pub fn has_queue(&self, qos: QoS) -> bool {
        let mut sessions = self.sessions.iter();
        !self.groups.is_empty() || sessions.any(|target| target.queues(qos))
    }

    fn find(index: &SubscriptionIndex, topic: &str) -> MatchSet {
        let mut match_set = MatchSet {
            validity: index.filters_validity(topic),
            ..MatchSet::default()
        };
        let mut sessions: BTreeMap<SessionId, MatchedSession> = BTreeMap::new();
        let mut groups: BTreeSet<Arc<str>> = BTreeSet::new();
        index.for_each_match(topic, |group, subscription| {
            if let Some(group) = group {
                if !groups.contains(group) {
                    groups.insert(group.clone());
                }
                match_set.matches += 1;
                return;
            }
            match_set.matches += 1;
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
                .push(Matching {
                    found,
                    no_local: subscription.no_local,
                    after: subscription.after,
                });
        });
        for session in sessions.values_mut() {
            // The trie's order is not the same on all replicas.
            session.matches.sort_unstable_by_key(|matching| {
                let found = &matching.found;
                (
                    found.identifier,
                    found.qos,
                    matching.no_local,
                    matching.after,
                )
            });
        }
        match_set.sessions = sessions.into_values().collect();
        match_set.groups = groups.into_iter().collect();
        match_set
    }
}

/// The match sets of recent topics.
#[derive(Default)]
pub(super) struct MatchSets {
    /// Clients choose topics, so they are hashed with a random seed.
    by_topic: HashMap<Box<str>, Arc<MatchSet>>,
    /// Matches of all of them.
    matches: usize,
}

impl MatchSets {
    pub fn of(&mut self, index: &SubscriptionIndex, topic: &str) -> Arc<MatchSet> {
        if let Some(match_set) = self.by_topic.get(topic)
            && index.are_filters_current(&match_set.validity)
        {
            return match_set.clone();
        }
        let match_set = Arc::new(MatchSet::find(index, topic));
        let is_full = self.by_topic.len() >= limits::CACHED_MATCH_SETS
            || self.matches + match_set.matches > REMEMBERED_MATCHES;
        if is_full {
            *self = MatchSets::default();
        }
        self.matches += match_set.matches;
        let former = self.by_topic.insert(topic.into(), match_set.clone());
        self.matches -= former.map_or(0, |former| former.matches);
        match_set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::subscriptions::Queueing;

    fn subscribe(index: &SubscriptionIndex, session: u64, filters: &[&str]) {
        index.put(SessionId(session), None, Queueing::default(), filters);
    }

    #[test]
    fn many_groups_of_one_topic_are_found_once_each() {
        let index = SubscriptionIndex::default();
        let filters: Vec<String> = (0..20_000)
            .map(|group| format!("$share/{group}/t"))
            .collect();
        let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
        subscribe(&index, 1, &filters);
        subscribe(&index, 2, &filters);
        let match_set = MatchSets::default().of(&index, "t");
        assert_eq!(match_set.groups.len(), 20_000);
        assert!(match_set.groups.is_sorted());
    }

    #[test]
    fn only_filters_that_match_a_topic_change_its_match_set() {
        let (index, mut match_sets) = (SubscriptionIndex::default(), MatchSets::default());
        subscribe(&index, 1, &["a/+"]);
        let first = match_sets.of(&index, "a/b");
        subscribe(&index, 2, &["b/#", "a/c"]);
        index.close(SessionId(1));
        subscribe(&index, 1, &[]);
        assert!(Arc::ptr_eq(&first, &match_sets.of(&index, "a/b")));
        subscribe(&index, 2, &["a/#"]);
        assert_eq!(match_sets.of(&index, "a/b").sessions.len(), 2);
    }

    #[test]
    fn what_is_remembered_is_bounded_by_its_size() {
        let (index, mut match_sets) = (SubscriptionIndex::default(), MatchSets::default());
        for session in 0..2_000 {
            subscribe(&index, session, &["#"]);
        }
        for topic in 0..300 {
            match_sets.of(&index, &topic.to_string());
            assert!(match_sets.matches <= REMEMBERED_MATCHES);
        }
        assert_eq!(match_sets.matches, match_sets.by_topic.len() * 2_000);
    }
}
