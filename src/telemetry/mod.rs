//! What operators see of a node while it runs: metrics and log lines.
//!
//! Nothing here decides anything: no layer reads a metric back to choose what to do.

pub mod cells;
pub mod expiries;
pub mod labels;
pub mod log;
pub mod metrics;
