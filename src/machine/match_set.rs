//! Match sets: who gets the messages of one topic, remembered for recent topics.
//!
//! They name sessions, not connections, so a client that connects or disconnects changes none of them.
//!
//! Invariant: a look-up costs no more than sorting what it finds, and what is remembered is bounded by its size.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::effect::ApplicationMessage;
use super::subscriptions::{Subscriber, Subscription, SubscriptionIndex};
use crate::base::limits;
use crate::session::delivery::{Delivery, Match};
use crate::session::{MessageId, QoS};
use crate::topic::generations::Validity;

/// What a look-up looks at for nothing: nearly every topic has less.
const LOOKED_AT_FREE: usize = 64;

/// What a look-up looks at in the time of a row operation.
const LOOKED_AT_PER_ROW_OPERATION: usize = 4;

/// What a look-up looks at in the time of putting a message into a queue.
const LOOKED_AT_PER_QUEUE: usize = 64;

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

impl Matching {
    fn of(subscription: &Subscription) -> Matching {
        Matching {
            found: Match {
                qos: subscription.qos,
                is_own: false,
                retain_as_published: subscription.retain_as_published,
                identifier: (subscription.identifier != 0).then_some(subscription.identifier),
            },
            no_local: subscription.no_local,
            after: subscription.after,
        }
    }

    /// What tells those of one session apart, the same on all replicas.
    fn key(&self) -> (Option<u32>, QoS, bool, MessageId) {
        let found = &self.found;
        (found.identifier, found.qos, self.no_local, self.after)
    }
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

    /// Sessions and groups that match.
    pub fn targets(&self) -> usize {
        self.sessions.len() + self.groups.len()
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
        let mut matched: Vec<(Arc<Subscriber>, Matching)> = Vec::new();
        let groups = &mut match_set.groups;
        index.for_each_match(topic, |group, subscription| match group {
            Some(group) => groups.push(group.clone()),
            None => matched.push((subscription.subscriber.clone(), Matching::of(subscription))),
        });
        match_set.matches = groups.len() + matched.len();
        // They come sorted where one session has many of one inner filter, which a stable sort makes use of.
        groups.sort();
        groups.dedup();
        // The trie's order is not the same on all replicas.
        matched.sort_unstable_by_key(|(subscriber, matching)| (subscriber.session, matching.key()));
        for (subscriber, matching) in matched {
            match match_set.sessions.last_mut() {
                Some(last) if last.subscriber.session == subscriber.session => {
                    last.matches.push(matching);
                }
                _ => match_set.sessions.push(MatchedSession {
                    subscriber,
                    matches: smallvec![matching],
                }),
            }
        }
        match_set
    }

    /// What publishing a message to them costs beside what goes into queues, row operations, where its proposal does
    /// not count it: every node looks its topic up twice and hands it to connections. A look-up that was made before
    /// costs as much, because another replica may not remember it; and it does not count what it has visited, which
    /// may have changed without a match.
    pub fn cost(&self, index: &SubscriptionIndex, topic: &str) -> usize {
        let looked_at = self.looked_at(index, topic);
        looked_at.saturating_sub(LOOKED_AT_FREE) / LOOKED_AT_PER_ROW_OPERATION
    }

    /// What a look-up of the topic looks at: subscriptions, and parts of filters.
    pub fn looked_at(&self, index: &SubscriptionIndex, topic: &str) -> usize {
        self.matches + index.patterns_visited(topic)
    }

    /// As how many queues the look-up counts where messages of a topic go on: another subscription may have outdated it
    /// in every batch, and which topics are remembered nobody can tell.
    pub fn weight_again(&self, index: &SubscriptionIndex, topic: &str) -> usize {
        self.looked_at(index, topic) / LOOKED_AT_PER_QUEUE
    }
}

/// The match sets of recent topics: those that were looked up last, and as many that were before. What is asked for
/// again and again stays. One that is larger than either may be takes nobody's place.
#[derive(Default)]
pub(super) struct MatchSets {
    recent: Remembered,
    former: Remembered,
    /// The last of those.
    large: Remembered,
    /// Look-ups that were made.
    #[cfg(test)]
    made: usize,
}

