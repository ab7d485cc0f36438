//! The applied state: what applying the log has made, without a write-ahead log of its own.
//!
//! [`StateDb`] is the handle. Rows wait in a [`memtable`] until they are written to the database in use, which is one
//! of the numbered ones ([`generation`]). A [`StateView`] shows the state of one moment.

mod generation;
mod memtable;
mod state_db;
mod sweep;
mod view;

pub use state_db::{CheckpointError, ReservedRows, StateDb};
pub use view::StateView;
