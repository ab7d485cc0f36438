//! Pages: no row twice, none left out, while rows come and go.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::document::Document;
use super::{
    Aggregation, Budget, Cursor, Key, MOST_TERMS, Page, Path, Query, QueryError, Row, RowPage,
    Value,
};

type Rows = BTreeMap<Key, u8>;

fn document(key: &Key, group: u8) -> Document {
    Document(json!({ "deviceId": key.device, "moduleId": key.module, "tags": { "g": group } }))
}

fn page(query: &Query, token: Option<&str>, rows: &Rows, budget: Budget) -> Page {
    page_that_ends(query, token, rows, budget, usize::MAX)
}

/// A page that ends itself when it was asked so often whether it has taken long enough.
fn page_that_ends(
    query: &Query,
    token: Option<&str>,
    rows: &Rows,
    budget: Budget,
    asked: usize,
) -> Page {
    let cursor = Cursor::read(query, token).expect("a token of ours");
    let after = cursor.key(query);
    let mut page = RowPage::new(query, &cursor, budget);
    let behind = |key: &Key| after.as_ref().is_none_or(|after| key > after);
    for (at, (key, group)) in rows.iter().filter(|(key, _)| behind(key)).enumerate() {
        if at >= asked && page.end() {
            break;
        }
        let row = document(key, *group);
        if !page.visit(key, &row).expect("a small row") {
            break;
        }
    }
    assert!(page.rows() <= budget.rows);
    let page = page.finish();
    assert!(
        page.json.len() <= budget.bytes + 1 || page.items == 1,
        "{page:?}"
    );
    page
}

fn keys(page: &Page) -> Vec<Key> {
    let rows: Vec<Json> = serde_json::from_str(&page.json).expect("JSON");
    assert_eq!(rows.len(), page.items);
    let text = |row: &Json, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let key = |row: &Json| Key {
        device: text(row, "deviceId"),
        module: text(row, "moduleId"),
    };
    rows.iter().map(key).collect()
}

fn some_key() -> impl Strategy<Value = Key> {
    let id = || prop::sample::select(vec!["a", "a-", "a.", "b", "é"]);
    (id(), id()).prop_map(|(device, module)| Key {
        device: device.to_owned(),
        module: module.to_owned(),
    })
}

fn rows() -> impl Strategy<Value = Rows> {
    prop::collection::btree_map(some_key(), 0..3_u8, 0..20)
}

proptest! {
    #[test]
    fn rows_that_stay_are_listed_once(
        stay in rows(),
        come_and_go in prop::collection::vec(rows(), 1..30),
        items in 1..5_usize,
        budget_rows in 1..8_usize,
        bytes in 30..200_usize,
        asked in 0..6_usize,
        top in prop::option::of(1..12_u64),
    ) {
        let top_text = top.map_or_else(String::new, |top| format!("TOP {top} "));
        let text = format!("SELECT {top_text}deviceId, moduleId FROM devices.modules WHERE tags.g != 1");
        let query = Query::parse(&text).expect("a query");
        let budget = Budget { items, rows: budget_rows, bytes };
        let mut listed = Vec::new();
        let mut token: Option<String> = None;
        let mut others = come_and_go.iter().cycle();
        loop {
            let mut now = others.next().cloned().unwrap_or_default();
            now.extend(stay.clone());
            let page = page_that_ends(&query, token.as_deref(), &now, budget, asked);
            prop_assert!(page.items <= items);
            listed.extend(keys(&page));
            match page.continuation {
                Some(next) => token = Some(next),
                None => break,
            }
        }
        let unique: BTreeSet<&Key> = listed.iter().collect();
        prop_assert_eq!(unique.len(), listed.len(), "no row twice");
        prop_assert!(listed.is_sorted(), "in the order of their keys");
        let must = stay.iter().filter(|(_, group)| **group != 1).map(|(key, _)| key);
        match top {
            None => prop_assert!(must.into_iter().all(|key| unique.contains(key)), "none left out"),
            Some(top) => {
                prop_assert!(listed.len() as u64 <= top);
                let short = (listed.len() as u64) < top;
                prop_assert!(!short || must.into_iter().all(|key| unique.contains(key)));
            }
        }
    }

    #[test]
    fn groups_are_listed_once(
        rows in rows(),
        items in 1..3_usize,
        bytes in 1..60_usize,
        top in prop::option::of(1..5_u64),
    ) {
        let top_text = top.map_or_else(String::new, |top| format!("TOP {top} "));
        let text = format!("SELECT {top_text}tags.g, COUNT() AS n FROM devices GROUP BY tags.g");
        let query = Query::parse(&text).expect("a query");
        let mut listed: Vec<Json> = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let cursor = Cursor::read(&query, token.as_deref()).expect("a token of ours");
            let mut aggregation = Aggregation::new(&query).expect("an aggregate");
            for (key, group) in &rows {
                prop_assert_eq!(aggregation.visit(&document(key, *group)), Ok(()));
            }
            let budget = Budget { bytes: bytes + 8, ..Budget::of(items) };
            let page = aggregation.finish(&cursor, budget).expect("small groups");
            prop_assert!(page.json.len() <= budget.bytes + 1 || page.items == 1);
            let more: Vec<Json> = serde_json::from_str(&page.json).expect("JSON");
            prop_assert!(more.len() == page.items && page.items <= items);
            listed.extend(more);
            match page.continuation {
                Some(next) => token = Some(next),
                None => break,
            }
        }
        let mut expected: Vec<Json> = Vec::new();
        for group in 0..3 {
            let n = rows.values().filter(|one| **one == group).count();
            if n > 0 {
                expected.push(json!({ "g": group, "n": n }));
            }
        }
        expected.truncate(top.map_or(usize::MAX, |top| top as usize));
        prop_assert_eq!(listed, expected);
    }

    #[test]
    fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), to in "[A-Za-z0-9_=-]") {
        let query = Query::parse("SELECT * FROM devices").expect("a query");
        let key = Key { device: "device".to_owned(), module: String::new() };
        let token = Cursor::behind(&query, &key, None).write(&query);
        let at = at.index(token.len());
        let changed = format!("{}{to}{}", &token[..at], &token[at + 1..]);
        let read = Cursor::read(&query, Some(&changed));
        match changed == token {
            true => prop_assert_eq!(read.expect("as it was").key(&query), Some(key)),
            false => prop_assert_eq!(read, Err(QueryError::Continuation)),
        }
    }
}

