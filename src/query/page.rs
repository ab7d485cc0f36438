//! A page of rows.

use super::columns::{Column, Columns};
use super::error::QueryError;
use super::evaluate::passes;
use super::items::{Full, Items, Members};
use super::parsed::Query;
use super::token::{Cursor, Key};
use super::value::Row;

/// What a page may cost. Whichever is used up first ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Items of the answer.
    pub items: usize,
    /// Rows that are looked at.
    pub rows: usize,
    /// Bytes of the answer. An item that has no room goes to the next page. One that is alone and has no room either is
    /// answered when it is a whole twin, or a single column, since their own limits bound both; else it is refused.
    pub bytes: usize,
}

impl Budget {
    /// For an answer of at most `items` items.
    pub fn of(items: usize) -> Budget {
        Budget {
            items,
            rows: 100_000,
            bytes: 8 << 20,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<J = String> {
    /// A JSON array.
    pub json: J,
    /// Its items.
    pub items: usize,
    /// What asks for the next page, if there is one.
    pub continuation: Option<String>,
}

/// A page that is being filled with rows. The caller shows them in the order of their keys, from where the cursor
/// stands, until [`RowPage::visit`] returns `false` or there are no more.
pub struct RowPage<'q> {
    query: &'q Query,
    budget: Budget,
    left: Option<u64>,
    items: Items,
    rows: usize,
    last: Option<Key>,
    has_more: bool,
}

impl<'q> RowPage<'q> {
    /// An empty page.
    pub fn new(query: &'q Query, cursor: &Cursor, budget: Budget) -> RowPage<'q> {
        RowPage {
            query,
            budget,
            left: cursor.left,
            items: Items::new(budget.bytes),
            rows: 0,
            last: None,
            has_more: false,
        }
    }

    /// Rows that were looked at.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Shows the next row to the page. Returns whether to go on.
    ///
    /// # Errors
    /// [`QueryError::RowBytes`] when the row alone is larger than a page.
    pub fn visit(&mut self, key: &Key, row: &dyn Row) -> Result<bool, QueryError> {
        if self.left == Some(0) {
            return Ok(false);
        }
        if self.rows == self.budget.rows {
            self.has_more = true;
            return Ok(false);
        }
        self.rows += 1;
        if passes(self.query, row) {
            // Only now is it known whether another page is needed.
            if self.items.count() == self.budget.items || !self.add(key, row)? {
                self.has_more = true;
                return Ok(false);
            }
            self.left = self.left.map(|left| left - 1);
        }
        self.last = Some(key.clone());
        Ok(true)
    }

    /// Ends the page before a row that is there, because the page has taken long enough. A page that has looked at no
    /// row yet goes on: each page leads on.
    ///
    /// Returns whether it has ended.
    pub fn end(&mut self) -> bool {
        let ends = self.last.is_some();
        self.has_more = ends && self.left != Some(0);
        ends
    }

    /// Adds a row, if the page has room for it.
    fn add(&mut self, key: &Key, row: &dyn Row) -> Result<bool, QueryError> {
        let columns = &self.query.columns;
        self.items.add(
            || key.to_string(),
            |json, most| match columns {
                Columns::All => {
                    row.write_all(json);
                    Ok(())
                }
                Columns::Paths(columns) => write_columns(columns, row, json, most),
                // Its rows go to an aggregation.
                Columns::Grouped(_) => {
                    json.push_str("{}");
                    Ok(())
                }
            },
        )
    }

    /// The page.
    pub fn finish(self) -> Page {
        let last = self.last.filter(|_| self.has_more);
        let cursor = last.map(|last| Cursor::behind(self.query, &last, self.left));
        Page {
            items: self.items.count(),
            json: self.items.into_json(),
            continuation: cursor.map(|cursor| cursor.write(self.query)),
        }
    }
}

fn write_columns(
    columns: &[Column],
    row: &dyn Row,
    json: &mut String,
    most: usize,
) -> Result<(), Full> {
    let mut object = Members::begin(json, most);
    for column in columns {
        object.add(&column.name, |json| row.write(&column.path, json))?;
    }
    object.end();
    Ok(())
}
