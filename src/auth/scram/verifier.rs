//! What a server keeps in place of a password.

use hmac::Hmac;
use sha2::Sha256;

use super::{
    Key, LEAST_ITERATIONS, MOST_ITERATIONS, NAME, base64, from_base64, hash, hmac, key_from_base64,
    prepare,
};

/// Shortest and longest salt that is taken, bytes.
const SALT_LENGTHS: std::ops::RangeInclusive<usize> = 8..=64;

/// What a server keeps in place of a password. Who has it can pretend to be the server and can try passwords, but can't
/// log in.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub(super) iterations: u32,
    pub(super) salt: Box<[u8]>,
    pub(super) stored_key: Key,
    pub(super) server_key: Key,
}

/// `SaltedPassword` of RFC 5802 §3. The password has been through SASLprep.
pub(super) fn salted_password(password: &str, salt: &[u8], iterations: u32) -> Key {
    let mut salted = Key::default();
    pbkdf2::pbkdf2::<Hmac<Sha256>>(password.as_bytes(), salt, iterations, &mut salted)
        .expect("HMAC takes keys of any length");
    salted
}

pub(super) fn client_key(salted_password: &Key) -> Key {
    hmac(salted_password, &[b"Client Key"])
}

pub(super) fn server_key(salted_password: &Key) -> Key {
    hmac(salted_password, &[b"Server Key"])
}

impl Verifier {
    /// The verifier of a password; `None` when SASLprep refuses it.
    pub fn of_password(password: &str, salt: &[u8], iterations: u32) -> Option<Verifier> {
        let salted = salted_password(&prepare(password)?, salt, iterations);
        Some(Verifier {
            iterations,
            salt: salt.into(),
            stored_key: hash(&[&client_key(&salted)]),
            server_key: server_key(&salted),
        })
    }

    /// The line of the user's file, without its line break: PostgreSQL's form of `pg_authid.rolpassword` after the
    /// user's name.
    pub fn line(&self, user: &str) -> String {
        let (salt, iterations) = (base64(&self.salt), self.iterations);
        let (stored, server) = (base64(&self.stored_key), base64(&self.server_key));
        format!("{user}:{NAME}${iterations}:{salt}${stored}:{server}")
    }

    /// Reads `user:SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`. The user's name may hold colons.
    pub(super) fn parse_line(line: &str) -> Result<(&str, Verifier), &'static str> {
        let shape = "expected user:SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>";
        let at = line.find(":SCRAM-SHA-256$").ok_or(shape)?;
        let (user, rest) = (&line[..at], &line[at + NAME.len() + 2..]);
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
        let stored_key =
            key_from_base64(stored_key).ok_or("StoredKey is not 32 bytes in Base64")?;
        let server_key =
            key_from_base64(server_key).ok_or("ServerKey is not 32 bytes in Base64")?;
        let verifier = Verifier {
            iterations,
            salt: salt.into(),
            stored_key,
            server_key,
        };
        Ok((user, verifier))
    }
}

impl std::fmt::Debug for Verifier {
    /// Keys are not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let iterations = self.iterations;
        write!(f, "Verifier {{ iterations: {iterations}, … }}")
    }
}
