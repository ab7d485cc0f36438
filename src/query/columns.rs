//! What a query makes of the rows that pass.

use std::collections::BTreeSet;

use super::error::QueryError;
use super::expression::Path;

/// A function of many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Count,
    Average,
    Sum,
    Smallest,
    Largest,
}

/// What stands in one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Path(Path),
    /// `COUNT()` has no path.
    Function(Function, Option<Path>),
}

/// An item of a query, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) source: Source,
    pub(super) name: String,
}

/// A column of rows that are answered one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) path: Path,
}

/// What a group shows in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OfGroup {
    /// The value that makes it a group.
    Value,
    /// Rows.
    Count,
    /// A function of numbers; which of the numbers it looks at.
    Numbers(Function, usize),
}

/// Rows that are answered group by group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grouped {
    pub(super) by: Option<Path>,
    pub(super) columns: Vec<(String, OfGroup)>,
    /// Paths of the numbers that functions look at.
    pub(super) numbers: Vec<Path>,
}

/// What a query makes of the rows that pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// `*`
    All,
    Paths(Vec<Column>),
    Grouped(Grouped),
}

impl Columns {
    /// Of what a query says; no items stand for `*`.
    pub(super) fn new(items: Option<Vec<Item>>, by: Option<Path>) -> Result<Columns, QueryError> {
        let Some(items) = items else {
            return match by {
                None => Ok(Columns::All),
                Some(_) => Err(QueryError::AllGrouped),
            };
        };
        let mut names = BTreeSet::new();
        if let Some(item) = items.iter().find(|item| !names.insert(&item.name)) {
            return Err(QueryError::SameName(item.name.clone()));
        }
        let is_function = |item: &Item| matches!(item.source, Source::Function(..));
        if by.is_some() || items.iter().any(is_function) {
            return grouped(items, by).map(Columns::Grouped);
        }
        let columns = items.into_iter().filter_map(|item| match item.source {
            Source::Path(path) => Some(Column {
                name: item.name,
                path,
            }),
            Source::Function(..) => None,
        });
        Ok(Columns::Paths(columns.collect()))
    }
}

impl Columns {
    /// Adds the paths that it shows, or has functions look at. `*` has none.
    pub(super) fn add_paths<'c>(&'c self, found: &mut Vec<&'c Path>) {
        match self {
            Columns::All => {}
            Columns::Paths(columns) => found.extend(columns.iter().map(|column| &column.path)),
            Columns::Grouped(grouped) => {
                found.extend(grouped.by.iter().chain(&grouped.numbers));
            }
        }
    }
}

fn grouped(items: Vec<Item>, by: Option<Path>) -> Result<Grouped, QueryError> {
    let (mut columns, mut numbers) = (Vec::new(), Vec::new());
    for item in items {
        let shown = match item.source {
            Source::Path(path) if Some(&path) == by.as_ref() => OfGroup::Value,
            Source::Path(path) => return Err(QueryError::NotGrouped(path.names().join("."))),
            Source::Function(_, None) => OfGroup::Count,
            Source::Function(function, Some(path)) => {
                let known = numbers.iter().position(|known| *known == path);
                let at = known.unwrap_or(numbers.len());
                if known.is_none() {
                    numbers.push(path);
                }
                OfGroup::Numbers(function, at)
            }
        };
        columns.push((item.name, shown));
    }
    Ok(Grouped {
        by,
        columns,
        numbers,
    })
}
