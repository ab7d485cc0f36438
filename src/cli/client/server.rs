//! Where a server is, and over what it speaks MQTT.

use std::fmt;
use std::str::FromStr;

use crate::config::{Address, SettingError, Transport};

/// The path of a WebSocket's URL that names none.
const DEFAULT_PATH: &str = "/mqtt";

/// A server: `host:port`, or `mqtt://`, `mqtts://`, `ws://` and `wss://` before it, with a path where there is
/// WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// What carries MQTT.
    pub transport: Transport,
    /// Host and port.
    pub address: Address,
    /// The path of a WebSocket.
    pub path: String,
}

impl From<Address> for Server {
    fn from(address: Address) -> Server {
        Server {
            transport: Transport::Tcp,
            address,
            path: DEFAULT_PATH.to_owned(),
        }
    }
}

impl FromStr for Server {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Server, SettingError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(text.parse::<Address>()?.into());
        };
        let (transport, port) = match scheme {
            "mqtt" | "tcp" => (Transport::Tcp, 1883),
            "mqtts" | "ssl" => (Transport::Tls, 8883),
            "ws" => (Transport::Ws, 80),
            "wss" => (Transport::Wss, 443),
            _ => {
                return Err(SettingError::Malformed {
                    expected: "mqtt://, mqtts://, ws:// or wss://",
                    found: text.to_owned(),
                    why: "the scheme is not known".to_owned(),
                });
            }
        };
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.ends_with(']'));
        let address = match has_port {
            true => authority.parse()?,
            false => format!("{authority}:{port}").parse()?,
        };
        let path = match path {
            "" => DEFAULT_PATH,
            path => path,
        };
        Ok(Server {
            transport,
            address,
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Tcp => self.address.fmt(f),
            Transport::Tls => write!(f, "mqtts://{}", self.address),
            transport => write!(f, "{transport}://{}{}", self.address, self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_addresses_are_read() {
        for (text, shown) in [
            ("a:1", "a:1"),
            ("mqtt://a", "a:1883"),
            ("mqtts://a", "mqtts://a:8883"),
            ("mqtts://[::1]", "mqtts://[::1]:8883"),
            ("ws://a:9/x/y", "ws://a:9/x/y"),
            ("wss://a", "wss://a:443/mqtt"),
        ] {
            let server: Server = text.parse().expect(text);
            assert_eq!(server.to_string(), shown);
        }
        for text in ["a", "http://a", "mqtts://", "wss:///mqtt"] {
            assert!(text.parse::<Server>().is_err(), "{text}");
        }
    }
}
