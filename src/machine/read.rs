//! Reads of the replicated state for the outside. The caller has waited until this replica has applied what the read
//! must see.

use std::sync::Arc;

use super::effect::{ApplicationMessage, Granted};
use super::schema::{self, Range};
use super::session;
use super::tables::Backing;
use crate::base::directory;
use crate::base::ids::{ConnectionId, Owner, SessionId};
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::session::delivery::remaining_s;
use crate::session::{Entry, Sequence};
use crate::store::glob::Glob;
use crate::store::scan::{self, MayList, Page, PageBudget};
use crate::store::{self, KeyRow, Reply, StoreError};
use crate::topic::walk;

/// What a read of a key found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The answer.
    pub reply: Reply,
    /// When the key expires; if that is over by the reader's clock, the log time must be moved on before the answer
    /// may be given.
    pub expires_at: Option<Millis>,
}

/// GET.
pub fn get(backing: &dyn Backing, store_key: &[u8]) -> Found {
    let row = backing.row::<schema::Record>(store_key);
    let expires_at = row
        .as_ref()
        .and_then(KeyRow::record)
        .and_then(|record| record.expires_at);
    Found {
        reply: store::apply::get(row.as_ref()),
        expires_at,
    }
}

/// GET for a caller that has moved log time on: a key that is over by log time is not there, also where its timer has
/// not come to it yet.
pub fn get_at_log_time(backing: &dyn Backing, store_key: &[u8]) -> Reply {
    let found = get(backing, store_key);
    let meta = backing.row::<schema::Meta>(()).unwrap_or_default();
    let is_over = |deadline: Millis| deadline <= Millis(meta.clock_ms);
    match found.expires_at.is_some_and(is_over) {
        true => Reply::NoValue,
        false => found.reply,
    }
}

/// SCAN: one page of keys that match `pattern` and may be listed, from `token` on.
pub fn scan(
    backing: &dyn Backing,
    pattern: &[u8],
    token: Option<&[u8]>,
    may_list: Option<MayList<'_>>,
    budget: PageBudget,
) -> Reply {
    let Ok(glob) = Glob::new(pattern) else {
        return Reply::Error(StoreError::Syntax);
    };
    let bounds = match scan::range(&glob, token) {
        Ok(bounds) => bounds,
        Err(error) => return Reply::Error(error),
    };
    let meta = backing.row::<schema::Meta>(()).unwrap_or_default();
    let clock = Millis(meta.clock_ms);
    let mut range = Range::<schema::Record>::all().starting_at(&bounds.from);
    if let Some(to) = &bounds.to {
        range = range.before(to);
    }
    let mut page = Page::new(&glob, may_list, budget);
    backing.rows(&range, |store_key, row| {
        // Only its first bytes are looked at.
        let is_there = store::record::is_there(row.bytes(), clock);
        page.visit(
            store_key,
            row.bytes().len(),
            is_there.expect("a row of the state store is what this version writes"),
        )
    });
    page.finish()
}

/// The row of a key of the state store that has an empty value.
#[cfg(test)]
pub(crate) fn store_row(store_key: &[u8]) -> (Vec<u8>, Vec<u8>) {
    use super::schema::{Row as _, Table as _};
    let record = store::record::KeyRecord {
        value: bytes::Bytes::new(),
        version: crate::base::hlc::Hlc::parse("000000000000001:00000:client").expect("a version"),
        fencing_token: None,
        expires_at: None,
    };
    let row = store::record::KeyRow::Value(record).to_bytes();
    (schema::Record::encode(store_key), row)
}

/// The row of a retained message without payload.
#[cfg(test)]
pub(crate) fn retained_row(topic: &str) -> (Vec<u8>, Vec<u8>) {
    use super::schema::{Row as _, Table as _};
    let row = state::Retained::default().to_bytes();
    (schema::Retained::encode(topic.as_bytes()), row)
}

/// The row of a session.
#[cfg(test)]
pub(crate) fn session_row(client_id: &str) -> (Vec<u8>, Vec<u8>) {
    use super::schema::{Row as _, Table as _};
    let row = state::Session::default().to_bytes();
    (schema::Session::encode(client_id), row)
}

