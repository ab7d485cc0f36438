//! What this node makes of the directory for its clients: who may log in with a password or by SCRAM, who is banned,
//! and which connections end when what their identity rests on changes. Beside it: who fails to log in, or connects, so
//! often that it has to wait.
//!
//! [`users`] and [`bans`] follow the directory, [`live`] knows the connections of this node, [`failures`] counts.
//! [`pool`] has the threads that hash passwords.
//!
//! Invariant: no thread that serves clients hashes a password.
//! Invariant: what is counted here is of this node alone, and bounded, whatever names and addresses clients come with.

mod applicant;
pub mod ban;
mod bans;
pub mod counters;
mod failures;
mod live;
pub mod password;
pub mod pool;
pub mod scram;
pub mod users;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use applicant::Applicant;
pub use failures::FailureLimits;

use crate::auth::{Denial, Guess, Principal};
use crate::base::ids::ConnectionId;
use crate::base::time::Elapsed;
use crate::codec::ReasonCode;
use crate::machine::tables::Backing;
use crate::replica::view::View;
use crate::router::Router;
use bans::Bans;
use counters::{Bound, Counters};
use failures::{Failures, cut, name_of};
use live::Live;
use users::DirectoryUsers;

/// Connects of the last time, by principal and client id.
type Flapping = Counters<(Box<str>, Box<str>)>;

/// What the operator has configured of all this.
#[derive(Clone, Debug)]
pub struct IdentitySettings {
    /// When log-ins fail.
    pub failures: FailureLimits,
    /// Log-ins of one principal with one client id in a window, and how long it has to wait after more of them. `None`:
    /// no bound.
    pub flapping: Option<Bound>,
}

impl IdentitySettings {
    /// So many log-ins of a principal with one client id in a window, and the time that it has to wait after more; 0:
    /// no bound.
    pub fn new(failures: FailureLimits, connects: u32, window: Duration, pause: Duration) -> Self {
        let bound = Bound {
            most: connects,
            window,
            pause,
        };
        IdentitySettings {
            failures,
            flapping: (connects > 0).then_some(bound),
        }
    }
}

/// What a node knows of who may connect.
pub struct Identity {
    /// The users of the directory.
    pub users: Arc<DirectoryUsers>,
    bans: Arc<Bans>,
    live: Arc<Live>,
    failures: Failures,
    /// By principal and client id, so that nobody can lock another one's client out.
    flapping: Option<Mutex<Flapping>>,
}

impl Identity {
    /// Follows the directory that `view` is of.
    pub fn start(
        settings: &IdentitySettings,
        users: Arc<DirectoryUsers>,
        view: &View,
        router: Arc<Router>,
        backing: &Arc<dyn Backing>,
    ) -> Arc<Identity> {
        let live = Arc::new(Live::new(router, backing.clone()));
        let bans = Arc::new(Bans::new(live.clone()));
        let observers = view.directory();
        observers.add(users.clone(), &**backing);
        // A ban is in force before the connections that it concerns are looked for.
        observers.add(bans.clone(), &**backing);
        observers.add(live.clone(), &**backing);
        Arc::new(Identity {
            users,
            bans,
            live,
            failures: Failures::new(settings.failures.clone()),
            flapping: settings
                .flapping
                .map(|bound| Mutex::new(Counters::new(bound))),
        })
    }

    /// Lets an applicant try to log in as who has this name, or refuses it.
    ///
    /// # Errors
    /// It is banned, it has failed too often, or it connects too often.
    pub fn admit(&self, applicant: Applicant<'_>, now: Elapsed) -> Result<(), Denial> {
        self.approach(applicant, now)?;
        self.listen(applicant, now)
    }

    /// As [`Identity::admit`], but how often somebody with this name has failed is not looked at: only where a password
    /// for it is shown does that say anything, see [`Identity::listen`].
    ///
    /// # Errors
    /// It is banned, its address has failed too often, or it connects too often.
    pub fn approach(&self, applicant: Applicant<'_>, now: Elapsed) -> Result<(), Denial> {
        self.check_bans(applicant)?;
        self.failures.admit(applicant.nameless(), now)?;
        let (Some(flapping), Some(user)) = (&self.flapping, applicant.user) else {
            return Ok(());
        };
        // It is not worth a proof. What it says of itself is not counted.
        let key = (name_of(user), cut(applicant.client_id));
        match flapping.lock().paused(&key, now) {
            None => Ok(()),
            Some(_) => Err(flaps()),
        }
    }

