//! Who a client is: the chain of methods that a listener asks of its clients, the mechanisms of extended authentication
//! (MQTT 5.0 §4.12), and the principal that comes out.
//!
//! It is sans-io: no clock, no randomness, no disk, no network inside. Whoever holds the connection draws the random
//! bytes, tells the time, bounds what it may take, and turns a [`Step`] into AUTH, CONNACK or DISCONNECT. What an
//! identity may do is not decided here.

pub mod certificate;
pub mod chain;
mod denial;
mod exchange;
pub mod jwt;
pub mod password;
mod principal;
pub mod scram;
pub(crate) mod strict;
pub mod user;

pub use chain::{Chain, Check, Later, Verdict};
pub use denial::{Denial, Guess};
pub use exchange::Exchange;
pub(crate) use principal::is_plain;
pub use principal::{Method, Principal, Proof, Standing};

use core::net::SocketAddr;
use std::fmt;

use rustls::pki_types::CertificateDer;

use crate::base::time::Millis;

/// Random bytes that an exchange gets.
pub const ENTROPY_BYTES: usize = 32;

/// What is known of a client before it has proved who it is. Nothing has shown yet that any of it is true, but for the
/// certificates and the address.
#[derive(Clone, Copy, Default)]
pub struct Client<'a> {
    /// Its client identifier; empty when the server is to assign one.
    pub client_id: &'a str,
    /// The user name of its CONNECT.
    pub user_name: Option<&'a str>,
    /// The password of its CONNECT.
    pub password: Option<&'a [u8]>,
    /// Where it is; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// The chain that it has shown and that was verified, its own certificate first; empty without one.
    pub certificates: &'a [CertificateDer<'static>],
    /// The name of the listener that it came to.
    pub listener: &'a str,
    /// This machine's wall clock.
    pub now: Millis,
    /// Fresh bytes of the system's random number generator, for nonces.
    pub entropy: [u8; ENTROPY_BYTES],
}

impl fmt::Debug for Client<'_> {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("client_id", &self.client_id)
            .field("user_name", &self.user_name)
            .field("address", &self.address)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
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

    /// The name that the client claims in this exchange, as soon as it has said so: nothing has shown yet that it is
    /// this one. `None` where the proof itself brings the name.
    fn claimed(&self) -> Option<&str> {
        None
    }

    /// How a client is refused whose last step would have been a success, but for somebody who may not have it: as any
    /// other is whose proof fails.
    fn refusal(&self, detail: &'static str) -> Denial {
        Denial::new(detail)
    }
}

/// What the client's data led to.
pub enum Step {
    /// Send this in AUTH 0x18 and wait for the client's answer `[MQTT-4.12.0-2]`. Empty data is left out.
    Continue(Vec<u8>),
    /// The client is this one; the data goes into CONNACK, or into AUTH 0x00 at a re-authentication.
    Success {
        principal: Box<Principal>,
        data: Vec<u8>,
    },
    /// It is not, or it broke the mechanism's rules.
    Refused(Denial),
    /// It takes a while. What comes of it is another step, and the client has nothing to send meanwhile.
    Pending(Later<Step>),
}

impl fmt::Debug for Step {
    /// Without the data, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Continue(data) => write!(f, "Continue({} bytes)", data.len()),
            Step::Success { principal, .. } => f.debug_tuple("Success").field(principal).finish(),
            Step::Refused(denial) => f.debug_tuple("Refused").field(denial).finish(),
            Step::Pending(_) => f.write_str("Pending"),
        }
    }
}

#[cfg(test)]
impl PartialEq for Step {
    fn eq(&self, other: &Step) -> bool {
        match (self, other) {
            (Step::Continue(one), Step::Continue(other)) => one == other,
            (
                Step::Success { principal, data },
                Step::Success {
                    principal: other,
                    data: others,
                },
            ) => principal == other && data == others,
            (Step::Refused(one), Step::Refused(other)) => one == other,
            _ => false,
        }
    }
}
