//! Values, the annotated nodes of a section, and changes of them.

use std::collections::BTreeMap;

use crate::base::time::Millis;

/// When a node was written last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Log time; 0 is never.
    pub at: Millis,
    /// The version that the section had with that write.
    pub version: u64,
}

/// A value without annotations.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A number without a fraction and an exponent.
    Integer(i64),
    /// Any other number; finite.
    Double(f64),
    /// A string.
    Text(String),
    /// An array, which is replaced as a whole.
    Array(Vec<Value>),
    /// An object, which there is in arrays only: elsewhere its members are nodes.
    Object(BTreeMap<String, Value>),
}

/// The members of a section or of an object in it.
pub type Nodes = BTreeMap<String, Node>;

/// A member of a section or of an object in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// When it, or anything below it, was written last.
    pub stamp: Stamp,
    /// What it holds.
    pub content: Content,
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A scalar or an array.
    Leaf(Value),
    /// An object.
    Object(Nodes),
}

/// Changes of a section or of an object in it.
pub type Members = BTreeMap<String, Patch>;

/// What is to become of a member.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// It goes.
    Delete,
    /// It becomes a scalar or an array.
    Leaf(Value),
    /// It becomes an object if it is none; then these members of it change.
    Object(Members),
}
