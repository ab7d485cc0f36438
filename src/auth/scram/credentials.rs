//! The users of a file, and what is made up for everybody else.

use std::collections::BTreeMap;

use super::server::{Found, Users};
use super::{Algorithm, Key, Verifier};
use crate::auth::{Method, Principal};

/// The verifiers of known users.
pub struct Credentials {
    users: BTreeMap<(Algorithm, Box<str>), Verifier>,
    /// Iterations and length of the salt of every user, in the order of their names.
    shapes: Vec<(u32, usize)>,
    /// What is made up is derived from this: the same on every node that has the same file, and after a restart, for a
    /// salt that differs there would give an unknown user away. Only who knows all the keys of the file knows it.
    secret: Key,
}

/// A line that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineProblem {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, in half a sentence.
    pub message: String,
}

impl Credentials {
    /// Reads a file with one verifier per line; empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// Every line that can't be used; or line 1 when there is no user at all.
    pub fn parse(text: &str) -> Result<Credentials, Vec<LineProblem>> {
        let mut users: BTreeMap<(Algorithm, Box<str>), Verifier> = BTreeMap::new();
        let mut lines: BTreeMap<(Algorithm, &str), usize> = BTreeMap::new();
        let mut problems = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let message = match Verifier::parse_line(line) {
                Ok((user, verifier)) => match lines.insert((verifier.algorithm, user), number) {
                    None => {
                        users.insert((verifier.algorithm, user.into()), verifier);
                        continue;
                    }
                    Some(first) => format!("the user {user:?} is in line {first} already"),
                },
                Err(message) => message.to_owned(),
            };
            problems.push(LineProblem {
                line: number,
                message,
            });
        }
        if users.is_empty() && problems.is_empty() {
            problems.push(LineProblem {
                line: 1,
                message: "there is no user: nobody could connect".into(),
            });
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let parts: Vec<&[u8]> = users
            .iter()
            .flat_map(|((_, user), verifier)| {
                [user.as_bytes(), &verifier.stored_key, &verifier.server_key]
            })
            .collect();
        let secret = Algorithm::Sha256.hash(&parts);
        let shapes = users.values();
        let shapes = shapes.map(|verifier| (verifier.iterations, verifier.salt.len()));
        Ok(Credentials {
            shapes: shapes.collect(),
            secret,
            users,
        })
    }

    /// The number of verifiers.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Never: a file without users can't be read.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether there is anybody who can use this mechanism.
    pub fn has(&self, algorithm: Algorithm) -> bool {
        self.users.keys().any(|(known, _)| *known == algorithm)
    }

    /// The users with their verifiers.
    pub fn into_users(self) -> impl Iterator<Item = (Box<str>, Verifier)> {
        let users = self.users.into_iter();
        users.map(|((_, user), verifier)| (user, verifier))
    }

    /// The verifier of a user.
    pub fn get(&self, algorithm: Algorithm, user: &str) -> Option<&Verifier> {
        self.users.get(&(algorithm, user.into()))
    }

    /// A verifier that looks like those of the users.
    fn made_up(&self, algorithm: Algorithm, user: &str) -> Verifier {
        let drawn = Algorithm::Sha256.hmac(&self.secret, &[b"shape", user.as_bytes()]);
        let drawn = drawn
            .iter()
            .take(4)
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let (iterations, length) = self.shapes[drawn % self.shapes.len()];
        Verifier::made_up(algorithm, &self.secret, user, iterations, length)
    }
}

impl Users for Credentials {
    fn find(&self, algorithm: Algorithm, user: &str) -> Found {
        // Made in every case, so that known users take no less time.
        let made_up = self.made_up(algorithm, user);
        match self.get(algorithm, user) {
            Some(verifier) => Found {
                verifier: verifier.clone(),
                principal: Ok(Principal::new(user, Method::Scram)),
            },
            None => Found {
                verifier: made_up,
                principal: Err("there is no such user"),
            },
        }
    }
}

impl std::fmt::Debug for Credentials {
    /// Neither verifiers nor the secret are shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({})", self.users.len())
    }
}
