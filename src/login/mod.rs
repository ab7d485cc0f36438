//! What has to be asked or read to know who a client is: keys of token issuers, a service that judges clients, and the
//! files that a configuration names. What is asked of a client is in [`crate::auth`]; this is the world around it.
//!
//! Invariant: nothing here waits in a connection's thread; what waits is bounded in number and in time.

mod answer;
mod cache;
mod callback;
#[cfg(test)]
mod callback_tests;
mod files;
pub(crate) mod hub;
mod keys;
#[cfg(test)]
mod keys_tests;
mod tokens;

pub(crate) use callback::Callback;
pub(crate) use tokens::issuer;

use std::pin::Pin;

/// Work that goes on as long as the node runs.
pub(crate) type Background = Pin<Box<dyn Future<Output = ()> + Send>>;
