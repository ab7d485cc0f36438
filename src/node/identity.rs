//! What this node knows of who may connect, and the methods of authentication that rest on it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::auth::password::Cost;
use crate::auth::scram::Credentials;
use crate::auth::user::Costs;
use crate::auth::{Chain, Check};
use crate::base::places::Places;
use crate::base::time::elapsed_now;
use crate::config::{AuthConfig, Config};
use crate::connection::broker::Broker;
use crate::forward::directory::Directory;
use crate::identity::password::{OpenUntilUsers, PasswordCheck};
use crate::identity::pool::Pool;
use crate::identity::scram::{IsCurrent, ScramCheck};
use crate::identity::users::DirectoryUsers;
use crate::identity::{FailureLimits, Identity, IdentitySettings};
use crate::machine::tables::Backing;
use crate::replica::view::View;
use crate::router::Router;

/// What the methods of authentication have in common.
pub(super) struct Identities {
    pub(super) directory: Arc<Directory>,
    pub(super) identity: Arc<Identity>,
    pub(super) pool: Arc<Pool>,
    /// Log-ins whose passwords are hashed there, or wait for it.
    places: Arc<Places>,
    pub(super) costs: Costs,
    replaces_hashes: bool,
    /// The broker, once there is one.
    broker: Arc<OnceLock<Weak<Broker>>>,
}

/// What new hashes cost, as configured.
fn costs(config: &AuthConfig) -> Costs {
    Costs {
        password: Cost {
            memory_kib: config.password_memory_kib,
            passes: config.password_passes,
            lanes: 1,
        },
        scram_iterations: config.scram_iterations,
    }
}

fn settings(config: &AuthConfig) -> IdentitySettings {
    let exempt = config.failures_exempt.iter();
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let failures = FailureLimits {
        per_address: config.failures_per_address,
        per_user: config.failures_per_user,
        window: seconds(config.failures_window_s),
        pause: seconds(config.failures_pause_s),
        delay: Duration::from_millis(config.failure_delay_ms.into()),
        // What is no network is refused with the configuration.
        exempt: exempt.filter_map(|text| text.parse().ok()).collect(),
    };
    IdentitySettings::new(
        failures,
        config.flapping_connects,
        seconds(config.flapping_window_s),
        seconds(config.flapping_pause_s),
    )
}

/// Passwords that operators set may wait beside as many log-ins as may.
const OPERATORS: usize = 16;

/// Threads for passwords, if nothing is configured: half of the processors.
fn threads(config: &AuthConfig) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    match config.password_threads {
        0 => (processors / 2).max(1),
        threads => threads,
    }
}

impl Identities {
    /// Follows the directory of a replica.
    pub(super) fn start(
        config: &Config,
        directory: Directory,
        view: &View,
        router: Arc<Router>,
        backing: &Arc<dyn Backing>,
    ) -> Identities {
        let auth = &config.auth;
        let users = Arc::new(DirectoryUsers::new(backing.clone(), auth.scram_iterations));
        Identities {
            directory: Arc::new(directory),
            identity: Identity::start(&settings(auth), users, view, router, backing),
            pool: Arc::new(Pool::new(threads(auth), auth.password_queue + OPERATORS)),
            places: Places::new(threads(auth) + auth.password_queue, &auth.failures_exempt),
            costs: costs(auth),
            replaces_hashes: auth.replace_hashes,
            broker: Arc::default(),
        }
    }

    /// There is a broker.
    pub(super) fn attach(&self, broker: &Arc<Broker>) {
        // It is called once.
        let _ = self.broker.set(Arc::downgrade(broker));
    }

    /// Whether this node knows everything that was answered before.
    fn is_current(&self) -> IsCurrent {
        let broker = self.broker.clone();
        Arc::new(move || {
            let broker = broker.get().and_then(Weak::upgrade);
            broker.is_none_or(|broker| broker.state.routing_lease().is_valid_at(elapsed_now()))
        })
    }

    /// User name and password of CONNECT.
    pub(super) fn password(&self) -> Arc<dyn Check> {
        Arc::new(PasswordCheck {
            users: self.identity.users.clone(),
            pool: self.pool.clone(),
            places: self.places.clone(),
            directory: self.directory.clone(),
            costs: self.costs,
            replaces_hashes: self.replaces_hashes,
            is_current: self.is_current(),
        })
    }

    /// SCRAM, with the users of a file if there is one.
    pub(super) fn scram(&self, file: Option<Arc<Credentials>>) -> Arc<dyn Check> {
        let users = self.identity.users.clone();
        Arc::new(ScramCheck::new(users, file, self.is_current()))
    }

    /// What a listener asks of its clients that says nothing of it: with a file, everybody has to log in; without, as
    /// soon as there is a user.
    pub(super) fn default_chain(&self, file: Option<Arc<Credentials>>) -> Chain {
        let is_open = file.is_none();
        let mut checks = vec![self.password(), self.scram(file)];
        if is_open {
            let users = self.identity.users.clone();
            checks.push(Arc::new(OpenUntilUsers { users }));
        }
        Chain::new(checks)
    }
}
