//! What every room stands on: identifiers, fixed limits, time, version stamps, generated messages, their wire format.
//!
//! Invariant: nothing here imports another room.

pub mod hlc;
pub mod ids;
pub mod limits;
pub mod proto;
pub mod time;
pub mod wire;