    /// Listens to an applicant that shows a password for its name, or refuses it.
    ///
    /// # Errors
    /// It has failed too often.
    pub fn listen(&self, applicant: Applicant<'_>, now: Elapsed) -> Result<(), Denial> {
        self.failures.admit(applicant, now)
    }

    /// Counts a log-in of an applicant that has proved who it is.
    ///
    /// # Errors
    /// It connects too often.
    pub fn count_log_in(
        &self,
        applicant: Applicant<'_>,
        principal: &Principal,
        now: Elapsed,
    ) -> Result<(), Denial> {
        let Some(flapping) = &self.flapping else {
            return Ok(());
        };
        if applicant.client_id.is_empty() {
            return Ok(());
        }
        let key = (cut(&principal.name), cut(applicant.client_id));
        match flapping.lock().count(&key, now) {
            None => Ok(()),
            Some(_) => Err(flaps()),
        }
    }

    /// Refuses an address, before anything else is known of a client: it is banned, or it has failed too often.
    ///
    /// # Errors
    /// Why.
    pub fn admit_address(&self, address: Option<IpAddr>, now: Elapsed) -> Result<(), Denial> {
        let nobody = Applicant {
            client_id: "",
            user: None,
            address,
        };
        self.check_bans(nobody)?;
        self.failures.admit(nobody, now)
    }

    /// What an address is counted as, if it is counted.
    pub fn counted(&self, address: Option<IpAddr>) -> Option<IpAddr> {
        self.failures.counted(Applicant {
            client_id: "",
            user: None,
            address,
        })
    }

    /// Refuses who is banned.
    ///
    /// # Errors
    /// It is banned.
    pub fn check_bans(&self, applicant: Applicant<'_>) -> Result<(), Denial> {
        match self.bans.judge(applicant) {
            None => Ok(()),
            Some(target) => Err(Denial {
                reason: ReasonCode::Banned,
                text: "this client is banned",
                detail: format!("banned: {target}").into(),
                guess: Guess::Nothing,
            }),
        }
    }

    /// An applicant is refused, and may have guessed something. Returns how long its answer is to wait.
    ///
    /// # Errors
    /// Too many have failed while it was judged: it is told that, and nothing of its own attempt.
    pub fn failed(
        &self,
        applicant: Applicant<'_>,
        guess: Guess,
        now: Elapsed,
    ) -> Result<Duration, Denial> {
        match guess {
            Guess::Nothing => Ok(Duration::ZERO),
            Guess::Credential => self.failures.failed(applicant.nameless(), now),
            Guess::Password => self.failures.failed(applicant, now),
        }
    }

    /// An applicant has proved to be this principal.
    ///
    /// # Errors
    /// Too many have failed while it was judged: it is told that, and nothing of its own attempt.
    pub fn succeeded(
        &self,
        applicant: Applicant<'_>,
        principal: &Principal,
        now: Elapsed,
    ) -> Result<(), Denial> {
        let applicant = match principal.method.asks_for_password() {
            true => applicant,
            false => applicant.nameless(),
        };
        // The name that the password was asked of, which need not be that of the principal.
        let trusted = applicant.user.map(name_of);
        self.failures.succeeded(applicant, trusted.as_deref(), now)
    }

    /// Has a connection ended when what its principal rests on changes, or when it is banned, until it is
    /// [unregistered](Identity::unregister). To be called before its session is opened: what changes later ends it.
    ///
    /// # Errors
    /// It is banned already.
    pub fn register(
        &self,
        connection: ConnectionId,
        client_id: Arc<str>,
        address: Option<IpAddr>,
        principal: &Principal,
    ) -> Result<(), Denial> {
        let user = (!principal.is_anonymous()).then_some(&*principal.name);
        self.live
            .register(connection, client_id.clone(), address, principal);
        self.check_bans(Applicant {
            client_id: &client_id,
            user,
            address,
        })
    }

