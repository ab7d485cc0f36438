//! Logging in with the user name and the password of CONNECT, which MQTT 3 clients have nothing else for.
//!
//! Invariant: every attempt takes one Argon2id hash, whether the user is known or not, and whatever is kept in place of
//! the password.

use std::hint::black_box;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::pool::Pool;
use super::users::{DirectoryUsers, Known};
use crate::auth::password::{Cost, PasswordHash, SALT_BYTES as PASSWORD_SALT_BYTES};
use crate::auth::scram;
use crate::auth::user::{Costs, Salts, User};
use crate::auth::{Check, Client, Denial, Method, Principal, Verdict};
use crate::base::directory::Kind;
use crate::base::places::Places;
use crate::codec::ReasonCode;
use crate::forward::directory::{Action, Change, Directory, Expected, Version};

/// Longest password that is hashed, bytes; a longer one is nobody's.
const LONGEST_PASSWORD: usize = 1024;

/// What the client is told, whatever is wrong.
const WRONG: &str = "the user name or the password is wrong";

/// What a client is told that a node refuses which may be behind.
pub(super) const NOT_CURRENT: &str = "this node has no contact with the cluster's majority";

/// Fresh salts for one user.
///
/// # Errors
/// When the system gives no random bytes.
pub fn salts() -> Result<Salts, getrandom::Error> {
    let mut salts = Salts {
        password: [0; PASSWORD_SALT_BYTES],
        scram: [[0; scram::SALT_BYTES]; scram::Algorithm::ALL.len()],
    };
    getrandom::fill(&mut salts.password)?;
    for salt in &mut salts.scram {
        getrandom::fill(salt)?;
    }
    Ok(salts)
}

/// The method of a chain.
pub struct PasswordCheck {
    /// Whoever may log in.
    pub users: Arc<DirectoryUsers>,
    /// Where passwords are hashed.
    pub pool: Arc<Pool>,
    /// Places for passwords that are hashed, or wait for it.
    pub places: Arc<Places>,
    /// The way to write what an imported user's hash is replaced by.
    pub directory: Arc<Directory>,
    /// What new hashes cost.
    pub costs: Costs,
    /// Whether hashes that are not like new ones are replaced at a log-in.
    pub replaces_hashes: bool,
    /// Whether this node knows everything that was answered before: a user may be new.
    pub is_current: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// What comes of an attempt.
enum Outcome {
    Wrong(&'static str),
    Right {
        principal: Box<Principal>,
        /// The user's entry as it is to be, if something is to be replaced.
        replaced: Option<Change>,
    },
}

impl Check for PasswordCheck {
    fn method(&self) -> Method {
        Method::Password
    }

    fn asks_password_of(&self, client: &Client<'_>) -> bool {
        client.user_name.is_some() && self.users.exist()
    }

