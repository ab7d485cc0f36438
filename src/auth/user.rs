//! A user of the cluster, as the value of its entry in the directory holds it.
//!
//! The password itself is nowhere: where it arrives, an Argon2id hash and a verifier for each hash of SCRAM are made of
//! it. What came from elsewhere (a Mosquitto password file, a file of SCRAM verifiers) may have less of that.
//!
//! Invariant: a name is written as SASLprep (RFC 4013) has it, so that SCRAM and a password in CONNECT find the same
//! user.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::password::{self, Cost, PasswordHash};
use super::principal::{is_label, is_text};
use super::scram::{self, Algorithm, Verifier};
use super::{Method, Principal, Proof};
use crate::base::directory::Kind;
use crate::base::proto::state;
use crate::base::time::Millis;

/// Longest name, bytes.
pub const LONGEST_NAME: usize = 256;

/// Shortest and longest password, bytes. MQTT has room for more, but every byte is hashed for whoever sends it.
const PASSWORD_LENGTHS: std::ops::RangeInclusive<usize> = 1..=1024;

/// Groups, and attributes, that a user may have.
const MOST_LABELS: usize = 64;

/// Longest name of a group or an attribute, bytes.
const LONGEST_LABEL: usize = 256;

/// Longest value of an attribute, and longest note, bytes.
const LONGEST_TEXT: usize = 1024;

/// Why a user can't be what it was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserProblem {
    /// Nobody could log in with this name.
    #[error(
        "a user's name has 1 to 256 bytes and no characters that SASLprep (RFC 4013) refuses or writes in another way"
    )]
    Name,
    /// Such a password is not taken.
    #[error("a password has 1 to 1024 bytes")]
    Password,
    /// Nothing could be made of the password with this cost.
    #[error("the hash of the password would cost more, or less, than is taken")]
    Cost,
    /// A group or an attribute is not taken.
    #[error(
        "a user has at most 64 groups and 64 attributes; their names have 1 to 256 bytes, values at most 1024, and none \
         has control characters"
    )]
    Label,
    /// The note is too long.
    #[error("a note has at most 1024 bytes and no control characters")]
    Note,
}

/// Why the value of an entry is no user.
#[derive(Debug, thiserror::Error)]
pub enum DamagedUser {
    /// It has another form.
    #[error("{0}")]
    Form(#[from] prost::DecodeError),
    /// Its hash is none.
    #[error("{0}")]
    Hash(#[from] password::HashProblem),
    /// A verifier is none.
    #[error("a SCRAM verifier is damaged")]
    Verifier,
}

/// Somebody who may log in.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct User {
    /// It may not for now.
    pub disabled: bool,
    /// What its password is compared with.
    pub password: Option<PasswordHash>,
    /// What SCRAM compares with, for each hash there is.
    pub verifiers: Vec<Verifier>,
    /// Groups that rules may name.
    pub groups: Vec<Box<str>>,
    /// Attributes that rules may name.
    pub attributes: BTreeMap<Box<str>, Box<str>>,
    /// What operators have to say of it.
    pub note: Box<str>,
    /// When it was made.
    pub created: Millis,
    /// When its password was set.
    pub password_set: Millis,
    /// What was imported last.
    pub imported: Imported,
}

/// SHA-256 of something.
type Digest = [u8; 32];

/// What was imported last: the hash and the verifiers that came of it may have been replaced by better ones since.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Imported {
    password: Option<Digest>,
    verifiers: Option<Digest>,
    /// The hash and the verifiers are of files of their own, not of one password.
    parts_apart: bool,
}

/// What new hashes are made with. Fresh salts for each user.
#[derive(Clone, Copy)]
pub struct Salts {
    /// For Argon2id.
    pub password: [u8; password::SALT_BYTES],
    /// For SCRAM, in the order of [`Algorithm::ALL`].
    pub scram: [[u8; scram::SALT_BYTES]; Algorithm::ALL.len()],
}

/// What new hashes cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Of Argon2id.
    pub password: Cost,
    /// Iterations of SCRAM, which every client has to compute at its log-in.
    pub scram_iterations: u32,
}

/// Whether a name may be a user's.
pub fn is_name(name: &str) -> bool {
    let is_prepared = scram::prepare(name).is_some_and(|prepared| prepared == name);
    is_prepared && name.len() <= LONGEST_NAME
}

