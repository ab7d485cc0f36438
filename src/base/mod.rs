//! What every room stands on: identifiers, fixed limits, time, version stamps, generated messages and their wire
//! format.
//! format.
//!
//! Invariant: nothing here imports another room.

pub mod hlc;
pub mod ids;
pub mod lease;
pub mod limits;
pub mod proto;
pub mod time;
pub mod wire;
