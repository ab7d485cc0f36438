//! Reads of the replicated state. The caller has waited until this replica has applied what the read must see.

use prost::Message as _;

use super::schema;
use super::store::decode_row;
use super::tables::Backing;
use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::store::glob::Glob;
use crate::store::scan::{self, Page, PageBudget};
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
    let row = backing
        .get(&schema::record::encode(store_key))
        .map(decode_row);
    let expires_at = row
        .as_ref()
        .and_then(KeyRow::record)
        .and_then(|record| record.expires_at);
    Found {
        reply: store::apply::get(row.as_ref()),
        expires_at,
    }
}

/// Log time of the state.
pub fn clock(backing: &dyn Backing) -> Millis {
    let row = backing.get(&schema::meta::encode());
    Millis(row.map_or(0, |row| {
        state::Meta::decode(row)
            .expect("this machine wrote the row")
            .clock_ms
    }))
}

/// SCAN: one page of keys that match `pattern`, from `token` on.
pub fn scan(
    backing: &dyn Backing,
    pattern: &[u8],
    token: Option<&[u8]>,
    budget: PageBudget,
) -> Reply {
    let Ok(glob) = Glob::new(pattern) else {
        return Reply::Error(StoreError::Syntax);
    };
    let range = match scan::range(&glob, token) {
        Ok(range) => range,
        Err(error) => return Reply::Error(error),
    };
    let clock = clock(backing);
    let (from, whole) = schema::record::from(&range.from);
    let to = range.to.map_or(whole, |to| schema::record::encode(&to));
    let mut page = Page::new(&glob, budget);
    backing.scan(&from, &to, &mut |row_key, row| {
        let Some(store_key) = schema::record::decode(row_key) else {
            return true;
        };
        page.visit(
            store_key,
            store::record::is_there(row, clock).expect("this machine wrote the row"),
        )
    });
    page.finish()
}

/// Visits the retained messages whose topics match the unshared `filter`, in the order of their topics and those from `from`
/// on, until `visit` returns `false`.
pub fn retained(
    backing: &dyn Backing,
    filter: &str,
    from: &[u8],
    mut visit: impl FnMut(&str, state::Retained) -> bool,
) {
    walk::for_each_match(
        filter,
        from,
        |from, show| {
            let (from, to) = schema::retained::from(from);
            backing.scan(&from, &to, &mut |row_key, row| {
                schema::retained::decode(row_key).is_none_or(|topic| show(topic, row))
            });
        },
        |topic, row| {
            let row = state::Retained::decode(row).expect("this machine wrote the row");
            visit(topic, row)
        },
    );
}

/// At most `most` sessions in the order of their client ids, after one of them, and whether there are more.
pub fn sessions(
    backing: &dyn Backing,
    after: &str,
    most: usize,
    connected: bool,
) -> (Vec<(String, state::Session)>, bool) {
    let mut from = schema::session::encode(after);
    if !after.is_empty() {
        from.push(0);
    }
    let (_, to) = schema::session::all();
    let mut found = Vec::new();
    let mut more = false;
    backing.scan(&from, &to, &mut |row_key, row| {
        let client_id = schema::session::decode(row_key).expect("this machine wrote the key");
        let row = state::Session::decode(row).expect("this machine wrote the row");
        if connected && row.owner_node == 0 {
            return true;
        }
        more = found.len() == most;
        if !more {
            found.push((client_id.to_owned(), row));
        }
        !more
    });
    (found, more)
}

/// How far the queue of a session has come.
pub fn queue(backing: &dyn Backing, session: u64) -> state::Queue {
    backing
        .get(&schema::queue::encode(SessionId(session)))
        .map(|row| state::Queue::decode(row).expect("this machine wrote the row"))
        .unwrap_or_default()
}

/// Visits the subscriptions of a session in the order of their filters.
pub fn subscriptions(
    backing: &dyn Backing,
    session: u64,
    mut visit: impl FnMut(&str, state::Subscription),
) {
    let (from, to) = schema::subscription::of_session(SessionId(session));
    backing.scan(&from, &to, &mut |row_key, row| {
        let (_, filter) =
            schema::subscription::decode(row_key).expect("this machine wrote the key");
        visit(
            filter,
            state::Subscription::decode(row).expect("this machine wrote the row"),
        );
        true
    });
}
