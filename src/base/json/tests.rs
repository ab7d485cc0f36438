//! What is JSON and what is not, against another reader.

use proptest::prelude::*;

use super::*;

fn text(json: &str) -> String {
    match parse(json.as_bytes()) {
        Ok(Json::Text(text)) => text,
        other => panic!("{json}: {other:?}"),
    }
}

#[test]
fn integers_are_literals_without_fraction_and_exponent_however_long() {
    let of = |json: &str| parse(json.as_bytes());
    assert_eq!(of("1"), Ok(Json::Integer(1)));
    assert_eq!(of("-0"), Ok(Json::Integer(0)));
    assert_eq!(of("1.0"), Ok(Json::Double(1.0)));
    assert_eq!(of("1e2"), Ok(Json::Double(100.0)));
    assert_eq!(of("9223372036854775807"), Ok(Json::Integer(i64::MAX)));
    assert_eq!(of("9223372036854775808"), Ok(Json::TooLarge));
    assert_eq!(of("18446744073709551616"), Ok(Json::TooLarge));
    assert_eq!(of(&"9".repeat(100_000)), Ok(Json::TooLarge));
    assert_eq!(of("1e400"), Ok(Json::TooLarge));
    assert_eq!(of("-1e400"), Ok(Json::TooLarge));
    assert_eq!(of("1e-400"), Ok(Json::Double(0.0)));
    for malformed in [
        "01", "-", "1.", ".5", "1e", "1e+", "+1", "0x1", "NaN", "1_0",
    ] {
        assert!(of(malformed).is_err(), "{malformed}");
    }
}

#[test]
fn strings_have_whole_surrogate_pairs_or_none() {
    assert_eq!(text(r#""\ud83d\ude00\u00e4\n\/""#), "😀ä\n/");
    for malformed in [
        r#""\ud83d""#,
        r#""\ude00""#,
        r#""\ud83d\ud83d""#,
        r#""\ud83dx""#,
        r#""\ud83d\n""#,
        r#""\u12g4""#,
        r#""\u12"#,
        r#""\x""#,
        "\"\n\"",
        "\"",
    ] {
        assert!(parse(malformed.as_bytes()).is_err(), "{malformed}");
    }
    assert_eq!(parse(b"\"\xff\""), Err(Malformed::Utf8(1)));
}

#[test]
fn the_last_member_of_a_name_counts() {
    let value = parse(br#"{"a":{"x":1},"b":2,"a":3}"#).expect("JSON");
    let members = [
        ("a".to_owned(), Json::Integer(3)),
        ("b".to_owned(), Json::Integer(2)),
    ];
    assert_eq!(value, Json::Object(members.into()));
}

#[test]
fn nesting_ends_at_its_limit() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    let beyond = nested(MAX_DEPTH + 1);
    assert_eq!(parse(beyond.as_bytes()), Err(Malformed::TooDeep(MAX_DEPTH)));
    let hostile = "[".repeat(10_000_000);
    assert_eq!(
        parse(hostile.as_bytes()),
        Err(Malformed::TooDeep(MAX_DEPTH))
    );
    let hostile = "{\"a\":".repeat(1_000_000);
    assert!(parse(hostile.as_bytes()).is_err());
}

#[test]
fn doubles_stay_doubles() {
    let written = |double: f64| {
        let mut out = String::new();
        write_double(&mut out, double);
        out
    };
    assert_eq!(written(1.0), "1.0");
    assert_eq!(written(0.1), "0.1");
    assert_eq!(written(1e300), "1e300");
    assert_eq!(parse(written(1e16).as_bytes()), Ok(Json::Double(1e16)));
}

#[test]
fn a_zero_with_a_sign_is_an_integer() {
    assert_eq!(parse(b"-0"), Ok(Json::Integer(0)));
    assert!(matches!(parse(b"-0.0"), Ok(Json::Double(zero)) if zero == 0.0));
}

/// The same value as `serde_json` reads it; numbers are compared as they are written.
fn same(ours: &Json, theirs: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (ours, theirs) {
        (Json::Null, Value::Null) => true,
        (Json::Bool(ours), Value::Bool(theirs)) => ours == theirs,
        // An integer is what has neither fraction nor exponent, `-0` as well. The other reader makes it a double.
        (Json::Integer(0), Value::Number(theirs)) => theirs.as_f64() == Some(0.0),
        (Json::Integer(ours), Value::Number(theirs)) => theirs.as_i64() == Some(*ours),
        (Json::Double(ours), Value::Number(theirs)) => {
            theirs.is_f64()
                && theirs
                    .as_f64()
                    .is_some_and(|theirs| (ours - theirs).abs() <= theirs.abs() * 1e-15)
        }
        (Json::TooLarge, Value::Number(theirs)) => theirs.as_i64().is_none(),
        (Json::Text(ours), Value::String(theirs)) => ours == theirs,
        (Json::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(ours, theirs)| same(ours, theirs))
        }
        (Json::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .all(|(name, ours)| theirs.get(name).is_some_and(|theirs| same(ours, theirs)))
        }
        _ => false,
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(".{0,4}", inner, 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_another_writer_writes_is_read_as_it_means(value in any_json(), pretty: bool) {
        let text = match pretty {
            true => serde_json::to_string_pretty(&value),
            false => serde_json::to_string(&value),
        }.expect("JSON");
        let ours = parse(text.as_bytes());
        prop_assert!(ours.as_ref().is_ok_and(|ours| same(ours, &value)), "{text}: {ours:?}");
    }

    #[test]
    fn both_readers_refuse_the_same_bytes(value in any_json(), at: prop::sample::Index, byte: u8, cut: bool) {
        let mut text = serde_json::to_vec(&value).expect("JSON");
        let at = at.index(text.len());
        match cut {
            true => text.truncate(at),
            false => text[at] = byte,
        }
        let theirs = serde_json::from_slice::<serde_json::Value>(&text);
        match (parse(&text), theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert!(same(&ours, &theirs)),
            // It refuses numbers that no double holds.
            (Ok(ours), Err(error)) => prop_assert!(error.to_string().contains("out of range"), "{ours:?}: {error}"),
            (Err(error), Ok(theirs)) => prop_assert!(false, "{theirs}: {error}"),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn whatever_comes_is_read_or_refused(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }

    #[test]
    fn a_string_that_is_written_is_read_back(string: String) {
        let mut out = String::new();
        write_text(&mut out, &string);
        prop_assert_eq!(text(&out), string);
    }
}
