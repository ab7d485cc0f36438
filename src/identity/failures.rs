//! Who fails to log in: the answer is delayed, and who fails too often is not listened to for a time.
//!
//! Addresses and user names are counted apart. One user of an address can't lock the others of that address out unless
//! it fails as often as an address may; and nobody can lock a user out of an address from which that user has logged in
//! before.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::Mutex;

use super::applicant::Applicant;
use super::counters::{Bound, Counters};
use crate::auth::Denial;
use crate::base::time::Elapsed;
use crate::codec::ReasonCode;

/// The longest delay of an answer.
const LONGEST_DELAY: Duration = Duration::from_secs(4);

/// Longest user name that is counted as it is, bytes; of a longer one this is the beginning.
const LONGEST_NAME: usize = 256;

/// Length of the network of an IPv6 address that counts as one client: what one customer gets.
const IPV6_CLIENT: u8 = 64;

/// How long it is remembered that a user has logged in from an address.
const TRUSTED: Duration = Duration::from_secs(30 * 24 * 3600);

/// How often log-ins may fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureLimits {
    /// Of one address, in a window. 0: as often as they like.
    pub per_address: u32,
    /// Of one user name, in a window. 0: as often as they like.
    pub per_user: u32,
    /// How long a window lasts.
    pub window: Duration,
    /// How long an address, or a name, is not listened to after more.
    pub pause: Duration,
    /// How long the first failure's answer waits. Each further one in the window waits twice as long, up to 4 s.
    pub delay: Duration,
    /// Addresses that are neither counted nor delayed.
    pub exempt: Vec<IpNet>,
}

struct Tables {
    addresses: Counters<IpAddr>,
    users: Counters<Box<str>>,
    /// Users that have logged in from an address.
    trusted: Counters<(Box<str>, IpAddr)>,
}

/// The failures of this node's clients.
pub(super) struct Failures {
    limits: FailureLimits,
    tables: Mutex<Tables>,
}

/// What counts as one client's address.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let mask = u128::MAX << (128 - IPV6_CLIENT);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

fn name_of(user: &str) -> Box<str> {
    let mut end = user.len().min(LONGEST_NAME);
    while !user.is_char_boundary(end) {
        end -= 1;
    }
    user[..end].into()
}

impl Failures {
    pub(super) fn new(limits: FailureLimits) -> Failures {
        let bound = |most| Bound {
            most: match most {
                0 => u32::MAX,
                most => most,
            },
            window: limits.window,
            pause: limits.pause,
        };
        let always = Bound {
            most: u32::MAX,
            window: TRUSTED,
            pause: Duration::ZERO,
        };
        let tables = Tables {
            addresses: Counters::new(bound(limits.per_address)),
            users: Counters::new(bound(limits.per_user)),
            trusted: Counters::new(always),
        };
        Failures {
            limits,
            tables: Mutex::new(tables),
        }
    }

    /// The address that is counted. Who comes through a Unix socket is on this machine already.
    fn counted(&self, applicant: Applicant<'_>) -> Option<IpAddr> {
        let address = applicant.address?.to_canonical();
        let is_exempt = self.limits.exempt.iter().any(|net| net.contains(&address));
        (!is_exempt).then(|| client_of(address))
    }

