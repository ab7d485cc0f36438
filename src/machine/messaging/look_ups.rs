//! Looking up who gets the messages of a topic, in a batch that changes subscriptions meanwhile.
//!
//! What was found is remembered until a subscription changes that it depends on, and a proposal weighs no more than the
//! first look-up. A batch that changes subscriptions and publishes in turns has each look-up made anew. That counts,
//! and beyond a bound a topic is not looked up any more in this batch: the message follows later.
//!
//! Invariant: what counts follows from the batch and the tables, never from what is remembered, so all replicas stop at
//! the same place.

use std::collections::HashMap;
use std::sync::Arc;

use crate::machine::batch::Batch;
use crate::machine::match_set::{MatchSet, MatchSets};
use crate::machine::subscriptions::SubscriptionIndex;

/// The match sets, and what of them was looked up in the batch under way.
#[derive(Default)]
pub(super) struct LookUps {
    match_sets: MatchSets,
    /// Subscriptions that the batch has changed.
    changes: u64,
    /// How many it had changed when a topic was looked up last; those that were looked up before the first change are
    /// not among them.
    at_change: HashMap<Box<str>, u64>,
}

impl LookUps {
    /// Look-ups that were made, whoever has asked.
    #[cfg(test)]
    pub fn made(&self) -> usize {
        self.match_sets.made()
    }

    /// A new batch begins.
    pub fn begin_batch(&mut self) {
        self.changes = 0;
        self.at_change.clear();
    }

    /// A subscription was made, replaced or ended.
    pub fn changed(&mut self) {
        self.changes += 1;
    }

    /// Who gets the messages of a topic. Whoever asks counts it.
    pub fn of(&mut self, index: &SubscriptionIndex, topic: &str) -> Arc<MatchSet> {
        self.match_sets.of(index, topic)
    }

    /// The same for whoever needs it in any case, and spends its cost: until the next change of the batch it need not
    /// be looked up anew.
    pub fn needed(&mut self, index: &SubscriptionIndex, topic: &str) -> Arc<MatchSet> {
        if self.changes > 0 {
            self.at_change.insert(topic.into(), self.changes);
        }
        self.match_sets.of(index, topic)
    }

    /// The same, unless it would have to be looked up anew and the batch has done that too often already.
    pub fn within_batch(
        &mut self,
        batch: &mut Batch<'_, '_>,
        index: &SubscriptionIndex,
        topic: &str,
    ) -> Option<Arc<MatchSet>> {
        if self.changes == 0 || self.at_change.get(topic) == Some(&self.changes) {
            return Some(self.match_sets.of(index, topic));
        }
        if !batch.may_look_up_anew() {
            return None;
        }
        let match_set = self.match_sets.of(index, topic);
        batch.spend_look_up(match_set.looked_at(index, topic));
        self.at_change.insert(topic.into(), self.changes);
        Some(match_set)
    }
}
