//! Topic names and filters: their syntax, which filter matches which name, and indexes for both directions.
//!
//! [`Trie`] answers "which subscriptions match this name", [`walk`] answers "which stored names match this filter", and
//! [`generations`] "is what was looked up still so"; [`patterns`] counts what a look-up costs at most.
//! Nothing here knows sessions or packets. Names are compared byte for byte, without normalization
//! `[MQTT-4.7.3-4]`.

mod filter;
pub mod generations;
mod name;
pub mod patterns;
mod subscribers;
mod trie;
pub mod walk;

pub use filter::{Filter, FilterError, check_filter, matches};
pub use name::{NameError, check_name, is_own};
pub use trie::Trie;

/// The longest topic name or filter, in bytes `[MQTT-4.7.3-3]`.
pub const MAX_TOPIC_BYTES: usize = 65_535;

/// Whether a topic name or filter has more than `max_levels` levels.
pub fn is_deeper(topic: &str, max_levels: usize) -> bool {
    // Each level but the first takes a byte at least.
    topic.len() >= max_levels && topic.bytes().filter(|byte| *byte == b'/').count() >= max_levels
}

/// The most levels of a filter: what one filter with a wildcard costs in the index is bounded by it.
pub const MAX_FILTER_LEVELS: usize = 200;
