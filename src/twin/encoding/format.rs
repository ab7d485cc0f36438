//! What reading and writing have in common.

use crate::twin::limits;

/// Objects and arrays inside one another that are decoded: those of a section, and the section.
pub(super) const DEPTH: usize = limits::DEPTH + 1;

/// First bytes of values.
pub(super) mod tag {
    pub const FALSE: u8 = 0;
    pub const TRUE: u8 = 1;
    pub const INTEGER: u8 = 2;
    pub const DOUBLE: u8 = 3;
    pub const TEXT: u8 = 4;
    pub const ARRAY: u8 = 5;
    pub const OBJECT: u8 = 6;
    pub const NULL: u8 = 7;
}

/// Bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no section or patch of a twin")]
pub struct Damaged;
