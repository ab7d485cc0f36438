//! The keys of an issuer, kept current: read from a file again and again, or fetched from a URL.
//!
//! Invariant: keys that were good are kept while their source fails, but not longer than they may be. Whoever sends
//! tokens with made-up key ids has the source asked once in [`ASKED_AGAIN_AFTER`], and not more.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use hyper::{StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::Background;
use super::files::{FileError, bearer, read_file};
use crate::auth::Later;
use crate::auth::jwt::{KeyError, KeySet, KeySource};
use crate::base::time::{Elapsed, elapsed_now};
use crate::http_client::{HttpClient, HttpError};

/// The least time between two requests that unknown keys give rise to.
pub(super) const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The first pause after a failure; each further one is twice as long, up to the usual interval.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// How often a file is looked at.
pub(super) const FILE_INTERVAL: Duration = Duration::from_secs(10);

/// Where keys come from.
pub(super) enum Place {
    /// Public keys in PEM.
    Pem(PathBuf),
    /// A set of keys.
    Jwks(PathBuf),
    /// A shared secret.
    Secret(PathBuf),
    /// A set of keys, published.
    Url {
        /// Who is asked.
        client: Box<HttpClient>,
        /// The file with the token that shows who asks.
        token_file: Option<PathBuf>,
    },
}

/// Why there are no newer keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The file, or the one with the token.
    #[error(transparent)]
    File(#[from] FileError),
    /// What is in it.
    #[error("{}: {error}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// Why they can't be used.
        error: KeyError,
    },
    /// The server.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// What it answers.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// What is in the answer.
    #[error("the answer: {0}")]
    Answer(KeyError),
}

impl Place {
    async fn fetch(&self) -> Result<KeySet, FetchError> {
        let Place::Url { client, token_file } = self else {
            return self.read();
        };
        let mut headers = Vec::new();
        if let Some(path) = token_file {
            headers.push((header::AUTHORIZATION, bearer(path)?));
        }
        let answer = client.get(&headers).await?;
        match answer.status {
            StatusCode::OK => KeySet::of_jwks(&answer.body, false).map_err(FetchError::Answer),
            status => Err(FetchError::Status(status)),
        }
    }

    fn read(&self) -> Result<KeySet, FetchError> {
        let (path, parse): (_, fn(&[u8]) -> _) = match self {
            Place::Pem(path) => (path, KeySet::of_pem),
            Place::Jwks(path) => (path, |text| KeySet::of_jwks(text, true)),
            Place::Secret(path) => (path, |text| KeySet::of_secret(without_line_end(text))),
            Place::Url { .. } => return Ok(KeySet::default()),
        };
        parse(&read_file(path)?).map_err(|error| FetchError::Keys {
            path: path.clone(),
            error,
        })
    }
}

/// A secret without the end of the line that editors add.
fn without_line_end(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// Keys, and when they were got.
struct Held {
    keys: Arc<KeySet>,
    at: Elapsed,
}

/// The keys of one issuer.
#[derive(Clone)]
pub(super) struct Keys {
    inner: Arc<Inner>,
}

struct Inner {
    place: Place,
    /// For the log.
    issuer: String,
    interval: Duration,
    /// How long keys are good for; files stay what they are.
    max_age: Option<Duration>,
    held: ArcSwapOption<Held>,
    /// Wakes whoever fetches.
    wanted: Notify,
    /// How often it was tried.
    tried: watch::Sender<u64>,
    /// When somebody last asked for newer keys.
    asked: Mutex<Option<Elapsed>>,
    is_fetching: AtomicBool,
}

impl Keys {
    /// Keys of a file, which is read now, and then as often.
    pub(super) fn of_file(
        place: Place,
        issuer: String,
        interval: Duration,
    ) -> Result<Keys, FetchError> {
        let found = place.read()?;
        let keys = Keys::new(place, issuer, interval, None);
        keys.inner.hold(found);
        Ok(keys)
    }

    /// Keys that are published; there are none yet.
    pub(super) fn of_url(
        place: Place,
        issuer: String,
        interval: Duration,
        max_age: Duration,
    ) -> Keys {
        Keys::new(place, issuer, interval, Some(max_age))
    }

    fn new(place: Place, issuer: String, interval: Duration, max_age: Option<Duration>) -> Keys {
        Keys {
            inner: Arc::new(Inner {
                place,
                issuer,
                interval,
                max_age,
                held: ArcSwapOption::empty(),
                wanted: Notify::new(),
                tried: watch::Sender::new(0),
                asked: Mutex::default(),
                is_fetching: AtomicBool::new(false),
            }),
        }
    }

    /// What keeps the keys current.
    pub(super) fn keep_current(&self) -> Background {
        let inner = self.inner.clone();
        Box::pin(async move { inner.keep_current().await })
    }
}

impl Inner {
    fn hold(&self, keys: KeySet) {
        self.held.store(Some(Arc::new(Held {
            keys: Arc::new(keys),
            at: elapsed_now(),
        })));
    }

    async fn keep_current(&self) {
        let mut retry = FIRST_RETRY;
        let mut is_failing = false;
        loop {
            self.is_fetching.store(true, Ordering::Release);
            let fetched = self.place.fetch().await;
            let issuer = &self.issuer;
            let pause = match fetched {
                Ok(keys) => {
                    if is_failing {
                        tracing::info!(issuer, "the keys of a token issuer are there again");
                    }
                    self.hold(keys);
                    (is_failing, retry) = (false, FIRST_RETRY);
                    self.interval
                }
                Err(error) => {
                    if !is_failing {
                        tracing::warn!(issuer, %error, "no newer keys of a token issuer");
                    }
                    is_failing = true;
                    let pause = retry.min(self.interval);
                    retry = pause.saturating_mul(2);
                    pause
                }
            };
            self.is_fetching.store(false, Ordering::Release);
            self.tried.send_modify(|tried| *tried += 1);
            // Either way it is time to fetch.
            let _ = tokio::time::timeout(pause, self.wanted.notified()).await;
        }
    }

    /// Whether newer keys may be asked for now; notes that they were.
    fn may_ask(&self) -> bool {
        let now = elapsed_now();
        let mut asked = self.asked.lock();
        let may = asked.is_none_or(|last| now.since(last) >= ASKED_AGAIN_AFTER);
        if may {
            *asked = Some(now);
        }
        may
    }
}

impl KeySource for Keys {
    fn keys(&self) -> Option<Arc<KeySet>> {
        let held = self.inner.held.load();
        let held = held.as_ref()?;
        let age = elapsed_now().since(held.at);
        let is_good = self.inner.max_age.is_none_or(|most| age <= most);
        is_good.then(|| held.keys.clone())
    }

    fn refresh(&self) -> Option<Later<()>> {
        let mut tried = self.inner.tried.subscribe();
        tried.mark_unchanged();
        if !self.inner.is_fetching.load(Ordering::Acquire) {
            if !self.inner.may_ask() {
                return None;
            }
            self.inner.wanted.notify_one();
        }
        // The client has a time-out of its own, and whoever waits has the client's.
        Some(Box::pin(async move {
            let _ = tried.changed().await;
        }))
    }
}
