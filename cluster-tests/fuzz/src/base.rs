//! What the rooms that are fuzzed use of the lowest one.

#[path = "../../../src/base/limits.rs"]
pub mod limits;
#[path = "../../../src/base/time.rs"]
pub mod time;
