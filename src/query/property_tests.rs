//! The evaluator and the aggregates against their naive readings, over random documents.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::document::Document;
use super::naive::{Tree, find, path_text};
use super::{Aggregation, Budget, Cursor, Key, Query, QueryError, RowPage, passes};

const PATHS: [&[&str]; 7] = [
    &["tags"],
    &["tags", "a"],
    &["tags", "b"],
    &["tags", "a", "b"],
    &["deviceId"],
    &["version"],
    &["nothing"],
];

fn path() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::select(PATHS.to_vec()).prop_map(<[&str]>::to_vec)
}

fn scalar() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        (-2..3_i64).prop_map(Json::from),
        prop::sample::select(vec![0.5, 1.0, -1.5, 1e300]).prop_map(Json::from),
        prop::sample::select(vec![
            "",
            "a",
            "b",
            "ab",
            "é",
            "\u{ffff}",
            "\u{10000}",
            "'\\"
        ])
        .prop_map(Json::from),
    ]
}

/// What stands in a document: also an array or an object.
fn value() -> impl Strategy<Value = Json> {
    prop_oneof![
        6 => scalar(),
        1 => Just(json!([1])),
        1 => prop::option::of(scalar()).prop_map(|inner| match inner {
            Some(inner) => json!({ "b": inner }),
            None => json!({}),
        }),
    ]
}

fn document() -> impl Strategy<Value = Json> {
    let members = (prop::option::of(value()), prop::option::of(value()));
    (members, 0..3_u8).prop_map(|((a, b), version)| {
        let mut tags = serde_json::Map::new();
        for (name, value) in [("a", a), ("b", b)] {
            tags.extend(value.map(|value| (name.to_owned(), value)));
        }
        json!({ "deviceId": "a", "version": version, "tags": tags })
    })
}

fn tree() -> impl Strategy<Value = Tree> {
    let constant = || prop::option::weighted(0.9, scalar());
    let leaf = prop_oneof![
        2 => constant().prop_map(Tree::Constant),
        3 => path().prop_map(Tree::Path),
        1 => path().prop_map(Tree::IsDefined),
    ];
    leaf.prop_recursive(4, 40, 3, move |inner| {
        let one = || inner.clone().prop_map(Box::new);
        let signs = prop::sample::select(vec!["=", "!=", "<>", "<", ">", "<=", ">="]);
        let operators = prop::sample::select(vec!['+', '-', '*', '/', '%']);
        let list = prop::collection::vec(constant(), 1..4);
        prop_oneof![
            1 => one().prop_map(Tree::Not),
            1 => one().prop_map(Tree::Minus),
            2 => (one(), one()).prop_map(|(left, right)| Tree::And(left, right)),
            2 => (one(), one()).prop_map(|(left, right)| Tree::Or(left, right)),
            4 => (one(), signs, one()).prop_map(|(l, sign, r)| Tree::Compare(l, sign, r)),
            1 => (one(), any::<bool>(), list).prop_map(|(of, not, list)| Tree::In(of, not, list)),
            2 => (one(), operators, one()).prop_map(|(l, sign, r)| Tree::Calculate(l, sign, r)),
        ]
    })
}

