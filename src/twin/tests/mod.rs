//! Documents: merge, replace and metadata against a naive model, every limit at its boundary, hostile input, bytes.

mod encoding;
mod examples;
mod limits;
mod model;

use proptest::prelude::*;
use serde_json::{Map, Value as Json};

use super::render::{self, Annotations};
use super::request::{self, Refused};
use super::{Members, Section};
use crate::base::time::Millis;

/// A number that no document reaches.
const NO_BOUND: u64 = u64::MAX;

/// A patch, or with `replace` a document, as a request has it.
fn desired(json: &Json, replace: bool) -> Result<Members, Refused> {
    let body = serde_json::json!({ "properties": { "desired": json } });
    let update = request::twin_update(body.to_string().as_bytes(), replace)?;
    Ok(update.desired.expect("the section is there"))
}

fn patch(json: &Json) -> Members {
    desired(json, false).expect("a patch")
}

fn merged(section: &Section, json: &Json, at: u64) -> Section {
    let merged = section.clone().merged(patch(json), Millis(at), NO_BOUND);
    merged.expect("it is not too large")
}

fn replaced(section: &Section, json: &Json, at: u64) -> Section {
    let document = desired(json, true).expect("a document");
    let replaced = section.replaced(document, Millis(at), NO_BOUND);
    replaced.expect("it is not too large")
}

/// A section as a back end sees it.
fn shown(section: &Section, annotations: Annotations) -> Json {
    let mut out = String::new();
    render::annotated(&mut out, section, annotations);
    serde_json::from_str(&out).expect("JSON")
}

/// A section without what it shows of its writes.
fn plain(section: &Section) -> Json {
    shown(section, Annotations::None)
}

fn any_leaf() -> impl Strategy<Value = Json> {
    prop_oneof![
        any::<bool>().prop_map(Into::into),
        (-1000..1000_i64).prop_map(Into::into),
        Just(serde_json::json!(1.0)),
        Just(serde_json::json!(-2.5e10)),
        "[a-cä😀\\\\\"\n]{0,4}".prop_map(Into::into),
        Just(serde_json::json!([])),
        Just(serde_json::json!([1, "x", [true], {"k": {"l": 2}}])),
    ]
}

/// Patches in which the same few keys come again and again; `nulls` in so many of ten places.
fn any_patch(nulls: u32) -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        10 - nulls => any_leaf(),
        nulls => Just(Json::Null),
    ];
    let objects = leaf.prop_recursive(4, 24, 4, |inner| {
        prop::collection::btree_map("[abc]|", inner, 0..4).prop_map(object)
    });
    prop::collection::btree_map("[abc]|", objects, 0..4).prop_map(object)
}

fn object(members: std::collections::BTreeMap<String, Json>) -> Json {
    Json::Object(members.into_iter().collect::<Map<_, _>>())
}
