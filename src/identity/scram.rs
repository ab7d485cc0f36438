//! Logging in by SCRAM as a user of the directory, or of `auth.scram_file`.
//!
//! Invariant: a node that may be behind refuses nobody for good: the user, or the password, may be new. It counts the
//! failure all the same, and tells everybody whom it refuses the same.

use std::sync::Arc;

use super::password::NOT_CURRENT;
use super::users::{DirectoryUsers, FileAndDirectory};
use crate::auth::scram::{Algorithm, Credentials, Server, Users};
use crate::auth::{Check, Client, Denial, Mechanism, Method, Negotiation, Step, Verdict};
use crate::codec::ReasonCode;

/// Whether this node knows everything that was answered before.
pub type IsCurrent = Arc<dyn Fn() -> bool + Send + Sync>;

/// The method of a chain, with a mechanism for each hash.
pub struct ScramCheck {
    users: Arc<DirectoryUsers>,
    file: Option<Arc<Credentials>>,
    servers: Vec<(Algorithm, Current)>,
    is_current: IsCurrent,
}

/// The mechanism, on a node that may be behind.
struct Current {
    server: Server,
    is_current: IsCurrent,
}

impl Mechanism for Current {
    fn name(&self) -> &'static str {
        self.server.name()
    }

    fn begin(&self, client: &Client<'_>) -> Box<dyn Negotiation> {
        Box::new(CurrentLogin {
            login: self.server.begin(client),
            is_current: self.is_current.clone(),
            was_current: true,
        })
    }
}

struct CurrentLogin {
    login: Box<dyn Negotiation>,
    is_current: IsCurrent,
    /// At every step before its verdict; the user is looked for in the first one.
    was_current: bool,
}

impl CurrentLogin {
    /// A refusal as the client is told it.
    fn told(&self, denial: Denial) -> Denial {
        match self.was_current {
            true => denial,
            false => Denial {
                // A code that DISCONNECT has, too.
                reason: ReasonCode::ServerBusy,
                text: NOT_CURRENT,
                ..denial
            },
        }
    }
}

impl Negotiation for CurrentLogin {
    fn step(&mut self, data: &[u8]) -> Step {
        self.was_current &= (self.is_current)();
        match self.login.step(data) {
            Step::Refused(denial) => Step::Refused(self.told(denial)),
            step => step,
        }
    }

    fn refusal(&self, detail: &'static str) -> Denial {
        self.told(self.login.refusal(detail))
    }

    fn claimed(&self) -> Option<&str> {
        self.login.claimed()
    }
}

impl ScramCheck {
    /// Whoever is in the directory, or in the file, can log in.
    pub fn new(
        users: Arc<DirectoryUsers>,
        file: Option<Arc<Credentials>>,
        is_current: IsCurrent,
    ) -> ScramCheck {
        let all: Arc<dyn Users> = match &file {
            None => users.clone(),
            Some(file) => Arc::new(FileAndDirectory {
                file: file.clone(),
                directory: users.clone(),
            }),
        };
        let servers = Algorithm::ALL.map(|algorithm| {
            let current = Current {
                server: Server::new(algorithm, all.clone()),
                is_current: is_current.clone(),
            };
            (algorithm, current)
        });
        ScramCheck {
            users,
            file,
            servers: servers.into(),
            is_current,
        }
    }
}

impl Check for ScramCheck {
    fn method(&self) -> Method {
        Method::Scram
    }

    fn judge(&self, _client: &Client<'_>) -> Verdict {
        Verdict::NotApplicable
    }

    /// A method that nobody can log in with is not known here.
    fn mechanism(&self, name: &str) -> Option<&dyn Mechanism> {
        let mut servers = self.servers.iter();
        let (algorithm, server) = servers.find(|(algorithm, _)| algorithm.name() == name)?;
        let is_in_file = self.file.as_ref().is_some_and(|file| file.has(*algorithm));
        let may_be_known = is_in_file || self.users.exist() || !(self.is_current)();
        may_be_known.then_some(server)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::auth::ENTROPY_BYTES;
    use crate::auth::scram;
    use crate::machine::tables::Backing;

    #[test]
    fn a_node_that_is_behind_refuses_nobody_for_good() {
        let nobody: Arc<dyn Backing> =
            Arc::new(std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let users = Arc::new(DirectoryUsers::new(nobody, scram::LEAST_ITERATIONS));
        let is_current = Arc::new(AtomicBool::new(false));
        let asked = is_current.clone();
        let check = ScramCheck::new(users, None, Arc::new(move || asked.load(Ordering::Relaxed)));
        let name = Algorithm::Sha256.name();
        let refusal = |learns: bool| {
            let mechanism = check.mechanism(name)?;
            let mut login = mechanism.begin(&Client::default());
            let mut client = scram::Client::new("new", "pencil", &[3; ENTROPY_BYTES]);
            let client = client.as_mut().expect("plain names");
            let Step::Continue(challenge) = login.step(client.first().as_bytes()) else {
                panic!("a first message is answered");
            };
            assert_eq!(login.claimed(), Some("new"));
            let answer = client.answer(&challenge).expect("a challenge");
            // The user was looked for before.
            is_current.fetch_or(learns, Ordering::Relaxed);
            match login.step(answer.as_bytes()) {
                Step::Refused(denial) => Some(denial.reason),
                step => panic!("{step:?}"),
            }
        };
        assert_eq!(refusal(false), Some(ReasonCode::ServerBusy));
        assert_eq!(refusal(true), Some(ReasonCode::ServerBusy));
        assert_eq!(
            refusal(false),
            None,
            "there is nobody, so there is no such method"
        );
    }
}
