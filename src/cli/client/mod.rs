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
mod server;
mod session;
mod state_store;
mod transport;

pub use error::ClientError;
pub use message::{Message, Outgoing};
pub use options::Options;
pub use server::Server;
pub use session::Client;
pub use state_store::{Answer, Notification, StateStore};
pub use transport::TlsOptions;

#[cfg(test)]
mod tests;
