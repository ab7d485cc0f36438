//! What the connections of devices and modules share on a node.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
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

/// Refusals of one address whose clients have proved to be somebody, which counts as no failure: beyond them each
/// further one waits, whatever its client id is. Who is let in does not.
const PROVED_REFUSALS: Bound = Bound {
    most: 50,
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
    /// How many retained messages one of its clients may have.
    pub(super) max_retained: u32,
    /// Nobody writes rules here: devices and modules are confined to their topics, and may do everything there.
    pub(in crate::connection) rules: Arc<RuleBook>,
    /// By a hash of the client id: whoever is refused has proved nothing, and may send an id of any length.
    refusals: Mutex<Counters<u64>>,
    hasher: RandomState,
    proved_refusals: Mutex<Counters<IpAddr>>,
}

impl Hub {
    /// The hub that is configured; `None` when there is none.
    pub(crate) fn new(config: &HubConfig, credentials: Arc<HubCredentials>) -> Option<Arc<Hub>> {
        let hub = || {
            Arc::new(Hub {
                credentials,
                allow_plaintext: config.allow_plaintext,
                max_retained: config.max_retained,
                rules: Arc::default(),
                refusals: Mutex::new(Counters::new(REFUSALS)),
                hasher: RandomState::new(),
                proved_refusals: Mutex::new(Counters::new(PROVED_REFUSALS)),
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

    /// Counts a client that is refused; with its address, if it has proved to be somebody and its address is counted.
    /// Returns how long its answer is to wait.
    pub(in crate::connection) fn refused(
        &self,
        client_id: &str,
        proved_at: Option<IpAddr>,
        now: Elapsed,
    ) -> Duration {
        let name = self.hasher.hash_one(client_id);
        let by_name = self.refusals.lock().count(&name, now);
        let count_address = |address| self.proved_refusals.lock().count(&address, now);
        match by_name.or(proved_at.and_then(count_address)) {
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
            .map(|number| hub.refused("a", None, at(number * 150)).as_secs())
            .collect();
        assert_eq!(delays, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(
            hub.refused("b", None, at(1_500)),
            Duration::ZERO,
            "another client"
        );
        assert_eq!(
            hub.refused("a", None, at(30_000)),
            Duration::ZERO,
            "it is over"
        );
        let long = "c".repeat(60_000);
        for (end, refusals, delay) in [("x", 6, 1), ("y", 1, 0)] {
            let id = format!("{long}{end}");
            let delays: Vec<_> = (0..refusals)
                .map(|_| hub.refused(&id, None, at(40_000)).as_secs())
                .collect();
            assert_eq!(delays.last(), Some(&delay), "long names are told apart");
        }
        for second in 0..20 {
            let seldom = at(100_000 + second * 2_500);
            assert_eq!(hub.refused("c", None, seldom), Duration::ZERO);
        }
    }

    #[test]
    fn a_genuine_token_does_not_ask_for_ever_under_ever_other_names() {
        let hub = Hub::for_tests();
        let [here, there]: [IpAddr; 2] =
            ["192.0.2.1", "192.0.2.2"].map(|it| it.parse().expect("it"));
        let at = Elapsed::default();
        let refused = |number: u32, address| hub.refused(&format!("d{number}"), address, at);
        for number in 0..50 {
            assert_eq!(refused(number, Some(here)), Duration::ZERO, "{number}");
        }
        assert_eq!(refused(50, Some(here)), REFUSAL_DELAY);
        assert_eq!(refused(51, Some(there)), Duration::ZERO, "another address");
        assert_eq!(refused(52, None), Duration::ZERO, "one that isn't counted");
    }
}
