//! The replicated state machine: commands in, replies and effects out.
//!
//! Everything here is deterministic. It has no clock, randomness, disk or network: time rides in the
//! log, and storage is what [`tables::Tables`] shows.

pub mod tables;
