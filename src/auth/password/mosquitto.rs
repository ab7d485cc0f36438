//! The hashes of Mosquitto's own: `$7$` is PBKDF2 with HMAC-SHA-512, `$6$` is SHA-512 of password and salt.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::Hmac;
use sha2::{Digest as _, Sha512};
use subtle::ConstantTimeEq;

use super::text::{HashProblem, SALT_LENGTHS, decimal};

/// Bytes of SHA-512.
const HASH_BYTES: usize = 64;

/// Most iterations that are taken: some 2 s of one thread. `mosquitto_passwd` writes 101 or 1000.
const MOST_ITERATIONS: u32 = 2_000_000;

/// A hash of one of Mosquitto's own forms.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Mosquitto {
    /// Of PBKDF2; `None` for plain SHA-512.
    iterations: Option<u32>,
    salt: Box<[u8]>,
    hash: [u8; HASH_BYTES],
}

impl Mosquitto {
    /// Reads `$7$<iterations>$<salt>$<hash>` and `$6$<salt>$<hash>`.
    pub(super) fn parse(text: &str) -> Result<Mosquitto, HashProblem> {
        let (iterations, rest) = if let Some(rest) = text.strip_prefix("$7$") {
            let (iterations, rest) = rest.split_once('$').ok_or(HashProblem::Damaged)?;
            let iterations = decimal(iterations).ok_or(HashProblem::Damaged)?;
            if iterations > MOST_ITERATIONS {
                return Err(HashProblem::TooCostly);
            }
            (Some(iterations), rest)
        } else {
            let rest = text.strip_prefix("$6$").ok_or(HashProblem::Unknown)?;
            (None, rest)
        };
        let (salt, hash) = rest.split_once('$').ok_or(HashProblem::Damaged)?;
        let decode = |text: &str| STANDARD.decode(text).ok();
        let salt = decode(salt).filter(|salt| SALT_LENGTHS.contains(&salt.len()));
        let hash = decode(hash).and_then(|hash| hash.try_into().ok());
        match (salt, hash) {
            (Some(salt), Some(hash)) => Ok(Mosquitto {
                iterations,
                salt: salt.into(),
                hash,
            }),
            _ => Err(HashProblem::Damaged),
        }
    }

    pub(super) fn text(&self) -> String {
        let (salt, hash) = (STANDARD.encode(&self.salt), STANDARD.encode(self.hash));
        match self.iterations {
            Some(iterations) => format!("$7${iterations}${salt}${hash}"),
            None => format!("$6${salt}${hash}"),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.iterations {
            Some(_) => "pbkdf2-sha512",
            None => "sha512",
        }
    }

    pub(super) fn verify(&self, password: &[u8]) -> bool {
        let mut found = [0; HASH_BYTES];
        match self.iterations {
            Some(iterations) => {
                let derived =
                    pbkdf2::pbkdf2::<Hmac<Sha512>>(password, &self.salt, iterations, &mut found);
                derived.expect("HMAC takes keys of any length");
            }
            None => {
                let digest = Sha512::new()
                    .chain_update(password)
                    .chain_update(&self.salt);
                found = digest.finalize().into();
            }
        }
        bool::from(found.ct_eq(&self.hash))
    }
}
