//! SCRAM-SHA-256 (RFC 5802, RFC 7677): the client proves that it knows its password, and the server that it knows the
//! client's verifier; neither sends anything a listener could use later.
//!
//! Channel binding is not offered: there is no SCRAM-SHA-256-PLUS, `p=…` is refused, `n` and `y` are taken. A client
//! may name an authorization identity only if it is its own name. Names and passwords go through SASLprep (RFC 4013):
//! what that prohibits (control characters, code points that Unicode 3.2 did not assign) can't be used.

mod client;
mod credentials;
mod message;
mod server;
mod verifier;

pub use client::{Client, ServerError};
pub use credentials::{Credentials, LineProblem};
pub use server::Server;
pub use verifier::Verifier;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The Authentication Method, as the IANA registry of SASL mechanisms names it.
pub const NAME: &str = "SCRAM-SHA-256";

/// Least iterations of a verifier (RFC 7677 §4).
pub const LEAST_ITERATIONS: u32 = 4_096;

/// Iterations of a new verifier unless the operator says otherwise: what RFC 7677 §4 takes for a tenth of a second.
pub const DEFAULT_ITERATIONS: u32 = 15_000;

/// Most iterations of a verifier: more would keep a client busy for seconds at every connect.
pub const MOST_ITERATIONS: u32 = 10_000_000;

/// Length of the salt of a new verifier, bytes; what PostgreSQL uses, too.
pub const SALT_BYTES: usize = 16;

/// SHA-256's output.
type Key = [u8; 32];

fn hash(parts: &[&[u8]]) -> Key {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn xor(one: &Key, other: &Key) -> Key {
    std::array::from_fn(|index| one[index] ^ other[index])
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

fn key_from_base64(text: &str) -> Option<Key> {
    from_base64(text)?.try_into().ok()
}

/// SASLprep; `None` when it refuses the text or leaves nothing of it.
pub fn prepare(text: &str) -> Option<Cow<'_, str>> {
    stringprep::saslprep(text)
        .ok()
        .filter(|prepared| !prepared.is_empty())
}

#[cfg(test)]
mod tests;
