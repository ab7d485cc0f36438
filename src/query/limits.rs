//! Bounds of a query's text.

/// Longest query, characters.
pub const MOST_CHARACTERS: usize = 8_192;

/// How deep parentheses, `NOT` and signs may be nested.
pub const MOST_NESTED: usize = 64;

/// Most constants, paths and functions of a query, those of its lists and columns included.
pub const MOST_TERMS: usize = 256;
