//! Which member of a shared subscription gets the next message.
//!
//! A group is a share name *and* a filter. It owns a queue; the machine moves a message from it to a member when the
//! member can be sent it at once, so nothing is stranded on a member that is away or saturated.

use std::num::NonZeroU32;

/// The turn of a group's members: who was chosen last. Replicated with the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn<K> {
    last: Option<K>,
}

impl<K: Copy + Ord> Turn<K> {
    /// A turn in which `last` was chosen last.
    pub fn after(last: Option<K>) -> Self {
        Turn { last }
    }

    /// Who was chosen last.
    pub fn last(&self) -> Option<K> {
        self.last
    }

    /// Chooses the next member after the last one that can take a message, in the order of the keys and around.
    /// `members` come in any order with the number of messages each can still be sent; `None` for members that
    /// are away or saturated, so `None` when the message has to wait.
    pub fn choose(
        &mut self,
        members: impl IntoIterator<Item = (K, Option<NonZeroU32>)>,
    ) -> Option<K> {
        let mut after: Option<K> = None;
        let mut around: Option<K> = None;
        for (member, credit) in members {
            if credit.is_none() {
                continue;
            }
            let slot = if self.last.is_none_or(|last| member > last) {
                &mut after
            } else {
                &mut around
            };
            *slot = Some(slot.map_or(member, |first| first.min(member)));
        }
        let chosen = after.or(around)?;
        self.last = Some(chosen);
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn choose(turn: &mut Turn<u8>, members: &[(u8, u32)]) -> Option<u8> {
        turn.choose(
            members
                .iter()
                .map(|(member, credit)| (*member, NonZeroU32::new(*credit))),
        )
    }

    #[test]
    fn members_take_turns() {
        let mut turn = Turn::default();
        let members = [(2, 9), (1, 9), (3, 9)];
        let chosen: Vec<_> = (0..7).filter_map(|_| choose(&mut turn, &members)).collect();
        assert_eq!(chosen, [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn absent_and_saturated_members_are_passed_over() {
        let mut turn = Turn::after(Some(1));
        assert_eq!(choose(&mut turn, &[(1, 1), (2, 0), (3, 1)]), Some(3));
        assert_eq!(choose(&mut turn, &[(1, 0), (2, 0), (3, 1)]), Some(3));
        assert_eq!(choose(&mut turn, &[(1, 0), (2, 0), (3, 0)]), None);
        assert_eq!(turn.last(), Some(3), "nobody was chosen");
        assert_eq!(choose(&mut turn, &[]), None);
    }

    #[test]
    fn the_turn_goes_on_when_the_last_member_has_left() {
        let mut turn = Turn::after(Some(2));
        assert_eq!(choose(&mut turn, &[(1, 1), (3, 1)]), Some(3));
    }

    proptest! {
        #[test]
        fn members_that_can_always_take_one_get_equally_many(
            members in prop::collection::btree_set(any::<u8>(), 1..10),
            rounds in 1u32..10,
        ) {
            let mut turn = Turn::default();
            let list: Vec<_> = members.iter().rev().map(|member| (*member, 1)).collect();
            let mut counts = BTreeMap::new();
            for _ in 0..rounds * members.len() as u32 {
                let chosen = choose(&mut turn, &list).expect("all can take one");
                *counts.entry(chosen).or_insert(0) += 1;
            }
            prop_assert!(counts.values().all(|count| *count == rounds));
        }
    }
}
