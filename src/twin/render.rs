//! Sections, their metadata, and patches as JSON text.

use std::fmt::Write as _;

use super::section::Section;
use super::tree::{Content, Members, Nodes, Patch, Stamp, Value};
use crate::base::json::{ObjectWriter, write_double, write_text};
use crate::base::utc::Utc;

/// What a section shows of when it was written, beside its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Annotations {
    /// Tags: nothing.
    None,
    /// Reported properties: the time of each node's last write.
    Times,
    /// Desired properties: its version as well.
    Versions,
}

/// An object of nodes.
pub(super) fn nodes(out: &mut String, nodes: &Nodes) {
    let mut object = ObjectWriter::new(out);
    members(&mut object, nodes);
    object.end();
}

pub(super) fn members(object: &mut ObjectWriter<'_>, members: &Nodes) {
    for (key, node) in members {
        let out = object.key(key);
        content(out, &node.content);
    }
}

pub(super) fn content(out: &mut String, content: &Content) {
    match content {
        Content::Leaf(leaf) => value(out, leaf),
        Content::Object(below) => nodes(out, below),
    }
}

pub(super) fn value(out: &mut String, value_: &Value) {
    match value_ {
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Integer(integer) => {
            // Writing to a String does not fail.
            let _ = write!(out, "{integer}");
        }
        Value::Double(double) => write_double(out, *double),
        Value::Text(text) => write_text(out, text),
        Value::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                value(out, element);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut object = ObjectWriter::new(out);
            for (key, member) in members {
                value(object.key(key), member);
            }
            object.end();
        }
    }
}

/// A section with its version, as devices see it.
pub(super) fn section(out: &mut String, section: &Section) {
    let mut object = ObjectWriter::new(out);
    members(&mut object, &section.members);
    object.plain("$version", section.version);
    object.end();
}

/// A section with metadata and version, as back ends see it.
pub(super) fn annotated(out: &mut String, section: &Section, annotations: Annotations) {
    let mut object = ObjectWriter::new(out);
    members(&mut object, &section.members);
    if annotations == Annotations::None {
        return object.end();
    }
    metadata(
        object.key("$metadata"),
        section.stamp,
        Some(&section.members),
        annotations,
    );
    object.plain("$version", section.version);
    object.end();
}

/// The metadata of a node, and of the nodes below it.
pub(super) fn metadata(
    out: &mut String,
    stamp: Stamp,
    below: Option<&Nodes>,
    annotations: Annotations,
) {
    let mut object = ObjectWriter::new(out);
    object.quoted("$lastUpdated", Utc(stamp.at));
    if annotations == Annotations::Versions && stamp != Stamp::default() {
        object.plain("$lastUpdatedVersion", stamp.version);
    }
    for (key, node) in below.into_iter().flatten() {
        let below = match &node.content {
            Content::Leaf(_) => None,
            Content::Object(below) => Some(below),
        };
        metadata(object.key(key), node.stamp, below, annotations);
    }
    object.end();
}

/// The body of a notification: a patch, its deletions as `null`, and the version after it.
pub(super) fn patch(patch: &Members, version: u64) -> String {
    let mut out = String::new();
    let mut object = ObjectWriter::new(&mut out);
    changes(&mut object, patch);
    object.plain("$version", version);
    object.end();
    out
}

pub(super) fn changes(object: &mut ObjectWriter<'_>, patch: &Members) {
    for (key, change) in patch {
        let out = object.key(key);
        match change {
            Patch::Delete => out.push_str("null"),
            Patch::Leaf(leaf) => value(out, leaf),
            Patch::Object(below) => {
                let mut object = ObjectWriter::new(out);
                changes(&mut object, below);
                object.end();
            }
        }
    }
}
