use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{check_filter, matches};
use super::*;

fn found(trie: &Trie<u8, u8>, name: &str) -> Vec<(u8, u8)> {
    let mut found = Vec::new();
    trie.for_each_match(name, |key, value| found.push((*key, *value)));
    found
}

#[test]
fn a_subscription_is_replaced_and_removed() {
    let mut trie = Trie::new();
    for filter in ["a/b", "a/+", "a/#", "#", "+"] {
        assert_eq!(trie.insert(filter, 1u8, 1u8), None);
        assert_eq!(trie.insert(filter, 1, 2), Some(1), "{filter}");
        assert_eq!(trie.get(filter, &1), Some(&2));
        assert_eq!(trie.remove(filter, &2), None, "another subscriber");
        assert_eq!(trie.len(), 1);
        assert_eq!(trie.remove(filter, &1), Some(2));
        assert_eq!(trie.remove(filter, &1), None);
        assert!(trie.is_empty());
    }
}

#[test]
fn overlapping_filters_are_visited_once_each() {
    let mut trie = Trie::new();
    for (value, filter) in (0..).zip(["a/b", "a/+", "a/#", "#", "+/b", "a/b/#", "+/+"]) {
        trie.insert(filter, 1, value);
    }
    let mut values: Vec<u8> = found(&trie, "a/b").into_iter().map(|(_, v)| v).collect();
    values.sort_unstable();
    assert_eq!(values, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn mqtt_4_7_2_1_leading_wildcards_skip_dollar_topics() {
    let mut trie = Trie::new();
    for (key, filter) in (0..).zip(["#", "+", "+/x", "+/#", "$SYS/#", "$SYS/+"]) {
        trie.insert(filter, key, 0);
    }
    assert_eq!(found(&trie, "$SYS/x"), [(4, 0), (5, 0)]);
    assert_eq!(found(&trie, "$SYS"), [(4, 0)]);
    assert!(found(&trie, "$other").is_empty());
    assert!(!found(&trie, "other").is_empty());
}

#[test]
fn nothing_is_left_of_removed_filters() {
    let mut trie = Trie::new();
    let filters: Vec<String> = (0..500)
        .flat_map(|i| {
            [
                format!("d/{i}/+"),
                format!("d/{i}/#"),
                format!("+/{i}/s{i}"),
                format!("x/{i}"),
            ]
        })
        .collect();
    for _ in 0..3 {
        for filter in &filters {
            trie.insert(filter, 1u8, 1u8);
        }
        for filter in &filters {
            trie.remove(filter, &1);
        }
    }
    let tree = &trie.tree;
    assert!(trie.exact.is_empty() && tree.symbols.is_empty() && tree.edges.is_empty());
    assert_eq!(tree.nodes.len(), 1 + tree.free_nodes.len());
    assert_eq!(
        tree.nodes.len(),
        1 + 2 + 500 * 4,
        "freed nodes are used again"
    );
}

#[test]
fn deep_filters_and_names_do_not_recurse() {
    let mut trie = Trie::new();
    let deep = ["+"; 20_000].join("/");
    trie.insert(&deep, 1, 1);
    assert_eq!(found(&trie, &["a"; 20_000].join("/")), [(1, 1)]);
    assert_eq!(found(&trie, &["a"; 20_001].join("/")), []);
    assert_eq!(trie.remove(&deep, &1), Some(1));
}

fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c", "", "$x", "+", "+"])
}

fn filter() -> impl Strategy<Value = String> {
    (prop::collection::vec(level(), 0..5), any::<bool>()).prop_map(|(mut levels, below)| {
        if below || levels.is_empty() {
            levels.push("#");
        }
        levels.join("/")
    })
}

fn name() -> impl Strategy<Value = String> {
    let level = prop::sample::select(vec!["a", "b", "c", "", "$x", "d"]);
    prop::collection::vec(level, 1..6).prop_map(|levels| levels.join("/"))
}

proptest! {
    #[test]
    fn agrees_with_the_definition_of_a_match(
        steps in prop::collection::vec((0u8..4, filter(), 0u8..6), 1..120),
        names in prop::collection::vec(name(), 1..20),
    ) {
        let mut trie = Trie::new();
        let mut model = BTreeMap::new();
        for (number, (kind, filter, key)) in (0u8..).zip(steps) {
            if check_filter(&filter).is_err() {
                continue;
            }
            if kind == 0 {
                prop_assert_eq!(trie.remove(&filter, &key), model.remove(&(filter, key)));
            } else {
                prop_assert_eq!(trie.insert(&filter, key, number), model.insert((filter, key), number));
            }
        }
        prop_assert_eq!(trie.len(), model.len());
        for name in names.iter().filter(|name| !name.is_empty()) {
            let mut expected: Vec<(u8, u8)> = model
                .iter()
                .filter(|((filter, _), _)| matches(filter, name))
                .map(|((_, key), value)| (*key, *value))
                .collect();
            let mut found = found(&trie, name);
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected, "{}", name);
        }
        let filters: Vec<_> = model.into_keys().collect();
        for (filter, key) in filters {
            prop_assert!(trie.remove(&filter, &key).is_some());
        }
        prop_assert!(trie.is_empty() && trie.tree.edges.is_empty() && trie.tree.symbols.is_empty());
    }
}
