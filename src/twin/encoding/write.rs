//! Writing.

use std::collections::BTreeMap;

use super::format::tag;
use crate::twin::tree::{Content, Members, Nodes, Patch, Stamp, Value};

pub(super) fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// What `content` writes, with its length before it.
fn delimited(out: &mut Vec<u8>, tag: u8, content: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    content(&mut inner);
    out.push(tag);
    number(out, inner.len() as u64);
    out.extend_from_slice(&inner);
}

pub(super) fn nodes(out: &mut Vec<u8>, around: Stamp, nodes_: &Nodes) {
    for (key, node) in nodes_ {
        text(out, key);
        // An ancestor is never older.
        number(out, around.at.0.saturating_sub(node.stamp.at.0));
        number(out, around.version.saturating_sub(node.stamp.version));
        match &node.content {
            Content::Leaf(leaf) => value(out, leaf),
            Content::Object(below) => {
                delimited(out, tag::OBJECT, |out| nodes(out, node.stamp, below));
            }
        }
    }
}

pub(super) fn changes(out: &mut Vec<u8>, changes_: &Members) {
    for (key, change) in changes_ {
        text(out, key);
        match change {
            Patch::Delete => out.push(tag::NULL),
            Patch::Leaf(leaf) => value(out, leaf),
            Patch::Object(below) => delimited(out, tag::OBJECT, |out| changes(out, below)),
        }
    }
}

fn value(out: &mut Vec<u8>, value_: &Value) {
    match value_ {
        Value::Bool(false) => out.push(tag::FALSE),
        Value::Bool(true) => out.push(tag::TRUE),
        Value::Integer(integer) => {
            out.push(tag::INTEGER);
            number(out, (integer << 1 ^ integer >> 63) as u64);
        }
        Value::Double(double) => {
            out.push(tag::DOUBLE);
            out.extend_from_slice(&double.to_bits().to_le_bytes());
        }
        Value::Text(string) => {
            out.push(tag::TEXT);
            text(out, string);
        }
        Value::Array(elements) => delimited(out, tag::ARRAY, |out| {
            elements.iter().for_each(|element| value(out, element));
        }),
        Value::Object(members) => delimited(out, tag::OBJECT, |out| plain(out, members)),
    }
}

fn plain(out: &mut Vec<u8>, members: &BTreeMap<String, Value>) {
    for (key, member) in members {
        text(out, key);
        value(out, member);
    }
}
