//! TLS 1.2 and 1.3 of listeners, with rustls.
//!
//! [`ServerTls`] is what a listener offers: certificates by server name, the CAs and revocation lists that clients are
//! judged by, resumption. Its files are read again when they change ([`watch`]). [`Session`] is one connection.
//!
//! Invariant: files that can't be used change nothing: what was loaded before goes on.
//! Invariant: an idle session holds the keys and nothing else; buffers belong to threads.

mod any_certificate;
mod expiry;
mod loaded;
mod names;
mod server;
mod session;
mod watch;

pub(crate) use expiry::{EXPIRES_SOON, earliest_expiry, next_end};
#[cfg(test)]
pub(crate) use server::Reload;
pub(crate) use server::{Files, ServerTls, TlsError};
pub(super) use session::Session;
pub(crate) use watch::{note_expiry, watch};
