//! Where to listen, or where a peer is reached.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use toml::de::DeValue;

use super::read::{Input, Setting, SettingError, quote, strings, text};

/// `host:port`. The host is a name or an IP address, an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// A port of this machine that no other one reaches.
    pub fn loopback(port: u16) -> Address {
        format!("{}:{port}", std::net::Ipv4Addr::LOCALHOST)
            .parse()
            .expect("an IPv4 address and a port are host:port")
    }

    /// The host without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 lets the system choose one when listening.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the host means "every interface" (`0.0.0.0`, `::`): a place to listen, but not one to connect to.
    pub fn is_unspecified(&self) -> bool {
        self.host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_unspecified())
    }

    /// Whether only this machine reaches it: `127.0.0.0/8`, `::1`, `localhost`. Any other name may be anywhere.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<std::net::IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }
}

impl FromStr for Address {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let wrong = |why: &str| SettingError::Malformed {
            expected: "host:port",
            found: text.to_owned(),
            why: why.to_owned(),
        };
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| wrong("the port is missing"))?;
        let port = port
            .parse()
            .map_err(|_| wrong("the port is not a number from 0 to 65535"))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest
                .strip_suffix(']')
                .ok_or_else(|| wrong("the bracket is not closed"))?,
            None if host.contains(':') => return Err(wrong("an IPv6 address needs brackets")),
            None => host,
        };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c == '/') {
            return Err(wrong("the host is not a name or an IP address"));
        }
        Ok(Address {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

strings!(Address, "host:port");

impl Setting for Option<Address> {
    const KIND: &'static str = "host:port, empty = none";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match text(input, "a string (host:port)")? {
            "" => Ok(None),
            text => text.parse().map(Some),
        }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quote(""), Setting::show)
    }
}

impl Setting for Vec<Address> {
    const KIND: &'static str = "host:port, or a list of them";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match input {
            Input::Toml(DeValue::Array(items)) => items
                .iter()
                .map(|item| Address::read(&Input::Toml(item.get_ref())))
                .collect(),
            _ => text(input, "a string (host:port) or a list of them")?
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(str::parse)
                .collect(),
        }
    }

    fn show(&self) -> String {
        let items: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", items.join(", "))
    }
}
