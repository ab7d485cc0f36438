//! What the specification shows, to the letter.

use serde_json::json;

use super::*;
use crate::twin::{EncodedSection, device_view, difference, notification};

/// `10:00:0n` of the example's day.
fn at(second: u64) -> u64 {
    1_767_607_200_000 + second * 1000
}

fn stamp(second: u64, version: u64) -> Json {
    let time = format!("2026-01-05T10:00:0{second}.000Z");
    json!({ "$lastUpdated": time, "$lastUpdatedVersion": version })
}

fn with(mut stamp: Json, members: Json) -> Json {
    let members = members.as_object().expect("an object").clone();
    stamp.as_object_mut().expect("an object").extend(members);
    stamp
}

#[test]
fn the_example_of_desired_properties() {
    let fresh = Section::default();
    let expected = json!({"$metadata": {"$lastUpdated": "0001-01-01T00:00:00Z"}, "$version": 1});
    assert_eq!(shown(&fresh, Annotations::Versions), expected);
    assert_eq!(shown(&fresh, Annotations::Times), expected);

    let first = json!({"telemetryConfig": {"sendFrequency": "5m", "batch": 10}, "fan": true});
    let section = merged(&fresh, &first, at(1));
    let one = || stamp(1, 2);
    let config = json!({"sendFrequency": one(), "batch": one()});
    let metadata = json!({"telemetryConfig": with(one(), config), "fan": one()});
    let expected = with(
        json!({"$version": 2, "$metadata": with(one(), metadata)}),
        first.clone(),
    );
    assert_eq!(shown(&section, Annotations::Versions), expected);
    let body: Json = serde_json::from_str(&notification(&patch(&first), 2)).expect("JSON");
    assert_eq!(body, with(json!({"$version": 2}), first));

    let second =
        json!({"telemetryConfig": {"sendFrequency": "1m", "batch": null}, "fan": {"speed": 2}});
    let section = merged(&section, &second, at(3));
    let three = || stamp(3, 3);
    let metadata = json!({
        "telemetryConfig": with(three(), json!({"sendFrequency": three()})),
        "fan": with(three(), json!({"speed": three()})),
    });
    let expected = json!({
        "telemetryConfig": {"sendFrequency": "1m"},
        "fan": {"speed": 2},
        "$version": 3,
        "$metadata": with(three(), metadata),
    });
    assert_eq!(shown(&section, Annotations::Versions), expected);

    let third = json!({"telemetryConfig": {"sendFrequency": "1m"}, "mode": "eco"});
    let after = replaced(&section, &third, at(4));
    let four = || stamp(4, 4);
    let metadata = json!({
        "telemetryConfig": with(four(), json!({"sendFrequency": four()})),
        "mode": four(),
    });
    let expected = with(
        json!({"$version": 4, "$metadata": with(four(), metadata)}),
        third.clone(),
    );
    assert_eq!(shown(&after, Annotations::Versions), expected);
    let told = notification(&difference(&section.members, &after.members), 4);
    let told: Json = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told, with(json!({"fan": null, "$version": 4}), third));
}

#[test]
fn the_example_of_reported_properties() {
    let first = json!({"telemetryConfig": {"sendFrequency": "5m", "status": "success"}, "batteryLevel": 55});
    let section = merged(&Section::default(), &first, at(2));
    let section = merged(&section, &json!({"batteryLevel": 54}), at(6));
    let time = |second| json!({"$lastUpdated": format!("2026-01-05T10:00:0{second}.000Z")});
    let config = with(
        time(2),
        json!({"sendFrequency": time(2), "status": time(2)}),
    );
    let metadata = with(
        time(6),
        json!({"telemetryConfig": config, "batteryLevel": time(6)}),
    );
    let mut expected = first;
    expected["batteryLevel"] = 54.into();
    expected["$version"] = 3.into();
    expected["$metadata"] = metadata;
    assert_eq!(shown(&section, Annotations::Times), expected);
}

#[test]
fn sizes_as_the_specification_counts_them() {
    for (document, size) in [
        (json!({}), 0),
        (json!({"n": 12345, "b": true, "o": {"k": 1}}), 24),
        (
            json!({"telemetryConfig": {"sendFrequency": "5m", "batch": 10}, "fan": true}),
            50,
        ),
        (json!({"a": ["xy", 1, false]}), 15),
        (json!({"ü": "日本"}), 3),
        (json!({"": {}, "e": []}), 1),
        (json!({"c": "\u{0}\u{1f}\u{7f}\u{80}\u{9f}\u{a0}x"}), 3),
        (json!({"a": [{"b": [1.5]}]}), 10),
    ] {
        let section = merged(&Section::default(), &document, 1);
        assert_eq!(section.size(), size, "{document}");
    }
}

#[test]
fn a_deletion_touches_nothing_beside_it() {
    let section = merged(
        &Section::default(),
        &json!({"a": {"x": 1, "y": 2}, "b": 1}),
        10,
    );
    let section = merged(&section, &json!({"a": {"x": null}, "c": null}), 20);
    assert_eq!(plain(&section), json!({"a": {"y": 2}, "b": 1}));
    let last = |pointer: &str| {
        let shown = shown(&section, Annotations::Versions);
        shown["$metadata"]
            .pointer(pointer)
            .expect("a stamp")
            .clone()
    };
    assert_eq!(last("/$lastUpdatedVersion"), 3);
    assert_eq!(last("/a/$lastUpdatedVersion"), 3);
    assert_eq!(last("/a/y/$lastUpdatedVersion"), 2);
    assert_eq!(last("/b/$lastUpdatedVersion"), 2);
    let section = merged(&section, &json!({"a": {"y": null}}), 30);
    assert_eq!(
        plain(&section),
        json!({"a": {}, "b": 1}),
        "an object that is empty stays"
    );
}

#[test]
fn what_a_write_shows_of_time_never_goes_back() {
    let section = merged(&Section::default(), &json!({"a": 1}), 100);
    let section = merged(&section, &json!({"b": 1}), 50);
    assert_eq!(section.stamp.at, Millis(100));
}

#[test]
fn a_device_sees_no_metadata() {
    let section = merged(&Section::default(), &json!({"a": 1.0, "b": [1]}), 1);
    let view = device_view(&EncodedSection::of(&section), &EncodedSection::default());
    let expected = r#"{"desired":{"a":1.0,"b":[1],"$version":2},"reported":{"$version":1}}"#;
    assert_eq!(view.as_deref(), Ok(expected));
}

#[test]
fn numbers_stay_what_they_were() {
    let body = br#"{"i":1,"d":1.0,"e":1e3,"n":-0.0,"big":4503599627370495}"#;
    let patch = request::reported_patch(body).expect("a patch");
    let section = Section::default().merged(patch, Millis(1), NO_BOUND);
    let mut out = String::new();
    render::annotated(&mut out, &section.expect("small"), Annotations::None);
    let expected = r#"{"big":4503599627370495,"d":1.0,"e":1000.0,"i":1,"n":-0.0}"#;
    assert_eq!(out, expected);
}