impl User {
    /// Whether everything that an operator may choose is within its bounds.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn check(&self) -> Result<(), UserProblem> {
        let is_few = self.groups.len() <= MOST_LABELS && self.attributes.len() <= MOST_LABELS;
        let mut attributes = self.attributes.iter();
        let are_good = self
            .groups
            .iter()
            .all(|group| is_label(group, LONGEST_LABEL))
            && attributes
                .all(|(name, value)| is_label(name, LONGEST_LABEL) && is_text(value, LONGEST_TEXT));
        if !(is_few && are_good) {
            return Err(UserProblem::Label);
        }
        match is_text(&self.note, LONGEST_TEXT) {
            true => Ok(()),
            false => Err(UserProblem::Note),
        }
    }

    /// Replaces the password. Takes as long as the costs say: not for a thread that serves clients. A password that is
    /// not text, or that SASLprep refuses, has no verifiers.
    ///
    /// # Errors
    /// The password or the cost is not taken; nothing is changed.
    pub fn set_password(
        &mut self,
        password: &[u8],
        salts: &Salts,
        costs: Costs,
        now: Millis,
    ) -> Result<(), UserProblem> {
        if !PASSWORD_LENGTHS.contains(&password.len()) {
            return Err(UserProblem::Password);
        }
        let iterations = costs.scram_iterations;
        if !(scram::LEAST_ITERATIONS..=scram::MOST_ITERATIONS).contains(&iterations) {
            return Err(UserProblem::Cost);
        }
        let hash = PasswordHash::new(password, &salts.password, costs.password);
        self.password = Some(hash.ok_or(UserProblem::Cost)?);
        self.verifiers = verifiers(password, salts, iterations);
        self.password_set = now;
        self.imported = Imported::default();
        Ok(())
    }

    /// Takes a hash from elsewhere in place of the password; tells whether that is news. Verifiers of the former
    /// password go, those of a file of their own stay.
    pub fn import_password(&mut self, hash: PasswordHash, now: Millis) -> bool {
        let digest = Some(Sha256::digest(hash.text()).into());
        if self.imported.password == digest {
            return false;
        }
        if !self.imported.parts_apart {
            self.verifiers.clear();
            self.imported.verifiers = None;
        }
        self.password = Some(hash);
        self.imported.password = digest;
        self.imported.parts_apart = true;
        self.password_set = now;
        true
    }

    /// Takes verifiers from elsewhere in place of the password; tells whether that is news. The hash of the former
    /// password goes, that of a file of its own stays.
    pub fn import_verifiers(&mut self, verifiers: Vec<Verifier>, now: Millis) -> bool {
        let mut digest = Sha256::new();
        for verifier in &verifiers {
            digest.update(verifier.to_row().encode_length_delimited_to_vec());
        }
        let digest = Some(digest.finalize().into());
        if self.imported.verifiers == digest {
            return false;
        }
        if !self.imported.parts_apart {
            self.password = None;
            self.imported.password = None;
        }
        self.verifiers = verifiers;
        self.imported.verifiers = digest;
        self.imported.parts_apart = true;
        self.password_set = now;
        true
    }

    /// The user with what is weak or missing made of the password that has just been verified; `None` when nothing is.
    /// It is the same credential in another form.
    pub fn upgraded(&self, password: &[u8], salts: &Salts, costs: Costs) -> Option<User> {
        let hash = self.password.as_ref();
        let is_strong = hash.is_some_and(|hash| hash.is_strong(costs.password));
        let is_whole = self.verifiers.len() == Algorithm::ALL.len();
        let text = std::str::from_utf8(password).ok();
        let can_be_whole = text.and_then(scram::prepare).is_some();
        // Those of a file of their own may be of another password.
        let are_apart = self.imported.parts_apart && hash.is_some() && !self.verifiers.is_empty();
        if is_strong && (is_whole || !can_be_whole || are_apart) {
            return None;
        }
        let mut upgraded = self.clone();
        let set = upgraded.set_password(password, salts, costs, self.password_set);
        set.ok()?;
        if is_strong {
            upgraded.password.clone_from(&self.password);
        }
        if are_apart {
            upgraded.verifiers.clone_from(&self.verifiers);
        }
        upgraded.imported = Imported {
            parts_apart: are_apart,
            ..self.imported.clone()
        };
        Some(upgraded)
    }

    /// Whether this is the user's password. Takes as long as the hash says.
    pub fn verify(&self, password: &[u8]) -> bool {
        match (&self.password, self.verifiers.first()) {
            (Some(hash), _) => hash.verify(password),
            (None, Some(verifier)) => verifier.verify(password),
            (None, None) => false,
        }
    }

    /// The verifier of an algorithm.
    pub fn verifier(&self, algorithm: Algorithm) -> Option<&Verifier> {
        let mut verifiers = self.verifiers.iter();
        verifiers.find(|verifier| verifier.algorithm() == algorithm)
    }

    /// Who has logged in as this user, whose entry has this version.
    pub fn principal(&self, name: &str, version: u64, method: Method) -> Principal {
        Principal {
            groups: self.groups.clone(),
            attributes: self.attributes.clone(),
            proofs: vec![Proof {
                kind: Kind::User as u8,
                name: name.into(),
                version,
            }],
            ..Principal::new(name, method)
        }
    }

    /// The value of its entry in the directory.
    pub fn encode(&self) -> Vec<u8> {
        let row = state::User {
            disabled: self.disabled,
            password: self
                .password
                .as_ref()
                .map_or_else(String::new, PasswordHash::text),
            verifiers: self.verifiers.iter().map(Verifier::to_row).collect(),
            groups: self.groups.iter().map(ToString::to_string).collect(),
            attributes: self
                .attributes
                .iter()
                .map(|(name, value)| state::Attribute {
                    name: name.to_string(),
                    value: value.to_string(),
                })
                .collect(),
            note: self.note.to_string(),
            created_ms: self.created.0,
            password_set_ms: self.password_set.0,
            imported_password_sha256: bytes(self.imported.password),
            imported_verifiers_sha256: bytes(self.imported.verifiers),
            parts_apart: self.imported.parts_apart,
        };
        row.encode_to_vec()
    }

    /// Reads what [`User::encode`] writes.
    ///
    /// # Errors
    /// A newer version wrote it, or it is damaged: such a user can't log in.
    pub fn decode(value: &[u8]) -> Result<User, DamagedUser> {
        let row = state::User::decode(value)?;
        let password = match row.password.as_str() {
            "" => None,
            text => Some(PasswordHash::parse(text)?),
        };
        let verifiers: Option<Vec<Verifier>> = row.verifiers.iter().map(Verifier::of_row).collect();
        let attributes = row.attributes.into_iter();
        Ok(User {
            disabled: row.disabled,
            password,
            verifiers: verifiers.ok_or(DamagedUser::Verifier)?,
            groups: row.groups.into_iter().map(Into::into).collect(),
            attributes: attributes
                .map(|attribute| (attribute.name.into(), attribute.value.into()))
                .collect(),
            note: row.note.into(),
            created: Millis(row.created_ms),
            password_set: Millis(row.password_set_ms),
            imported: Imported {
                password: row.imported_password_sha256.as_ref().try_into().ok(),
                verifiers: row.imported_verifiers_sha256.as_ref().try_into().ok(),
                parts_apart: row.parts_apart,
            },
        })
    }
}

fn bytes(digest: Option<Digest>) -> Bytes {
    digest.map_or_else(Bytes::new, |digest| Bytes::copy_from_slice(&digest))
}

impl fmt::Debug for User {
    /// Without what is kept in place of the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("disabled", &self.disabled)
            .field("groups", &self.groups)
            .field("attributes", &self.attributes)
            .finish_non_exhaustive()
    }
}

/// The verifiers of a password; none when SCRAM has no way to send it.
fn verifiers(password: &[u8], salts: &Salts, iterations: u32) -> Vec<Verifier> {
    let Ok(text) = std::str::from_utf8(password) else {
        return Vec::new();
    };
    let algorithms = Algorithm::ALL.into_iter().zip(&salts.scram);
    algorithms
        .filter_map(|(algorithm, salt)| Verifier::of_password(algorithm, text, salt, iterations))
        .collect()
}

#[cfg(test)]
#[path = "user_tests.rs"]
mod tests;
