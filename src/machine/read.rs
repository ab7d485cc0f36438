//! Reads of the replicated state. The caller has waited until this replica has applied what the read must see.

use prost::Message as _;

use super::key;
use super::store::decode_row;
use super::tables::Backing;
use crate::proto::state;
use crate::store::glob::Glob;
use crate::store::scan::{self, Page, PageBudget};
use crate::store::{self, KeyRow, Reply, StoreError};
use crate::time::Millis;
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
    let row = backing.get(&key::record::encode(store_key)).map(decode_row);
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
    let row = backing.get(&key::meta::encode());
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
    let (from, whole) = key::record::from(&range.from);
    let to = range.to.map_or(whole, |to| key::record::encode(&to));
    let mut page = Page::new(&glob, budget);
    backing.scan(&from, &to, &mut |row_key, row| {
        let Some(store_key) = key::record::decode(row_key) else {
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
            let (from, to) = key::retained::from(from);
            backing.scan(&from, &to, &mut |row_key, row| {
                key::retained::decode(row_key).is_none_or(|topic| show(topic, row))
            });
        },
        |topic, row| {
            let row = state::Retained::decode(row).expect("this machine wrote the row");
            visit(topic, row)
        },
    );
}
