//! What operators see of a node while it runs: metrics, log lines, and the audit log.
//!
//! Nothing here decides anything: no layer reads a metric back to choose what to do.

pub mod audit;
pub mod cells;
pub mod expiries;
pub mod labels;
pub mod log;
pub mod metrics;