    /// Listens to an applicant, or refuses it.
    pub(super) fn admit(&self, applicant: Applicant<'_>, now: Elapsed) -> Result<(), Denial> {
        let Some(address) = self.counted(applicant) else {
            return Ok(());
        };
        let tables = self.tables.lock();
        let refuse = |detail: &'static str| {
            Err(Denial {
                reason: ReasonCode::QuotaExceeded,
                text: "too many log-ins have failed",
                detail: detail.into(),
            })
        };
        if tables.addresses.paused(&address, now).is_some() {
            return refuse("too many log-ins of this address have failed");
        }
        let Some(user) = applicant.user.map(name_of) else {
            return Ok(());
        };
        let is_paused = tables.users.paused(&user, now).is_some();
        if is_paused && tables.trusted.known(&(user, address), now) == 0 {
            return refuse("too many log-ins with this user name have failed");
        }
        Ok(())
    }

    /// Counts a failure. Returns how long the answer waits.
    pub(super) fn failed(&self, applicant: Applicant<'_>, now: Elapsed) -> Duration {
        let Some(address) = self.counted(applicant) else {
            return Duration::ZERO;
        };
        let mut tables = self.tables.lock();
        tables.addresses.count(&address, now);
        let mut count = tables.addresses.known(&address, now);
        if let Some(user) = applicant.user.map(name_of) {
            tables.users.count(&user, now);
            count = count.max(tables.users.known(&user, now));
        }
        let doublings = count.saturating_sub(1).min(16);
        let delay = self.limits.delay.saturating_mul(1 << doublings);
        delay.min(LONGEST_DELAY)
    }

    /// Remembers from where a user logs in.
    pub(super) fn succeeded(&self, applicant: Applicant<'_>, now: Elapsed) {
        if let Some(address) = self.counted(applicant)
            && let Some(user) = applicant.user.map(name_of)
        {
            self.tables.lock().trusted.count(&(user, address), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> FailureLimits {
        FailureLimits {
            per_address: 5,
            per_user: 3,
            window: Duration::from_secs(60),
            pause: Duration::from_secs(300),
            delay: Duration::from_millis(100),
            exempt: vec!["127.0.0.0/8".parse().expect("a network")],
        }
    }

    fn from<'a>(address: &str, user: &'a str) -> Applicant<'a> {
        Applicant {
            client_id: "c",
            user: Some(user),
            address: Some(address.parse().expect("an address")),
        }
    }

    fn at(seconds: u64) -> Elapsed {
        Elapsed::default().plus(Duration::from_secs(seconds))
    }

    #[test]
    fn an_address_that_fails_too_often_is_not_listened_to() {
        let failures = Failures::new(limits());
        for number in 0..6 {
            let user = number.to_string();
            assert!(failures.admit(from("10.0.0.1", &user), at(1)).is_ok());
            failures.failed(from("10.0.0.1", &user), at(1));
        }
        assert!(failures.admit(from("10.0.0.1", "x"), at(2)).is_err());
        assert!(failures.admit(from("::ffff:10.0.0.1", "x"), at(2)).is_err());
        assert!(failures.admit(from("10.0.0.2", "x"), at(2)).is_ok());
        assert!(failures.admit(from("10.0.0.1", "x"), at(301)).is_ok());
    }

    #[test]
    fn a_name_that_fails_too_often_is_not_listened_to_but_where_it_is_known() {
        let failures = Failures::new(limits());
        failures.succeeded(from("10.0.1.1", "anna"), at(0));
        for number in 0..4 {
            let address = format!("10.0.0.{number}");
            failures.failed(from(&address, "anna"), at(1));
        }
        assert!(failures.admit(from("10.0.9.9", "anna"), at(2)).is_err());
        assert!(failures.admit(from("10.0.9.9", "berta"), at(2)).is_ok());
        assert!(failures.admit(from("10.0.1.1", "anna"), at(2)).is_ok());
    }

    #[test]
    fn each_failure_waits_twice_as_long_as_the_one_before() {
        let failures = Failures::new(limits());
        let mut delays = Vec::new();
        for number in 0..8 {
            let address = format!("10.0.0.{number}");
            delays.push(failures.failed(from(&address, "anna"), at(1)).as_millis());
        }
        assert_eq!(delays[..3], [100, 200, 400]);
        assert!(
            delays
                .iter()
                .all(|delay| *delay <= LONGEST_DELAY.as_millis())
        );
        assert_eq!(
            failures.failed(from("10.1.0.1", "x"), at(1)).as_millis(),
            100
        );
    }

    #[test]
    fn who_is_exempt_or_local_is_not_counted() {
        let failures = Failures::new(limits());
        let unix = Applicant {
            address: None,
            ..from("127.0.0.1", "anna")
        };
        for _ in 0..100 {
            assert_eq!(
                failures.failed(from("127.0.0.1", "anna"), at(1)),
                Duration::ZERO
            );
            assert_eq!(failures.failed(unix, at(1)), Duration::ZERO);
        }
        assert!(failures.admit(from("127.0.0.1", "anna"), at(1)).is_ok());
        assert!(failures.admit(from("10.0.0.1", "anna"), at(1)).is_ok());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_client() {
        let failures = Failures::new(limits());
        for number in 0..6 {
            let (address, user) = (format!("2001:db8::{number}"), number.to_string());
            failures.failed(from(&address, &user), at(1));
        }
        assert!(failures.admit(from("2001:db8::ffff", "x"), at(1)).is_err());
        assert!(failures.admit(from("2001:db8:0:1::1", "x"), at(1)).is_ok());
    }

    #[test]
    fn without_limits_everybody_may_try_for_ever() {
        let failures = Failures::new(FailureLimits {
            per_address: 0,
            per_user: 0,
            delay: Duration::ZERO,
            ..limits()
        });
        for _ in 0..10_000 {
            assert_eq!(
                failures.failed(from("10.0.0.1", "x"), at(1)),
                Duration::ZERO
            );
        }
        assert!(failures.admit(from("10.0.0.1", "x"), at(1)).is_ok());
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = "ü".repeat(200);
        assert_eq!(name_of(&name).len(), 256);
        assert_eq!(name_of(&format!("x{name}")).len(), 255);
    }
}
