//! Each limit one below, at, and one above it; and what is no document.

use serde_json::json;

use super::*;
use crate::twin::limits::*;
use crate::twin::request::{Invalid, reported_patch, twin_update};
use crate::twin::{Measure, TooLarge};

/// Why a patch of desired properties is refused, if it is.
fn refusal(json: &Json) -> Option<Invalid> {
    match desired(json, false) {
        Ok(_) => None,
        Err(Refused::Invalid(invalid)) => Some(invalid),
        Err(other) => panic!("{other}"),
    }
}

/// The same for the text of a patch.
fn refusal_of_text(patch: &str) -> Option<Invalid> {
    match reported_patch(patch.as_bytes()) {
        Ok(_) => None,
        Err(Refused::Invalid(invalid)) => Some(invalid),
        Err(other) => panic!("{other}"),
    }
}

/// A member, an element's member, and a member further below: keys are judged at every depth.
fn everywhere(key: &str) -> [Json; 4] {
    [
        json!({ key: 1 }),
        json!({ key: null }),
        json!({"a": {"b": { key: {} }}}),
        json!({"a": [[{ key: 1 }]]}),
    ]
}

#[test]
fn keys_have_at_most_1024_bytes() {
    for letter in ["k", "ä", "😀"] {
        let key = |bytes: usize| {
            let letters = letter.repeat(bytes / letter.len());
            let rest = "x".repeat(bytes % letter.len());
            letters + &rest
        };
        for bytes in [0, 1, KEY_BYTES - 1, KEY_BYTES] {
            for json in everywhere(&key(bytes)) {
                assert_eq!(refusal(&json), None, "{bytes}");
            }
        }
        let bytes = KEY_BYTES + 1;
        for json in everywhere(&key(bytes)) {
            assert_eq!(refusal(&json), Some(Invalid::KeyTooLong { bytes }));
        }
    }
}

#[test]
fn keys_have_no_character_that_means_something_else() {
    for letter in (0..=0x3100).filter_map(char::from_u32) {
        let is_control = matches!(letter, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}');
        let is_refused = is_control || matches!(letter, '.' | '$' | '#') || letter.is_whitespace();
        for json in everywhere(&format!("a{letter}b")) {
            let expected = is_refused.then_some(Invalid::KeyCharacter(letter));
            assert_eq!(refusal(&json), expected, "{letter:?}");
        }
    }
    // What a section shows of its writes is passed over in the section itself, and refused below it.
    let shown = json!({"$version": 7, "$metadata": {"x": 1}, "$etag": "e", "a": 1});
    assert_eq!(patch(&shown).len(), 1);
    let refused = Some(Invalid::KeyCharacter('$'));
    assert_eq!(refusal(&json!({"a": {"$version": 7}})), refused);
    assert_eq!(refusal(&json!({"$other": 7})), refused);
}

#[test]
fn strings_have_at_most_4096_bytes() {
    for letter in ["x", "ä", "😀", "\u{1}"] {
        let text = |bytes: usize| {
            let letters = letter.repeat(bytes / letter.len());
            let rest = "x".repeat(bytes % letter.len());
            letters + &rest
        };
        for bytes in [0, TEXT_BYTES - 1, TEXT_BYTES] {
            assert_eq!(refusal(&json!({"a": text(bytes)})), None, "{bytes}");
            assert_eq!(refusal(&json!({"a": [text(bytes)]})), None, "{bytes}");
        }
        let bytes = TEXT_BYTES + 1;
        let refused = Some(Invalid::TextTooLong { bytes });
        assert_eq!(refusal(&json!({"a": text(bytes)})), refused);
        assert_eq!(refusal(&json!({"a": [{"b": text(bytes)}]})), refused);
    }
}

