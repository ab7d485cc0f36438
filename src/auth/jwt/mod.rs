//! JSON Web Tokens (RFC 7519): a token that an issuer has signed says who the client is, until when.
//!
//! It comes in the password of CONNECT, or as the Authentication Data of an Authentication Method: `JWT`, or `K8S-SAT`,
//! with which clients of Azure IoT Operations send the token of their Kubernetes service account. With a method the
//! client may prove itself again before the token expires.
//!
//! Invariant: nothing of a token decides how it is checked but its `alg`, `kid` and `iss`, and these only choose among
//! what the configuration allows. Keys that a token brings or points to (`jwk`, `jku`, `x5c`, `x5u`) are not looked at.

mod algorithm;
mod issuer;
mod key;
#[cfg(test)]
mod method_tests;

#[cfg(test)]
mod tests;
mod token;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use issuer::{Claim, Rules};
pub use key::{KeyError, KeySet, MOST_KEYS};
pub use token::{LARGEST_TOKEN_BYTES, TokenError};

use std::sync::Arc;

use zeroize::Zeroizing;

use token::{Token, looks_like_token};

use super::{
    Check, Client, Denial, Guess, Later, Mechanism, Method, Negotiation, Principal, Step, Verdict,
};

/// The Authentication Method of tokens.
pub const JWT: &str = "JWT";

/// The Authentication Method of clients of Azure IoT Operations in Kubernetes: the data is the token of their service
/// account, as its file has it.
pub const K8S_SAT: &str = "K8S-SAT";

/// Where the keys of an issuer come from.
pub trait KeySource: Send + Sync {
    /// The keys that there are; `None` when there are none, or they are too old.
    fn keys(&self) -> Option<Arc<KeySet>>;

    /// Looks for newer keys, because a token names one that is unknown; `None` when that was done just now, or there is
    /// nothing to look for.
    fn refresh(&self) -> Option<Later<()>>;

    /// Whether the last attempt to get newer keys has failed, so that an unknown one may be newer.
    fn is_failing(&self) -> bool;

    /// Whether newer keys are looked for from time to time: as long as [`KeySource::refresh`] does not do it now, an
    /// unknown one may be newer.
    fn is_renewed(&self) -> bool;
}

/// Keys that never change.
impl KeySource for Arc<KeySet> {
    fn keys(&self) -> Option<Arc<KeySet>> {
        Some(self.clone())
    }

    fn refresh(&self) -> Option<Later<()>> {
        None
    }

    fn is_failing(&self) -> bool {
        false
    }

    fn is_renewed(&self) -> bool {
        false
    }
}

/// An issuer with its keys.
pub struct Issuer {
    /// What is asked of its tokens.
    pub rules: Rules,
    /// Its keys.
    pub keys: Box<dyn KeySource>,
    /// Its tokens may come in the password of CONNECT.
    pub in_password: bool,
    /// Authentication Methods with which its tokens may come.
    pub methods: Vec<&'static str>,
}

impl Issuer {
    fn judge(&self, token: &Token<'_>, client: &Client<'_>) -> Result<Principal, TokenError> {
        let keys = self.keys.keys().ok_or(TokenError::NoKeys)?;
        match self.rules.judge(token, &keys, client) {
            Err(TokenError::UnknownKey) if self.keys.is_failing() => Err(TokenError::OldKeys),
            judged => judged,
        }
    }
}

/// What of a client outlives its packet.
struct Owned {
    token: Zeroizing<Vec<u8>>,
    user_name: Option<Box<str>>,
    in_password: bool,
    client: Client<'static>,
}

impl Owned {
    fn new(token: &[u8], client: &Client<'_>) -> Owned {
        Owned {
            token: Zeroizing::new(token.to_vec()),
            user_name: client.user_name.map(Into::into),
            in_password: client.password.is_some(),
            client: Client {
                now: client.now,
                ..Client::default()
            },
        }
    }

    fn judge(&self, issuer: &Issuer) -> Result<Principal, TokenError> {
        let client = Client {
            user_name: self.user_name.as_deref(),
            password: self.in_password.then_some(&[]),
            ..self.client
        };
        issuer.judge(&Token::parse(&self.token)?, &client)
    }
}

/// What a token leads to.
enum Judged {
    Now(Result<Principal, TokenError>),
    /// When the issuer's keys are there.
    Later(Later<Result<Principal, TokenError>>),
}

/// Tokens of several issuers, as a method of a chain.
#[derive(Clone)]
pub struct Tokens {
    inner: Arc<Issuers>,
}

struct Issuers {
    issuers: Vec<Arc<Issuer>>,
    jwt: Named,
    k8s_sat: Named,
}

