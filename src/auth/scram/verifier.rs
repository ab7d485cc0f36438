//! What a server keeps in place of a password.

use subtle::ConstantTimeEq;

use super::{
    Algorithm, Key, LEAST_ITERATIONS, MOST_ITERATIONS, base64, from_base64, prepare,
    prepare_password,
};
use crate::base::proto::state;

/// Shortest and longest salt that is taken, bytes.
const SALT_LENGTHS: std::ops::RangeInclusive<usize> = 8..=64;

/// What a server keeps in place of a password. Who has it can pretend to be the server and can try passwords, but can't
/// log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(super) algorithm: Algorithm,
    pub(super) iterations: u32,
    pub(super) salt: Box<[u8]>,
    pub(super) stored_key: Key,
    pub(super) server_key: Key,
}

impl Verifier {
    /// The verifier of a password; `None` when SASLprep refuses it.
    pub fn of_password(
        algorithm: Algorithm,
        password: &str,
        salt: &[u8],
        iterations: u32,
    ) -> Option<Verifier> {
        let salted = algorithm.salted_password(&prepare_password(password)?, salt, iterations);
        Some(Verifier {
            algorithm,
            iterations,
            salt: salt.into(),
            stored_key: algorithm.hash(&[&algorithm.client_key(&salted)]),
            server_key: algorithm.server_key(&salted),
        })
    }

    /// A verifier that no password fits and that is the same each time for whoever has the secret: for a user who is
    /// not known (RFC 5802 §9).
    pub fn made_up(
        algorithm: Algorithm,
        secret: &[u8],
        user: &str,
        iterations: u32,
        salt_bytes: usize,
    ) -> Verifier {
        let name = algorithm.name().as_bytes();
        let draw = |purpose: &[u8]| algorithm.hmac(secret, &[purpose, name, b" ", user.as_bytes()]);
        let mut salt = [draw(b"salt 1"), draw(b"salt 2")].concat();
        salt.truncate(salt_bytes);
        Verifier {
            algorithm,
            iterations,
            salt: salt.into(),
            stored_key: draw(b"stored key"),
            server_key: draw(b"server key"),
        }
    }

    /// The mechanism that it is for.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether it is of this password. Takes as long as its iterations say: not for a thread that serves clients.
    pub fn verify(&self, password: &[u8]) -> bool {
        let prepared = std::str::from_utf8(password)
            .ok()
            .and_then(prepare_password);
        let Some(prepared) = prepared else {
            return false;
        };
        let salted = self
            .algorithm
            .salted_password(&prepared, &self.salt, self.iterations);
        let found = self.algorithm.hash(&[&self.algorithm.client_key(&salted)]);
        bool::from(found.ct_eq(&self.stored_key))
    }

    /// The line of the user's file, without its line break: PostgreSQL's form of `pg_authid.rolpassword` after the
    /// user's name.
    pub fn line(&self, user: &str) -> String {
        let (name, iterations) = (self.algorithm.name(), self.iterations);
        let salt = base64(&self.salt);
        let (stored, server) = (base64(&self.stored_key), base64(&self.server_key));
        format!("{user}:{name}${iterations}:{salt}${stored}:{server}")
    }

    /// Reads `user:SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, and the same of SCRAM-SHA-512. The
    /// user's name may hold colons.
    pub(super) fn parse_line(line: &str) -> Result<(&str, Verifier), &'static str> {
        let shape = "expected user:SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>";
        let found = Algorithm::ALL.into_iter().find_map(|algorithm| {
            let mark = format!(":{}$", algorithm.name());
            let at = line.find(&mark)?;
            Some((algorithm, &line[..at], &line[at + mark.len()..]))
        });
        let (algorithm, user, rest) = found.ok_or(shape)?;
        let (parameters, keys) = rest.split_once('$').ok_or(shape)?;
        let (iterations, salt) = parameters.split_once(':').ok_or(shape)?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(shape)?;
        match prepare(user) {
            None => return Err("the user's name is empty or SASLprep (RFC 4013) refuses it"),
            Some(prepared) if prepared != user => {
                return Err("the user's name is not written as SASLprep (RFC 4013) has it");
            }
            Some(_) => {}
        }
        let iterations = iterations
            .parse()
            .ok()
            .filter(|count| (LEAST_ITERATIONS..=MOST_ITERATIONS).contains(count))
            .ok_or("the iterations are no number from 4096 to 10000000")?;
        let salt = from_base64(salt)
            .filter(|salt| SALT_LENGTHS.contains(&salt.len()))
            .ok_or("the salt is not 8 to 64 bytes in Base64")?;
        let key = |text| algorithm.key_from_base64(text);
        let stored_key =
            key(stored_key).ok_or("StoredKey is not one output of the hash in Base64")?;
        let server_key =
            key(server_key).ok_or("ServerKey is not one output of the hash in Base64")?;
        let verifier = Verifier {
            algorithm,
            iterations,
            salt: salt.into(),
            stored_key,
            server_key,
        };
        Ok((user, verifier))
    }

    /// As a row holds it.
    pub(in crate::auth) fn to_row(&self) -> state::ScramVerifier {
        state::ScramVerifier {
            algorithm: match self.algorithm {
                Algorithm::Sha256 => 1,
                Algorithm::Sha512 => 2,
            },
            iterations: self.iterations,
            salt: self.salt.to_vec().into(),
            stored_key: self.stored_key.clone().into(),
            server_key: self.server_key.clone().into(),
        }
    }

    /// The inverse of [`Verifier::to_row`]; `None` for what it never gives.
    pub(in crate::auth) fn of_row(row: &state::ScramVerifier) -> Option<Verifier> {
        let algorithm = match row.algorithm {
            1 => Algorithm::Sha256,
            2 => Algorithm::Sha512,
            _ => return None,
        };
        let is_whole = (LEAST_ITERATIONS..=MOST_ITERATIONS).contains(&row.iterations)
            && SALT_LENGTHS.contains(&row.salt.len())
            && row.stored_key.len() == algorithm.key_bytes()
            && row.server_key.len() == algorithm.key_bytes();
        is_whole.then(|| Verifier {
            algorithm,
            iterations: row.iterations,
            salt: row.salt.to_vec().into(),
            stored_key: row.stored_key.to_vec(),
            server_key: row.server_key.to_vec(),
        })
    }
}

impl std::fmt::Debug for Verifier {
    /// Keys are not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, iterations) = (self.algorithm.name(), self.iterations);
        write!(f, "Verifier {{ {name}, iterations: {iterations}, … }}")
    }
}