fn parsed(text: &str) -> Query {
    Query::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn key(device: &str) -> Key {
    Key {
        device: device.to_owned(),
        module: String::new(),
    }
}

/// What a query without aggregates answers in one page.
fn rows(query: &Query, documents: &[Json]) -> Json {
    let cursor = Cursor::read(query, None).expect("a beginning");
    let mut page = RowPage::new(query, &cursor, Budget::of(1000));
    for document in documents {
        assert_eq!(page.visit(&key("a"), &Document(document.clone())), Ok(true));
    }
    serde_json::from_str(&page.finish().json).expect("JSON")
}

fn aggregated(query: &Query, documents: &[Json]) -> Json {
    let cursor = Cursor::read(query, None).expect("a beginning");
    let mut aggregation = Aggregation::new(query).expect("an aggregate");
    for document in documents {
        let visited = aggregation.visit(&Document(document.clone()));
        visited.expect("few groups");
    }
    let page = aggregation.finish(&cursor, Budget::of(1000));
    serde_json::from_str(&page.expect("small groups").json).expect("JSON")
}

/// Numbers as doubles of nine digits, so that 1 and 1.0 are the same; the last digit of a double that JSON was read
/// from may be another one.
fn normal(value: Json) -> Json {
    match value {
        Json::Number(number) => json!(
            number
                .as_f64()
                .map(|number| format!("{:.9e}", number + 0.0))
        ),
        Json::Array(all) => all.into_iter().map(normal).collect(),
        Json::Object(all) => all.into_iter().map(|(k, v)| (k, normal(v))).collect(),
        other => other,
    }
}

/// One group, put together naively.
fn naive_group(value: Option<&Json>, group: &[&Json]) -> Json {
    let numbers = group
        .iter()
        .filter_map(|document| find(document, &["tags", "b"]));
    let numbers: Vec<f64> = numbers.filter_map(Json::as_f64).collect();
    let mut row = serde_json::Map::new();
    row.extend(value.map(|value| ("a".to_owned(), value.clone())));
    row.insert("count".to_owned(), json!(group.len()));
    row.insert("total".to_owned(), json!(numbers.iter().sum::<f64>() + 0.0));
    if !numbers.is_empty() {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let smallest = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.insert("avg".to_owned(), json!(mean));
        row.insert("min".to_owned(), json!(smallest));
        row.insert("max".to_owned(), json!(largest));
    }
    Json::Object(row)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_condition_is_what_it_says(tree in tree(), document in document()) {
        let query = match Query::parse(&format!("SELECT * FROM devices WHERE {}", tree.text())) {
            Err(QueryError::Nested | QueryError::Terms) => return Ok(()),
            other => other.expect("a query"),
        };
        let passes = passes(&query, &Document(document.clone()));
        prop_assert_eq!(passes, tree.value(&document) == Some(true.into()));
        // What the condition does not allow is not looked up.
        if let Some(devices) = query.devices() && passes {
            prop_assert!(devices.contains("a"));
        }
    }

    #[test]
    fn columns_show_what_is_there(
        documents in prop::collection::vec(document(), 0..5),
        path in path(),
    ) {
        let text = path_text(&path);
        let query = parsed(&format!("SELECT {text} AS x, tags.b, DEVICEID FROM devices"));
        let expected: Vec<Json> = documents.iter().map(|document| {
            let mut row = serde_json::Map::new();
            let columns = [("x", &path[..]), ("b", &["tags", "b"]), ("deviceId", &["deviceId"])];
            for (name, path) in columns {
                row.extend(find(document, path).map(|value| (name.to_owned(), value.clone())));
            }
            Json::Object(row)
        }).collect();
        prop_assert_eq!(rows(&query, &documents), Json::Array(expected));
        let all = parsed("select * from devices");
        prop_assert_eq!(rows(&all, &documents), Json::Array(documents));
    }

    #[test]
    fn groups_are_what_their_rows_come_to(documents in prop::collection::vec(document(), 0..12)) {
        let functions = "COUNT(), SUM(tags.b) AS total, AVG(tags.b), min(tags.b), Max(tags.b)";
        let everything: Vec<&Json> = documents.iter().collect();
        let query = parsed(&format!("SELECT {functions} FROM devices"));
        prop_assert_eq!(
            normal(aggregated(&query, &documents)),
            normal(json!([naive_group(None, &everything)]))
        );
        let mut groups: BTreeMap<String, (Option<&Json>, Vec<&Json>)> = BTreeMap::new();
        for document in &documents {
            let value = find(document, &["tags", "a"]);
            let text = format!("{:?}", value.cloned().map(|value| match value {
                Json::Number(_) => normal(value),
                other => other,
            }));
            groups.entry(text).or_insert((value, Vec::new())).1.push(document);
        }
        let mut expected: Vec<String> = groups.values()
            .map(|(value, group)| normal(naive_group(*value, group)).to_string())
            .collect();
        let query = parsed(&format!("SELECT tags.a, {functions} FROM devices GROUP BY tags.a"));
        let Json::Array(found) = aggregated(&query, &documents) else {
            panic!("an array");
        };
        let mut found: Vec<String> = found.into_iter().map(|row| normal(row).to_string()).collect();
        expected.sort();
        found.sort();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_text_is_answered(text in "\\PC{0,60}") {
        let _ = Query::parse(&text);
    }

    #[test]
    fn any_words_are_answered(words in prop::collection::vec(prop::sample::select(vec![
        "SELECT", "*", "FROM", "devices", ".modules", "WHERE", "(", ")", "[", "]", "NOT", "-", "=",
        "'a'", "1", "tags", ".", "AND", "OR", "IN", "COUNT", "GROUP", "BY", ",", "TOP", "AS", "\\u",
        "'", "IS_DEFINED",
    ]), 0..30)) {
        let joined = words.join(" ");
        for text in [joined.clone(), format!("SELECT * FROM devices WHERE {joined}")] {
            let Ok(query) = Query::parse(&text) else {
                continue;
            };
            passes(&query, &Document(json!({ "tags": { "a": 1 } })));
            query.devices();
        }
    }
}
