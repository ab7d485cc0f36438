//! The users of the directory, as this node looks them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::auth::scram::{Algorithm, Credentials, Found, SALT_BYTES, Users, Verifier, prepare};
use crate::auth::user::{User, is_name};
use crate::auth::{Method, Principal};
use crate::base::directory::Kind;
use crate::base::proto::state::DirectoryEntry;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::replica::directory::DirectoryObserver;

/// Name of the secret from which verifiers of unknown users are made up: the same on all nodes.
pub const DECOY_SECRET: &str = "scram-decoys";

/// Bytes of that secret.
pub const DECOY_SECRET_BYTES: usize = 32;

/// A user with the version of its entry.
pub struct Known {
    /// The name as it is kept.
    pub name: Box<str>,
    /// The version.
    pub version: u64,
    /// The user.
    pub user: User,
}

/// The users of the directory.
pub struct DirectoryUsers {
    backing: Arc<dyn Backing>,
    has_any: AtomicBool,
    scram_iterations: u32,
}

impl DirectoryUsers {
    /// Users of a state; new ones get verifiers of so many iterations.
    pub fn new(backing: Arc<dyn Backing>, scram_iterations: u32) -> DirectoryUsers {
        DirectoryUsers {
            has_any: AtomicBool::new(has_any(&*backing)),
            backing,
            scram_iterations,
        }
    }

    /// Whether there is any user.
    pub fn exist(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// The user of this name.
    ///
    /// # Errors
    /// Why there is none, for the log.
    pub fn find(&self, name: &str) -> Result<Known, &'static str> {
        let name = prepare(name).filter(|name| is_name(name));
        let Some(name) = name else {
            return Err("no user can have this name");
        };
        let entry = read::directory_entry(&*self.backing, Kind::User, &name);
        let entry = entry.ok_or("there is no such user")?;
        match User::decode(&entry.value) {
            Ok(user) => Ok(Known {
                name: name.into(),
                version: entry.version,
                user,
            }),
            Err(error) => {
                tracing::error!(name = &*name, %error, "a user can't be read");
                Err("the user can't be read")
            }
        }
    }

    /// A verifier for somebody who is not known.
    fn made_up(&self, algorithm: Algorithm, name: &str) -> Verifier {
        let secret = read::directory_entry(&*self.backing, Kind::Secret, DECOY_SECRET);
        let secret = secret.map(|entry| entry.value).unwrap_or_default();
        let iterations = self.scram_iterations;
        Verifier::made_up(algorithm, &secret, name, iterations, SALT_BYTES)
    }
}

fn has_any(backing: &dyn Backing) -> bool {
    let (first, _) = read::directory_page(backing, Kind::User, "", 1, read::ListBudget::default());
    !first.is_empty()
}

impl DirectoryObserver for DirectoryUsers {
    fn changed(&self, kind: Kind, _name: &str, entry: Option<&DirectoryEntry>) {
        if kind == Kind::User {
            let is_there = entry.is_some() || has_any(&*self.backing);
            self.has_any.store(is_there, Ordering::Relaxed);
        }
    }

    fn reset(&self, backing: &dyn Backing) {
        self.has_any.store(has_any(backing), Ordering::Relaxed);
    }
}

/// What is found of a user of the directory.
fn judged(known: &Known) -> Result<Principal, &'static str> {
    match known.user.disabled {
        true => Err("the user is disabled"),
        false => Ok(known
            .user
            .principal(&known.name, known.version, Method::Scram)),
    }
}

impl Users for DirectoryUsers {
    fn find(&self, algorithm: Algorithm, name: &str) -> Found {
        // Made in every case, so that known users take no less time.
        let made_up = self.made_up(algorithm, name);
        let found = DirectoryUsers::find(self, name);
        let known = match &found {
            Ok(known) => known,
            Err(why) => {
                return Found {
                    verifier: made_up,
                    principal: Err(*why),
                };
            }
        };
        match known.user.verifier(algorithm) {
            Some(verifier) => Found {
                verifier: verifier.clone(),
                principal: judged(known),
            },
            None => Found {
                verifier: made_up,
                principal: Err("the user has no verifier for this method yet"),
            },
        }
    }
}

