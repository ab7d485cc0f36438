//! What the connections of devices and modules share on a node.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::acl::RuleBook;
use crate::base::time::Elapsed;
use crate::config::HubConfig;
use crate::identity::counters::{Bound, Counters};
use crate::login::hub::HubCredentials;
use crate::registry::user_name::{self, UserName, UserNameError};

/// Refusals of one client id, beyond which it has to wait for each further answer: some clients connect again without
/// any pause of their own.
const REFUSALS: Bound = Bound {
    most: 5,
    window: Duration::from_secs(10),
    pause: Duration::from_secs(10),
};

/// How long such an answer waits.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// The hub of a node.
pub(crate) struct Hub {
    /// What credentials are judged by.
    pub(crate) credentials: Arc<HubCredentials>,
    /// Whether its clients may do without TLS.
    pub(super) allow_plaintext: bool,
    /// Nobody writes rules here: devices and modules are confined to their topics, and may do everything there.
    pub(in crate::connection) rules: Arc<RuleBook>,
    /// By a hash of the client id: whoever is refused has proved nothing, and may send an id of any length.
    refusals: Mutex<Counters<u64>>,
    hasher: RandomState,
}

impl Hub {
    /// The hub that is configured; `None` when there is none.
    pub(crate) fn new(config: &HubConfig, credentials: Arc<HubCredentials>) -> Option<Arc<Hub>> {
        let hub = || {
            Arc::new(Hub {
                credentials,
                allow_plaintext: config.allow_plaintext,
                rules: Arc::default(),
                refusals: Mutex::new(Counters::new(REFUSALS)),
                hasher: RandomState::new(),
            })
        };
        (!config.host_names.is_empty()).then(hub)
    }

    /// Who a client says to be, if it speaks to the hub.
    pub(in crate::connection) fn claim<'a>(
        &self,
        user_name: Option<&'a str>,
    ) -> Option<Result<UserName<'a>, UserNameError>> {
        user_name::read(user_name?, &self.credentials.hosts)
    }

    /// Counts a client that is refused. Returns how long its answer is to wait.
    pub(in crate::connection) fn refused(&self, client_id: &str, now: Elapsed) -> Duration {
        let name = self.hasher.hash_one(client_id);
        match self.refusals.lock().count(&name, now) {
            None => Duration::ZERO,
            Some(_) => REFUSAL_DELAY,
        }
    }
}

#[cfg(test)]
impl Hub {
    /// A hub of this name, without files.
    pub(in crate::connection) fn named(name: &str, allow_plaintext: bool) -> Arc<Hub> {
        let config = HubConfig {
            host_names: vec![name.into()],
            allow_plaintext,
            ..HubConfig::default()
        };
        let credentials = HubCredentials::load(&config).expect("there are no files");
        Hub::new(&config, Arc::new(credentials)).expect("it has a name")
    }

    /// Some hub.
    pub(in crate::connection) fn for_tests() -> Arc<Hub> {
        Hub::named("hub.example.com", true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_refused_again_and_again_waits() {
        let hub = Hub::for_tests();
        let at = |ms| Elapsed::default().plus(Duration::from_millis(ms));
        let delays: Vec<u64> = (0..10u64)
            .map(|number| hub.refused("a", at(number * 150)).as_secs())
            .collect();
        assert_eq!(delays, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(
            hub.refused("b", at(1_500)),
            Duration::ZERO,
            "another client"
        );
        assert_eq!(hub.refused("a", at(30_000)), Duration::ZERO, "it is over");
        let long = "c".repeat(60_000);
        for (end, refusals, delay) in [("x", 6, 1), ("y", 1, 0)] {
            let id = format!("{long}{end}");
            let delays: Vec<_> = (0..refusals)
                .map(|_| hub.refused(&id, at(40_000)).as_secs())
                .collect();
            assert_eq!(delays.last(), Some(&delay), "long names are told apart");
        }
        for second in 0..20 {
            let seldom = at(100_000 + second * 2_500);
            assert_eq!(hub.refused("c", seldom), Duration::ZERO);
        }
    }
}
