//! The server's side.

use std::sync::Arc;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::message::{ClientFinal, ClientFirst, ServerFirst, signed};
use super::{Algorithm, Verifier, base64, prepare, xor};
use crate::auth::{Client, Denial, Mechanism, Negotiation, Principal, Step};
use crate::codec::ReasonCode;

/// Random bytes of the server's part of the nonce; RFC 5802 leaves the number to the server, 18 are 24 characters.
const NONCE_BYTES: usize = 18;

/// What is known of a user who wants to log in.
pub struct Found {
    /// The user's verifier; or one that looks like it, that is the same each time, and that nobody has the password of
    /// (RFC 5802 §9).
    pub verifier: Verifier,
    /// Who it is, if it may log in; else why not, for the log.
    pub principal: Result<Principal, &'static str>,
}

/// Whoever may log in.
pub trait Users: Send + Sync {
    /// Finds a user. Takes as long for one who is not known.
    fn find(&self, algorithm: Algorithm, user: &str) -> Found;
}

/// The mechanism with the users it knows.
pub struct Server {
    algorithm: Algorithm,
    users: Arc<dyn Users>,
}

impl Server {
    /// Whoever is among `users` can log in.
    pub fn new(algorithm: Algorithm, users: Arc<dyn Users>) -> Server {
        Server { algorithm, users }
    }
}

impl Mechanism for Server {
    fn name(&self) -> &'static str {
        self.algorithm.name()
    }

    fn begin(&self, client: &Client<'_>) -> Box<dyn Negotiation> {
        Box::new(Login {
            algorithm: self.algorithm,
            users: self.users.clone(),
            nonce: base64(&client.entropy[..NONCE_BYTES]),
            state: State::Begun,
            claimed: None,
        })
    }
}

/// One client's log-in.
pub(super) struct Login {
    algorithm: Algorithm,
    users: Arc<dyn Users>,
    /// The server's part.
    nonce: String,
    state: State,
    /// Whose log-in the client says that it is.
    claimed: Option<Box<str>>,
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
    verifier: Verifier,
    principal: Result<Principal, &'static str>,
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
                None => refused("the client's first message is not one of SCRAM"),
            },
            State::Challenged(challenge) => challenge.verify(data),
            State::Ended => refused("the authentication is over"),
        }
    }

    fn claimed(&self) -> Option<&str> {
        self.claimed.as_deref()
    }
}

impl Login {
    /// With a nonce that is not random.
    #[cfg(test)]
    pub(super) fn with_nonce(
        algorithm: Algorithm,
        users: impl Users + 'static,
        nonce: &str,
    ) -> Login {
        Login {
            algorithm,
            users: Arc::new(users),
            nonce: nonce.to_owned(),
            state: State::Begun,
            claimed: None,
        }
    }

    fn challenge(&mut self, data: &[u8]) -> Option<Challenge> {
        let first = ClientFirst::parse(std::str::from_utf8(data).ok()?)?;
        // A name that can't be prepared is one that nobody has; nothing tells it from any other unknown one.
        let user = match prepare(&first.user) {
            Some(prepared) => prepared.into_owned(),
            None => first.user.clone(),
        };
        self.claimed = Some(user.as_str().into());
        let is_own = first.authorization.is_empty() || first.authorization == first.user;
        let Found {
            verifier,
            mut principal,
        } = self.users.find(self.algorithm, &user);
        if !is_own {
            principal = Err("the client asks to be somebody else than it proves to be");
        }
        let nonce = format!("{}{}", first.nonce, self.nonce);
        let server_first = ServerFirst {
            nonce: &nonce,
            salt: verifier.salt.to_vec(),
            iterations: verifier.iterations,
        };
        Some(Challenge {
            server_first: server_first.text(),
            principal,
            verifier,
            gs2_header: first.gs2_header.to_owned(),
            client_first_bare: first.bare.to_owned(),
            nonce,
        })
    }
}

impl Challenge {
    fn verify(self, data: &[u8]) -> Step {
        let algorithm = self.verifier.algorithm;
        let last = std::str::from_utf8(data)
            .ok()
            .and_then(|text| ClientFinal::parse(algorithm, text));
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
        let signature = algorithm.hmac(&self.verifier.stored_key, &[signed.as_bytes()]);
        // Whoever has it can log in.
        let client_key = Zeroizing::new(xor(&last.proof, &signature));
        let is_proved = algorithm
            .hash(&[&client_key])
            .ct_eq(&self.verifier.stored_key);
        let detail = match self.principal {
            Ok(principal) if bool::from(is_proved) => {
                let signature = algorithm.hmac(&self.verifier.server_key, &[signed.as_bytes()]);
                return Step::Success {
                    principal: Box::new(principal),
                    data: format!("v={}", base64(&signature)).into_bytes(),
                };
            }
            Ok(_) => "the password is wrong",
            Err(why) => why,
        };
        Step::Refused(Denial {
            detail: detail.into(),
            ..Denial::plain(
                ReasonCode::NotAuthorized,
                "the user name or the password is wrong",
            )
        })
    }
}