    fn judge(&self, client: &Client<'_>) -> Verdict {
        let Some(name) = client.user_name else {
            return Verdict::NotApplicable;
        };
        // Before the user is looked for: what an old replica does not know is no answer for good.
        let was_current = (self.is_current)();
        if !self.users.exist() {
            // There is nothing to guess.
            return match was_current {
                true => Verdict::NotApplicable,
                false => Verdict::Refused(Denial {
                    text: NOT_CURRENT,
                    ..Denial::unavailable(NOT_CURRENT)
                }),
            };
        }
        let attempt = Attempt {
            found: self.users.find(name),
            password: Zeroizing::new(client.password.unwrap_or_default().to_vec()),
            costs: self.costs,
            replaces_hashes: self.replaces_hashes,
        };
        let Some(place) = self.places.take(client.address) else {
            let detail = "as many passwords, or as many of this address, wait to be hashed as may";
            return Verdict::Refused(Denial::busy(detail));
        };
        // The place is the job's, not the client's: a client that goes away leaves its job in the queue.
        let hashed = self.pool.run(move || {
            let outcome = attempt.judge();
            drop(place);
            outcome
        });
        let Ok(outcome) = hashed else {
            return Verdict::Refused(Denial::busy("as many passwords wait to be hashed as may"));
        };
        let directory = self.directory.clone();
        Verdict::Pending(Box::pin(async move {
            match outcome.await {
                Ok(Outcome::Right {
                    principal,
                    replaced,
                }) => {
                    if let Some(change) = replaced {
                        tokio::spawn(replace(directory, change));
                    }
                    Verdict::Accepted(principal)
                }
                Ok(Outcome::Wrong(why)) if was_current => Verdict::Refused(Denial {
                    text: WRONG,
                    ..Denial::new(why)
                }),
                // Counted like any other: it may have been a guess.
                Ok(Outcome::Wrong(why)) => Verdict::Refused(Denial {
                    reason: ReasonCode::ServerUnavailable,
                    text: NOT_CURRENT,
                    ..Denial::new(why)
                }),
                Err(_) => Verdict::Refused(Denial::busy("the password could not be hashed")),
            }
        }))
    }
}

/// Writes what an imported user's hash is replaced by. Somebody may have changed the user meanwhile: then that stands.
async fn replace(directory: Arc<Directory>, change: Change) {
    let name = change.name.clone();
    match directory.write_at_login(vec![change]).await {
        Ok(_) => tracing::info!(
            user = name,
            "the user's hash is replaced by an Argon2id hash"
        ),
        Err(error) => tracing::debug!(user = name, %error, "the user's hash is not replaced"),
    }
}

/// A password that is to be judged.
struct Attempt {
    found: Result<Known, &'static str>,
    password: Zeroizing<Vec<u8>>,
    costs: Costs,
    replaces_hashes: bool,
}

/// Takes as long as hashing a password does.
fn waste(password: &[u8], cost: Cost) {
    let length = password.len().min(LONGEST_PASSWORD);
    let hash = PasswordHash::new(&password[..length], &[0; PASSWORD_SALT_BYTES], cost);
    drop(black_box(hash));
}

impl Attempt {
    fn judge(self) -> Outcome {
        let (password, cost) = (&self.password[..], self.costs.password);
        let known = match self.found {
            Ok(known) if password.len() <= LONGEST_PASSWORD => known,
            Ok(_) => {
                waste(password, cost);
                return Outcome::Wrong("the password is longer than passwords are");
            }
            Err(why) => {
                waste(password, cost);
                return Outcome::Wrong(why);
            }
        };
        let user = &known.user;
        let is_right = user.verify(password);
        let is_argon2id = user
            .password
            .as_ref()
            .is_some_and(PasswordHash::is_argon2id);
        // What a hash is replaced by is an Argon2id hash, too.
        let is_replaced = is_right && self.replaces_hashes && !user.disabled;
        if !(is_argon2id || is_replaced) {
            waste(password, cost);
        }
        if !is_right {
            return Outcome::Wrong("the password is wrong");
        }
        if user.disabled {
            return Outcome::Wrong("the user is disabled");
        }
        let replaced = match self.replaces_hashes {
            true => replacement(user, &known, password, self.costs),
            false => None,
        };
        let principal = user.principal(&known.name, known.version, Method::Password);
        Outcome::Right {
            principal: Box::new(principal),
            replaced,
        }
    }
}

/// The same credential with everything that new users have, if something is missing.
fn replacement(user: &User, known: &Known, password: &[u8], costs: Costs) -> Option<Change> {
    let upgraded = user.upgraded(password, &salts().ok()?, costs)?;
    Some(Change {
        kind: Kind::User,
        name: known.name.to_string(),
        expected: Expected::Version(Version(known.version)),
        action: Action::Put {
            value: upgraded.encode().into(),
            expires_in_ms: None,
            keeps_version: true,
        },
    })
}

/// Nobody has asked for anything as long as there is no user: everybody is let in. Then nobody is any more who shows
/// nothing, also if this node has only learnt of the first user when the session was opened.
pub struct OpenUntilUsers {
    /// The users.
    pub users: Arc<DirectoryUsers>,
}

impl Check for OpenUntilUsers {
    fn method(&self) -> Method {
        Method::Anonymous
    }

    fn judge(&self, _client: &Client<'_>) -> Verdict {
        match self.users.exist() {
            false => Verdict::Accepted(Box::new(Principal::new("", Method::Anonymous))),
            true => Verdict::Refused(Denial {
                text: "this server asks for authentication",
                ..Denial::new("the cluster has users, so nobody is let in without a password")
            }),
        }
    }

