//! Which node is at the other end of a connection between nodes, and that it may be there.
//!
//! - [`name`]: the name of a node in its certificate, `quorumq://CLUSTER/nodes/ID`.
//! - [`tls`]: proof by certificates (mutual TLS 1.3).
//! - [`secret`]: proof by a secret that all nodes have, without encryption.
//! - [`trust`]: which of them this node uses, read again when its files change; [`settings`]: what the configuration
//!   says of it.
//! - [`incoming`], [`connector`]: both ends of a connection; [`stream`]: what the layers above read and write;
//!   [`info`]: what they know of the other end.
//! - [`reach`]: which addresses are connected to; [`names`]: those of names, remembered.
//! - [`registry`]: what is open, its bounds, and its end when trust is withdrawn.
//!
//! Invariant: where something is to be proved, no byte of a peer reaches HTTP/2 before it has proved which node it is,
//! and no byte of this node leaves to a peer that has not.
//! Invariant: who can't prove anything is told nothing but that the connection ends.
//!
//! This room knows nothing of calls: what a proven node may do is judged in [`crate::raft`] and [`crate::forward`].

pub mod connector;
mod counters;
mod files;
pub mod incoming;
mod info;
pub mod name;
mod names;
mod reach;
mod registry;
mod secret;
mod settings;
mod stream;
mod tls;
mod trust;

pub use connector::Connector;
pub use incoming::incoming;
pub use info::PeerInfo;
pub use name::NodeName;
pub use reach::Reach;
pub use settings::{Settings, Source};
pub use trust::{Reload, Trust, TrustError};

#[cfg(test)]
#[path = "../../tests/authority/mod.rs"]
pub(crate) mod authority;
#[cfg(test)]
mod tests;
