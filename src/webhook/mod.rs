//! How events get to endpoints: the leader sends them, and tells the log what became of each.
//!
//! What is to be sent next, and what follows from an answer, is decided in [`crate::events`]; here are the network, the
//! clock and the secrets.
//!
//! Invariant: one request at a time is under way per event subscription, and only while a majority confirms that this
//! node leads. Each event comes at least once, with the same id each time.

mod declared;
mod deliverer;
mod endpoint;
mod files;
mod gauges;
mod leader;
mod question;
mod rows;
mod secrets;
mod supervisor;
#[cfg(test)]
mod tests;
mod trial;

pub(crate) use declared::Declared;
pub(crate) use files::Files;
pub(crate) use gauges::keep_gauges;
pub(crate) use supervisor::Supervisor;
pub(crate) use trial::{Kind as TrialKind, try_out};
