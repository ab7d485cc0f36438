//! The server's side.

use std::sync::Arc;

use subtle::ConstantTimeEq;

use super::message::{ClientFinal, ClientFirst, ServerFirst, signed};
use super::{Credentials, NAME, Verifier, base64, hash, hmac, prepare, xor};
use crate::auth::{Client, Denial, Mechanism, Method, Negotiation, Principal, Step};
use crate::codec::ReasonCode;

/// Random bytes of the server's part of the nonce; RFC 5802 leaves the number to the server, 18 are 24 characters.
const NONCE_BYTES: usize = 18;

/// The mechanism with the users it knows.
pub struct Server {
    credentials: Arc<Credentials>,
}

impl Server {
    /// Whoever is in `credentials` can log in.
    pub fn new(credentials: Credentials) -> Server {
        Server {
            credentials: Arc::new(credentials),
        }
    }
}

impl Mechanism for Server {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&self, client: &Client<'_>) -> Box<dyn Negotiation> {
        Box::new(Login {
            credentials: self.credentials.clone(),
            nonce: base64(&client.entropy[..NONCE_BYTES]),
            state: State::Begun,
        })
    }
}

/// One client's log-in.
pub(super) struct Login {
    credentials: Arc<Credentials>,
    /// The server's part.
    nonce: String,
    state: State,
}

enum State {
    /// Nothing has come.
    Begun,
    /// The challenge is sent.
    Challenged(Box<Challenge>),
    /// It is over.
    Ended,
}

struct Challenge {
    user: String,
    verifier: Verifier,
    is_known: bool,
    gs2_header: String,
    client_first_bare: String,
    server_first: String,
    /// Both parts.
    nonce: String,
}

const fn refused(text: &'static str) -> Step {
    Step::Refused(Denial::plain(ReasonCode::NotAuthorized, text))
}

impl Negotiation for Login {
    fn step(&mut self, data: &[u8]) -> Step {
        match std::mem::replace(&mut self.state, State::Ended) {
            // The client speaks first; one that sent no data with its CONNECT is asked to.
            State::Begun if data.is_empty() => {
                self.state = State::Begun;
                Step::Continue(Vec::new())
            }
            State::Begun => match self.challenge(data) {
                Some(challenge) => {
                    let sent = challenge.server_first.clone().into_bytes();
                    self.state = State::Challenged(Box::new(challenge));
                    Step::Continue(sent)
                }
                None => refused("the client's first message is not one of SCRAM-SHA-256"),
            },
            State::Challenged(challenge) => challenge.verify(data),
            State::Ended => refused("the authentication is over"),
        }
    }
}

impl Login {
    /// With a nonce that is not random.
    #[cfg(test)]
    pub(super) fn with_nonce(credentials: Credentials, nonce: &str) -> Login {
        Login {
            credentials: Arc::new(credentials),
            nonce: nonce.to_owned(),
            state: State::Begun,
        }
    }

    fn challenge(&self, data: &[u8]) -> Option<Challenge> {
        let first = ClientFirst::parse(std::str::from_utf8(data).ok()?)?;
        // A name that can't be prepared is one that nobody has; nothing tells it from any other unknown one.
        let user = match prepare(&first.user) {
            Some(prepared) => prepared.into_owned(),
            None => first.user.clone(),
        };
        let is_own = first.authorization.is_empty() || first.authorization == first.user;
        let (verifier, is_known) = self.credentials.find(&user);
        let nonce = format!("{}{}", first.nonce, self.nonce);
        let server_first = ServerFirst {
            nonce: &nonce,
            salt: verifier.salt.to_vec(),
            iterations: verifier.iterations,
        };
        Some(Challenge {
            server_first: server_first.text(),
            user,
            is_known: is_known && is_own,
            verifier: verifier.into_owned(),
            gs2_header: first.gs2_header.to_owned(),
            client_first_bare: first.bare.to_owned(),
            nonce,
        })
    }
}

impl Challenge {
    fn verify(self, data: &[u8]) -> Step {
        let last = std::str::from_utf8(data).ok().and_then(ClientFinal::parse);
        let Some(last) = last.filter(|last| {
            last.channel_binding == self.gs2_header.as_bytes() && last.nonce == self.nonce
        }) else {
            return refused("the client's final message is not one of this exchange");
        };
        let signed = signed(
            &self.client_first_bare,
            &self.server_first,
            last.without_proof,
        );
        let signature = hmac(&self.verifier.stored_key, &[signed.as_bytes()]);
        let client_key = xor(&last.proof, &signature);
        let is_proved = hash(&[&client_key]).ct_eq(&self.verifier.stored_key);
        if !(bool::from(is_proved) && self.is_known) {
            return refused("the user name or the password is wrong");
        }
        let signature = hmac(&self.verifier.server_key, &[signed.as_bytes()]);
        Step::Success {
            principal: Box::new(Principal::new(&self.user, Method::Scram)),
            data: format!("v={}", base64(&signature)).into_bytes(),
        }
    }
}
