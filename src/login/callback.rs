//! A service that judges clients: it is asked over HTTP (`auth.http_url`).
//!
//! Invariant: without an answer nobody is let in; `auth.http_unavailable` only says whether another method may decide.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::answer::{Judgement, NoAnswer, certificate_name, judgement, question};
use super::cache::{About, Cache};
use super::files::{FileError, TokenFile};
use crate::auth::certificate::NameOf;
use crate::auth::{Check, Client, Denial, Method, Verdict};
use crate::base::places::Places;
use crate::base::time::{Elapsed, Millis, elapsed_now, wall_now};
use crate::config::file::Guard;
use crate::config::{AuthConfig, WhenUnavailable};
use crate::http_client::{Excess, HttpClient, HttpError, Options, TlsError, TlsFiles, UrlError};

/// Largest answer that is read.
const LARGEST_ANSWER_BYTES: usize = 64 << 10;

/// The least time between two lines of the log that say whether the service answers.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Clients that may wait for each request that may be under way.
const WAITING_PER_REQUEST: usize = 16;

/// Why the service can't be asked at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallbackError {
    /// Its URL.
    #[error("auth.http_url: {0}")]
    Url(#[from] UrlError),
    /// The files for TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The file with the token.
    #[error(transparent)]
    Token(#[from] FileError),
    /// The system's random number generator.
    #[error("this system has no random numbers")]
    Random,
}

/// Why there is no judgement.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error(transparent)]
    Token(#[from] FileError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("the answer: {0}")]
    Answer(#[from] NoAnswer),
}

/// The service, as a method of a chain.
#[derive(Clone)]
pub(crate) struct Callback {
    inner: Arc<Inner>,
}

struct Inner {
    client: HttpClient,
    token: Option<TokenFile>,
    names: NameOf,
    held: Duration,
    held_denied: Duration,
    unavailable: WhenUnavailable,
    cache: Mutex<Cache>,
    /// What the log has said of the service.
    said: Mutex<Said>,
    /// Requests under way.
    requests: Semaphore,
    /// These, and clients that wait for one.
    places: Arc<Places>,
}

impl Callback {
    /// The service that the configuration names; `names` says what the name in a certificate is.
    ///
    /// # Errors
    /// It can't be asked.
    pub(crate) fn new(config: &AuthConfig, names: NameOf) -> Result<Callback, CallbackError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|_| CallbackError::Random)?;
        let certificate = config.http_certificate_file.clone();
        let client = HttpClient::new(Options {
            url: config.http_url.parse()?,
            tls: TlsFiles {
                authorities: config.http_ca_file.clone(),
                certificate: certificate.zip(config.http_key_file.clone()),
            },
            timeout: Duration::from_millis(config.http_timeout_ms.into()),
            largest_answer: LARGEST_ANSWER_BYTES,
            excess: Excess::Refused,
            refuses_local: true,
            repeats: true,
        })?;
        let token = config.http_token_file.clone();
        let token = token.map(|path| TokenFile::new(path, Guard::Secret));
        let requests = usize::try_from(config.http_concurrency).unwrap_or(usize::MAX);
        Ok(Callback {
            inner: Arc::new(Inner {
                client,
                token: token.transpose()?,
                names,
                held: Duration::from_secs(config.http_cache_s.into()),
                held_denied: Duration::from_secs(config.http_cache_denied_s.into()),
                unavailable: config.http_unavailable,
                cache: Mutex::new(Cache::new(secret, config.http_cache_entries)),
                said: Mutex::default(),
                requests: Semaphore::new(requests),
                places: Places::new(
                    requests.saturating_mul(WAITING_PER_REQUEST),
                    &config.failures_exempt,
                ),
            }),
        })
    }
}

/// What the log says of the service; that it answers, before it has said anything.
#[derive(Default)]
struct Said {
    is_silent: bool,
    /// When it was said.
    at: Option<Elapsed>,
}

impl Said {
    /// Whether the log has to say this now: it is new, and what it said before is not too fresh. A service that refuses
    /// some questions and answers others is not two lines for each of them.
    fn tells(&mut self, is_silent: bool, now: Elapsed) -> bool {
        let is_fresh = self.at.is_some_and(|at| now < at.plus(SAID_EVERY));
        if is_silent == self.is_silent || is_fresh {
            return false;
        }
        *self = Said {
            is_silent,
            at: Some(now),
        };
        true
    }
}

/// What the service is asked about.
struct Question {
    about: About,
    /// Wiped when nobody sends it any more: the password does not stay in memory that nobody uses.
    body: Bytes,
    user_name: Option<Box<str>>,
}

