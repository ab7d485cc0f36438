//! The state store: what a request means, byte for byte, and what it does to a key.
//!
//! Pure functions over bytes and values: [`request::parse`] reads a PUBLISH, [`apply::apply`] turns a write and the
//! key's [`record::KeyRow`] into a change and a [`reply::Reply`], [`scan`] lists keys, [`notify`] writes
//! notifications. Nothing here reads a clock, keeps state or knows where rows are kept. The rules are those of
//! `docs/spec/state-store.md`.

pub mod apply;
pub mod error;
pub mod fingerprint;
pub mod glob;
pub mod notify;
pub mod record;
pub mod reply;
pub mod request;
pub mod resp3;
pub mod scan;
pub mod topics;

pub use apply::{Outcome, Quota, RowChange, Usage, apply, apply_unread, expire};
pub use error::StoreError;
pub use record::{KeyRecord, KeyRow, RecordError, Tombstone, ValueLength};
pub use reply::Reply;
pub use request::{Condition, Properties, Request, Write, WriteAction};
