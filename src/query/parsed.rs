//! A query that was understood.

use std::collections::BTreeSet;

use super::columns::Columns;
use super::expression::{Expression, Path};
use super::look_up;

/// What is looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// The twins of devices.
    Devices,
    /// The twins of modules.
    Modules,
}

/// What the rows of an answer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemType {
    /// Whole twins.
    Twin,
    /// What the query made of them.
    Raw,
}

impl ItemType {
    /// As the answer's header names it.
    pub fn as_str(self) -> &'static str {
        match self {
            ItemType::Twin => "Twin",
            ItemType::Raw => "Raw",
        }
    }
}

/// Tells one query's continuations from another's.
pub(super) type Fingerprint = [u8; 16];

/// A query that was understood.
#[derive(Clone, Debug)]
pub struct Query {
    pub(super) fingerprint: Fingerprint,
    pub(super) top: Option<u64>,
    pub(super) columns: Columns,
    pub(super) collection: Collection,
    pub(super) condition: Option<Expression>,
}

impl Query {
    /// What is looked through.
    pub fn collection(&self) -> Collection {
        self.collection
    }

    /// What its rows are.
    pub fn item_type(&self) -> ItemType {
        match self.columns {
            Columns::All => ItemType::Twin,
            Columns::Paths(_) | Columns::Grouped(_) => ItemType::Raw,
        }
    }

    /// Whether its answer needs all rows that pass: then it is an [`super::Aggregation`], else a [`super::RowPage`].
    pub fn is_aggregate(&self) -> bool {
        matches!(self.columns, Columns::Grouped(_))
    }

    /// The paths that it looks at in rows that do not pass, and in others. A row that passes may be shown as a whole
    /// beside them ([`ItemType::Twin`]).
    pub fn paths(&self) -> Vec<&Path> {
        let mut found = Vec::new();
        if let Some(condition) = &self.condition {
            condition.add_paths(&mut found);
        }
        self.columns.add_paths(&mut found);
        found
    }

    /// Whether rows are left out by a condition.
    pub fn has_condition(&self) -> bool {
        self.condition.is_some()
    }

    /// The devices outside which no row passes, when the condition names them; `None`: it does not.
    pub fn devices(&self) -> Option<BTreeSet<String>> {
        self.condition.as_ref().and_then(look_up::devices)
    }
}
