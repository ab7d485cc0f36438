//! SCAN: where a page of keys begins, what belongs on it, and when it is full (docs/spec/state-store.md, Scan).
//!
//! The caller walks live and dead rows in key order and shows them to a [`Page`]. A token names the last row
//! seen, so pages stay right while keys come and go: a key that is there throughout is listed exactly once.

use bytes::Bytes;

use super::error::StoreError;
use super::glob::Glob;
use super::reply::Reply;

/// First byte of every token; its numbers are for ever.
const TOKEN_FORMAT: u8 = 1;

/// Keys a page has room for as long as they fit in an answer (docs/spec/state-store.md, Scan).
const MIN_KEYS: usize = 4;

/// Bytes of a part of an answer, a key or a token, beside its own: `$`, its length, and the ends of two lines.
const BESIDE_PART: usize = 16;

/// What one page may cost. Whichever is used up first ends the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBudget {
    /// The most keys listed; at least 4 are.
    pub max_keys: usize,
    /// The most bytes of keys listed, once there are 4.
    pub max_bytes: usize,
    /// The most bytes of an answer, its token included, once there is one key.
    pub max_answer_bytes: usize,
    /// The most rows looked at, so that a pattern that matches nothing doesn't hold a reader up.
    pub max_rows: usize,
    /// The most bytes of rows, values included, looked at once there are 4: the reader takes them all from the disk.
    pub max_row_bytes: usize,
    /// The most comparisons, of characters with the pattern and for the judgement of keys, likewise.
    pub max_steps: u64,
}

/// Says whether a key may be listed, and adds what it compares for that to the second argument. The token of such a
/// page leads to the next one, and is in no answer: that has a token of its last key.
pub type MayList<'a> = &'a dyn Fn(&[u8], &mut u64) -> bool;

impl PageBudget {
    /// What is read for an answer for which these keys are found: those that it lacks, and one more, which says that
    /// there is another page.
    pub fn missing(self, found: &[Bytes]) -> PageBudget {
        let bytes: usize = found.iter().map(|key| key.len() + BESIDE_PART).sum();
        PageBudget {
            max_keys: (self.max_keys.max(MIN_KEYS) + 1).saturating_sub(found.len()),
            max_answer_bytes: self.max_answer_bytes.saturating_sub(bytes),
            ..self
        }
    }

    /// How many of these keys, from the first one on, one page lists.
    pub fn page_of(&self, keys: &[Bytes]) -> usize {
        let mut bytes = 0_usize;
        let full = keys.iter().enumerate().position(|(before, key)| {
            let is_full = self.is_full(before, bytes) || self.exceeds(before, bytes, key, true);
            bytes = bytes.saturating_add(key.len());
            is_full
        });
        full.unwrap_or(keys.len())
    }

    /// Whether this may be an answer that leads to another one.
    pub fn takes(&self, keys: &[Bytes], token: &Bytes) -> bool {
        let parts = keys.iter().chain([token]);
        let bytes: usize = parts.map(|part| part.len() + BESIDE_PART).sum();
        bytes <= self.max_answer_bytes
    }

    /// Whether a page with so many keys, of so many bytes, takes no more.
    fn is_full(self, keys: usize, bytes: usize) -> bool {
        keys >= self.max_keys.max(MIN_KEYS) || (keys >= MIN_KEYS && bytes >= self.max_bytes)
    }

    /// Whether such a page would be too long for one answer if it ended with the row of `next`, which its token names
    /// then, whether it lists it or not.
    fn exceeds(self, keys: usize, bytes: usize, next: &[u8], is_listed: bool) -> bool {
        let parts = keys + usize::from(is_listed) + 1;
        let listed = match is_listed {
            true => next.len(),
            false => 0,
        };
        let all = bytes + listed + token_bytes(next) + parts * BESIDE_PART;
        keys > 0 && all > self.max_answer_bytes
    }
}

impl Default for PageBudget {
    fn default() -> Self {
        PageBudget {
            max_keys: 256,
            max_bytes: 32 * 1024,
            max_answer_bytes: 512 << 10,
            max_rows: 10_000,
            max_row_bytes: 16 << 20,
            max_steps: 1 << 20,
        }
    }
}

