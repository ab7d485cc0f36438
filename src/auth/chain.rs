//! What a listener asks of its clients: methods in an order, of which the first that applies decides.
//!
//! Invariant: nobody is let in unless a method says so. A chain whose methods all pass a client over refuses it, and an
//! empty chain refuses everybody.
//! Invariant: what a client is told does not depend on why it is refused; the reason is for the log.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use super::{Client, Denial, Exchange, Mechanism, Method, Principal};

/// A verdict that is still to come: of a slow hash or of another machine. It is awaited where other clients are served
/// meanwhile, within the time that the client has to connect, so it must not block its thread.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a method says of a client.
pub enum Verdict {
    /// The client has not brought what this method looks at: the next one decides.
    NotApplicable,
    /// The client is this principal.
    Accepted(Box<Principal>),
    /// The client is refused, and no later method is asked.
    Refused(Denial),
    /// It takes a while.
    Pending(Later<Verdict>),
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::NotApplicable => f.write_str("NotApplicable"),
            Verdict::Accepted(principal) => f.debug_tuple("Accepted").field(principal).finish(),
            Verdict::Refused(denial) => f.debug_tuple("Refused").field(denial).finish(),
            Verdict::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// A method of authentication, as a listener asks for it.
pub trait Check: Send + Sync {
    /// Which one it is.
    fn method(&self) -> Method;

    /// Judges a client whose CONNECT names no Authentication Method.
    fn judge(&self, client: &Client<'_>) -> Verdict;

    /// Whether it looks at a password that belongs to the client's user name, now.
    fn asks_password_of(&self, client: &Client<'_>) -> bool {
        self.method().asks_for_password() && client.user_name.is_some()
    }

    /// Whether it lets somebody in who proves nothing, now.
    fn is_open(&self) -> bool {
        self.method() == Method::Anonymous
    }

    /// The mechanism behind an Authentication Method `[MQTT-4.12.0-1]`; names are compared byte by byte.
    fn mechanism(&self, _name: &str) -> Option<&dyn Mechanism> {
        None
    }
}

/// Everybody is let in.
pub struct Anonymous;

impl Check for Anonymous {
    fn method(&self) -> Method {
        Method::Anonymous
    }

    fn judge(&self, _client: &Client<'_>) -> Verdict {
        Verdict::Accepted(Box::new(Principal::new("", Method::Anonymous)))
    }
}

/// A mechanism of extended authentication, and nothing without it.
pub struct Extended<M> {
    method: Method,
    mechanism: M,
}

impl<M: Mechanism> Extended<M> {
    /// `mechanism` as a method of a chain.
    pub const fn new(method: Method, mechanism: M) -> Extended<M> {
        Extended { method, mechanism }
    }
}

impl<M: Mechanism> Check for Extended<M> {
    fn method(&self) -> Method {
        self.method
    }

    fn judge(&self, _client: &Client<'_>) -> Verdict {
        Verdict::NotApplicable
    }

    fn mechanism(&self, name: &str) -> Option<&dyn Mechanism> {
        (name == self.mechanism.name()).then_some(&self.mechanism)
    }
}

/// The methods of a listener.
#[derive(Clone)]
pub struct Chain {
    checks: Vec<Arc<dyn Check>>,
}

impl Default for Chain {
    /// Everybody is let in.
    fn default() -> Chain {
        Chain::new(vec![Arc::new(Anonymous)])
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.methods()).finish()
    }
}

impl Chain {
    /// Methods in the order in which they are asked.
    pub fn new(checks: Vec<Arc<dyn Check>>) -> Chain {
        Chain { checks }
    }

    /// The methods in their order.
    pub fn methods(&self) -> impl Iterator<Item = Method> {
        self.checks.iter().map(|check| check.method())
    }

    /// Whether somebody may come in who proves nothing, now.
    pub fn is_open(&self) -> bool {
        self.checks.iter().any(|check| check.is_open())
    }

    /// Begins an exchange with a client whose CONNECT names an Authentication Method; `None` when no method of this
    /// chain has it `[MQTT-4.12.0-1]`. Such a client has chosen, so nothing else that it brought is looked at: its
    /// CONNACK has to name the method.
    pub fn begin(&self, name: &str, client: &Client<'_>) -> Option<Exchange> {
        let mut checks = self.checks.iter();
        let (mechanism, method) =
            checks.find_map(|check| Some((check.mechanism(name)?, check.method())))?;
        Some(Exchange::new(mechanism.begin(client), method))
    }