/// The users of a file, and those of the directory.
pub struct FileAndDirectory {
    /// Those of the file, which go first.
    pub file: Arc<Credentials>,
    /// The others.
    pub directory: Arc<DirectoryUsers>,
}

impl Users for FileAndDirectory {
    fn find(&self, algorithm: Algorithm, name: &str) -> Found {
        let known = self
            .directory
            .exist()
            .then(|| Users::find(&*self.directory, algorithm, name));
        let of_file = Users::find(&*self.file, algorithm, name);
        match known {
            Some(known) if of_file.principal.is_err() => known,
            _ => of_file,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::auth::user::{Costs, Salts};
    use crate::base::time::Millis;
    use crate::machine::tables::Tables;

    /// A state with these users.
    pub(in crate::identity) fn state(users: &[(&str, &User)]) -> Arc<dyn Backing> {
        let nothing = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        let entries = users
            .iter()
            .map(|(name, user)| (Kind::User, *name, user.encode()));
        let secret = (Kind::Secret, DECOY_SECRET, vec![7; DECOY_SECRET_BYTES]);
        let mut tables = Tables::new(&nothing);
        read::put_directory(&mut tables, entries.chain([secret]));
        let changes = tables.into_changes().into_iter();
        let rows = changes.filter_map(|(key, change)| Some((key, change.value()?.to_vec())));
        Arc::new(rows.collect::<BTreeMap<_, _>>())
    }

    /// A user with this password.
    pub(in crate::identity) fn user(password: &str) -> User {
        let costs = Costs {
            password: crate::auth::password::Cost {
                memory_kib: 8,
                passes: 1,
                lanes: 1,
            },
            scram_iterations: 4096,
        };
        let salts = Salts {
            password: [1; 16],
            scram: [[2; 16], [3; 16]],
        };
        let mut user = User::default();
        let set = user.set_password(password.as_bytes(), &salts, costs, Millis(1));
        set.expect("a password");
        user
    }

    #[test]
    fn unknown_and_disabled_users_look_like_others() {
        let (anna, mut berta) = (user("a"), user("b"));
        berta.disabled = true;
        let backing = state(&[("anna", &anna), ("berta", &berta)]);
        let users = DirectoryUsers::new(backing, 4096);
        assert!(users.exist());
        for algorithm in Algorithm::ALL {
            let found = |name: &str| Users::find(&users, algorithm, name);
            let known = found("anna");
            let principal = known.principal.expect("anna may log in");
            assert_eq!((&*principal.name, principal.proofs.len()), ("anna", 1));
            assert!(known.verifier.verify(b"a"));
            assert!(found("berta").verifier.verify(b"b"));
            assert_eq!(found("berta").principal.err(), Some("the user is disabled"));
            let (nobody, again) = (found("nobody"), found("nobody"));
            assert!(nobody.principal.is_err());
            assert_eq!(nobody.verifier, again.verifier, "the same each time");
            assert_ne!(nobody.verifier, found("nobody else").verifier);
        }
        assert!(
            DirectoryUsers::find(&users, "an\u{AD}na").is_ok(),
            "names are prepared"
        );
        assert!(DirectoryUsers::find(&users, "\u{7}").is_err());
    }

    #[test]
    fn it_is_known_whether_there_is_anybody() {
        let users = DirectoryUsers::new(state(&[]), 4096);
        assert!(!users.exist());
        let entry = DirectoryEntry::default();
        users.changed(Kind::Ban, "x", Some(&entry));
        assert!(!users.exist());
        users.changed(Kind::User, "x", Some(&entry));
        assert!(users.exist());
        users.changed(Kind::User, "x", None);
        assert!(!users.exist());
    }
}
