//! JSON text, read and written for the hub: RFC 8259, with what generic readers leave open decided.
//!
//! A number without a fraction and an exponent is an integer, however many digits it has, and never becomes a double.
//! Of several members with one name the last one counts. Members are kept in byte order of their names.
//!
//! Invariant: nothing that is read panics, and nothing recurses deeper than [`MAX_DEPTH`].

mod parse;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;

pub use parse::{MAX_DEPTH, Malformed, parse};
pub use write::{ObjectWriter, write_double, write_text};

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without a fraction and an exponent, if 64 bits hold it.
    Integer(i64),
    /// Any other number, if a double holds it; always finite.
    Double(f64),
    /// A number that neither holds.
    TooLarge,
    /// A string.
    Text(String),
    /// An array.
    Array(Vec<Json>),
    /// An object.
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// The members, if it is an object.
    pub fn as_object(&self) -> Option<&BTreeMap<String, Json>> {
        match self {
            Json::Object(members) => Some(members),
            _ => None,
        }
    }

    /// The text, if it is a string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }
}