/// What one page of a listing, or of a replay, may look at. Whichever is used up first ends the page.
#[derive(Clone, Copy, Debug)]
pub struct ListBudget {
    rows: usize,
    bytes: usize,
}

impl Default for ListBudget {
    fn default() -> Self {
        ListBudget::of(10_000, 16 << 20)
    }
}

impl ListBudget {
    /// At most `rows` rows of `bytes` bytes; one row may exceed the bytes.
    pub fn of(rows: usize, bytes: usize) -> Self {
        ListBudget { rows, bytes }
    }

    /// Takes a row out of the budget; tells whether it may be looked at.
    fn take(&mut self, bytes: usize) -> bool {
        let has_room = self.rows > 0 && self.bytes > 0;
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        has_room
    }
}

/// Visits the retained messages whose topics match the unshared `filter`, in the order of their topics and those from
/// `from` on, until `visit` returns `false` or the budget is used up: returns the last topic it has looked at then.
pub fn retained_page(
    backing: &dyn Backing,
    filter: &str,
    from: &[u8],
    mut budget: ListBudget,
    mut visit: impl FnMut(&str, state::Retained) -> bool,
) -> Option<String> {
    let mut last = String::new();
    let mut is_used_up = false;
    walk::for_each_match(
        filter,
        from,
        |from, show| {
            let range = Range::<schema::Retained>::all().starting_at(from);
            backing.rows(&range, |topic, row| {
                is_used_up = !budget.take(topic.len() + row.bytes().len());
                if is_used_up {
                    return false;
                }
                last.clear();
                last.push_str(&String::from_utf8_lossy(topic));
                show(topic, row.bytes())
            });
        },
        |topic, row| {
            let row = schema::StoredRow::<schema::Retained>::new(row);
            visit(topic, row.decode())
        },
    );
    is_used_up.then_some(last)
}

/// The retained message of a topic.
pub fn retained_message(backing: &dyn Backing, topic: &str) -> Option<state::Retained> {
    backing.row::<schema::Retained>(topic.as_bytes())
}

/// The session of a client.
pub fn session(backing: &dyn Backing, client_id: &str) -> Option<state::Session> {
    backing.row::<schema::Session>(client_id)
}

/// The connection that owns a session.
pub fn owner(row: &state::Session) -> Option<Owner> {
    session::owner_of(row)
}

/// At most `most` sessions in the order of their client ids, after one of them; and after which one to go on, if there
/// may be more. There may be fewer, or none, when `budget` is used up.
pub fn sessions(
    backing: &dyn Backing,
    after: &str,
    most: usize,
    connected: bool,
    mut budget: ListBudget,
) -> (Vec<(String, state::Session)>, Option<String>) {
    let mut range = Range::<schema::Session>::all();
    if let Some(first) = after.strip_prefix('\0') {
        range = range.starting_at(first);
    } else if !after.is_empty() {
        range = range.after(after);
    }
    let mut found = Vec::new();
    let mut last = String::new();
    let mut more = false;
    backing.rows(&range, |client_id, row| {
        more = found.len() == most || !budget.take(client_id.len() + row.bytes().len());
        if more {
            return false;
        }
        last.clear();
        last.push_str(client_id);
        let row = row.decode();
        if !connected || row.owner_node != 0 {
            found.push((client_id.to_owned(), row));
        }
        true
    });
    (found, more.then_some(last))
}

/// An entry of the directory.
pub fn directory_entry(
    backing: &dyn Backing,
    kind: directory::Kind,
    name: &str,
) -> Option<state::DirectoryEntry> {
    backing.row::<schema::DirectoryEntry>((kind, name))
}

/// At most `most` entries of a kind in the order of their names, after one of them; and after which one to go on, if
/// there may be more. There may be fewer when `budget` is used up.
pub fn directory_page(
    backing: &dyn Backing,
    kind: directory::Kind,
    after: &str,
    most: usize,
    mut budget: ListBudget,
) -> (Vec<(String, state::DirectoryEntry)>, Option<String>) {
    let mut range = schema::DirectoryEntry::of_kind(kind);
    if !after.is_empty() {
        range = range.after((kind, after));
    }
    let mut found: Vec<(String, state::DirectoryEntry)> = Vec::new();
    let mut more = false;
    backing.rows(&range, |(_, name), row| {
        more = found.len() == most || !budget.take(row.bytes().len());
        if !more {
            found.push((name.to_owned(), row.decode()));
        }
        !more
    });
    let last = found.last().filter(|_| more).map(|(name, _)| name.clone());
    (found, last)
}

