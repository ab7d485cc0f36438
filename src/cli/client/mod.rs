//! The command line's own MQTT 5 client.
//!
//! It runs without background tasks: whoever owns a [`Client`] drives it. It keeps no session across processes and is
//! not a general client library; the load generator (`bench/`) has its own, leaner engine.

mod connection;
mod error;
mod handshake;
mod login;
mod message;
mod options;
mod session;
mod state_store;

pub use error::ClientError;
pub use message::{Message, Outgoing};
pub use options::Options;
pub use session::Client;
pub use state_store::{Answer, Notification, StateStore};

#[cfg(test)]
mod tests;