    fn is_open(&self) -> bool {
        !self.users.exist()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::password::counted;
    use crate::base::time::Millis;

    const COSTS: Costs = Costs {
        password: Cost {
            memory_kib: 8,
            passes: 1,
            lanes: 1,
        },
        scram_iterations: scram::LEAST_ITERATIONS,
    };

    fn attempt(user: Option<&User>, password: &[u8], replaces_hashes: bool) -> Outcome {
        let known = user.map(|user| Known {
            name: "anna".into(),
            version: 5,
            user: user.clone(),
        });
        let attempt = Attempt {
            found: known.ok_or("there is no such user"),
            password: Zeroizing::new(password.to_vec()),
            costs: COSTS,
            replaces_hashes,
        };
        attempt.judge()
    }

    fn is_right(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Right { .. })
    }

    #[test]
    fn the_right_password_of_a_user_who_may_log_in_and_no_other() {
        let mut user = User::default();
        let salts = salts().expect("random bytes");
        let set = user.set_password(b"pencil", &salts, COSTS, Millis(1));
        set.expect("a password");
        let right = attempt(Some(&user), b"pencil", true);
        let Outcome::Right {
            principal,
            replaced,
        } = right
        else {
            panic!("it is the password");
        };
        assert_eq!((&*principal.name, principal.proofs[0].version), ("anna", 5));
        assert!(replaced.is_none(), "there is nothing to replace");
        for wrong in [&b""[..], b"Pencil", &[b'x'; 2000]] {
            assert!(!is_right(&attempt(Some(&user), wrong, true)));
        }
        assert!(!is_right(&attempt(None, b"pencil", true)));
        user.disabled = true;
        assert!(!is_right(&attempt(Some(&user), b"pencil", true)));
    }

    /// Nobody learns by the time that an answer takes who is a user, or who is disabled.
    #[test]
    fn every_attempt_that_is_refused_takes_one_argon2id_hash() {
        // "pencil", as mosquitto_passwd hashes it.
        let imported = "$7$101$AAECAwQFBgcICQoL$itntC8QS4iuE06UG7o0PxU0qM5UBFdNFBtAux6ya3Syz6oR19T2jx8EIwdBkk+3zME8\
                        xITagvpZst1brmEBXRQ==";
        let of_file = User {
            password: Some(PasswordHash::parse(imported).expect("a hash")),
            ..User::default()
        };
        let mut own = User::default();
        let set = own.set_password(b"pencil", &salts().expect("random bytes"), COSTS, Millis(1));
        set.expect("a password");
        let without = User::default();
        let disabled = |user: &User| User {
            disabled: true,
            ..user.clone()
        };
        let (own_off, of_file_off) = (disabled(&own), disabled(&of_file));
        assert!(is_right(&attempt(Some(&of_file), b"pencil", true)));
        let _ = counted::computed();
        let long = [b'x'; 2 * LONGEST_PASSWORD];
        for replaces_hashes in [false, true] {
            for (who, user, password) in [
                ("unknown", None, &b"pencil"[..]),
                ("unknown, a long password", None, &long),
                ("wrong", Some(&own), b"Pencil"),
                ("wrong, long", Some(&own), &long),
                ("wrong, none", Some(&own), b""),
                ("disabled", Some(&own_off), b"pencil"),
                ("disabled and wrong", Some(&own_off), b"Pencil"),
                ("imported, wrong", Some(&of_file), b"Pencil"),
                ("imported, disabled", Some(&of_file_off), b"pencil"),
                (
                    "imported, disabled and wrong",
                    Some(&of_file_off),
                    b"Pencil",
                ),
                ("without a password", Some(&without), b"pencil"),
            ] {
                assert!(
                    !is_right(&attempt(user, password, replaces_hashes)),
                    "{who}"
                );
                let work = counted::computed();
                assert_eq!(work, [COSTS.password], "{who}, {replaces_hashes}");
            }
        }
    }

