//! What is kept in place of a password that clients send as it is: an Argon2id hash (RFC 9106), or a hash that came
//! from a Mosquitto password file and is verified as it is.
//!
//! Invariant: what a hash costs to verify is bounded before anything is computed, whoever has written it.
//! Invariant: comparisons take the same time wherever the difference is.

pub mod file;
mod mosquitto;
mod text;

pub use text::HashProblem;

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use subtle::ConstantTimeEq;

use mosquitto::Mosquitto;
use text::{SALT_LENGTHS, decimal};

/// Bytes of the salt of a new hash (RFC 9106 §3.1).
pub const SALT_BYTES: usize = 16;

/// Bytes of a new hash.
const HASH_BYTES: usize = 32;

/// Longest text of a hash, bytes. Everything that is taken is shorter.
const LONGEST_TEXT: usize = 512;

/// Lengths of an Argon2 hash, bytes.
const HASH_LENGTHS: std::ops::RangeInclusive<usize> = 16..=64;

/// What an Argon2id hash costs whoever computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// KiB of memory.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes, which are computed one after the other here.
    pub lanes: u32,
}

impl Default for Cost {
    /// 19 MiB and two passes: some 20 ms, and memory that a guessing machine has to have for each guess.
    fn default() -> Self {
        Cost {
            memory_kib: 19 * 1024,
            passes: 2,
            lanes: 1,
        }
    }
}

impl Cost {
    /// The most memory that a hash may ask for: what every thread that verifies may need at once.
    pub const MOST_MEMORY_KIB: u32 = 128 << 10;

    /// The most passes, also of memory and passes together: some seconds of one thread.
    const MOST_PASSES: u32 = 16;

    const MOST_LANES: u32 = 16;

    /// Memory times passes: about 1 s of one thread.
    const MOST_WORK_KIB: u64 = 512 << 10;

    /// The parameters, if they are ones of Argon2 and within the bounds.
    fn params(self, length: usize) -> Option<Params> {
        let is_bounded = self.memory_kib <= Cost::MOST_MEMORY_KIB
            && self.passes <= Cost::MOST_PASSES
            && self.lanes <= Cost::MOST_LANES
            && self.work() <= Cost::MOST_WORK_KIB;
        match is_bounded {
            true => Params::new(self.memory_kib, self.passes, self.lanes, Some(length)).ok(),
            false => None,
        }
    }

    /// What guessing has to spend for each guess: memory times passes, KiB.
    fn work(self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }

    /// Whether a hash may cost this much.
    pub fn is_allowed(self) -> bool {
        self.params(HASH_BYTES).is_some()
    }
}

/// An Argon2id hash with everything that it was made of but the password.
#[derive(Clone, PartialEq, Eq)]
struct Argon2id {
    cost: Cost,
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Form {
    Argon2id(Argon2id),
    Mosquitto(Mosquitto),
}

/// What is kept in place of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Form);

impl PasswordHash {
    /// The Argon2id hash of a password; `None` when the cost is not allowed or the salt too short.
    pub fn new(password: &[u8], salt: &[u8], cost: Cost) -> Option<PasswordHash> {
        let hash = argon2id(password, salt, cost, HASH_BYTES)?;
        Some(PasswordHash(Form::Argon2id(Argon2id {
            cost,
            salt: salt.into(),
            hash,
        })))
    }

    /// Reads what [`PasswordHash::text`] writes, and the hashes of Mosquitto's password files.
    ///
    /// # Errors
    /// It is no such hash, or one that costs too much.
    pub fn parse(text: &str) -> Result<PasswordHash, HashProblem> {
        if text.len() > LONGEST_TEXT {
            return Err(HashProblem::Damaged);
        }
        if let Some(rest) = text.strip_prefix("$argon2id$") {
            return Ok(PasswordHash(Form::Argon2id(Argon2id::parse(rest)?)));
        }
        Ok(PasswordHash(Form::Mosquitto(Mosquitto::parse(text)?)))
    }

    /// The hash as it is kept: a PHC string for Argon2id, Mosquitto's own form otherwise.
    pub fn text(&self) -> String {
        match &self.0 {
            Form::Argon2id(hash) => hash.text(),
            Form::Mosquitto(hash) => hash.text(),
        }
    }

