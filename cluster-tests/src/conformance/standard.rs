//! The standards and the numbers of their statements.

/// A standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standard {
    V5,
    V311,
}

/// A statement's standard and its id: `MQTT-4.4.0-1`.
pub type Number = (Standard, String);
