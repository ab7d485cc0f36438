//! Bytes: what is damaged is refused and never panics, and look-ups find what is shown.

use std::borrow::Cow;

use super::*;
use crate::base::proto::state;
use crate::query::ROOTS;
use crate::registry::IdentityId;
use crate::twin::encoding::{decode_patch, encode_patch};
use crate::twin::{EncodedSection, Found, Twin};

fn any_section() -> impl Strategy<Value = Section> {
    let writes = prop::collection::vec(any_patch(2), 1..4);
    writes.prop_map(|writes| {
        let mut section = Section::default();
        for (at, json) in (1_000_000..).step_by(1000).zip(&writes) {
            section = merged(&section, json, at);
        }
        section
    })
}

fn twin(module: bool, sections: [Section; 3]) -> Twin {
    let [tags, desired, reported] = sections.map(|section| EncodedSection::of(&section));
    let id = match module {
        true => IdentityId::module("d", "m"),
        false => IdentityId::device("d"),
    };
    let identity = state::Identity {
        generation: 3,
        etag: 17,
        authentication: 2,
        primary_thumbprint: Some("AB".repeat(20)),
        iot_edge: true,
        ..Default::default()
    };
    let device = state::Identity {
        disabled: true,
        status_reason: Some("for a reason".to_owned()),
        status_updated_ms: 1000,
        ..Default::default()
    };
    Twin {
        id: id.expect("an id"),
        identity,
        device: module.then_some(device),
        head: state::TwinHead {
            etag: 3,
            version: 5,
            ..Default::default()
        },
        tags,
        desired,
        reported,
        activity: state::Activity {
            connection_ms: 5000,
            model_id: "dtmi:x;1".to_owned(),
            answers: bytes::Bytes::new(),
        },
        is_connected: true,
    }
}

/// Whether a look-up has found what the whole view shows at its path.
fn is(twin: &Twin, path: &[String], found: Option<Found<'_>>, shown: Option<&Json>) -> bool {
    match (found, shown) {
        (None, None) | (Some(Found::Null), Some(Json::Null)) => true,
        (Some(Found::Bool(found)), Some(Json::Bool(shown))) => found == *shown,
        (Some(Found::Integer(found)), Some(shown)) => shown.as_i64() == Some(found),
        (Some(Found::Double(found)), Some(shown)) => shown.as_f64() == Some(found),
        (Some(Found::Text(found)), Some(Json::String(shown))) => found == Cow::Borrowed(shown),
        (Some(Found::Composite), Some(shown)) => {
            let mut out = String::new();
            twin.write_at(path, &mut out).expect("sections");
            serde_json::from_str::<Json>(&out).is_ok_and(|written| written == *shown)
        }
        _ => false,
    }
}

/// Every path in a value, and one beside and one below each.
fn paths(json: &Json, around: &[String], out: &mut Vec<Vec<String>>) {
    let below = |name: &str| [around, &[name.to_owned()]].concat();
    out.extend([
        around.to_vec(),
        below("nowhere"),
        below("$version"),
        below("a"),
    ]);
    for (name, value) in json.as_object().into_iter().flatten() {
        paths(value, &below(name), out);
    }
}

fn shown_at<'a>(json: &'a Json, path: &[String]) -> Option<&'a Json> {
    path.iter()
        .try_fold(json, |json, name| json.as_object()?.get(name))
}