    /// What it is, for people: without salt and hash.
    pub fn kind(&self) -> &'static str {
        match &self.0 {
            Form::Argon2id(_) => "argon2id",
            Form::Mosquitto(hash) => hash.kind(),
        }
    }

    /// Whether it is the hash of this password. Takes as long as its cost says: not for a thread that serves clients.
    pub fn verify(&self, password: &[u8]) -> bool {
        match &self.0 {
            Form::Argon2id(hash) => hash.verify(password),
            Form::Mosquitto(hash) => hash.verify(password),
        }
    }

    /// Whether it is as strong as a new hash would be. Weaker ones are replaced when their password is known, and never
    /// stronger ones: nodes that are configured differently would go on replacing each other's.
    pub fn is_strong(&self, cost: Cost) -> bool {
        matches!(&self.0, Form::Argon2id(hash) if hash.cost.work() >= cost.work())
    }

    /// Whether verifying takes as long as an Argon2id hash does.
    pub fn is_argon2id(&self) -> bool {
        matches!(&self.0, Form::Argon2id(_))
    }
}

impl fmt::Debug for PasswordHash {
    /// The hash is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PasswordHash({})", self.kind())
    }
}

/// What tests are told of the work of this thread.
#[cfg(test)]
pub(crate) mod counted {
    use super::Cost;
    use std::cell::RefCell;

    thread_local! {
        pub(super) static COMPUTED: RefCell<Vec<Cost>> = const { RefCell::new(Vec::new()) };
    }

    /// What the Argon2id hashes have cost that were computed since this was asked last.
    pub(crate) fn computed() -> Vec<Cost> {
        COMPUTED.take()
    }
}

fn argon2id(password: &[u8], salt: &[u8], cost: Cost, length: usize) -> Option<Box<[u8]>> {
    let params = cost.params(length)?;
    #[cfg(test)]
    counted::COMPUTED.with_borrow_mut(|computed| computed.push(cost));
    let mut hash = vec![0; length].into_boxed_slice();
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    hasher.hash_password_into(password, salt, &mut hash).ok()?;
    Some(hash)
}

impl Argon2id {
    /// Reads `v=19$m=…,t=…,p=…$<salt>$<hash>`.
    fn parse(rest: &str) -> Result<Argon2id, HashProblem> {
        let mut parts = rest.split('$');
        let mut part = || parts.next().ok_or(HashProblem::Damaged);
        let (version, parameters, salt, hash) = (part()?, part()?, part()?, part()?);
        if parts.next().is_some() || version != "v=19" {
            return Err(HashProblem::Damaged);
        }
        let mut parameters = parameters.split(',');
        let mut number = |name: &str| {
            let text = parameters.next().and_then(|text| text.strip_prefix(name));
            text.and_then(decimal).ok_or(HashProblem::Damaged)
        };
        let cost = Cost {
            memory_kib: number("m=")?,
            passes: number("t=")?,
            lanes: number("p=")?,
        };
        if parameters.next().is_some() {
            return Err(HashProblem::Damaged);
        }
        let decode = |text: &str| STANDARD_NO_PAD.decode(text).ok();
        let salt = decode(salt).filter(|salt| SALT_LENGTHS.contains(&salt.len()));
        let hash = decode(hash).filter(|hash| HASH_LENGTHS.contains(&hash.len()));
        let (Some(salt), Some(hash)) = (salt, hash) else {
            return Err(HashProblem::Damaged);
        };
        if cost.params(hash.len()).is_none() {
            return Err(HashProblem::TooCostly);
        }
        Ok(Argon2id {
            cost,
            salt: salt.into(),
            hash: hash.into(),
        })
    }

    fn text(&self) -> String {
        let Cost {
            memory_kib,
            passes,
            lanes,
        } = self.cost;
        let salt = STANDARD_NO_PAD.encode(&self.salt);
        let hash = STANDARD_NO_PAD.encode(&self.hash);
        format!("$argon2id$v=19$m={memory_kib},t={passes},p={lanes}${salt}${hash}")
    }

    fn verify(&self, password: &[u8]) -> bool {
        let found = argon2id(password, &self.salt, self.cost, self.hash.len());
        found.is_some_and(|found| bool::from(found.ct_eq(&self.hash)))
    }
}

#[cfg(test)]
mod tests;