    /// From where a client of this node is connected; `None` if it is not, or over a Unix socket.
    pub fn address_of(&self, connection: ConnectionId, client_id: &str) -> Option<IpAddr> {
        self.live.address_of(connection, client_id)
    }

    /// The client of a connection has proved anew who it is.
    pub fn prove(&self, connection: ConnectionId, principal: &Principal) {
        self.live.prove(connection, principal);
    }

    /// Who a client would prove to be now that has proved to be this user of the directory; `None` if it could not.
    pub fn renewed(&self, principal: &Principal) -> Option<Principal> {
        let known = self.users.find(&principal.name).ok()?;
        let user = &known.user;
        let renewed = || user.principal(&known.name, known.version, principal.method);
        (!user.disabled).then(renewed)
    }

    /// A connection has ended.
    pub fn unregister(&self, connection: ConnectionId) {
        self.live.unregister(connection);
    }
}

fn flaps() -> Denial {
    Denial {
        reason: ReasonCode::QuotaExceeded,
        text: "this client connects too often",
        detail: "the client id has connected too often".into(),
        guess: Guess::Nothing,
    }
}

#[cfg(test)]
impl Identity {
    /// As if the directory had this ban.
    pub(crate) fn ban(&self, target: &ban::Target) {
        use crate::replica::directory::DirectoryObserver as _;
        let entry = crate::base::proto::state::DirectoryEntry::default();
        let kind = crate::base::directory::Kind::Ban;
        self.bans.changed(kind, &target.to_string(), Some(&entry));
    }

    /// Of an empty directory. A name may fail three times in a minute.
    pub(crate) fn for_tests(
        view: &View,
        router: Arc<Router>,
        backing: &Arc<dyn Backing>,
    ) -> Arc<Identity> {
        let failures = FailureLimits {
            per_address: 0,
            per_user: 3,
            window: Duration::from_secs(60),
            pause: Duration::from_secs(60),
            delay: Duration::from_millis(100),
            exempt: Vec::new(),
        };
        let settings = IdentitySettings::new(failures, 0, Duration::ZERO, Duration::ZERO);
        Identity::for_tests_with(&settings, view, router, backing)
    }

    /// The same with other bounds.
    pub(crate) fn for_tests_with(
        settings: &IdentitySettings,
        view: &View,
        router: Arc<Router>,
        backing: &Arc<dyn Backing>,
    ) -> Arc<Identity> {
        let users = Arc::new(DirectoryUsers::new(
            backing.clone(),
            crate::auth::scram::DEFAULT_ITERATIONS,
        ));
        Identity::start(settings, users, view, router, backing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Method;

    #[test]
    fn nobody_locks_another_ones_client_out() {
        let backing: Arc<dyn Backing> =
            Arc::new(std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let outboxes = Arc::new(crate::forward::outbox::Outboxes::default());
        let router = Router::new(crate::base::ids::NodeId(1), Arc::default(), outboxes);
        let mut identity = Identity::for_tests(&View::default(), router, &backing);
        let second = Duration::from_secs(1);
        let bound = Bound {
            most: 3,
            window: 60 * second,
            pause: 60 * second,
        };
        let is_alone = Arc::get_mut(&mut identity).expect("nobody else has it");
        is_alone.flapping = Some(Mutex::new(Counters::new(bound)));
        let now = Elapsed::default().plus(second);
        let of = |user| Applicant {
            client_id: "press-1",
            user: Some(user),
            address: None,
        };
        // Strangers get no further than to be admitted, whatever they say of themselves.
        for _ in 0..10 {
            assert!(identity.admit(of("anna"), now).is_ok());
        }
        let log_in = |user| {
            let principal = Principal::new(user, Method::Password);
            identity.count_log_in(of(user), &principal, now)
        };
        for _ in 0..10 {
            let _ = log_in("berta");
        }
        assert!(log_in("berta").is_err() && identity.admit(of("berta"), now).is_err());
        assert!(identity.admit(of("anna"), now).is_ok());
        let log_ins: Vec<bool> = (0..4).map(|_| log_in("anna").is_ok()).collect();
        assert_eq!(log_ins, [true, true, true, false]);
    }
}
