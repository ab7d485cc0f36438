//! What is a query, and what is none.

use serde_json::json;

use super::document::Document;
use super::{Collection, ItemType, MOST_CHARACTERS, MOST_NESTED, MOST_TERMS};
use super::{Query, QueryError, passes};

fn document() -> Document {
    Document(json!({
        "deviceId": "d", "connectionState": "Connected", "statusReason": null,
        "tags": { "site": "43", "n": 3, "half": 0.5, "on": true, "my-key": "k", "SELECT": 1,
            "list": [1], "where": { "from": "here" }, "text": "it's \"\\ 😀" },
        "properties": { "reported": { "$version": 7, "$metadata": { "a": { "$lastUpdated": "2026" } } } },
    }))
}

fn holds(condition: &str) -> bool {
    let text = format!("SELECT * FROM devices WHERE {condition}");
    let query = Query::parse(&text).unwrap_or_else(|error| panic!("{condition}: {error}"));
    passes(&query, &document())
}

fn refused(text: &str) -> QueryError {
    match Query::parse(text) {
        Err(error) => error,
        Ok(_) => panic!("{text} is understood"),
    }
}

#[test]
fn conditions_that_hold() {
    for condition in [
        "tags.site = '43'",
        "tags.site = \"43\"",
        "TAGS.site = '43' and DeviceId = 'd' AND connectionstate = 'Connected'",
        "tags['my-key'] = 'k' AND tags [ \"site\" ] = '43'",
        "tags.SELECT = 1 AND tags.where.from = 'here'",
        "properties.reported.$version >= 7",
        "properties.reported.$metadata.a.$lastUpdated > '2025'",
        "tags.n = 3.0 AND tags.n = 0x3 AND tags.n = 3e0",
        "tags.text = 'it\\'s \\\"\\\\ \\uD83D\\uDE00'",
        "tags.on AND NOT (tags.n = 4)",
        "tags.on = TRUE",
        "statusReason = null AND IS_DEFINED(statusReason)",
        "is_defined(tags.list) AND NOT IS_DEFINED(tags.absent)",
        "1 + 2 * 3 = 7 AND (1 + 2) * 3 = 9 AND 7 % 4 = 3 AND 1 / 4 = 0.25",
        "- 2 = -2 AND 3 - -2 = 5 AND - - 1 = 1",
        "tags.n IN [1, 2, 3] AND tags.n NIN [-1, 0]",
        "tags.n IN ['a', 3]",
        "false OR tags.n < 4 AND tags.n > 2",
        "NOT false AND true",
        "tags.n <> 4 AND tags.n != 4",
        "(tags.n = 3) = true",
        "'Z' < 'a' AND 'é' > 'z' AND '\u{ffff}' < '\u{10000}'",
    ] {
        assert!(holds(condition), "{condition}");
    }
}

#[test]
fn conditions_that_do_not_hold() {
    for condition in [
        "tags.Site = '43'",
        "tags.absent != 'x'",
        "NOT tags.absent = 'x'",
        "tags.absent = UNDEFINED",
        "Undefined = undefined",
        "tags.n = '3'",
        "tags.n != '3'",
        "tags.list = tags.list",
        "tags = tags",
        "tags.n",
        "1",
        "'true'",
        "null",
        "null < null",
        "statusReason <= null",
        "true < false",
        "tags.on >= true",
        "1 / 0 = 1 / 0",
        "1 % 0 != 5",
        "tags.n NIN ['a', 4]",
        "tags.n NIN [3]",
        "tags.absent NIN [1]",
        "1e308 * 10 > 0",
        "-tags.site = -43",
        "NOT (true AND tags.absent)",
    ] {
        assert!(!holds(condition), "{condition}");
    }
}

#[test]
fn what_a_query_is() {
    let query = |text| Query::parse(text).expect("a query");
    for (text, collection, item_type, is_aggregate) in [
        (
            "SELECT * FROM devices",
            Collection::Devices,
            ItemType::Twin,
            false,
        ),
        (
            "select top 3 * from devices.modules",
            Collection::Modules,
            ItemType::Twin,
            false,
        ),
        (
            "SELECT deviceId FROM devices",
            Collection::Devices,
            ItemType::Raw,
            false,
        ),
        (
            "SELECT COUNT() FROM devices . modules",
            Collection::Modules,
            ItemType::Raw,
            true,
        ),
        (
            "SELECT status FROM devices GROUP BY STATUS",
            Collection::Devices,
            ItemType::Raw,
            true,
        ),
        (
            "SELECT count, min, avg AS sum FROM devices",
            Collection::Devices,
            ItemType::Raw,
            false,
        ),
    ] {
        let query = query(text);
        assert_eq!(query.collection(), collection, "{text}");
        assert_eq!(query.item_type(), item_type, "{text}");
        assert_eq!(query.is_aggregate(), is_aggregate, "{text}");
    }
}

#[test]
fn devices_that_are_named() {
    let named = |condition: &str| {
        let text = format!("SELECT * FROM devices WHERE {condition}");
        let found = Query::parse(&text).expect("a query").devices();
        found.map(|found| found.into_iter().collect::<Vec<_>>().join(" "))
    };
    for (condition, expected) in [
        ("deviceId = 'a'", Some("a")),
        ("'a' = DEVICEID AND tags.x = 1", Some("a")),
        ("deviceId IN ['b', 'a', 3]", Some("a b")),
        ("deviceId IN ['b', 'a'] AND deviceId = 'b'", Some("b")),
        ("deviceId = 'a' AND deviceId = 'b'", Some("")),
        ("deviceId = 'a' OR deviceId IN ['c']", Some("a c")),
        ("deviceId = 'a' OR tags.x = 1", None),
        ("NOT deviceId = 'a'", None),
        ("deviceId != 'a'", None),
        ("deviceId NIN ['a']", None),
        ("deviceId > 'a'", None),
        ("tags.deviceId = 'a'", None),
        ("deviceId.x = 'a'", None),
    ] {
        assert_eq!(named(condition).as_deref(), expected, "{condition}");
    }
}

