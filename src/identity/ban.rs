//! A ban: a client id, a user, or a network that may not connect for a time.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use prost::Message as _;

use super::applicant::Applicant;
use crate::base::proto::state;
use crate::base::time::Millis;

/// Longest client id or user name that may be banned, bytes.
const LONGEST_NAME: usize = 512;

/// Longest reason, bytes.
pub const LONGEST_REASON: usize = 256;

/// Who may not connect. Its text names its entry in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A client identifier.
    Client(Box<str>),
    /// The name of a principal, and the user name of a CONNECT.
    User(Box<str>),
    /// An address, or the addresses of a network.
    Network(IpNet),
}

impl Target {
    /// Whether it concerns an applicant.
    pub fn concerns(&self, applicant: Applicant<'_>) -> bool {
        match self {
            Target::Client(client_id) => **client_id == *applicant.client_id,
            Target::User(user) => applicant.user == Some(user),
            Target::Network(network) => applicant
                .address
                .is_some_and(|address| network.contains(&address.to_canonical())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Client(client_id) => write!(f, "client:{client_id}"),
            Target::User(user) => write!(f, "user:{user}"),
            Target::Network(network) => write!(f, "address:{network}"),
        }
    }
}

/// Why a text names nobody who can be banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetProblem {
    /// It has another form.
    #[error("expected client:ID, user:NAME, or address:ADDRESS or address:ADDRESS/PREFIX")]
    Form,
    /// The name is empty or too long.
    #[error("a name has 1 to 512 bytes")]
    Name,
    /// The address is none.
    #[error("this is no address and no network")]
    Address,
}

impl FromStr for Target {
    type Err = TargetProblem;

    fn from_str(text: &str) -> Result<Target, TargetProblem> {
        let (kind, rest) = text.split_once(':').ok_or(TargetProblem::Form)?;
        let name = || match (1..=LONGEST_NAME).contains(&rest.len()) {
            true => Ok(rest.into()),
            false => Err(TargetProblem::Name),
        };
        match kind {
            "client" => Ok(Target::Client(name()?)),
            "user" => Ok(Target::User(name()?)),
            "address" => network(rest)
                .map(Target::Network)
                .ok_or(TargetProblem::Address),
            _ => Err(TargetProblem::Form),
        }
    }
}

/// A network in the one way in which it is written: without host bits, and IPv4 where it is that.
fn network(text: &str) -> Option<IpNet> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(IpNet::from(address.to_canonical()));
    }
    let network = text.parse::<IpNet>().ok()?.trunc();
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(address), prefix) if network.addr().is_ipv6() => {
            IpNet::new(address.into(), prefix.checked_sub(96)?).ok()
        }
        _ => Some(network),
    }
}

/// What is kept of a ban beside whom it concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    /// What the operator has said.
    pub reason: Box<str>,
    /// When it began.
    pub created: Millis,
}

impl Ban {
    /// The value of its entry in the directory.
    pub fn encode(&self) -> Vec<u8> {
        let row = state::Ban {
            reason: self.reason.to_string(),
            created_ms: self.created.0,
        };
        row.encode_to_vec()
    }

    /// Reads what [`Ban::encode`] writes. A damaged one is in force all the same, without its reason.
    pub fn decode(value: &[u8]) -> Ban {
        let row = state::Ban::decode(value).unwrap_or_default();
        Ban {
            reason: row.reason.into(),
            created: Millis(row.created_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_in_one_way() {
        for (text, expected) in [
            ("client:a:b", "client:a:b"),
            ("user:anna", "user:anna"),
            ("address:10.1.2.3", "address:10.1.2.3/32"),
            ("address:10.1.2.3/8", "address:10.0.0.0/8"),
            ("address:::ffff:10.1.2.3", "address:10.1.2.3/32"),
            ("address:::ffff:10.1.2.3/104", "address:10.0.0.0/8"),
            ("address:2001:db8::1/32", "address:2001:db8::/32"),
            ("address:0.0.0.0/0", "address:0.0.0.0/0"),
        ] {
            let target: Target = text.parse().expect("a target");
            assert_eq!(target.to_string(), expected);
            assert_eq!(expected.parse(), Ok(target), "{expected}");
        }
        for text in [
            "",
            "anna",
            "client:",
            "user:",
            "address:",
            "address:x",
            "address:10.0.0.0/33",
            "group:x",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert!(
            format!("user:{}", "x".repeat(513))
                .parse::<Target>()
                .is_err()
        );
    }

    #[test]
    fn a_ban_is_read_again() {
        let ban = Ban {
            reason: "too loud".into(),
            created: Millis(7),
        };
        assert_eq!(Ban::decode(&ban.encode()), ban);
        assert_eq!(Ban::decode(b"\xff"), Ban::default());
    }
}
