use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Rows: key and whether the key is there.
type Rows = BTreeMap<Vec<u8>, bool>;

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

fn page(
    rows: &Rows,
    pattern: &str,
    token: Option<&[u8]>,
    budget: PageBudget,
) -> (Vec<Bytes>, Option<Bytes>) {
    let glob = Glob::new(pattern.as_bytes()).unwrap();
    let range = range(&glob, token).unwrap();
    let mut page = Page::new(&glob, None, budget);
    for (key, is_there) in rows.range(range.from..) {
        if range.to.as_ref().is_some_and(|to| key >= to) || !page.visit(key, VALUE_BYTES, *is_there)
        {
            break;
        }
    }
    match page.finish() {
        Reply::Page { keys, token } => (keys, token),
        other => panic!("{other:?}"),
    }
}

/// All pages: the keys, and how many pages there were.
fn pages(rows: &Rows, pattern: &str, budget: PageBudget) -> (Vec<Bytes>, usize) {
    let mut listed = Vec::new();
    let mut token: Option<Bytes> = None;
    for count in 1.. {
        let (keys, next) = page(rows, pattern, token.as_deref(), budget);
        listed.extend(keys);
        token = next;
        if token.is_none() {
            return (listed, count);
        }
    }
    unreachable!("a token is missing at last")
}

fn rows<'k>(keys: impl IntoIterator<Item = &'k str>) -> Rows {
    keys.into_iter()
        .map(|key| (key.as_bytes().to_vec(), true))
        .collect()
}

#[test]
fn a_prefix_reads_its_range_only() {
    let glob = |pattern: &str| Glob::new(pattern.as_bytes()).unwrap();
    let lies = |pattern: &str| range(&glob(pattern), None).unwrap();
    let between = |from: &[u8], to: &[u8]| KeyRange {
        from: from.to_vec(),
        to: Some(to.to_vec()),
    };
    assert_eq!(lies("ab*"), between(b"ab", b"ac"));
    assert_eq!(lies("ab"), between(b"ab", b"ab\0"));
    assert_eq!(
        lies("*"),
        KeyRange {
            from: Vec::new(),
            to: None
        }
    );
    let empty = range(&glob("m*"), Some(b"\x01z")).unwrap();
    assert!(empty.from > empty.to.unwrap(), "a token past the range");
    let start = range(&glob("m*"), Some(b"\x01a")).unwrap();
    assert_eq!(start, between(b"m", b"n"));
}

#[test]
fn a_token_of_other_makers_is_a_syntax_error() {
    let glob = Glob::new(b"*").unwrap();
    for token in [&b""[..], b"\0abc", b"abc", b"\xff"] {
        assert_eq!(range(&glob, Some(token)), Err(StoreError::Syntax));
    }
    assert!(range(&glob, Some(b"\x01\xff\xff")).is_ok());
}

#[test]
fn deleted_expired_and_non_utf8_keys_are_not_listed() {
    let mut rows = rows(["a", "b"]);
    rows.insert(b"a1".to_vec(), false);
    rows.insert(b"a\xff".to_vec(), true);
    let (keys, count) = pages(&rows, "*", PageBudget::default());
    assert_eq!((keys, count), (vec![Bytes::from("a"), Bytes::from("b")], 1));
}

#[test]
fn two_hundred_keys_fit_in_64_pages_however_long_they_are() {
    let long = "x".repeat(30_000);
    let keys: Vec<String> = (0..200).map(|i| format!("{long}{i:03}")).collect();
    let rows = rows(keys.iter().map(String::as_str));
    let (listed, count) = pages(&rows, "*", PageBudget::default());
    assert_eq!(listed.len(), 200);
    assert!(count <= 64, "{count}");
}

#[test]
fn a_page_without_a_match_is_empty_and_has_a_token() {
    let keys: Vec<String> = (0..25).map(|i| format!("{i:02}")).collect();
    let rows = rows(keys.iter().map(String::as_str));
    let budget = PageBudget {
        max_rows: 10,
        ..PageBudget::default()
    };
    let (keys, token) = page(&rows, "*x", None, budget);
    assert!(keys.is_empty() && token.is_some());
    assert_eq!(
        pages(&rows, "*4", budget),
        (vec!["04".into(), "14".into(), "24".into()], 3)
    );
}

#[test]
fn large_values_end_the_page_once_four_rows_were_looked_at() {
    let keys: Vec<String> = (0..40).map(|i| format!("{i:02}")).collect();
    let rows = rows(keys.iter().map(String::as_str));
    let with_bytes = |max_row_bytes| PageBudget {
        max_row_bytes,
        ..PageBudget::default()
    };
    let (listed, count) = pages(&rows, "*", with_bytes(1));
    assert_eq!(
        (listed.len(), count),
        (40, 10),
        "four keys are on every page"
    );
    let (listed, count) = pages(&rows, "*x", with_bytes(10 * VALUE_BYTES));
    assert_eq!((listed.len(), count), (0, 4), "also when nothing matches");
}