#[test]
fn what_is_no_query() {
    for text in [
        "",
        "SELECT",
        "SELECT * FROM",
        "SELECT * devices",
        "SELECT *, deviceId FROM devices",
        "SELECT deviceId, FROM devices",
        "SELECT * FROM devices.jobs",
        "SELECT * FROM Devices",
        "SELECT * FROM devices d",
        "SELECT * FROM devices AS d",
        "SELECT * FROM devices JOIN x IN devices.tags",
        "SELECT * FROM devices ORDER BY deviceId",
        "SELECT * FROM devices WHERE",
        "SELECT * FROM devices WHERE a = b = c",
        "SELECT * FROM devices WHERE a IN []",
        "SELECT * FROM devices WHERE a IN [b]",
        "SELECT * FROM devices WHERE a IN [1,]",
        "SELECT * FROM devices WHERE a IN (1)",
        "SELECT * FROM devices WHERE a IN [- 'x']",
        "SELECT * FROM devices WHERE STARTSWITH(a, 'b')",
        "SELECT * FROM devices WHERE IS_DEFINED('a')",
        "SELECT * FROM devices WHERE COUNT() > 1",
        "SELECT * FROM devices WHERE (a = 1",
        "SELECT * FROM devices WHERE a = 1)",
        "SELECT * FROM devices WHERE a == 1",
        "SELECT * FROM devices WHERE a = 'x",
        "SELECT * FROM devices WHERE a = '\\x'",
        "SELECT * FROM devices WHERE a = '\\uD83D'",
        "SELECT * FROM devices WHERE a = '\\uD83Dx'",
        "SELECT * FROM devices WHERE a = '\\uDE00'",
        "SELECT * FROM devices WHERE a = '\\u+123'",
        "SELECT * FROM devices WHERE a = 1e400",
        "SELECT * FROM devices WHERE a = 12x",
        "SELECT * FROM devices WHERE a = .5",
        "SELECT * FROM devices WHERE a[0] = 1",
        "SELECT * FROM devices WHERE a = `x`",
        "SELECT * FROM devices WHERE a = 1; DROP",
        "SELECT * FROM devices WHERE null.a = 1",
        "SELECT * FROM devices GROUP BY status",
        "SELECT * FROM devices GROUP status",
        "SELECT TOP 0 * FROM devices",
        "SELECT TOP 1.5 * FROM devices",
        "SELECT TOP -1 * FROM devices",
        "SELECT TOP * FROM devices",
        "SELECT DISTINCT status FROM devices",
        "SELECT COUNT(*) FROM devices",
        "SELECT COUNT(status) FROM devices",
        "SELECT AVG() FROM devices",
        "SELECT UPPER(status) FROM devices",
        "SELECT status, COUNT() FROM devices",
        "SELECT status, COUNT() FROM devices GROUP BY tags.a",
        "SELECT tags.a, properties.reported.a FROM devices",
        "SELECT AVG(tags.a), AVG(tags.b) FROM devices",
        "SELECT status AS FROM FROM devices",
        "SELECT 1 FROM devices",
    ] {
        refused(text);
    }
}

#[test]
fn errors_say_where() {
    let at =
        |condition: &str| refused(&format!("SELECT * FROM devices WHERE {condition}")).to_string();
    assert_eq!(at("é"), "character 29: 'é' is not expected here");
    assert_eq!(
        at("'é' = 'x"),
        "character 35: the text that begins here has no end"
    );
    assert_eq!(
        at("a = 1 1"),
        "character 35: the end is expected, not the number 1"
    );
    assert_eq!(at("FOO(a)"), "there is no function \"FOO\"");
}

#[test]
fn limits_at_their_edges() {
    let nested = |open: &str, depth: usize, close: &str| {
        let (open, close) = (open.repeat(depth), close.repeat(depth));
        Query::parse(&format!("SELECT * FROM devices WHERE {open}true{close}")).err()
    };
    for (open, close) in [("(", ")"), ("NOT ", ""), ("-", ""), ("NOT (", ")")] {
        let most = MOST_NESTED / (1 + usize::from(open == "NOT ("));
        assert_eq!(nested(open, most, close), None, "{open}");
        assert_eq!(
            nested(open, most + 1, close),
            Some(QueryError::Nested),
            "{open}"
        );
    }
    let terms = |count: usize, between: &str| {
        let all = vec!["true"; count].join(between);
        Query::parse(&format!("SELECT * FROM devices WHERE {all}"))
    };
    for between in [" AND ", " OR ", " + ", " * "] {
        let query = terms(MOST_TERMS, between).expect("as many as may be");
        passes(&query, &document());
        assert_eq!(
            terms(MOST_TERMS + 1, between).err(),
            Some(QueryError::Terms)
        );
    }
    let list = vec!["1"; MOST_TERMS].join(",");
    assert_eq!(
        Query::parse(&format!("SELECT * FROM devices WHERE a IN [{list}]")).err(),
        Some(QueryError::Terms),
        "the path is one, too"
    );
    let long = |characters: usize| {
        let head = "SELECT * FROM devices WHERE a = '";
        let filled = "é".repeat(characters - head.len() - 1);
        Query::parse(&format!("{head}{filled}'")).err()
    };
    assert_eq!(long(MOST_CHARACTERS), None);
    assert_eq!(long(MOST_CHARACTERS + 1), Some(QueryError::TooLong));
}
