//! The types a configuration value can have, and how each is read from TOML or from text.
//!
//! Invariant: reading never panics. Whatever is written, the answer is a value or a [`SettingError`] that says what was
//! expected.

mod address;
mod choice;
mod cluster_name;
mod member;
mod primitive;
mod read;

pub use address::Address;
pub use choice::{LogFormat, LogLevel, OutboxPolicy, QueuePolicy};
pub use cluster_name::ClusterName;
pub use member::Member;
pub use read::{Input, Setting, SettingError};
