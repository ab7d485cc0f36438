//! Who fails to log in: the answer is delayed, and who fails too often is not listened to for a time.
//!
//! Addresses and user names are counted apart. One user of an address can't lock the others of that address out unless
//! it fails as often as an address may; and by guessing from elsewhere nobody can lock a user out of an address from
//! which that user has shown its password to this process before. A name is counted, and looked at, only where its
//! password may be guessed: who shows a token or a certificate is counted by its address alone, because many of them
//! may share a user name.
//!
//! Invariant: nobody hears more verdicts than may fail. An applicant is admitted before its proof is looked at, and
//! once more when the verdict is there: of many attempts that are begun at once, those that end behind the bound learn
//! nothing. Invariant: a user is counted under one name, whatever a client writes that is prepared to it (SASLprep).

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use parking_lot::Mutex;

use super::applicant::Applicant;
use super::counters::{Bound, Counters};
use crate::auth::scram::prepare;
use crate::auth::{Denial, Guess};
use crate::base::network::client_of;
use crate::base::time::Elapsed;
use crate::codec::ReasonCode;

/// The longest delay of an answer.
const LONGEST_DELAY: Duration = Duration::from_secs(4);

/// Longest user name that is counted as it is, bytes; of a longer one this is the beginning.
const LONGEST_NAME: usize = 256;

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

/// The name under which a user is counted: as users are looked up. One that nobody can have is counted as it is.
pub(super) fn name_of(user: &str) -> Box<str> {
    cut(&prepare(user).unwrap_or(user.into()))
}

/// As much of a name as is kept.
pub(super) fn cut(name: &str) -> Box<str> {
    name[..name.floor_char_boundary(LONGEST_NAME)].into()
}

fn refused(detail: &'static str) -> Denial {
    Denial {
        reason: ReasonCode::QuotaExceeded,
        text: "too many log-ins have failed",
        detail: detail.into(),
        guess: Guess::Nothing,
    }
}

impl Tables {
    /// Listens to an applicant at a counted address, or refuses it.
    fn admit(&self, address: IpAddr, user: Option<&str>, now: Elapsed) -> Result<(), Denial> {
        if self.addresses.paused(&address, now).is_some() {
            return Err(refused("too many log-ins of this address have failed"));
        }
        let Some(user) = user.map(name_of) else {
            return Ok(());
        };
        let is_paused = self.users.paused(&user, now).is_some();
        if is_paused && self.trusted.known(&(user, address), now) == 0 {
            return Err(refused("too many log-ins with this user name have failed"));
        }
        Ok(())
    }
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
    pub(super) fn counted(&self, applicant: Applicant<'_>) -> Option<IpAddr> {
        let address = applicant.address?.to_canonical();
        let is_exempt = self.limits.exempt.iter().any(|net| net.contains(&address));
        (!is_exempt).then(|| client_of(address))
    }

    /// Listens to an applicant, or refuses it.
    pub(super) fn admit(&self, applicant: Applicant<'_>, now: Elapsed) -> Result<(), Denial> {
        match self.counted(applicant) {
            Some(address) => self.tables.lock().admit(address, applicant.user, now),
            None => Ok(()),
        }
    }

    /// Counts a failure. Returns how long the answer waits.
    ///
    /// # Errors
    /// Too many have failed meanwhile: the applicant is not told what came of its own attempt.
    pub(super) fn failed(
        &self,
        applicant: Applicant<'_>,
        now: Elapsed,
    ) -> Result<Duration, Denial> {
        let Some(address) = self.counted(applicant) else {
            return Ok(Duration::ZERO);
        };
        let mut tables = self.tables.lock();
        tables.admit(address, applicant.user, now)?;
        tables.addresses.count(&address, now);
        let mut count = tables.addresses.known(&address, now);
        if let Some(user) = applicant.user.map(name_of) {
            tables.users.count(&user, now);
            count = count.max(tables.users.known(&user, now));
        }
        let doublings = count.saturating_sub(1).min(16);
        let delay = self.limits.delay.saturating_mul(1 << doublings);
        Ok(delay.min(LONGEST_DELAY))
    }