#[test]
fn integers_are_those_of_53_bits_halved() {
    let (least, most) = (*INTEGERS.start(), *INTEGERS.end());
    for integer in [least, least + 1, -1, 0, most - 1, most] {
        assert_eq!(refusal(&json!({ "a": integer })), None, "{integer}");
        assert_eq!(refusal(&json!({ "a": [integer] })), None, "{integer}");
    }
    for integer in [
        "-4503599627370497",
        "4503599627370496",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "1e400",
        "-1e400",
        &"9".repeat(5000),
    ] {
        let of = |text: String| refusal_of_text(&text);
        assert_eq!(
            of(format!("{{\"a\":{integer}}}")),
            Some(Invalid::Number),
            "{integer}"
        );
        assert_eq!(
            of(format!("{{\"a\":[{{\"b\":{integer}}}]}}")),
            Some(Invalid::Number)
        );
    }
    assert_eq!(
        refusal_of_text(r#"{"a":18446744073709551616.0,"b":1e300}"#),
        None
    );
}

/// So many objects inside one another below the section, and a value in the last.
fn nested(objects: usize, inside: Json) -> Json {
    (0..objects).fold(inside, |inside, _| json!({ "k": inside }))
}

#[test]
fn there_are_at_most_ten_levels() {
    // The section itself is the outermost object.
    let section = |objects: usize, inside| nested(objects + 1, inside);
    for objects in [1, DEPTH - 1, DEPTH] {
        assert_eq!(refusal(&section(objects, json!(1))), None, "{objects}");
        assert_eq!(refusal(&section(objects, Json::Null)), None, "{objects}");
    }
    let too_deep = Some(Invalid::TooDeep);
    assert_eq!(refusal(&section(DEPTH + 1, json!(1))), too_deep);
    assert_eq!(refusal(&section(DEPTH, json!({}))), too_deep);
    assert_eq!(refusal(&section(DEPTH, json!([]))), too_deep);
    assert_eq!(refusal(&section(DEPTH - 1, json!([1]))), None);
    assert_eq!(refusal(&section(DEPTH - 1, json!([[]]))), too_deep);
    assert_eq!(refusal(&section(DEPTH - 1, json!([{}]))), too_deep);
    assert_eq!(refusal(&section(DEPTH - 2, json!([{"a": 1}]))), None);
    let arrays = |count: usize| (0..count).fold(json!(1), |inside, _| json!([inside]));
    assert_eq!(refusal(&json!({ "a": arrays(DEPTH) })), None);
    assert_eq!(refusal(&json!({ "a": arrays(DEPTH + 1) })), too_deep);
    // Malformed before it is too deep.
    let text = "{\"a\":".repeat(129) + "1" + &"}".repeat(129);
    assert!(matches!(
        reported_patch(text.as_bytes()),
        Err(Refused::NotJson(_))
    ));
}

#[test]
fn arrays_hold_no_null() {
    for array in [json!([null]), json!([[null]]), json!([{"a": null}])] {
        let refused = Some(Invalid::NullInArray);
        assert_eq!(refusal(&json!({ "a": array })), refused, "{array}");
    }
}

#[test]
fn a_document_that_replaces_another_holds_no_null() {
    let refused = Err(Refused::Invalid(Invalid::NullInDocument));
    assert_eq!(desired(&json!({"a": null}), true), refused);
    assert_eq!(desired(&json!({"a": {"b": null}}), true), refused);
    assert!(desired(&json!({"a": {}}), true).is_ok());
}

#[test]
fn sections_that_are_null_or_missing_are_not_there() {
    let update = |body: Json, replace| twin_update(body.to_string().as_bytes(), replace);
    for body in [
        json!({}),
        json!({"tags": null}),
        json!({"properties": null}),
        json!({"properties": {}}),
        json!({"properties": {"desired": null, "reported": {"a": 1}}, "etag": "x", "version": 3}),
    ] {
        for replace in [false, true] {
            assert_eq!(
                update(body.clone(), replace),
                Ok(Default::default()),
                "{body}"
            );
        }
    }
    for (body, what) in [
        (json!([]), "the body"),
        (json!("x"), "the body"),
        (json!({"tags": 1}), "tags"),
        (json!({"tags": []}), "tags"),
        (json!({"properties": 1}), "properties"),
        (
            json!({"properties": {"desired": "x"}}),
            "properties.desired",
        ),
    ] {
        let refused = Err(Refused::Invalid(Invalid::NotAnObject(what)));
        assert_eq!(update(body.clone(), false), refused, "{body}");
    }
    for payload in ["null", "1", "[]", "\"x\""] {
        let refused = Err(Refused::Invalid(Invalid::NotAnObject("the payload")));
        assert_eq!(reported_patch(payload.as_bytes()), refused, "{payload}");
    }
    for payload in ["", " ", "{", "{}x", "{\"a\":\"\\ud800\"}", "\u{feff}{}"] {
        assert!(matches!(
            reported_patch(payload.as_bytes()),
            Err(Refused::NotJson(_))
        ));
    }
}

#[test]
fn one_breach_refuses_both_sections() {
    let body = json!({"tags": {"fine": 1}, "properties": {"desired": {"a.b": 1}}});
    let refused = Err(Refused::Invalid(Invalid::KeyCharacter('.')));
    assert_eq!(twin_update(body.to_string().as_bytes(), false), refused);
}

#[test]
fn the_last_of_equal_keys_counts_and_the_others_are_not_judged() {
    let patch = reported_patch(br#"{"a":{"b":1},"a":2,"a":{"c":3}}"#).expect("a patch");
    let section = Section::default().merged(patch, Millis(1), NO_BOUND);
    assert_eq!(plain(&section.expect("small")), json!({"a": {"c": 3}}));
    assert_eq!(refusal_of_text(r#"{"a":[null],"a":1}"#), None);
}

/// A section of exactly this size.
fn sized(size: u64) -> Json {
    let mut members = Map::new();
    let mut left = size;
    for key in 0.. {
        let key = format!("{key:04}");
        if left <= 4 + 4000 {
            members.insert(key, "x".repeat(left as usize - 4).into());
            break;
        }
        members.insert(key, "x".repeat(4000).into());
        left -= 4 + 4000;
    }
    Json::Object(members)
}

#[test]
fn sections_have_at_most_their_size_unless_they_shrink() {
    for most in [TAGS_SIZE, PROPERTIES_SIZE] {
        let fresh = Section::default();
        let write = |section: &Section, json: &Json, replace: bool| match replace {
            false => section.clone().merged(patch(json), Millis(1), most),
            true => section.replaced(desired(json, true).expect("one"), Millis(1), most),
        };
        for replace in [false, true] {
            for size in [most - 1, most] {
                let next = write(&fresh, &sized(size), replace).expect("it fits");
                assert_eq!(next.size(), size);
            }
            let size = most + 1;
            let refused = write(&fresh, &sized(size), replace);
            let measure = Measure::Size;
            assert_eq!(
                refused,
                Err(TooLarge {
                    measure,
                    size,
                    most
                })
            );
        }
        let oversized = merged(&fresh, &sized(most + 100), 1);
        let same = write(&oversized, &json!({"0000": "y".repeat(4000)}), false);
        assert_eq!(same.expect("as large as before").size(), most + 100);
        let smaller = write(&oversized, &json!({"0000": "y".repeat(3999)}), false);
        assert_eq!(smaller.expect("smaller").size(), most + 99);
        let size = most + 101;
        let larger = write(&oversized, &json!({"z": ""}), false);
        let measure = Measure::Size;
        assert_eq!(
            larger,
            Err(TooLarge {
                measure,
                size,
                most
            })
        );
    }
}

/// No bound but that of the size is in the way of arrays whose elements all have one.
#[test]
fn an_array_may_have_as_many_elements_as_its_size_lets_it() {
    let write = |count: u64| {
        let flags = json!({ "flags": vec!["0"; count as usize] });
        Section::default().merged(patch(&flags), Millis(1), PROPERTIES_SIZE)
    };
    assert!(write(PROPERTIES_SIZE - 5).is_ok());
    let refused = write(PROPERTIES_SIZE - 4).expect_err("it is too large");
    assert_eq!(refused.measure, Measure::Size);
}

/// Values and bytes of texts are bounded as the size is. Time does not count: a section that could be written can be
/// written an hour later, when every stamp takes more bytes.
#[test]
fn sections_have_at_most_so_many_values_and_bytes_unless_they_shrink() {
    use crate::twin::Stamp;
    let write = |section: &Section, json: &Json, at| {
        section.clone().merged(patch(json), Millis(at), u64::MAX)
    };
    let values = |count: u64| {
        let members = (1..count).map(|key| (format!("{key:x}"), json!({})));
        json!({ "a": Json::Object(members.collect()) })
    };
    let elements = |count: u64| json!({ "a": vec![json!({}); count as usize] });
    let texts = |bytes: u64| {
        let mut left = bytes - 1;
        let mut texts = Vec::new();
        while left > 0 {
            let next = left.min(4_000);
            texts.push("\u{1}".repeat(next as usize));
            left -= next;
        }
        json!({ "a": texts })
    };
    for (measure, most, json) in [
        (
            Measure::Values,
            SECTION_VALUES,
            &values as &dyn Fn(u64) -> Json,
        ),
        (Measure::Elements, SECTION_ELEMENTS, &elements),
        (Measure::TextBytes, SECTION_TEXT_BYTES, &texts),
    ] {
        let fresh = Section::default();
        let full = write(&fresh, &json(most), 1).expect("it fits");
        let size = most + 1;
        let refused = write(&fresh, &json(size), 1);
        assert_eq!(
            refused,
            Err(TooLarge {
                measure,
                size,
                most
            })
        );
        assert!(write(&full, &json!({"b": ["b"]}), 3_600_000).is_err());
        assert!(write(&full, &json!({"b": null}), 3_600_000).is_ok());
        assert!(write(&full, &json(most - 1), 3_600_000).is_ok());
        // One that a former version has let grow.
        let restored = |json: &Json| {
            let larger = patch(json);
            let members = crate::twin::section::new_nodes(larger, Stamp::default());
            Section::restored(2, Stamp::default(), members)
        };
        let oversized = restored(&json(most + 100));
        assert!(write(&oversized, &json(most + 99), 1).is_ok());
        assert!(write(&oversized, &json(most + 101), 1).is_err());
    }
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(bytes: Vec<u8>) {
        let _ = (reported_patch(&bytes), twin_update(&bytes, true));
    }

    #[test]
    fn whatever_is_almost_a_body_is_read_or_refused(
        json in any_patch(2),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let body = json!({"tags": json.clone(), "properties": {"desired": json}});
        let mut body = body.to_string().into_bytes();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = (twin_update(&body, false), twin_update(&body, true));
    }
}

#[test]
fn what_a_hundred_megabytes_of_brackets_cost_is_one_refusal() {
    let hostile = vec![b'['; 100 << 20];
    assert!(matches!(reported_patch(&hostile), Err(Refused::NotJson(_))));
}