proptest! {
    #[test]
    fn look_ups_find_what_the_view_shows(
        sections in [any_section(), any_section(), any_section()],
        module: bool,
        fresh in 0..4_usize,
    ) {
        let mut twin = twin(module, sections);
        if fresh == 1 {
            (twin.tags, twin.desired, twin.reported) = Default::default();
        }
        let shown: Json = serde_json::from_str(&twin.render().expect("sections")).expect("JSON");
        let mut all = Vec::new();
        paths(&shown, &[], &mut all);
        for path in all {
            let found = twin.find(&path).expect("sections");
            let text = format!("{path:?}: {found:?}");
            prop_assert!(is(&twin, &path, found, shown_at(&shown, &path)), "{text}");
        }
        for root in shown.as_object().expect("an object").keys() {
            prop_assert!(ROOTS.contains(&root.as_str()), "{root}");
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_are_others_and_never_panic(
        section in any_section(),
        at: prop::sample::Index,
        byte: u8,
        cut: bool,
    ) {
        let mut bytes = EncodedSection::of(&section).0.to_vec();
        let at = at.index(bytes.len());
        match cut {
            true => bytes.truncate(at),
            false => bytes[at] = byte,
        }
        let damaged = EncodedSection(bytes.into());
        let _ = (damaged.head(), damaged.has_no_members());
        let _ = damaged.find(&["a", "b", "c"], Annotations::Versions);
        let _ = damaged.find(&["$metadata", "a", "b"], Annotations::Versions);
        if let Ok(other) = damaged.decode() && !damaged.0.is_empty() {
            // A value has one encoding.
            prop_assert_eq!(EncodedSection::of(&other), damaged);
        }
    }

    #[test]
    fn whatever_comes_is_decoded_or_refused(bytes: Vec<u8>, kind in 0..3_u8) {
        let bytes = [&[kind][..], &bytes].concat();
        if let Ok(patch) = decode_patch(&bytes) {
            prop_assert_eq!(&encode_patch(&patch)[..], &bytes[..]);
        }
        let section = EncodedSection(bytes.into());
        let _ = (section.decode(), section.find(&["a"], Annotations::Times));
    }
}

#[test]
fn bytes_that_claim_to_be_deep_or_long_are_refused() {
    // Objects and arrays inside one another, as deep as the bytes allow.
    for tag in [5, 6] {
        let mut inside: Vec<u8> = Vec::new();
        for _ in 0..100_000 {
            // Lengths above three bytes are not needed to be too deep.
            if inside.len() >= 1 << 20 {
                break;
            }
            let mut out = match tag {
                6 => vec![1, b'k', 6],
                _ => vec![5],
            };
            let mut length = inside.len();
            while length >= 0x80 {
                out.push(length as u8 | 0x80);
                length >>= 7;
            }
            out.push(length as u8);
            out.extend_from_slice(&inside);
            inside = out;
            if inside.len() > 1000 {
                break;
            }
        }
        let patch = match tag {
            6 => [&[2][..], &inside].concat(),
            _ => [&[2, 1, b'k'][..], &inside].concat(),
        };
        assert!(decode_patch(&patch).is_err());
    }
    assert!(decode_patch(&[2, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, b'k']).is_err());
    // Keys that do not ascend, a number that is not in its shortest form, a double that is not finite.
    assert!(decode_patch(&[2, 1, b'b', 0, 1, b'a', 0]).is_err());
    assert!(decode_patch(&[2, 1, b'a', 0, 1, b'a', 0]).is_err());
    assert!(decode_patch(&[2, 1, b'a', 2, 0x80, 0]).is_err());
    let nan = [&[2, 1, b'a', 3][..], &f64::NAN.to_bits().to_le_bytes()].concat();
    assert!(decode_patch(&nan).is_err());
    assert!(decode_patch(&[2, 1, b'a', 0]).is_ok() && decode_patch(&[2]).is_ok());
}

#[test]
fn the_encoding_never_changes() {
    let json = serde_json::json!({"a": {"b": [true, {"c": -1}], "d": 1.5}, "e": "é", "f": null});
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let section = merged(&Section::default(), &json, 300);
    let section = merged(&section, &serde_json::json!({"e": 2}), 301);
    let found = [
        hex(&encode_patch(&patch(&json))),
        hex(&EncodedSection::of(&section).0),
    ];
    let expected = [
        "02016106160162050701060401630201016403000000000000f83f01650402c3a9016607",
        "0103ad020301610101061a016200000507010604016302010164000003000000000000f83f016500000204",
    ];
    assert_eq!(found, expected);
}