impl Inner {
    fn about(&self, client: &Client<'_>) -> About {
        // Not the port: it is another one each time.
        let address = client.address.map(|address| address.ip().to_string());
        let certificate = certificate_name(client, self.names);
        self.cache.lock().about(&[
            Some(client.listener.as_bytes()),
            Some(client.client_id.as_bytes()),
            client.user_name.map(str::as_bytes),
            client.password,
            address.as_deref().map(str::as_bytes),
            certificate.as_deref().map(str::as_bytes),
        ])
    }

    fn remembered(&self, about: &About) -> Option<Verdict> {
        let cache = self.cache.lock();
        let judgement = cache.get(about, elapsed_now())?;
        verdict(judgement.clone(), wall_now())
    }

    async fn ask(&self, question: &Question) -> Result<Judgement, Unanswered> {
        let mut headers = vec![(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("application/json"),
        )];
        if let Some(token) = &self.token {
            headers.push((header::AUTHORIZATION, token.header().await?));
        }
        let answer = self.client.post(&headers, question.body.clone()).await?;
        match answer.status {
            StatusCode::OK => {
                let user_name = question.user_name.as_deref();
                Ok(judgement(&answer.body, user_name, wall_now())?)
            }
            status => Err(Unanswered::Status(status)),
        }
    }

    /// Says when the service falls silent, and when it answers again. Returns whether something is said.
    fn say(&self, error: Option<&Unanswered>, now: Elapsed) -> bool {
        if !self.said.lock().tells(error.is_some(), now) {
            return false;
        }
        let another_decides = self.unavailable == WhenUnavailable::Ignore;
        match error {
            Some(error) => tracing::warn!(
                %error,
                another_decides,
                "the service that judges clients does not answer"
            ),
            None => tracing::info!("the service that judges clients answers again"),
        }
        true
    }

    async fn judge(&self, question: Question) -> Verdict {
        // Never closed.
        let Ok(_request) = self.requests.acquire().await else {
            return Verdict::Refused(Denial::busy("no request may be sent"));
        };
        // Another connection of the same client may have asked meanwhile.
        if let Some(verdict) = self.remembered(&question.about) {
            return verdict;
        }
        let answer = self.ask(&question).await;
        self.say(answer.as_ref().err(), elapsed_now());
        match answer {
            Ok(judgement) => {
                let held = match &judgement {
                    Judgement::Allow(_) => self.held,
                    Judgement::Deny | Judgement::Ignore => self.held_denied,
                };
                let mut cache = self.cache.lock();
                cache.put(question.about, judgement.clone(), held, elapsed_now());
                let expired = || Verdict::Refused(Denial::new("the answer has expired"));
                verdict(judgement, wall_now()).unwrap_or_else(expired)
            }
            Err(error) => {
                let detail = format!("the service that judges clients has not answered: {error}");
                match self.unavailable {
                    WhenUnavailable::Refuse => Verdict::Refused(Denial::unavailable(detail)),
                    WhenUnavailable::Ignore => Verdict::NotApplicable,
                }
            }
        }
    }
}

#[cfg(test)]
impl Callback {
    /// As after a question: whether there is something new to say.
    pub(super) fn says(&self, error: Option<&Unanswered>, now: Elapsed) -> bool {
        self.inner.say(error, now)
    }
}

/// What a judgement means now; `None` if it has expired.
fn verdict(judgement: Judgement, now: Millis) -> Option<Verdict> {
    Some(match judgement {
        Judgement::Allow(principal) if principal.expires_at.is_some_and(|end| end <= now) => {
            return None;
        }
        Judgement::Allow(principal) => Verdict::Accepted(Box::new(principal)),
        Judgement::Deny => Verdict::Refused(Denial::new("the service that judges clients says no")),
        Judgement::Ignore => Verdict::NotApplicable,
    })
}

impl Check for Callback {
    fn method(&self) -> Method {
        Method::Http
    }

    fn judge(&self, client: &Client<'_>) -> Verdict {
        let inner = &self.inner;
        let about = inner.about(client);
        if let Some(verdict) = inner.remembered(&about) {
            return verdict;
        }
        let Some(place) = inner.places.take(client.address) else {
            let detail = "too many clients, or too many of this address, wait for the service that judges them";
            return Verdict::Refused(Denial::busy(detail));
        };
        let question = Question {
            about,
            body: Bytes::from_owner(question(client, inner.names)),
            user_name: client.user_name.map(Into::into),
        };
        let inner = inner.clone();
        Verdict::Pending(Box::pin(async move {
            let verdict = inner.judge(question).await;
            drop(place);
            verdict
        }))
    }
}