#[derive(Default)]
struct Remembered {
    /// Clients choose topics, so they are hashed with a random seed.
    by_topic: HashMap<Box<str>, Arc<MatchSet>>,
    /// Matches of all of them.
    matches: usize,
}

impl Remembered {
    /// Whether one more is too much for one of two halves.
    fn is_full_with(&self, match_set: &MatchSet) -> bool {
        self.by_topic.len() >= limits::CACHED_MATCH_SETS / 2
            || self.matches + match_set.matches > limits::REMEMBERED_MATCHES / 2
    }

    fn put(&mut self, topic: Box<str>, match_set: Arc<MatchSet>) {
        self.matches += match_set.matches;
        let former = self.by_topic.insert(topic, match_set);
        self.matches -= former.map_or(0, |former| former.matches);
    }

    fn take(&mut self, topic: &str) -> Option<(Box<str>, Arc<MatchSet>)> {
        let taken = self.by_topic.remove_entry(topic)?;
        self.matches -= taken.1.matches;
        Some(taken)
    }
}

impl MatchSets {
    /// Look-ups that were made.
    #[cfg(test)]
    pub fn made(&self) -> usize {
        self.made
    }

    pub fn of(&mut self, index: &SubscriptionIndex, topic: &str) -> Arc<MatchSet> {
        for there in [&self.recent, &self.large] {
            if let Some(match_set) = there.by_topic.get(topic)
                && index.are_filters_current(&match_set.validity)
            {
                return match_set.clone();
            }
        }
        let (topic, match_set) = match self.former.take(topic) {
            Some((topic, match_set)) if index.are_filters_current(&match_set.validity) => {
                (topic, match_set)
            }
            _ => {
                #[cfg(test)]
                {
                    self.made += 1;
                }
                (topic.into(), Arc::new(MatchSet::find(index, topic)))
            }
        };
        if match_set.matches > limits::REMEMBERED_MATCHES / 2 {
            self.large = Remembered::default();
            self.large.put(topic, match_set.clone());
            return match_set;
        }
        if self.recent.is_full_with(&match_set) {
            self.former = std::mem::take(&mut self.recent);
        }
        self.recent.put(topic, match_set.clone());
        match_set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::SessionId;
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
            for half in [&match_sets.recent, &match_sets.former] {
                assert!(half.matches <= limits::REMEMBERED_MATCHES / 2);
                assert_eq!(half.matches, half.by_topic.len() * 2_000);
            }
        }
    }

    #[test]
    fn one_that_is_very_large_takes_nobodys_place() {
        let (index, mut match_sets) = (SubscriptionIndex::default(), MatchSets::default());
        subscribe(&index, 1, &["t/#"]);
        let small = match_sets.of(&index, "t/1");
        let most = limits::REMEMBERED_MATCHES as u64 / 2;
        for session in 0..=most {
            subscribe(&index, session, &["large"]);
        }
        let first = match_sets.of(&index, "large");
        assert_eq!(first.matches as u64, most + 1);
        assert!(Arc::ptr_eq(&small, &match_sets.of(&index, "t/1")));
        assert!(Arc::ptr_eq(&first, &match_sets.of(&index, "large")));
        subscribe(&index, most + 1, &["large"]);
        assert_eq!(match_sets.of(&index, "large").matches as u64, most + 2);
        assert_eq!(match_sets.large.by_topic.len(), 1);
    }

    /// A message on its way into many queues goes on with its match set, whatever is published beside it.
    #[test]
    fn what_is_asked_for_again_and_again_is_looked_up_once() {
        let (index, mut match_sets) = (SubscriptionIndex::default(), MatchSets::default());
        for session in 0..2_000 {
            subscribe(&index, session, &["#"]);
        }
        let first = match_sets.of(&index, "t");
        for topic in 0..1_000 {
            match_sets.of(&index, &topic.to_string());
            assert!(Arc::ptr_eq(&first, &match_sets.of(&index, "t")), "{topic}");
        }
    }
}