    /// Judges a client whose CONNECT names no Authentication Method. `listens` says whether a password for its user
    /// name is looked at; methods that look at something else do not ask.
    ///
    /// # Errors
    /// It is refused.
    pub async fn judge(
        &self,
        client: &Client<'_>,
        listens: &(dyn Fn() -> Result<(), Denial> + Send + Sync),
    ) -> Result<Arc<Principal>, Denial> {
        for check in &self.checks {
            let method = check.method();
            if check.asks_password_of(client) {
                listens()?;
            }
            let mut verdict = check.judge(client);
            loop {
                match verdict {
                    Verdict::NotApplicable => break,
                    Verdict::Accepted(principal) if principal.is_anonymous() => {
                        return Ok(Principal::anonymous());
                    }
                    Verdict::Accepted(principal) => return Ok(Arc::new(*principal)),
                    Verdict::Refused(denial) => return Err(denial.of(method)),
                    Verdict::Pending(later) => verdict = later.await,
                }
            }
        }
        Err(Denial {
            text: "this server asks for authentication",
            ..Denial::new("the client brought nothing that this listener's methods look at")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Guess;

    /// Answers what it is told to, to clients with a user name.
    struct Fixed(fn() -> Verdict);

    impl Check for Fixed {
        fn method(&self) -> Method {
            Method::Password
        }

        fn judge(&self, client: &Client<'_>) -> Verdict {
            match client.user_name {
                Some(_) => (self.0)(),
                None => Verdict::NotApplicable,
            }
        }
    }

    fn accepted() -> Verdict {
        Verdict::Accepted(Box::new(Principal::new("anna", Method::Password)))
    }

    fn refused() -> Verdict {
        Verdict::Refused(Denial::new("wrong"))
    }

    fn judge(chain: Vec<Arc<dyn Check>>, user_name: Option<&str>) -> Result<String, String> {
        let chain = Chain::new(chain);
        let client = Client {
            user_name,
            ..Client::default()
        };
        let judged = futures::FutureExt::now_or_never(chain.judge(&client, &|| Ok(())));
        match judged.expect("nothing here waits") {
            Ok(principal) => Ok(principal.name.to_string()),
            Err(denial) => Err(denial.detail.into_owned()),
        }
    }

    #[test]
    fn the_first_method_that_applies_decides() {
        let yes = || -> Arc<dyn Check> { Arc::new(Fixed(accepted)) };
        let no = || -> Arc<dyn Check> { Arc::new(Fixed(refused)) };
        let later = || -> Arc<dyn Check> {
            Arc::new(Fixed(|| Verdict::Pending(Box::pin(async { accepted() }))))
        };
        let ignored = || -> Arc<dyn Check> {
            Arc::new(Fixed(|| {
                Verdict::Pending(Box::pin(async { Verdict::NotApplicable }))
            }))
        };
        let open = || -> Arc<dyn Check> { Arc::new(Anonymous) };
        assert_eq!(judge(vec![yes(), no()], Some("u")), Ok("anna".into()));
        assert_eq!(judge(vec![no(), yes()], Some("u")), Err("wrong".into()));
        assert_eq!(judge(vec![later(), no()], Some("u")), Ok("anna".into()));
        assert_eq!(judge(vec![ignored(), no()], Some("u")), Err("wrong".into()));
        assert_eq!(judge(vec![no(), open()], None), Ok(String::new()));
        assert_eq!(judge(vec![no(), open()], Some("u")), Err("wrong".into()));
    }

    /// As a method that looks at tokens.
    struct OfTokens(fn() -> Verdict);

    impl Check for OfTokens {
        fn method(&self) -> Method {
            Method::Jwt
        }

        fn judge(&self, _client: &Client<'_>) -> Verdict {
            (self.0)()
        }
    }

    #[test]
    fn a_name_counts_only_where_its_password_may_be_guessed() {
        let later = || Verdict::Pending(Box::pin(async { refused() }));
        let judge = |check: Arc<dyn Check>, listens: Result<(), Denial>| {
            let chain = Chain::new(vec![check]);
            let client = Client {
                user_name: Some("jwt"),
                ..Client::default()
            };
            let listens = move || listens.clone();
            let judged = futures::FutureExt::now_or_never(chain.judge(&client, &listens));
            judged
                .expect("nothing here waits")
                .map_err(|denial| denial.guess)
        };
        for refuses in [refused, later] {
            let by_password = judge(Arc::new(Fixed(refuses)), Ok(()));
            assert_eq!(by_password, Err(Guess::Password));
            let by_token = judge(Arc::new(OfTokens(refuses)), Ok(()));
            assert_eq!(by_token, Err(Guess::Credential));
        }
        let paused = Denial::plain(crate::codec::ReasonCode::QuotaExceeded, "too often");
        let by_password = judge(Arc::new(Fixed(accepted)), Err(paused.clone()));
        assert_eq!(by_password, Err(Guess::Nothing));
        let by_token = judge(Arc::new(OfTokens(accepted)), Err(paused));
        assert_eq!(
            by_token.map(|principal| principal.name.clone()),
            Ok("anna".into())
        );
    }

    /// As a method of passwords while nobody has one.
    struct Idle;

    impl Check for Idle {
        fn method(&self) -> Method {
            Method::Password
        }

        fn asks_password_of(&self, _client: &Client<'_>) -> bool {
            false
        }

        fn judge(&self, _client: &Client<'_>) -> Verdict {
            Verdict::NotApplicable
        }
    }

    #[test]
    fn a_name_that_is_paused_is_let_in_where_no_password_is_looked_at() {
        let chain = Chain::new(vec![Arc::new(Idle), Arc::new(Anonymous)]);
        let client = Client {
            user_name: Some("fleet"),
            ..Client::default()
        };
        let paused = || {
            let code = crate::codec::ReasonCode::QuotaExceeded;
            Err(Denial::plain(code, "too often"))
        };
        let judged = futures::FutureExt::now_or_never(chain.judge(&client, &paused));
        assert!(judged.expect("nothing here waits").is_ok());
    }

    #[test]
    fn nobody_is_let_in_by_default() {
        assert!(judge(Vec::new(), None).is_err());
        assert!(judge(vec![Arc::new(Fixed(accepted))], None).is_err());
        assert!(!Chain::new(Vec::new()).is_open());
        assert!(Chain::default().is_open());
    }
}
