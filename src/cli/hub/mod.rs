//! `quorumq device`, `quorumq module` and `quorumq twin`: the hub's registry and its twins, over its HTTPS API.
//!
//! A module is written as `DEVICE/MODULE`, because no id has a slash.

mod identity;
mod place;
mod sas;
mod twin;
mod twin_query;

pub use identity::{DeviceCommand, ModuleCommand, device, module};
pub use place::key_of_file;
pub use twin::{TwinCommand, twin};
