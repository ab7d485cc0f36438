//! The subscribers of one filter, in the order of their keys.
//!
//! Most filters have one, a few have thousands: each size has its own form.

use std::collections::BTreeMap;

/// Above this many, a sorted list costs more to change than a tree costs to walk.
const MAX_LIST: usize = 32;

/// A small ordered map. More than one entry is boxed, so that a filter with one subscriber stays small.
#[derive(Debug, Default)]
pub(super) enum Subscribers<K, V> {
    #[default]
    None,
    One(K, V),
    Several(Box<Several<K, V>>),
}

#[derive(Debug)]
pub(super) enum Several<K, V> {
    List(Vec<(K, V)>),
    Tree(BTreeMap<K, V>),
}

impl<K: Ord, V> Subscribers<K, V> {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Subscribers::None)
    }

    /// Sets the value of `key`; gives the one it had.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self {
            Subscribers::None => *self = Subscribers::One(key, value),
            Subscribers::One(there, old) if *there == key => {
                return Some(std::mem::replace(old, value));
            }
            Subscribers::One(..) => {
                if let Subscribers::One(there, old) = std::mem::take(self) {
                    let mut list = vec![(there, old), (key, value)];
                    list.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
                    *self = Subscribers::Several(Box::new(Several::List(list)));
                }
            }
            Subscribers::Several(several) => return several.insert(key, value),
        }
        None
    }

    /// Removes `key`; gives the value it had.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Subscribers::None => None,
            Subscribers::One(there, _) if there != key => None,
            Subscribers::One(..) => match std::mem::take(self) {
                Subscribers::One(_, value) => Some(value),
                _ => None,
            },
            Subscribers::Several(several) => {
                let removed = several.remove(key)?;
                if let Some((last, value)) = several.take_last_one() {
                    *self = Subscribers::One(last, value);
                }
                Some(removed)
            }
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        match self {
            Subscribers::None => None,
            Subscribers::One(there, value) => (there == key).then_some(value),
            Subscribers::Several(several) => match &**several {
                Several::List(list) => list
                    .binary_search_by(|(there, _)| there.cmp(key))
                    .ok()
                    .and_then(|at| list.get(at))
                    .map(|(_, value)| value),
                Several::Tree(tree) => tree.get(key),
            },
        }
    }

    #[inline]
    pub(super) fn for_each(&self, visit: &mut impl FnMut(&K, &V)) {
        match self {
            Subscribers::None => {}
            Subscribers::One(key, value) => visit(key, value),
            Subscribers::Several(several) => match &**several {
                Several::List(list) => list.iter().for_each(|(key, value)| visit(key, value)),
                Several::Tree(tree) => tree.iter().for_each(|(key, value)| visit(key, value)),
            },
        }
    }
}

impl<K: Ord, V> Several<K, V> {
    fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self {
            Several::List(list) => match list.binary_search_by(|(there, _)| there.cmp(&key)) {
                Ok(at) => return Some(std::mem::replace(&mut list[at].1, value)),
                Err(at) if list.len() < MAX_LIST => list.insert(at, (key, value)),
                Err(_) => {
                    let mut tree: BTreeMap<K, V> = std::mem::take(list).into_iter().collect();
                    tree.insert(key, value);
                    *self = Several::Tree(tree);
                }
            },
            Several::Tree(tree) => return tree.insert(key, value),
        }
        None
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Several::List(list) => {
                let at = list.binary_search_by(|(there, _)| there.cmp(key)).ok()?;
                Some(list.remove(at).1)
            }
            Several::Tree(tree) => {
                let removed = tree.remove(key)?;
                // Half, so that one that comes and goes does not move all the others each time.
                if tree.len() <= MAX_LIST / 2 {
                    *self = Several::List(std::mem::take(tree).into_iter().collect());
                }
                Some(removed)
            }
        }
    }

    /// The entry left, when there is just one.
    fn take_last_one(&mut self) -> Option<(K, V)> {
        match self {
            Several::List(list) if list.len() == 1 => list.pop(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_an_ordered_map(steps in prop::collection::vec((any::<bool>(), 0u8..60, any::<u8>()), 0..300)) {
            let mut subscribers = Subscribers::default();
            let mut model = BTreeMap::new();
            for (insert, key, value) in steps {
                if insert {
                    prop_assert_eq!(subscribers.insert(key, value), model.insert(key, value));
                } else {
                    prop_assert_eq!(subscribers.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(subscribers.get(&key), model.get(&key));
                prop_assert_eq!(subscribers.is_empty(), model.is_empty());
            }
            let mut seen = Vec::new();
            subscribers.for_each(&mut |key, value| seen.push((*key, *value)));
            prop_assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
        }
    }
}
