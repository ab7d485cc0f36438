//! What a set of rows comes to: counts, sums and the like, group by group.

use std::collections::BTreeMap;

use super::columns::{Columns, Function, Grouped, OfGroup};
use super::error::QueryError;
use super::evaluate::passes;
use super::items::{Full, Items, Members};
use super::key_order;
use super::number;
use super::page::{Budget, Page};
use super::parsed::Query;
use super::token::Cursor;
use super::value::{Row, Value};

/// Most groups. Each holds a value of up to the size of a section.
const MOST_GROUPS: usize = 10_000;

/// Most bytes that the values of all groups may have together.
const MOST_GROUP_BYTES: usize = 64 << 20;

/// Numbers that were seen at one path.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    count: u64,
    sum: f64,
    smallest: f64,
    largest: f64,
}

impl Numbers {
    fn add(&mut self, number: f64) {
        if self.count == 0 {
            (self.smallest, self.largest) = (number, number);
        }
        self.count += 1;
        self.sum += number;
        self.smallest = self.smallest.min(number);
        self.largest = self.largest.max(number);
    }

    /// What a function comes to; without a number there is a sum, which is 0, and nothing else.
    fn result(&self, function: Function) -> Option<f64> {
        let result = match function {
            Function::Sum => self.sum,
            _ if self.count == 0 => return None,
            Function::Count => self.count as f64,
            Function::Average => self.sum / self.count as f64,
            Function::Smallest => self.smallest,
            Function::Largest => self.largest,
        };
        Some(result).filter(|result| result.is_finite())
    }
}

#[derive(Debug, Default)]
struct Group {
    rows: u64,
    /// JSON of the value that makes it a group; empty when there is none.
    value: String,
    numbers: Vec<Numbers>,
}

/// Rows that are being put together. The caller shows all rows of the collection, in any order.
pub struct Aggregation<'q> {
    query: &'q Query,
    grouped: &'q Grouped,
    groups: BTreeMap<Vec<u8>, Group>,
    group_bytes: usize,
    rows: usize,
}

impl<'q> Aggregation<'q> {
    /// Of no rows yet; `None` for a query that is no aggregate.
    pub fn new(query: &'q Query) -> Option<Aggregation<'q>> {
        let Columns::Grouped(grouped) = &query.columns else {
            return None;
        };
        let mut groups = BTreeMap::new();
        if grouped.by.is_none() {
            // There is one row, also of nothing.
            groups.insert(Vec::new(), Group::new(grouped));
        }
        Some(Aggregation {
            query,
            grouped,
            groups,
            group_bytes: 0,
            rows: 0,
        })
    }

    /// Rows that were looked at.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Takes a row in, if it passes.
    ///
    /// # Errors
    /// [`QueryError::Groups`] when there are too many groups.
    pub fn visit(&mut self, row: &dyn Row) -> Result<(), QueryError> {
        self.rows += 1;
        if !passes(self.query, row) {
            return Ok(());
        }
        let by = self.grouped.by.as_ref();
        let key = by.map_or_else(Vec::new, |path| key_order::group_key(row, path));
        if !self.groups.contains_key(&key) {
            let mut group = Group::new(self.grouped);
            if let Some(path) = by {
                row.write(path, &mut group.value);
            }
            self.group_bytes += group.value.len();
            if self.groups.len() == MOST_GROUPS || self.group_bytes > MOST_GROUP_BYTES {
                return Err(QueryError::Groups(self.groups.len()));
            }
            self.groups.insert(key.clone(), group);
        }
        let Some(group) = self.groups.get_mut(&key) else {
            return Ok(());
        };
        group.rows += 1;
        for (path, numbers) in self.grouped.numbers.iter().zip(&mut group.numbers) {
            if let Value::Number(number) = row.value(path) {
                numbers.add(number);
            }
        }
        Ok(())
    }

    /// A page of groups, from where the cursor stands. The budget's rows are no matter: they were read.
    ///
    /// # Errors
    /// [`QueryError::RowBytes`] when one group is larger than a page.
    pub fn finish(self, cursor: &Cursor, budget: Budget) -> Result<Page, QueryError> {
        let mut items = Items::new(budget.bytes);
        let mut left = cursor.left;
        let mut last: Option<&Vec<u8>> = None;
        let mut has_more = false;
        let behind = |key: &Vec<u8>| cursor.after.as_ref().is_none_or(|after| key > after);
        for (key, group) in self.groups.iter().filter(|(key, _)| behind(key)) {
            if left == Some(0) {
                break;
            }
            let write = |json: &mut String, most| group.write(self.grouped, json, most);
            has_more =
                items.count() == budget.items || !items.add(|| "a group".to_owned(), write)?;
            if has_more {
                break;
            }
            left = left.map(|left| left - 1);
            last = Some(key);
        }
        let cursor = last.filter(|_| has_more).map(|key| Cursor {
            after: Some(key.clone()),
            left,
        });
        Ok(Page {
            items: items.count(),
            json: items.into_json(),
            continuation: cursor.map(|cursor| cursor.write(self.query)),
        })
    }
}

impl Group {
    fn new(grouped: &Grouped) -> Group {
        Group {
            numbers: vec![Numbers::default(); grouped.numbers.len()],
            ..Group::default()
        }
    }

    fn write(&self, grouped: &Grouped, json: &mut String, most: usize) -> Result<(), Full> {
        let mut object = Members::begin(json, most);
        for (name, shown) in &grouped.columns {
            object.add(name, |json| match shown {
                OfGroup::Value => {
                    json.push_str(&self.value);
                    !self.value.is_empty()
                }
                OfGroup::Count => {
                    json.push_str(&self.rows.to_string());
                    true
                }
                OfGroup::Numbers(function, at) => {
                    let result = self.numbers[*at].result(*function);
                    if let Some(result) = result {
                        number::write(result, json);
                    }
                    result.is_some()
                }
            })?;
        }
        object.end();
        Ok(())
    }
}
