//! SCRAM-SHA-256 (RFC 5802, RFC 7677) and SCRAM-SHA-512, which differ in their hash alone: the client proves that it
//! knows its password, and the server that it knows the client's verifier; neither sends anything a listener could use
//! later.
//!
//! Channel binding is not offered: there is no `-PLUS`, `p=…` is refused, `n` and `y` are taken. A client
//! may name an authorization identity only if it is its own name. Names and passwords go through SASLprep (RFC 4013):
//! what that prohibits (control characters, code points that Unicode 3.2 did not assign) can't be used.

mod client;
mod credentials;
mod message;
mod server;
mod verifier;

pub use client::{Client, ServerError};
pub use credentials::{Credentials, LineProblem};
pub use server::{Found, Server, Users};
pub use verifier::Verifier;

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroizing;

/// Least iterations of a verifier (RFC 7677 §4).
pub const LEAST_ITERATIONS: u32 = 4_096;

/// Iterations of a new verifier unless the operator says otherwise: what RFC 7677 §4 takes for a tenth of a second.
pub const DEFAULT_ITERATIONS: u32 = 15_000;

/// Most iterations of a verifier: more would keep a client busy for seconds at every connect.
pub const MOST_ITERATIONS: u32 = 10_000_000;

/// Length of the salt of a new verifier, bytes; what PostgreSQL uses, too.
pub const SALT_BYTES: usize = 16;

/// The hash that a SCRAM mechanism uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// SCRAM-SHA-256.
    Sha256,
    /// SCRAM-SHA-512.
    Sha512,
}

/// What a hash puts out.
type Key = Vec<u8>;

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Sha512];

    /// The Authentication Method, as the IANA registry of SASL mechanisms names it.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "SCRAM-SHA-256",
            Algorithm::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// Bytes of its output.
    const fn key_bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    fn hash(self, parts: &[&[u8]]) -> Key {
        fn digest<D: Digest>(parts: &[&[u8]]) -> Key {
            let mut hasher = D::new();
            for part in parts {
                hasher.update(part);
            }
            hasher.finalize().to_vec()
        }
        match self {
            Algorithm::Sha256 => digest::<Sha256>(parts),
            Algorithm::Sha512 => digest::<Sha512>(parts),
        }
    }

    fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Key {
        fn code<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Key {
            let mut mac =
                <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
            for part in parts {
                mac.update(part);
            }
            mac.finalize().as_bytes().to_vec()
        }
        match self {
            Algorithm::Sha256 => code::<Hmac<Sha256>>(key, parts),
            Algorithm::Sha512 => code::<Hmac<Sha512>>(key, parts),
        }
    }

    /// `SaltedPassword` of RFC 5802 §3: whoever has it can log in. The password has been through SASLprep.
    fn salted_password(self, password: &str, salt: &[u8], iterations: u32) -> Zeroizing<Key> {
        let mut salted = Zeroizing::new(vec![0; self.key_bytes()]);
        let password = password.as_bytes();
        let derived = match self {
            Algorithm::Sha256 => {
                pbkdf2::pbkdf2::<Hmac<Sha256>>(password, salt, iterations, &mut salted)
            }
            Algorithm::Sha512 => {
                pbkdf2::pbkdf2::<Hmac<Sha512>>(password, salt, iterations, &mut salted)
            }
        };
        derived.expect("HMAC takes keys of any length");
        salted
    }

    /// Whoever has it can log in.
    fn client_key(self, salted_password: &[u8]) -> Zeroizing<Key> {
        Zeroizing::new(self.hmac(salted_password, &[b"Client Key"]))
    }

    fn server_key(self, salted_password: &[u8]) -> Key {
        self.hmac(salted_password, &[b"Server Key"])
    }

    fn key_from_base64(self, text: &str) -> Option<Key> {
        from_base64(text).filter(|key| key.len() == self.key_bytes())
    }
}

fn xor(one: &[u8], other: &[u8]) -> Key {
    one.iter()
        .zip(other)
        .map(|(one, other)| one ^ other)
        .collect()
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// SASLprep; `None` when it refuses the text or leaves nothing of it.
pub fn prepare(text: &str) -> Option<Cow<'_, str>> {
    stringprep::saslprep(text)
        .ok()
        .filter(|prepared| !prepared.is_empty())
}

/// The same of a password.
fn prepare_password(password: &str) -> Option<Zeroizing<String>> {
    Some(Zeroizing::new(prepare(password)?.into_owned()))
}

#[cfg(test)]
mod tests;
