//! The command line's own MQTT client.
//!
//! It runs without background tasks: whoever owns a [`Client`] drives it. It keeps no session across processes and is
//! not a general client library; the benchmark has its own, leaner engine.

mod connection;
mod error;
mod login;
mod message;
mod session;
mod state_store;

pub use error::ClientError;
pub use message::{Message, Outgoing};
pub use session::{Client, Options};
pub use state_store::{Answer, INVOKE, Notification, StateStore, response_topic};

#[cfg(test)]
mod tests;
