//! What every room stands on: identifiers, kinds of directory entries, fixed limits, addresses that count as one and
//! share places, time, leases, signs of life, version stamps, JSON, generated messages and their wire format, secrets
//! while they gather.
//!
//! Invariant: nothing here imports another room.

pub mod directory;
pub mod hlc;
pub mod ids;
pub mod json;
pub mod lease;
pub mod limits;
pub mod local_only;
pub mod network;
pub mod object;
pub mod places;
pub mod proto;
pub mod pulse;
pub mod time;
pub mod utc;
pub mod wiped;
pub mod wire;
