//! What every room stands on: identifiers, kinds of directory entries, fixed limits, time, leases, signs of life,
//! version stamps, generated messages and their wire format.
//!
//! Invariant: nothing here imports another room.

pub mod directory;
pub mod hlc;
pub mod ids;
pub mod lease;
pub mod limits;
pub mod proto;
pub mod pulse;
pub mod time;
pub mod wire;