    /// An applicant has proved who it is. Remembers from where the user logs in whose password it has shown, if it has.
    ///
    /// # Errors
    /// Too many have failed meanwhile: the applicant is not told what came of its own attempt.
    pub(super) fn succeeded(
        &self,
        applicant: Applicant<'_>,
        trusted: Option<&str>,
        now: Elapsed,
    ) -> Result<(), Denial> {
        let Some(address) = self.counted(applicant) else {
            return Ok(());
        };
        let mut tables = self.tables.lock();
        tables.admit(address, applicant.user, now)?;
        if let Some(user) = trusted {
            tables.trusted.count(&(cut(user), address), now);
        }
        Ok(())
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
            let told = failures.failed(from("10.0.0.1", &user), at(1));
            assert!(told.is_ok(), "{number}");
        }
        assert!(failures.admit(from("10.0.0.1", "x"), at(2)).is_err());
        assert!(failures.admit(from("::ffff:10.0.0.1", "x"), at(2)).is_err());
        assert!(failures.admit(from("10.0.0.2", "x"), at(2)).is_ok());
        assert!(failures.admit(from("10.0.0.1", "x"), at(301)).is_ok());
    }

    #[test]
    fn a_name_that_fails_too_often_is_not_listened_to_but_where_it_is_known() {
        let failures = Failures::new(limits());
        let known = failures.succeeded(from("10.0.1.1", "anna"), Some("anna"), at(0));
        assert!(known.is_ok());
        for number in 0..4 {
            let address = format!("10.0.0.{number}");
            let told = failures.failed(from(&address, "anna"), at(1));
            assert!(told.is_ok(), "{number}");
        }
        assert!(failures.admit(from("10.0.9.9", "anna"), at(2)).is_err());
        assert!(failures.admit(from("10.0.9.9", "berta"), at(2)).is_ok());
        assert!(failures.admit(from("10.0.1.1", "anna"), at(2)).is_ok());
    }

    #[test]
    fn each_failure_waits_twice_as_long_as_the_one_before() {
        let failures = Failures::new(FailureLimits {
            per_user: 20,
            ..limits()
        });
        let mut delays = Vec::new();
        let wait = |address: &str, user| {
            let told = failures.failed(from(address, user), at(1));
            told.expect("it is listened to").as_millis()
        };
        for number in 0..8 {
            delays.push(wait(&format!("10.0.0.{number}"), "anna"));
        }
        assert_eq!(delays[..3], [100, 200, 400]);
        assert!(
            delays
                .iter()
                .all(|delay| *delay <= LONGEST_DELAY.as_millis())
        );
        assert_eq!(wait("10.1.0.1", "x"), 100);
    }

    #[test]
    fn who_is_exempt_or_local_is_not_counted() {
        let failures = Failures::new(limits());
        let unix = Applicant {
            address: None,
            ..from("127.0.0.1", "anna")
        };
        for _ in 0..100 {
            let local = failures.failed(from("127.0.0.1", "anna"), at(1));
            assert_eq!(local, Ok(Duration::ZERO));
            assert_eq!(failures.failed(unix, at(1)), Ok(Duration::ZERO));
        }
        assert!(failures.admit(from("127.0.0.1", "anna"), at(1)).is_ok());
        assert!(failures.admit(from("10.0.0.1", "anna"), at(1)).is_ok());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_client() {
        let failures = Failures::new(limits());
        for number in 0..6 {
            let (address, user) = (format!("2001:db8::{number}"), number.to_string());
            assert!(failures.failed(from(&address, &user), at(1)).is_ok());
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
            let told = failures.failed(from("10.0.0.1", "x"), at(1));
            assert_eq!(told, Ok(Duration::ZERO));
        }
        assert!(failures.admit(from("10.0.0.1", "x"), at(1)).is_ok());
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = "ü".repeat(200);
        assert_eq!(name_of(&name).len(), 256);
        assert_eq!(name_of(&format!("x{name}")).len(), 255);
    }

    #[test]
    fn a_user_has_one_count_however_its_name_is_written() {
        let failures = Failures::new(limits());
        let written = ["anna", "an\u{AD}na", "\u{FF41}nna", "ann\u{AA}"];
        for (number, name) in written.into_iter().enumerate() {
            let address = format!("10.0.0.{number}");
            let told = failures.failed(from(&address, name), at(1));
            assert!(told.is_ok(), "{name:?} is the {number}th");
        }
        for name in written {
            let admitted = failures.admit(from("10.0.9.9", name), at(2));
            assert!(admitted.is_err(), "{name:?}");
        }
        assert!(failures.admit(from("10.0.9.9", "\u{7}"), at(2)).is_ok());
    }

    #[test]
    fn who_is_trusted_is_who_has_shown_the_password() {
        let failures = Failures::new(limits());
        // Let in by a certificate, with the victim's name as its user name.
        let stranger = failures.succeeded(from("10.0.1.1", "anna"), None, at(0));
        assert!(stranger.is_ok());
        for number in 0..4 {
            let told = failures.failed(from(&format!("10.0.0.{number}"), "anna"), at(1));
            assert!(told.is_ok());
        }
        assert!(failures.admit(from("10.0.1.1", "anna"), at(2)).is_err());
    }

    #[test]
    fn of_attempts_that_are_begun_at_once_those_behind_the_bound_learn_nothing() {
        let failures = Failures::new(limits());
        let attempts: Vec<String> = (0..10).map(|number| format!("10.0.0.{number}")).collect();
        for address in &attempts {
            assert!(failures.admit(from(address, "anna"), at(1)).is_ok());
        }
        let wrong = attempts[..8]
            .iter()
            .map(|address| failures.failed(from(address, "anna"), at(2)));
        let told: Vec<_> = wrong.map(|told| told.map(drop)).collect();
        assert_eq!(told.iter().filter(|told| told.is_ok()).count(), 4);
        let right = failures.succeeded(from(&attempts[9], "anna"), Some("anna"), at(2));
        assert_eq!(right, told[7], "wrong and right ones are told the same");
    }
}