#[test]
fn long_keys_end_the_page_once_there_is_one() {
    let long = |length: usize, first: char| format!("{first}{}", "k".repeat(length - 1));
    let keys = [long(60, 'a'), long(40, 'b'), long(1, 'c'), long(300, 'd')];
    let rows = rows(keys.iter().map(String::as_str));
    let budget = PageBudget {
        max_answer_bytes: 160,
        ..PageBudget::default()
    };
    let mut token: Option<Bytes> = None;
    let lengths = std::iter::from_fn(|| {
        let (keys, next) = page(&rows, "*", token.as_deref(), budget);
        let was_last = std::mem::replace(&mut token, next).is_some() && token.is_none();
        let lengths: Vec<_> = keys.iter().map(Bytes::len).collect();
        Some((lengths, was_last))
    });
    let lengths: Vec<_> = lengths.take(3).collect();
    let expected = [(vec![60], false), (vec![40, 1], false), (vec![300], true)];
    assert_eq!(lengths, expected);
    let all: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
    let listed = |from: usize| budget.page_of(&all[from..]);
    assert_eq!([listed(0), listed(1), listed(2), listed(3)], [1, 2, 1, 1]);
}

/// A row that is not listed may be the last one that was looked at: the token is as long.
#[test]
fn a_page_ends_before_a_token_that_is_too_long() {
    let long = format!("b{}", "k".repeat(200));
    let mut rows = rows(["a", "c", "d"]);
    rows.insert(long.clone().into_bytes(), false);
    let budget = PageBudget {
        max_answer_bytes: 160,
        max_rows: 2,
        ..PageBudget::default()
    };
    let (keys, token) = page(&rows, "*", None, budget);
    assert_eq!((keys, token), (vec!["a".into()], Some("\x01a".into())));
    assert_eq!(pages(&rows, "*", budget).0, ["a", "c", "d"]);
}

#[test]
fn what_is_found_is_not_read_again() {
    let budget = PageBudget {
        max_answer_bytes: 100,
        ..PageBudget::default()
    };
    let missing = budget.missing(&["k".repeat(20).into(), "k".repeat(30).into()]);
    assert_eq!(missing.max_keys, budget.max_keys + 1 - 2);
    assert_eq!(missing.max_answer_bytes, 100 - 50 - 2 * BESIDE_PART);
}

#[test]
fn the_last_page_has_no_token_when_it_is_just_full() {
    let rows = rows(["a", "b", "c", "d"]);
    let budget = PageBudget {
        max_keys: 4,
        ..PageBudget::default()
    };
    assert_eq!(page(&rows, "*", None, budget).1, None);
}

#[test]
fn hard_patterns_end_the_page() {
    let keys: Vec<String> = (0..10)
        .map(|i| format!("{}{i}", "a".repeat(2_000)))
        .collect();
    let rows = rows(keys.iter().map(String::as_str));
    let budget = PageBudget {
        max_steps: 10_000,
        ..PageBudget::default()
    };
    let (listed, count) = pages(&rows, "*aaaaaaaaab", budget);
    assert!(listed.is_empty() && count >= 5, "{count}");
}

proptest! {
    #[test]
    fn keys_that_stay_are_listed_exactly_once_while_others_change(
        stay in prop::collection::btree_set("[ab/]{1,4}", 0..40),
        churn in prop::collection::vec(("[ab/]{1,4}", any::<bool>()), 0..40),
        max_keys in 1usize..8,
        max_rows in 1usize..8,
        max_answer_bytes in 1usize..120,
        pattern in prop::sample::select(vec!["*", "a*", "*b", "a?*", "[!a]*"]),
    ) {
        let budget = PageBudget { max_keys, max_rows, max_answer_bytes, ..PageBudget::default() };
        let glob = Glob::new(pattern.as_bytes()).unwrap();
        let mut rows = rows(stay.iter().map(String::as_str));
        let mut churn = churn.into_iter().filter(|(key, _)| !stay.contains(key));
        let mut listed = Vec::new();
        let mut token: Option<Bytes> = None;
        loop {
            let (keys, next) = page(&rows, pattern, token.as_deref(), budget);
            let parts = keys.iter().chain(&next);
            let bytes: usize = parts.map(|part| BESIDE_PART + part.len()).sum();
            prop_assert!(keys.len() <= 1 || bytes <= max_answer_bytes, "{bytes} bytes");
            listed.extend(keys);
            token = next;
            if token.is_none() {
                break;
            }
            if let Some((key, is_there)) = churn.next() {
                rows.insert(key.into_bytes(), is_there);
            }
        }
        prop_assert!(listed.is_sorted_by(|a, b| a < b), "in order and without doubles");
        for key in &stay {
            prop_assert_eq!(listed.contains(&Bytes::from(key.clone())), glob.matches(key, &mut 0), "{}", key);
        }
    }
}