/// Visits all entries of a kind in the order of their names.
pub fn directory_all(
    backing: &dyn Backing,
    kind: directory::Kind,
    mut visit: impl FnMut(&str, state::DirectoryEntry),
) {
    let range = schema::DirectoryEntry::of_kind(kind);
    backing.rows(&range, |(_, name), row| {
        visit(name, row.decode());
        true
    });
}

/// How far the queue of a session has come.
pub fn queue(backing: &dyn Backing, session: u64) -> state::Queue {
    backing
        .row::<schema::Queue>(SessionId(session))
        .unwrap_or_default()
}

/// A message of a session's queue, as it is delivered at `now`; `None` when it is not in the queue any more. The caller
/// fills in the connection, and whether it may have been sent before.
pub fn queued(
    backing: &dyn Backing,
    session: SessionId,
    sequence: Sequence,
    now: Millis,
) -> Option<Granted> {
    let entry = backing.row::<schema::Entry>((session, sequence))?;
    let Entry::Queued(queued) = entry else {
        return None;
    };
    let row = backing.row::<schema::Message>(queued.message)?;
    let expires_at = row.expires_at_ms.map(Millis);
    let message = ApplicationMessage {
        topic: row.topic,
        qos: queued.qos,
        retain: false,
        payload: row.payload,
        properties: row.properties,
        expires_at,
        publisher: None,
    };
    Some(Granted {
        connection: ConnectionId::default(),
        sequence,
        qos: queued.qos,
        dup: false,
        retain: queued.retain,
        expiry_s: expires_at.map(|at| remaining_s(at, now).unwrap_or(0)),
        is_shared: queued.group.is_some(),
        identifiers: queued.identifiers,
        message: Arc::new(message),
    })
}

/// Visits the subscriptions of a session in the order of their filters.
pub fn subscriptions(
    backing: &dyn Backing,
    session: u64,
    mut visit: impl FnMut(&str, state::Subscription),
) {
    let range = schema::Subscription::of_session(SessionId(session));
    backing.rows(&range, |(_, filter), row| {
        visit(filter, row.decode());
        true
    });
}

/// For tests: has a state hold these entries of the directory, in version 1.
#[cfg(test)]
pub(crate) fn put_directory<'a>(
    tables: &mut super::tables::Tables<'_>,
    entries: impl IntoIterator<Item = (directory::Kind, &'a str, Vec<u8>)>,
) {
    for (kind, name, value) in entries {
        let row = state::DirectoryEntry {
            version: 1,
            value: value.into(),
            expires_at_ms: 0,
        };
        tables.put::<schema::DirectoryEntry>((kind, name), &row);
    }
}

/// For tests: a state in which a session has these subscriptions.
#[cfg(test)]
pub(crate) fn subscriptions_state<'a>(
    session: SessionId,
    subscriptions: impl IntoIterator<Item = (&'a str, state::Subscription)>,
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let nothing = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let mut tables = super::tables::Tables::new(&nothing);
    for (filter, row) in subscriptions {
        tables.put::<schema::Subscription>((session, filter), &row);
    }
    let changes = tables.into_changes().into_iter();
    changes
        .filter_map(|(key, change)| Some((key, change.value()?.to_vec())))
        .collect()
}

/// For tests: a state that has these retained messages.
#[cfg(test)]
pub(crate) fn retained_state<'a>(
    messages: impl IntoIterator<Item = (&'a str, state::Retained)>,
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let nothing = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let mut tables = super::tables::Tables::new(&nothing);
    for (topic, row) in messages {
        tables.put::<schema::Retained>(topic.as_bytes(), &row);
    }
    let changes = tables.into_changes().into_iter();
    changes
        .filter_map(|(key, change)| Some((key, change.value()?.to_vec())))
        .collect()
}
