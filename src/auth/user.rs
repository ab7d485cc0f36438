//! A user of the cluster, as the value of its entry in the directory holds it.
//!
//! The password itself is nowhere: where it arrives, an Argon2id hash and a verifier for each hash of SCRAM are made of
//! it. What came from elsewhere (a Mosquitto password file, a file of SCRAM verifiers) may have less of that.
//!
//! Invariant: a name is written as SASLprep (RFC 4013) has it, so that SCRAM and a password in CONNECT find the same
//! user.

use std::collections::BTreeMap;
use std::fmt;

use prost::Message as _;

use super::password::{self, Cost, PasswordHash};
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

fn is_text(text: &str, longest: usize) -> bool {
    text.len() <= longest && !text.chars().any(char::is_control)
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && is_text(label, LONGEST_LABEL)
}

impl User {
    /// Whether everything that an operator may choose is within its bounds.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn check(&self) -> Result<(), UserProblem> {
        let is_few = self.groups.len() <= MOST_LABELS && self.attributes.len() <= MOST_LABELS;
        let mut attributes = self.attributes.iter();
        let are_good = self.groups.iter().all(|group| is_label(group))
            && attributes.all(|(name, value)| is_label(name) && is_text(value, LONGEST_TEXT));
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
        Ok(())
    }

    /// Takes a hash or a verifier from elsewhere in place of the password.
    pub fn import(
        &mut self,
        password: Option<PasswordHash>,
        verifier: Option<Verifier>,
        now: Millis,
    ) {
        self.password = password;
        self.verifiers = verifier.into_iter().collect();
        self.password_set = now;
    }

    /// The user with everything made anew of the password that has just been verified; `None` when it has all of that.
    /// It is the same credential in another form.
    pub fn upgraded(&self, password: &[u8], salts: &Salts, costs: Costs) -> Option<User> {
        let hash = self.password.as_ref();
        let is_current = hash.is_some_and(|hash| hash.is_current(costs.password));
        let is_whole = self.verifiers.len() == Algorithm::ALL.len();
        let text = std::str::from_utf8(password).ok();
        let can_be_whole = text.and_then(scram::prepare).is_some();
        if is_current && (is_whole || !can_be_whole) {
            return None;
        }
        let mut upgraded = self.clone();
        let set = upgraded.set_password(password, salts, costs, self.password_set);
        set.is_ok().then_some(upgraded)
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
        })
    }
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
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        password: Cost {
            memory_kib: 8,
            passes: 1,
            lanes: 1,
        },
        scram_iterations: scram::LEAST_ITERATIONS,
    };

    const SALTS: Salts = Salts {
        password: [1; password::SALT_BYTES],
        scram: [[2; scram::SALT_BYTES], [3; scram::SALT_BYTES]],
    };

    fn user(password: &[u8]) -> User {
        let mut user = User {
            groups: vec!["sensors".into()],
            attributes: [("site".into(), "a".into())].into(),
            note: "for tests".into(),
            created: Millis(1),
            ..User::default()
        };
        let set = user.set_password(password, &SALTS, COSTS, Millis(2));
        set.expect("a password");
        user
    }

    #[test]
    fn a_user_is_read_again() {
        let user = user(b"pencil");
        let again = User::decode(&user.encode()).expect("a user");
        assert!(again == user);
        assert!(again.verify(b"pencil") && !again.verify(b"Pencil"));
        for algorithm in Algorithm::ALL {
            let verifier = again.verifier(algorithm).expect("both are made");
            assert!(verifier.verify(b"pencil") && !verifier.verify(b"x"));
        }
        assert!(User::decode(b"\xff").is_err());
        let shown = format!("{again:?}");
        assert!(!shown.contains("argon2id"), "{shown}");
        let value = String::from_utf8_lossy(&user.encode()).into_owned();
        assert!(!value.contains("pencil"));
    }

    #[test]
    fn a_password_that_is_no_text_has_no_verifiers() {
        let user = user(b"\xff\xfe");
        assert!(user.verifiers.is_empty() && user.verify(b"\xff\xfe"));
        assert!(user.upgraded(b"\xff\xfe", &SALTS, COSTS).is_none());
    }

    #[test]
    fn what_was_imported_is_made_anew_when_the_password_is_known() {
        let sha_512 = "$6$AAECAwQFBgcICQoL$rRzn37trE3g/BjzdN2mmtKsUjbdiQp6JD9blv4UHWyEGk5h7UCh8xJCi6Kfnkhoq2n9xbnqkIfqD5tBAb7eLdQ==";
        let mut imported = user(b"x");
        let hash = PasswordHash::parse(sha_512).expect("a hash");
        imported.import(Some(hash), None, Millis(7));
        assert!(imported.verify(b"pencil") && !imported.verify(b"x"));
        assert!(imported.verifier(Algorithm::Sha256).is_none());
        let upgraded = imported.upgraded(b"pencil", &SALTS, COSTS).expect("anew");
        assert!(upgraded.verify(b"pencil"));
        assert_eq!(upgraded.verifiers.len(), 2);
        assert_eq!(upgraded.password_set, Millis(7), "it is the same password");
        assert!(upgraded.upgraded(b"pencil", &SALTS, COSTS).is_none());
        let verifier = upgraded.verifier(Algorithm::Sha512).cloned();
        imported.import(None, verifier, Millis(8));
        assert!(imported.verify(b"pencil") && !imported.verify(b"\xff"));
        assert!(imported.upgraded(b"pencil", &SALTS, COSTS).is_some());
        imported.import(None, None, Millis(9));
        assert!(!imported.verify(b"") && !imported.verify(b"pencil"));
    }

    #[test]
    fn what_a_user_may_have_is_bounded() {
        let mut user = user(b"pencil");
        assert_eq!(user.check(), Ok(()));
        for password in [vec![], vec![b'x'; 1025]] {
            let set = user.set_password(&password, &SALTS, COSTS, Millis(3));
            assert_eq!(set, Err(UserProblem::Password));
        }
        let cheap = Costs {
            scram_iterations: 1,
            ..COSTS
        };
        let set = user.set_password(b"x", &SALTS, cheap, Millis(3));
        assert_eq!(set, Err(UserProblem::Cost));
        assert!(user.verify(b"pencil"));
        for group in ["", "a\nb", &"x".repeat(257)] {
            user.groups = vec![group.into()];
            assert_eq!(user.check(), Err(UserProblem::Label));
        }
        user.groups = vec!["g".into(); 65];
        assert_eq!(user.check(), Err(UserProblem::Label));
        user.groups.clear();
        user.note = "x".repeat(1025).into();
        assert_eq!(user.check(), Err(UserProblem::Note));
    }

    #[test]
    fn names_are_as_saslprep_has_them() {
        assert!(is_name("anna") && is_name("a:b/ü") && is_name(&"x".repeat(256)));
        for name in ["", "a\u{AD}b", "a\0", "\u{2168}", &"x".repeat(257)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
