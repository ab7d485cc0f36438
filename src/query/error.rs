//! Why a query is not answered.

use super::limits::{MOST_CHARACTERS, MOST_NESTED, MOST_TERMS};

/// Why a query is not answered. Each is a fault of the one who asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Its text is too long.
    #[error("the query has more than {MOST_CHARACTERS} characters")]
    TooLong,
    /// A character that stands nowhere in the language.
    #[error("character {at}: {found:?} is not expected here")]
    Character {
        /// Where it stands, counted from 1.
        at: usize,
        /// The character.
        found: char,
    },
    /// A text that does not end.
    #[error("character {at}: the text that begins here has no end")]
    Unended {
        /// Where it begins, counted from 1.
        at: usize,
    },
    /// An escape that stands for nothing.
    #[error("character {at}: the escapes are \\' \\\" \\\\ and \\uXXXX")]
    Escape {
        /// Where it stands, counted from 1.
        at: usize,
    },
    /// A number that is none, or that no double holds.
    #[error("character {at}: this is no number of the range of a double")]
    Number {
        /// Where it begins, counted from 1.
        at: usize,
    },
    /// Something else must stand here.
    #[error("character {at}: {expected} is expected, not {found}")]
    Expected {
        /// Where it stands, counted from 1.
        at: usize,
        /// What may stand here.
        expected: &'static str,
        /// What stands here.
        found: String,
    },
    /// `FROM` names no collection.
    #[error("there are the collections devices and devices.modules, not {0:?}")]
    Collection(String),
    /// A function that is none.
    #[error("there is no function {0:?}")]
    Function(String),
    /// `TOP` without a number of rows.
    #[error("TOP is followed by a whole number from 1 on")]
    Top,
    /// The condition is nested too deeply.
    #[error("the condition is nested deeper than {MOST_NESTED}")]
    Nested,
    /// It has too many operands.
    #[error("the query has more than {MOST_TERMS} constants, paths and functions")]
    Terms,
    /// Two columns of the answer have one name.
    #[error("two columns are called {0:?}: name them with AS")]
    SameName(String),
    /// `*` and `GROUP BY`.
    #[error("* has no GROUP BY: name the columns")]
    AllGrouped,
    /// A column that has no one value.
    #[error("beside an aggregate or GROUP BY, {0:?} must be the path of GROUP BY")]
    NotGrouped(String),
    /// More groups than may be held.
    #[error("there are more than {0} groups")]
    Groups(usize),
    /// One row that is larger than a page.
    #[error("the row of {row} has more than {most} bytes: ask for fewer columns, or leave it out")]
    RowBytes {
        /// Whose row.
        row: String,
        /// What it may have.
        most: usize,
    },
    /// A continuation that was not made here, or for another query.
    #[error("the continuation is not one of this query")]
    Continuation,
}
