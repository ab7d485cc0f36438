//! What the rooms that are fuzzed use of the lowest one.

#[path = "../../../src/base/directory.rs"]
pub mod directory;
#[path = "../../../src/base/ids.rs"]
pub mod ids;
#[path = "../../../src/base/limits.rs"]
pub mod limits;
#[path = "../../../src/base/proto.rs"]
pub mod proto;
#[path = "../../../src/base/time.rs"]
pub mod time;
#[path = "../../../src/base/wire.rs"]
pub mod wire;