impl Tokens {
    /// Tokens of `issuers`. A token is judged by the first one whose `iss` it has; one that names none comes last.
    pub fn new(mut issuers: Vec<Issuer>) -> Tokens {
        issuers.sort_by_key(|issuer| issuer.rules.issuer.is_empty());
        let issuers: Vec<Arc<Issuer>> = issuers.into_iter().map(Arc::new).collect();
        let named = |name: &'static str| {
            let of_name = issuers
                .iter()
                .filter(|issuer| issuer.methods.contains(&name));
            Named {
                name,
                issuers: of_name.cloned().collect(),
            }
        };
        let (jwt, k8s_sat) = (named(JWT), named(K8S_SAT));
        let issuers = issuers.into_iter().filter(|issuer| issuer.in_password);
        Tokens {
            inner: Arc::new(Issuers {
                issuers: issuers.collect(),
                jwt,
                k8s_sat,
            }),
        }
    }
}

/// Judges a token by that one of `issuers` whose it is.
fn judge<'a>(
    issuers: impl Iterator<Item = &'a Arc<Issuer>>,
    bytes: &[u8],
    client: &Client<'_>,
) -> Judged {
    let token = match Token::parse(bytes) {
        Ok(token) => token,
        Err(error) => return Judged::Now(Err(error)),
    };
    let mut issuers = issuers.filter(|issuer| issuer.rules.is_of(&token.claims));
    let Some(issuer) = issuers.next() else {
        return Judged::Now(Err(TokenError::UnknownIssuer));
    };
    match issuer.judge(&token, client) {
        Err(error @ (TokenError::UnknownKey | TokenError::OldKeys | TokenError::NoKeys)) => {
            let Some(refresh) = issuer.keys.refresh() else {
                let may_be_newer = error == TokenError::UnknownKey && issuer.keys.is_renewed();
                return Judged::Now(Err(match may_be_newer {
                    true => TokenError::OldKeys,
                    false => error,
                }));
            };
            let (issuer, owned) = (issuer.clone(), Owned::new(bytes, client));
            Judged::Later(Box::pin(async move {
                refresh.await;
                owned.judge(&issuer)
            }))
        }
        judged => Judged::Now(judged),
    }
}

fn denial(error: TokenError) -> Denial {
    match error.is_passing() {
        true => Denial::unavailable(error.to_string()),
        // The clients of a site whose issuer was away come with tokens that have expired, all from one address; and the
        // set that an issuer publishes may lag behind its tokens.
        false if error.is_no_guess() => Denial {
            guess: Guess::Nothing,
            ..Denial::new(error.to_string())
        },
        false => Denial::new(error.to_string()),
    }
}

impl Check for Tokens {
    fn method(&self) -> Method {
        Method::Jwt
    }

    /// Applies to a password that has the form of a token, if its user name may come with one.
    fn judge(&self, client: &Client<'_>) -> Verdict {
        let verdict = |judged| match judged {
            Ok(principal) => Verdict::Accepted(Box::new(principal)),
            Err(error) => Verdict::Refused(denial(error)),
        };
        let Some(password) = client.password.filter(|text| looks_like_token(text)) else {
            return Verdict::NotApplicable;
        };
        let takes = |issuer: &&Arc<Issuer>| issuer.rules.takes_user_name(client.user_name);
        let mut issuers = self.inner.issuers.iter().filter(takes).peekable();
        if issuers.peek().is_none() {
            return Verdict::NotApplicable;
        }
        match judge(issuers, password, client) {
            Judged::Now(judged) => verdict(judged),
            Judged::Later(later) => Verdict::Pending(Box::pin(async move { verdict(later.await) })),
        }
    }

    fn mechanism(&self, name: &str) -> Option<&dyn Mechanism> {
        let mut known = [&self.inner.jwt, &self.inner.k8s_sat].into_iter();
        let mechanism = known.find(|known| known.name == name)?;
        (!mechanism.issuers.is_empty()).then_some(mechanism)
    }
}

/// An Authentication Method of tokens.
struct Named {
    name: &'static str,
    issuers: Vec<Arc<Issuer>>,
}

impl Mechanism for Named {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begin(&self, client: &Client<'_>) -> Box<dyn Negotiation> {
        Box::new(Exchange {
            issuers: self.issuers.clone(),
            now: client.now,
        })
    }
}

/// One log-in: a single message of the client.
struct Exchange {
    issuers: Vec<Arc<Issuer>>,
    now: crate::base::time::Millis,
}

impl Negotiation for Exchange {
    fn step(&mut self, data: &[u8]) -> Step {
        let step = |judged| match judged {
            Ok(principal) => Step::Success {
                principal: Box::new(principal),
                data: Vec::new(),
            },
            Err(error) => Step::Refused(denial(error)),
        };
        if data.is_empty() {
            // One that sent no data with its CONNECT is asked to.
            return Step::Continue(Vec::new());
        }
        let client = Client {
            now: self.now,
            ..Client::default()
        };
        match judge(self.issuers.iter(), data, &client) {
            Judged::Now(judged) => step(judged),
            Judged::Later(later) => Step::Pending(Box::pin(async move { step(later.await) })),
        }
    }
}
