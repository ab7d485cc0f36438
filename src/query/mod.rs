//! The query language of the twins: what `POST /devices/query` understands, and how a page of its answer is made.
//!
//! It is pure: it knows no JSON library, no database and no clock. The caller shows it rows ([`Row`]) in the order of
//! their keys, and it says when a page is full ([`RowPage`]) or what a set of rows comes to ([`Aggregation`]).
//!
//! Invariant: no query, whatever its text, makes it panic, recurse deeper than [`MOST_NESTED`] times a constant, or
//! cost more per row than [`MOST_TERMS`] look-ups. docs/adr/0014-own-query-language.md tells why no library does this.

mod aggregate;
mod columns;
mod error;
mod evaluate;
mod expression;
mod items;
mod key_order;
mod lexer;
mod limits;
mod look_up;
mod number;
mod page;
mod parsed;
mod parser;

mod token;
mod value;

pub use aggregate::Aggregation;
pub use error::QueryError;
pub use evaluate::passes;
pub use expression::{Path, ROOTS};
pub use limits::{MOST_CHARACTERS, MOST_NESTED, MOST_TERMS};
pub use page::{Budget, Page, RowPage};
pub use parsed::{Collection, ItemType, Query};
pub use token::{Cursor, Key};
pub use value::{Row, Value};

#[cfg(test)]
mod document;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