    /// Whoever has the only thread busy from one address leaves room for the others, also when it hangs up: its jobs
    /// stay in the queue.
    #[tokio::test]
    async fn one_address_does_not_fill_the_queue() {
        use crate::base::ids::NodeId;
        use crate::identity::users::tests::{state, user};

        let pool = Arc::new(Pool::new(1, 8));
        let (go, gate) = std::sync::mpsc::channel::<()>();
        let held = pool.run(move || gate.recv().is_ok()).expect("a thread");
        let directory = Directory::new(NodeId(0), Arc::default(), Arc::default(), Arc::default());
        let users = state(&[("anna", &user("pencil"))]);
        let check = PasswordCheck {
            users: Arc::new(DirectoryUsers::new(users, scram::LEAST_ITERATIONS)),
            pool,
            places: Places::new(4, &[]),
            directory: Arc::new(directory),
            costs: COSTS,
            replaces_hashes: false,
            is_current: Arc::new(|| true),
        };
        let judge = |address: &str| {
            check.judge(&Client {
                user_name: Some("anna"),
                password: Some(b"pencil"),
                address: Some(address.parse().expect("an address")),
                ..Client::default()
            })
        };
        for _ in 0..2 {
            assert!(matches!(judge("192.0.2.1:1"), Verdict::Pending(_)));
        }
        let Verdict::Refused(denial) = judge("192.0.2.1:2") else {
            panic!("it has half of the places");
        };
        assert_eq!(denial.reason, ReasonCode::ServerBusy);
        let Verdict::Pending(other) = judge("192.0.2.2:1") else {
            panic!("there is room");
        };
        go.send(()).expect("the thread waits");
        assert_eq!(held.await, Ok(true));
        assert!(matches!(other.await, Verdict::Accepted(_)));
        assert!(
            matches!(judge("192.0.2.1:3"), Verdict::Pending(_)),
            "free again"
        );
    }

    /// Clients of a node that is cut off, in a cluster without users, come in when it is back, and were counted
    /// nowhere.
    #[test]
    fn nobody_guesses_a_password_where_there_is_no_user() {
        use crate::auth::{Chain, Guess};
        use crate::base::ids::NodeId;
        use crate::machine::tables::Backing;
        use std::sync::atomic::{AtomicBool, Ordering};

        let nobody: Arc<dyn Backing> =
            Arc::new(std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let users = Arc::new(DirectoryUsers::new(nobody, scram::LEAST_ITERATIONS));
        let directory = Directory::new(NodeId(0), Arc::default(), Arc::default(), Arc::default());
        let is_current = Arc::new(AtomicBool::new(false));
        let asked = is_current.clone();
        let check = PasswordCheck {
            users: users.clone(),
            pool: Arc::new(Pool::new(1, 1)),
            places: Places::new(2, &[]),
            directory: Arc::new(directory),
            costs: COSTS,
            replaces_hashes: false,
            is_current: Arc::new(move || asked.load(Ordering::Relaxed)),
        };
        let chain = Chain::new(vec![Arc::new(check), Arc::new(OpenUntilUsers { users })]);
        let client = Client {
            user_name: Some("fleet"),
            password: Some(b"pencil"),
            ..Client::default()
        };
        let judge = || {
            let paused = || Err(Denial::new("the name is paused"));
            let judged = futures::FutureExt::now_or_never(chain.judge(&client, &paused));
            judged.expect("nothing is hashed").map(drop)
        };
        let behind = judge().expect_err("the first user may be new");
        assert_eq!(behind.reason, ReasonCode::ServerBusy);
        assert_eq!(behind.guess, Guess::Nothing);
        is_current.store(true, Ordering::Relaxed);
        assert!(judge().is_ok());
    }

    #[test]
    fn an_imported_hash_is_replaced_under_the_same_version() {
        let text = "$7$101$AAECAwQFBgcICQoL$itntC8QS4iuE06UG7o0PxU0qM5UBFdNFBtAux6ya3Syz6oR19T2jx8EIwdBkk+3zME8xITagvpZst1brmEBXRQ==";
        let mut user = User::default();
        user.import_password(PasswordHash::parse(text).expect("a hash"), Millis(1));
        let kept = attempt(Some(&user), b"pencil", false);
        assert!(matches!(kept, Outcome::Right { replaced: None, .. }));
        let replaced = attempt(Some(&user), b"pencil", true);
        let Outcome::Right {
            replaced: Some(change),
            ..
        } = replaced
        else {
            panic!("it is replaced");
        };
        assert_eq!(change.expected, Expected::Version(Version(5)));
        let Action::Put {
            value,
            keeps_version: true,
            ..
        } = change.action
        else {
            panic!("who is logged in goes on");
        };
        let user = User::decode(&value).expect("a user");
        assert!(user.verify(b"pencil") && user.verifiers.len() == 2);
    }
}