#[test]
fn a_token_belongs_to_one_query() {
    let query = |text| Query::parse(text).expect("a query");
    let devices = query("SELECT * FROM devices");
    let modules = query("SELECT * FROM devices.modules");
    let key = Key {
        device: "d".to_owned(),
        module: String::new(),
    };
    let token = Cursor::behind(&devices, &key, None).write(&devices);
    assert!(Cursor::read(&devices, Some(&token)).is_ok());
    let long = "A".repeat(5000);
    for (query, token) in [
        (&modules, token.as_str()),
        (&query("SELECT  * FROM devices"), &token),
        (&devices, ""),
        (&devices, "é"),
        (&devices, "AAAA"),
        (&devices, &long),
    ] {
        let read = Cursor::read(query, Some(token));
        assert_eq!(read, Err(QueryError::Continuation), "{token}");
    }
}

#[test]
fn the_last_page_has_no_token() {
    let query = Query::parse("SELECT deviceId FROM devices").expect("a query");
    let key = |device: &str| Key {
        device: device.to_owned(),
        module: String::new(),
    };
    let rows: Rows = ["a", "b", "c", "d"].map(|id| (key(id), 0)).into();
    let first = page(&query, None, &rows, Budget::of(2));
    let token = first.continuation.expect("there are two more");
    let last = page(&query, Some(&token), &rows, Budget::of(2));
    assert_eq!(keys(&last), [key("c"), key("d")]);
    assert_eq!(
        last.continuation, None,
        "it was full, and nothing is behind it"
    );
}

#[test]
fn a_page_has_bounded_bytes() {
    let query = Query::parse("SELECT deviceId FROM devices").expect("a query");
    let rows: Rows = (0..100)
        .map(|at| {
            let device = format!("device-{at:03}");
            (
                Key {
                    device,
                    module: String::new(),
                },
                0,
            )
        })
        .collect();
    let budget = Budget {
        bytes: 100,
        ..Budget::of(1000)
    };
    let first = page(&query, None, &rows, budget);
    assert!(first.json.len() <= 101, "{first:?}");
    assert_eq!(first.items, 3, "a fourth one would be beyond the bound");
    assert!(first.continuation.is_some());
}

/// A row with a large text at each path; it notes how long the answer was when it was asked to write.
struct Large(Cell<usize>);

const LARGE: usize = 1 << 20;

impl Row for Large {
    fn value(&self, _: &Path) -> Value<'_> {
        Value::Composite
    }

    fn write(&self, _: &Path, json: &mut String) -> bool {
        self.write_all(json);
        true
    }

    fn write_all(&self, json: &mut String) {
        self.0.set(json.len());
        json.extend(std::iter::repeat_n('1', LARGE));
    }
}

fn small_key() -> Key {
    Key {
        device: "d".to_owned(),
        module: "m".to_owned(),
    }
}

