//! The items of a page as they are written, one after the other, into a bounded text.
//!
//! Invariant: a page has no more bytes than it may, or it has one item, which is then larger by one column at most.

use super::error::QueryError;

/// The page has no room for the rest of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A JSON array that is being written.
pub(super) struct Items {
    json: String,
    count: usize,
    most: usize,
}

impl Items {
    /// None yet. They get `most` bytes.
    pub(super) fn new(most: usize) -> Items {
        Items {
            json: String::from("["),
            count: 0,
            most,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds an item, which `write` appends; it is told how many bytes the text may have. Returns `false`, and adds
    /// nothing, when there is no room beside the others. `name` says whose item it is.
    ///
    /// # Errors
    /// [`QueryError::RowBytes`] when there is no room though it is alone.
    pub(super) fn add(
        &mut self,
        name: impl FnOnce() -> String,
        write: impl FnOnce(&mut String, usize) -> Result<(), Full>,
    ) -> Result<bool, QueryError> {
        let before = self.json.len();
        if self.count > 0 {
            self.json.push(',');
        }
        let is_whole = write(&mut self.json, self.most).is_ok();
        let is_alone = self.count == 0;
        if is_whole && (is_alone || self.json.len() <= self.most) {
            self.count += 1;
            return Ok(true);
        }
        self.json.truncate(before);
        match is_alone {
            true => Err(QueryError::RowBytes {
                row: name(),
                most: self.most,
            }),
            false => Ok(false),
        }
    }

    /// The array.
    pub(super) fn into_json(mut self) -> String {
        self.json.push(']');
        self.json
    }
}

/// Members of a JSON object that is being written.
pub(super) struct Members<'j> {
    json: &'j mut String,
    is_empty: bool,
    most: usize,
}

impl<'j> Members<'j> {
    /// None yet. No further one is begun once the text has more than `most` bytes.
    pub(super) fn begin(json: &'j mut String, most: usize) -> Members<'j> {
        json.push('{');
        Members {
            json,
            is_empty: true,
            most,
        }
    }

    /// Adds a member whose value `write` appends; none when it returns `false`.
    ///
    /// # Errors
    /// The text is full.
    pub(super) fn add(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut String) -> bool,
    ) -> Result<(), Full> {
        let before = self.json.len();
        if before > self.most {
            return Err(Full);
        }
        if !self.is_empty {
            self.json.push(',');
        }
        write_text(name, self.json);
        self.json.push(':');
        match write(self.json) {
            true => self.is_empty = false,
            false => self.json.truncate(before),
        }
        Ok(())
    }

    pub(super) fn end(self) {
        self.json.push('}');
    }
}

/// Appends a text as JSON.
fn write_text(text: &str, json: &mut String) {
    json.push_str(&serde_json::Value::from(text).to_string());
}
