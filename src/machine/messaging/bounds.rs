//! How many subscriptions there may be.

use crate::base::ids::SessionId;
use crate::base::proto::command;
use crate::machine::shared::SharedGroups;
use crate::machine::subscriptions::{SubscriptionIndex, size_of_filter};
use crate::topic::Filter;

/// What there may be of subscriptions; 0 is no bound.
pub(super) struct SubscriptionBounds {
    /// Subscriptions of one session.
    of_session: u64,
    /// Groups of the cluster.
    groups: u64,
    /// What those of one session count in memory.
    session_bytes: u64,
    /// What all count in memory.
    total_bytes: u64,
    /// Wildcard patterns of one session.
    session_patterns: u64,
    /// Deep ones of the cluster.
    deep_patterns: u64,
}

impl SubscriptionBounds {
    /// As a SUBSCRIBE says.
    pub fn of(command: &command::Subscribe) -> SubscriptionBounds {
        SubscriptionBounds {
            of_session: command.max_subscriptions,
            groups: command.max_groups,
            session_bytes: command.max_session_bytes,
            total_bytes: command.max_total_bytes,
            session_patterns: command.max_session_patterns,
            deep_patterns: command.max_deep_patterns,
        }
    }

    /// Whether a subscription would be one more than its session or the cluster may have.
    pub fn are_exceeded(
        &self,
        index: &SubscriptionIndex,
        groups: &SharedGroups,
        session: SessionId,
        filter: &str,
    ) -> bool {
        let exceeds = |held: u64, bound: u64| bound != 0 && held > bound;
        let (own, all) = index.held(session);
        let size = size_of_filter(filter);
        let is_full = exceeds(own.count + 1, self.of_session)
            || exceeds(own.bytes + size, self.session_bytes)
            || exceeds(all.bytes + size, self.total_bytes)
            || self.are_patterns_exceeded(index, session, filter);
        if is_full && !index.has_subscription(session, filter) {
            return true;
        }
        let is_shared = Filter::parse(filter).is_ok_and(|filter| filter.share.is_some());
        is_shared && exceeds(groups.count() + 1, self.groups) && !groups.has(filter)
    }

    /// Whether its filter needs wildcard patterns that are too many. One that needs no new ones is never refused.
    fn are_patterns_exceeded(
        &self,
        index: &SubscriptionIndex,
        session: SessionId,
        filter: &str,
    ) -> bool {
        let needed = index.patterns_needed(session, filter);
        let exceeds = |there: usize, missing: usize, bound: u64| {
            bound != 0 && missing > 0 && (there + missing) as u64 > bound
        };
        exceeds(needed.own, needed.missing.own, self.session_patterns)
            || exceeds(needed.deep, needed.missing.deep, self.deep_patterns)
    }
}
