//! The statements of the MQTT standards, what shows each of them, and `docs/conformance.md`, made of both.
//!
//! Statements are in `spec/`, paraphrased; `spec/elsewhere.tsv` says of those that no test cites why not. A
//! conversation of the corpus cites statements in its first line, a test in a comment, a message or its name
//! (`mqtt_4_3_3_10_…`, `mqtt311_…`). The numbers of both standards look alike: `[MQTT-4.4.0-1]` is one of MQTT 5.0,
//! with `3.1.1` in front it is one of MQTT 3.1.1, and so are those that follow it directly.

mod citation;
mod page;
mod standard;
mod statements;

pub use page::page;
pub use standard::{Number, Standard};
pub use statements::{Conformance, Proof, Statement};
