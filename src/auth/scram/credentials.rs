//! The users of a file, and what is made up for everybody else.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Key, Verifier, hash, hmac};

/// The verifiers of known users.
#[derive(Debug)]
pub struct Credentials {
    users: BTreeMap<Box<str>, Verifier>,
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
        let mut users: BTreeMap<Box<str>, Verifier> = BTreeMap::new();
        let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
        let mut problems = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let message = match Verifier::parse_line(line) {
                Ok((user, verifier)) => match lines.insert(user, number) {
                    None => {
                        users.insert(user.into(), verifier);
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
            .flat_map(|(user, verifier)| {
                [user.as_bytes(), &verifier.stored_key, &verifier.server_key]
            })
            .collect();
        let secret = hash(&parts);
        let shapes = users.values();
        let shapes = shapes.map(|verifier| (verifier.iterations, verifier.salt.len()));
        Ok(Credentials {
            shapes: shapes.collect(),
            secret,
            users,
        })
    }

    /// The number of users.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Never: a file without users can't be read.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// The user's verifier, or for anybody else one that looks like those of the users (RFC 5802 §9), that no password
    /// fits, and that is the same each time. Whether the user is known comes with it.
    pub(super) fn find(&self, user: &str) -> (Cow<'_, Verifier>, bool) {
        // Made in every case, so that known users take no less time.
        let made_up = self.made_up(user);
        match self.users.get(user) {
            Some(verifier) => (Cow::Borrowed(verifier), true),
            None => (Cow::Owned(made_up), false),
        }
    }

    fn made_up(&self, user: &str) -> Verifier {
        let draw = |purpose: &[u8]| hmac(&self.secret, &[purpose, user.as_bytes()]);
        let [a, b, c, d, ..] = draw(b"shape");
        let pick = u32::from_be_bytes([a, b, c, d]) as usize % self.shapes.len();
        let (iterations, length) = self.shapes[pick];
        let mut salt = [draw(b"salt 1"), draw(b"salt 2")].concat();
        salt.truncate(length);
        Verifier {
            iterations,
            salt: salt.into(),
            stored_key: draw(b"stored key"),
            server_key: draw(b"server key"),
        }
    }
}
