//! What this node makes of the directory for its clients: who may log in with a password or by SCRAM, who is banned,
//! and which connections end when what their identity rests on changes. Beside it: who fails to log in, or connects, so
//! often that it has to wait.
//!
//! [`users`] and [`bans`] follow the directory, [`live`] knows the connections of this node, [`failures`] and
//! [`flapping`] count. [`pool`] has the threads that hash passwords.
//!
//! Invariant: no thread that serves clients hashes a password.
//! Invariant: what is counted here is of this node alone, and bounded, whatever names and addresses clients come with.

mod applicant;
pub mod ban;
mod bans;
mod counters;
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

use crate::auth::{Denial, Principal};
use crate::base::ids::ConnectionId;
use crate::base::time::Elapsed;
use crate::codec::ReasonCode;
use crate::machine::tables::Backing;
use crate::replica::applier::View;
use crate::router::Router;
use bans::Bans;
use counters::{Bound, Counters};
use failures::Failures;
use live::Live;
use users::DirectoryUsers;

/// What the operator has configured of all this.
#[derive(Clone, Debug)]
pub struct IdentitySettings {
    /// When log-ins fail.
    pub failures: FailureLimits,
    /// CONNECT packets of one client id in a window, and how long it has to wait after more of them. `None`: no bound.
    pub flapping: Option<Bound>,
}

impl IdentitySettings {
    /// So many connects of a client id in a window, and the time that it has to wait after more; 0: no bound.
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
    flapping: Option<Mutex<Counters<Box<str>>>>,
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

    /// Lets an applicant try to log in, or refuses it.
    ///
    /// # Errors
    /// It is banned, it has failed too often, or it connects too often.
    pub fn admit(&self, applicant: Applicant<'_>, now: Elapsed) -> Result<(), Denial> {
        self.check_bans(applicant)?;
        self.failures.admit(applicant, now)?;
        let Some(flapping) = &self.flapping else {
            return Ok(());
        };
        if applicant.client_id.is_empty() {
            return Ok(());
        }
        match flapping.lock().count(&applicant.client_id.into(), now) {
            None => Ok(()),
            Some(_) => Err(Denial {
                reason: ReasonCode::QuotaExceeded,
                text: "this client connects too often",
                detail: "the client id has connected too often".into(),
            }),
        }
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
            }),
        }
    }

    /// An applicant has not proved who it is. Returns how long its answer is to wait.
    pub fn failed(&self, applicant: Applicant<'_>, now: Elapsed) -> Duration {
        self.failures.failed(applicant, now)
    }

    /// An applicant has proved who it is.
    pub fn succeeded(&self, applicant: Applicant<'_>, now: Elapsed) {
        self.failures.succeeded(applicant, now);
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

    /// The client of a connection has proved anew who it is.
    pub fn prove(&self, connection: ConnectionId, principal: &Principal) {
        self.live.prove(connection, principal);
    }

    /// A connection has ended.
    pub fn unregister(&self, connection: ConnectionId) {
        self.live.unregister(connection);
    }
}

#[cfg(test)]
impl Identity {
    /// Of an empty directory, without limits.
    pub(crate) fn for_tests(
        view: &View,
        router: Arc<Router>,
        backing: &Arc<dyn Backing>,
    ) -> Arc<Identity> {
        let failures = FailureLimits {
            per_address: 0,
            per_user: 0,
            window: Duration::ZERO,
            pause: Duration::ZERO,
            delay: Duration::ZERO,
            exempt: Vec::new(),
        };
        let settings = IdentitySettings::new(failures, 0, Duration::ZERO, Duration::ZERO);
        let users = Arc::new(DirectoryUsers::new(
            backing.clone(),
            crate::auth::scram::DEFAULT_ITERATIONS,
        ));
        Identity::start(&settings, users, view, router, backing)
    }
}