/// The keys a page can hold: `from <= key`, and `key < to` unless `to` is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub from: Vec<u8>,
    /// The key after the last one.
    pub to: Option<Vec<u8>>,
}

/// Where the rows for `glob` lie, after the page that ended with `token`.
///
/// # Errors
/// [`StoreError::Syntax`] when the token was not made by this store.
pub fn range(glob: &Glob, token: Option<&[u8]>) -> Result<KeyRange, StoreError> {
    let prefix = glob.prefix().as_bytes();
    let mut from = prefix.to_vec();
    if let Some(token) = token {
        let last = match token.split_first() {
            Some((&TOKEN_FORMAT, last)) => last,
            _ => return Err(StoreError::Syntax),
        };
        if last >= prefix {
            from = last.to_vec();
            from.push(0);
        }
    }
    let to = if glob.is_literal() {
        Some([prefix, &[0]].concat())
    } else {
        prefix.split_last().map(|(last, rest)| {
            let mut to = rest.to_vec();
            // A byte of UTF-8 is never 255.
            to.push(last.saturating_add(1));
            to
        })
    };
    Ok(KeyRange { from, to })
}

/// Bytes of the token of a page that goes on after this key.
fn token_bytes(last: &[u8]) -> usize {
    1 + last.len()
}

/// The token of a page that goes on after this key.
pub fn token_after(last: &[u8]) -> Bytes {
    let mut token = Vec::with_capacity(token_bytes(last));
    token.push(TOKEN_FORMAT);
    token.extend_from_slice(last);
    token.into()
}

/// A page being filled.
pub struct Page<'g> {
    glob: &'g Glob,
    may_list: Option<MayList<'g>>,
    budget: PageBudget,
    keys: Vec<Bytes>,
    bytes: usize,
    rows: usize,
    row_bytes: usize,
    steps: u64,
    last: Vec<u8>,
    has_more: bool,
}

impl<'g> Page<'g> {
    /// An empty page. Without `may_list` every key that matches may be listed.
    pub fn new(glob: &'g Glob, may_list: Option<MayList<'g>>, budget: PageBudget) -> Self {
        Page {
            glob,
            may_list,
            budget,
            keys: Vec::new(),
            bytes: 0,
            rows: 0,
            row_bytes: 0,
            steps: 0,
            last: Vec::new(),
            has_more: false,
        }
    }

    /// Shows the next row to the page, whose value takes `value_bytes`; `is_there` is false for a tombstone and for a
    /// key whose time is over. Returns whether to go on.
    pub fn visit(&mut self, key: &[u8], value_bytes: usize, is_there: bool) -> bool {
        if self.is_full() {
            // Only now is it known that another page is needed.
            self.has_more = true;
            return false;
        }
        let is_listed = is_there && self.lists(key);
        let (keys, bytes) = (self.keys.len(), self.bytes);
        // Keys that may not be listed are in no answer's token, see [`MayList`].
        let may_be_last = is_listed || self.may_list.is_none();
        if may_be_last && self.budget.exceeds(keys, bytes, key, is_listed) {
            self.has_more = true;
            return false;
        }
        self.rows += 1;
        self.row_bytes = self.row_bytes.saturating_add(key.len() + value_bytes);
        self.last.clear();
        self.last.extend_from_slice(key);
        if is_listed {
            self.bytes = self.bytes.saturating_add(key.len());
            self.keys.push(Bytes::copy_from_slice(key));
        }
        true
    }

    fn lists(&mut self, key: &[u8]) -> bool {
        let steps = &mut self.steps;
        std::str::from_utf8(key).is_ok_and(|text| {
            self.glob.matches(text, steps)
                && self.may_list.is_none_or(|may_list| may_list(key, steps))
        })
    }

    /// The answer: the keys, and a token when rows are left.
    pub fn finish(self) -> Reply {
        let token = self.has_more.then(|| token_after(&self.last));
        Reply::Page {
            keys: self.keys,
            token,
        }
    }

    fn is_full(&self) -> bool {
        self.budget.is_full(self.keys.len(), self.bytes)
            || self.rows >= self.budget.max_rows.max(1)
            || (self.rows >= MIN_KEYS && self.row_bytes >= self.budget.max_row_bytes)
            || self.steps >= self.budget.max_steps
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
