use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::Trie;
use super::*;

fn missing(own: usize, deep: usize) -> Missing {
    Missing { own, deep }
}

#[test]
fn beginnings_have_patterns_of_their_own() {
    let (mut patterns, mut own) = (Patterns::default(), OwnPatterns::default());
    assert_eq!(patterns.missing("a/+/b", &own), missing(3, 0));
    patterns.add("a/+/b", &mut own);
    assert_eq!(patterns.missing("x/+/y/#", &own), missing(0, 0));
    assert_eq!(patterns.missing("+/+/y", &own), missing(3, 0));
    assert_eq!(patterns.missing("a/b/#", &own), missing(1, 0));
    for without in ["a/b/c/d", "#", ""] {
        assert_eq!(patterns.missing(without, &own), missing(0, 0), "{without}");
        patterns.add(without, &mut own);
        patterns.remove(without, Some(&mut own));
    }
    assert_eq!((patterns.count(), own.count()), (3, 3));
    patterns.remove("a/+/b", Some(&mut own));
    assert!(patterns.nodes.is_empty() && patterns.free.is_empty());
    assert_eq!(own.0.capacity(), 0);
}

#[test]
fn those_of_many_levels_are_deep() {
    let (mut patterns, mut own) = (Patterns::default(), OwnPatterns::default());
    let twelve = "a/".repeat(11) + "+";
    assert_eq!(patterns.missing(&twelve, &own), missing(12, 2));
    patterns.add(&twelve, &mut own);
    assert_eq!((patterns.count(), patterns.deep()), (12, 2));
    let thirteen = "a/".repeat(12) + "#";
    assert_eq!(patterns.missing(&thirteen, &own), missing(1, 1));
    let another = OwnPatterns::default();
    assert_eq!(patterns.missing(&thirteen, &another), missing(12, 1));
}

fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![Just("a"), Just("b"), Just("+")];
    let levels = prop::collection::vec(level, 1..14);
    (levels, any::<bool>()).prop_map(|(levels, below)| {
        let filter = levels.join("/");
        if below { filter + "/#" } else { filter }
    })
}

proptest! {
    /// The same as maps from every pattern to the filters that have it, whatever comes and goes, of two sessions.
    #[test]
    fn as_many_as_there_are(
        filters in prop::collection::vec((filter(), 0..2usize), 1..40),
        gone in any::<u64>(),
    ) {
        let mut patterns = Patterns::default();
        let mut own = [OwnPatterns::default(), OwnPatterns::default()];
        // Of both sessions, and of all.
        let mut naive: [BTreeMap<Vec<bool>, usize>; 3] = Default::default();
        let deep = |naive: &BTreeMap<Vec<bool>, usize>| {
            naive.keys().filter(|key| key.len() > SHALLOW_LEVELS).count()
        };
        let beginnings = |filter: &str| {
            let all: Vec<bool> = levels(filter).collect();
            (1..=all.len()).map(move |length| all[..length].to_vec())
        };
        for (filter, session) in &filters {
            let missing = patterns.missing(filter, &own[*session]);
            let before = (own[*session].count(), patterns.deep());
            patterns.add(filter, &mut own[*session]);
            for beginning in beginnings(filter) {
                for of in [*session, 2] {
                    *naive[of].entry(beginning.clone()).or_default() += 1;
                }
            }
            prop_assert_eq!((patterns.count(), patterns.deep()), (naive[2].len(), deep(&naive[2])));
            let after = (before.0 + missing.own, before.1 + missing.deep);
            prop_assert_eq!((own[*session].count(), patterns.deep()), after);
        }
        for (number, (filter, session)) in filters.iter().enumerate() {
            if gone >> number & 1 == 0 {
                continue;
            }
            patterns.remove(filter, Some(&mut own[*session]));
            for beginning in beginnings(filter) {
                for of in [*session, 2] {
                    if let Some(filters) = naive[of].get_mut(&beginning) {
                        *filters -= 1;
                    }
                }
            }
            for naive in &mut naive {
                naive.retain(|_, filters| *filters > 0);
            }
            prop_assert_eq!((patterns.count(), patterns.deep()), (naive[2].len(), deep(&naive[2])));
            prop_assert_eq!(own[*session].count(), naive[*session].len());
        }
    }

    /// This is what they are counted for.
    #[test]
    fn a_look_up_visits_a_node_for_each_at_most(
        filters in prop::collection::vec(filter(), 1..60),
        name in prop::collection::vec(prop_oneof![Just("a"), Just("b")], 1..14),
    ) {
        let mut patterns = Patterns::default();
        let mut trie = Trie::new();
        for filter in &filters {
            patterns.add(filter, &mut OwnPatterns::default());
            trie.insert(filter, 1, 1);
        }
        let looked_at = trie.for_each_match(&name.join("/"), |_, _| {});
        prop_assert!(looked_at <= 1 + patterns.count(), "{looked_at} of {}", patterns.count());
    }
}
