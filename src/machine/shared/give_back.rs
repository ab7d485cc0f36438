//! What a session was sent through groups goes back to them when its connection ends, for another member.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{GIVE_COST, SharedGroups};
use crate::base::ids::SessionId;
use crate::machine::batch::Batch;
use crate::machine::queue::Queues;
use crate::session::{Queued, Sequence};

/// Members of a group that are looked at, whether they have a connection, in the time of a row operation.
const MEMBERS_PER_ROW_OPERATION: usize = 16;

impl SharedGroups {
    /// The session has lost its connection: what it was sent and others can take goes back. If it has `ended`, so does
    /// what nobody can take now; its queue has no entries before that one.
    pub fn give_back(
        &mut self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        session: SessionId,
        ended: Option<Sequence>,
    ) {
        if !self.of_session.contains_key(&session) {
            return;
        }
        let mut kept: FxHashMap<u64, bool> = FxHashMap::default();
        let mut members = 0;
        let from = ended.unwrap_or_else(|| queues.oldest(batch, session));
        let shared = queues.take_shared(batch, session, from, |id| {
            *kept.entry(id).or_insert_with(|| {
                let filter = self.filters.get(&id);
                let group = filter.and_then(|filter| self.by_filter.get(filter));
                members += group.map_or(0, |group| group.members.len());
                !group.is_some_and(|group| group.has_other(session, ended.is_none()))
            })
        });
        batch.spend(members / MEMBERS_PER_ROW_OPERATION);
        let mut changed = BTreeSet::new();
        // The oldest goes back last, and so to the very front.
        for queued in shared.into_iter().rev() {
            let id = queued.group;
            let Some(filter) = id.and_then(|id| self.filters.get(&id).cloned()) else {
                continue;
            };
            if let Some(group) = self.by_filter.get_mut(&filter) {
                let queued = Queued {
                    group: None,
                    identifiers: SmallVec::new(),
                    ..queued
                };
                group.prepend(batch, queued);
            }
            changed.insert(filter);
        }
        for filter in changed {
            self.put_row(batch, &filter);
            self.offer(batch, queues, &filter, session);
        }
    }

    /// Has members other than `session` looked at, because messages wait in their group: the next ones in turn, as many
    /// as the batch's budget allows. That is enough: a member that can't take a message now has some under way, and is
    /// looked at again when they are acknowledged.
    fn offer(
        &self,
        batch: &mut Batch<'_, '_>,
        queues: &mut Queues,
        filter: &Arc<str>,
        session: SessionId,
    ) {
        let Some(group) = self.by_filter.get(filter) else {
            return;
        };
        let most = batch.allowance(GIVE_COST);
        let others = group
            .in_turn()
            .filter(|(member, found)| *member != session && found.subscriber.owner().is_some());
        let mut offered = 0;
        for (member, _) in others.take(most) {
            queues.touch(member);
            offered += 1;
        }
        batch.spend(offered * GIVE_COST + group.members.len() / MEMBERS_PER_ROW_OPERATION);
    }
}
