//! Who a client is: the mechanisms of extended authentication (MQTT 5.0 §4.12) and what a node asks of its clients.
//!
//! It is sans-io: no clock, no randomness, no disk inside. Whoever holds the connection draws the random bytes, bounds
//! the time, and turns a [`Step`] into AUTH, CONNACK or DISCONNECT. What an identity may do is not decided here.

mod exchange;
pub mod password;
pub mod scram;

pub use exchange::Exchange;

use crate::codec::ReasonCode;

/// Random bytes that an exchange gets.
pub const ENTROPY_BYTES: usize = 32;

/// What is known of a client before it has proved who it is.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// Its client identifier; empty when the server is to assign one.
    pub client_id: &'a str,
    /// The user name of its CONNECT. Nothing has shown yet that it is true.
    pub user_name: Option<&'a str>,
    /// Fresh bytes of the system's random number generator, for nonces.
    pub entropy: [u8; ENTROPY_BYTES],
}

/// A method of authentication.
pub trait Mechanism: Send + Sync {
    /// The Authentication Method that CONNECT names; compared byte by byte.
    fn name(&self) -> &'static str;

    /// Begins an exchange with a client: at its CONNECT, and once more at each re-authentication.
    fn begin(&self, client: &Client<'_>) -> Box<dyn Negotiation>;
}

/// One exchange of a mechanism with one client, wrapped in an [`Exchange`] that bounds it.
pub trait Negotiation: Send {
    /// Takes the client's Authentication Data; empty when the packet had none. Is not called again after
    /// [`Step::Success`] or [`Step::Refused`].
    fn step(&mut self, data: &[u8]) -> Step;
}

/// What the client's data led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this in AUTH 0x18 and wait for the client's answer `[MQTT-4.12.0-2]`. Empty data is left out.
    Continue(Vec<u8>),
    /// The client is this one; the data goes into CONNACK, or into AUTH 0x00 at a re-authentication.
    Success { identity: Box<str>, data: Vec<u8> },
    /// It is not, or it broke the mechanism's rules: a code that both CONNACK and DISCONNECT may carry, and half a
    /// sentence for the client and the log that gives nothing away.
    Refused(ReasonCode, &'static str),
}

/// What a node asks of its clients.
#[derive(Default)]
pub struct Authenticator {
    mechanisms: Vec<Box<dyn Mechanism>>,
}

impl Authenticator {
    /// Every client must use one of these mechanisms; without any, every client is let in and every method is unknown.
    pub fn new(mechanisms: Vec<Box<dyn Mechanism>>) -> Authenticator {
        Authenticator { mechanisms }
    }

    /// Whether a client without an Authentication Method is turned away.
    pub fn is_required(&self) -> bool {
        !self.mechanisms.is_empty()
    }

    /// Begins an exchange; `None` when there is no such method `[MQTT-4.12.0-1]`.
    pub fn begin(&self, method: &str, client: &Client<'_>) -> Option<Exchange> {
        let mechanism = self
            .mechanisms
            .iter()
            .find(|known| known.name() == method)?;
        Some(Exchange::new(mechanism.begin(client)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_methods_are_known_and_then_one_is_required() {
        let client = Client {
            client_id: "c",
            user_name: None,
            entropy: [0; ENTROPY_BYTES],
        };
        let open = Authenticator::default();
        assert!(!open.is_required());
        assert!(open.begin(scram::NAME, &client).is_none());
        let text = scram::Verifier::of_password("pencil", b"0123456789abcdef", 4096)
            .expect("a plain password")
            .line("user");
        let credentials = scram::Credentials::parse(&text).expect("a made line can be read");
        let closed = Authenticator::new(vec![Box::new(scram::Server::new(credentials))]);
        assert!(closed.is_required());
        assert!(closed.begin(scram::NAME, &client).is_some());
        assert!(closed.begin("scram-sha-256", &client).is_none());
    }
}