#[test]
fn a_row_of_many_columns_has_bounded_bytes() {
    let columns: Vec<String> = (0..MOST_TERMS)
        .map(|at| format!("properties AS a{at}"))
        .collect();
    let query = Query::parse(&format!("SELECT {} FROM devices", columns.join(",")));
    let query = query.expect("a query");
    let cursor = Cursor::read(&query, None).expect("a beginning");
    let budget = Budget::of(10);
    let mut page = RowPage::new(&query, &cursor, budget);
    let row = Large(Cell::new(0));
    let refused = page.visit(&small_key(), &row).expect_err("it is too large");
    assert!(row.0.get() < budget.bytes + LARGE, "{}", row.0.get());
    let text = "the row of d/m has more than 8388608 bytes: ask for fewer columns, or leave it out";
    assert_eq!(refused.to_string(), text);
}

#[test]
fn a_row_without_room_goes_to_the_next_page() {
    for (text, alone) in [
        ("SELECT * FROM devices", true),
        ("SELECT tags FROM devices", true),
        ("SELECT tags AS a, tags AS b FROM devices", false),
    ] {
        let query = Query::parse(text).expect("a query");
        let cursor = Cursor::read(&query, None).expect("a beginning");
        let visit = |bytes: usize| {
            let mut page = RowPage::new(
                &query,
                &cursor,
                Budget {
                    bytes,
                    ..Budget::of(10)
                },
            );
            let row = Large(Cell::new(0));
            let first = page.visit(&small_key(), &row);
            let second = page.visit(&small_key(), &row);
            (first, second, page.finish())
        };
        let (first, second, page) = visit(3 * LARGE);
        assert_eq!((first, second), (Ok(true), Ok(alone)), "{text}");
        assert!(page.json.len() <= 3 * LARGE, "{text}");
        assert_eq!(page.continuation.is_some(), !alone, "{text}");
        // Alone it is answered, whatever its size, unless its columns have made it so large.
        let (first, second, page) = visit(LARGE / 2);
        assert_eq!(first.is_ok(), alone, "{text}");
        assert_eq!((second.is_ok(), page.items), (alone, usize::from(alone)));
        assert_eq!(page.continuation.is_some(), alone, "{text}");
    }
}

#[test]
fn groups_have_bounded_bytes() {
    let of = |group: usize| Document(json!({ "tags": { "g": format!("{group:01000}") } }));
    let budget = Budget {
        bytes: 10_000,
        ..Budget::of(1_000)
    };
    let ask = |text: &str, token: Option<&str>| {
        let query = Query::parse(text).expect("a query");
        let cursor = Cursor::read(&query, token).expect("a token of ours");
        let mut aggregation = Aggregation::new(&query).expect("an aggregate");
        for group in 0..100 {
            assert_eq!(aggregation.visit(&of(group)), Ok(()));
        }
        aggregation.finish(&cursor, budget)
    };
    let text = "SELECT tags.g, COUNT() FROM devices GROUP BY tags.g";
    let (mut groups, mut token) = (0, None);
    loop {
        let page = ask(text, token.as_deref()).expect("a page");
        assert!(page.json.len() <= 10_001, "{}", page.json.len());
        groups += page.items;
        token = page.continuation;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(groups, 100);
    let columns: Vec<String> = (0..50).map(|at| format!("tags.g AS a{at}")).collect();
    let text = format!("SELECT {} FROM devices GROUP BY tags.g", columns.join(","));
    let refused = ask(&text, None).expect_err("one group has 50 kB");
    assert!(matches!(refused, QueryError::RowBytes { most: 10_000, .. }));
}

#[test]
fn too_many_groups_are_refused() {
    let query = Query::parse("SELECT COUNT() FROM devices GROUP BY tags.g").expect("a query");
    let mut aggregation = Aggregation::new(&query).expect("an aggregate");
    let of = |group: u32| Document(json!({ "tags": { "g": group } }));
    for group in 0..10_000 {
        assert_eq!(aggregation.visit(&of(group)), Ok(()));
    }
    assert_eq!(aggregation.visit(&of(3)), Ok(()), "it is known");
    let refused = aggregation.visit(&of(10_000));
    assert_eq!(refused, Err(QueryError::Groups(10_000)));
}

#[test]
fn long_values_have_short_keys() {
    let query = Query::parse("SELECT tags.g, COUNT() AS n FROM devices GROUP BY tags.g");
    let query = query.expect("a query");
    let beginning = "x".repeat(4000);
    let mut aggregation = Aggregation::new(&query).expect("an aggregate");
    for end in ["a", "b", "a"] {
        let row = Document(json!({ "tags": { "g": format!("{beginning}{end}") } }));
        assert_eq!(aggregation.visit(&row), Ok(()));
    }
    let cursor = Cursor::read(&query, None).expect("a beginning");
    let page = aggregation
        .finish(&cursor, Budget::of(1))
        .expect("small groups");
    assert!(page.continuation.expect("another group").len() < 500);
}
