//! A queue in which everybody who waits has a turn after the other, however much each of them waits for.
//!
//! Invariant: between two items of one client, everybody else who waits has had one.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Items that wait, by client.
#[derive(Debug)]
pub struct Turns<K, T> {
    /// Whose turn it is; each client that has an item is in here once.
    order: VecDeque<K>,
    waiting: HashMap<K, VecDeque<T>>,
    count: usize,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Self {
        Turns {
            order: VecDeque::new(),
            waiting: HashMap::new(),
            count: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, T> Turns<K, T> {
    /// Adds an item behind those of the same client.
    pub fn push(&mut self, client: K, item: T) {
        let items = self.waiting.entry(client).or_insert_with(|| {
            self.order.push_back(client);
            VecDeque::new()
        });
        items.push_back(item);
        self.count += 1;
    }

    /// Takes the first item of the client whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let client = self.order.pop_front()?;
        let items = self.waiting.get_mut(&client)?;
        let item = items.pop_front();
        self.count -= usize::from(item.is_some());
        match items.is_empty() {
            true => drop(self.waiting.remove(&client)),
            false => self.order.push_back(client),
        }
        item
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_waits_for_little_does_not_wait_behind_who_waits_for_much() {
        let mut turns = Turns::default();
        for number in 0..1_000 {
            turns.push("flood", number);
        }
        turns.push("other", 1);
        let first: Vec<_> = std::iter::from_fn(|| turns.pop()).take(3).collect();
        assert_eq!(first, [0, 1, 1]);
        assert_eq!(turns.len(), 998);
    }

    proptest! {
        /// None is lost, each client's come in their order, and nobody is passed over.
        #[test]
        fn everybody_has_a_turn(clients in prop::collection::vec(0..5_u8, 0..60)) {
            let mut turns = Turns::default();
            for (number, client) in clients.iter().enumerate() {
                turns.push(*client, (*client, number));
            }
            let taken: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
            prop_assert_eq!(turns.len(), 0);
            prop_assert_eq!(taken.len(), clients.len());
            for client in 0..5 {
                let of_client = |(at, item): (usize, &(u8, usize))| (item.0 == client).then_some((at, item.1));
                let own: Vec<_> = taken.iter().enumerate().filter_map(of_client).collect();
                prop_assert!(own.is_sorted_by_key(|(_, number)| *number));
                for pair in own.windows(2) {
                    let between = &taken[pair[0].0 + 1..pair[1].0];
                    let rest = &taken[pair[1].0..];
                    let waits = |other: &u8| rest.iter().any(|(client, _)| client == other);
                    for other in (0..5).filter(|other| *other != client && waits(other)) {
                        prop_assert_eq!(between.iter().filter(|(client, _)| *client == other).count(), 1);
                    }
                }
            }
        }
    }
}
