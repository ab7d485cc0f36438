//! The keys of an issuer, kept current: read from a file again and again, or fetched from a URL.
//!
//! Invariant: keys that were good are kept while their source fails, but not longer than they may be; a set without a
//! usable key is no failure: an issuer withdraws its last key so. Whoever sends
//! tokens with made-up key ids has the source asked once in [`ASKED_AGAIN_AFTER`], and not more.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use hyper::header::HeaderValue;
use hyper::{StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::Background;
use super::files::{FileError, TokenFile, read_file};
use crate::auth::Later;
use crate::auth::jwt::{KeyError, KeySet, KeySource};
use crate::base::time::{Elapsed, elapsed_now};
use crate::config::file::Guard;
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
        /// The token that shows who asks.
        token: Option<TokenFile>,
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
    /// The thread that was to read the file has ended.
    #[error("the file was not read")]
    Unread,
    /// What is in the answer.
    #[error("the answer: {0}")]
    Answer(KeyError),
}

impl FetchError {
    /// The source says that no key is good any more.
    fn withdraws_all(&self) -> bool {
        matches!(
            self,
            FetchError::Answer(KeyError::NoUsableKey)
                | FetchError::Keys {
                    error: KeyError::NoUsableKey,
                    ..
                }
        )
    }
}

impl Place {
    /// Reads the file.
    fn read(&self) -> Result<KeySet, FetchError> {
        let (path, guard, parse): (_, _, fn(&[u8]) -> _) = match self {
            Place::Pem(path) => (path, Guard::Trusted, KeySet::of_pem),
            Place::Jwks(path) => (path, Guard::Trusted, |text| KeySet::of_jwks(text, true)),
            Place::Secret(path) => (path, Guard::Secret, |text| {
                KeySet::of_secret(without_line_end(text))
            }),
            Place::Url { .. } => return Ok(KeySet::default()),
        };
        parse(&read_file(path, guard)?).map_err(|error| FetchError::Keys {
            path: path.clone(),
            error,
        })
    }
}

/// The types that a server of keys may answer with (RFC 7517, section 8.5): the API server of Kubernetes has no other
/// than the first one, and says 406 to who does not take it.
const KEY_SET_TYPES: HeaderValue =
    HeaderValue::from_static("application/jwk-set+json, application/json");

/// Asks the server of the keys.
async fn ask(client: &HttpClient, token: Option<&TokenFile>) -> Result<KeySet, FetchError> {
    let mut headers = vec![(header::ACCEPT, KEY_SET_TYPES)];
    if let Some(token) = token {
        headers.push((header::AUTHORIZATION, token.header().await?));
    }
    let answer = client.get(&headers).await?;
    match answer.status {
        StatusCode::OK => KeySet::of_jwks(&answer.body, false).map_err(FetchError::Answer),
        status => Err(FetchError::Status(status)),
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
    /// The last attempt to get them has failed.
    is_failing: AtomicBool,
    /// Told when a key is not there any more: whoever has logged in with it is to be judged again.
    withdrawn: Arc<Notify>,
}

impl Keys {
    /// Keys of a file, which is read now, and then as often. A set without a key lets nobody in: its last one may have
    /// been withdrawn, and that stops no node from starting.
    pub(super) fn of_file(
        place: Place,
        issuer: String,
        interval: Duration,
        withdrawn: Arc<Notify>,
    ) -> Result<Keys, FetchError> {
        let found = match place.read() {
            Err(error) if error.withdraws_all() => {
                tracing::warn!(issuer, %error, "a token issuer has no keys, so nobody gets in by it");
                KeySet::default()
            }
            found => found?,
        };
        let keys = Keys::new(place, issuer, interval, None, withdrawn);
        keys.inner.hold(found);
        Ok(keys)
    }

    /// Keys that are published; there are none yet.
    pub(super) fn of_url(
        place: Place,
        issuer: String,
        interval: Duration,
        max_age: Duration,
        withdrawn: Arc<Notify>,
    ) -> Keys {
        Keys::new(place, issuer, interval, Some(max_age), withdrawn)
    }

    fn new(
        place: Place,
        issuer: String,
        interval: Duration,
        max_age: Option<Duration>,
        withdrawn: Arc<Notify>,
    ) -> Keys {
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
                is_failing: AtomicBool::new(false),
                withdrawn,
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
    fn hold(&self, mut keys: KeySet) {
        let former = self.held.load_full();
        let is_any_gone = former.is_some_and(|former| keys.succeed(&former.keys));
        self.held.store(Some(Arc::new(Held {
            keys: Arc::new(keys),
            at: elapsed_now(),
        })));
        if is_any_gone {
            let issuer = &self.issuer;
            tracing::info!(issuer, "a key of a token issuer is withdrawn");
            self.withdrawn.notify_one();
        }
    }

    async fn fetch(self: &Arc<Inner>) -> Result<KeySet, FetchError> {
        if let Place::Url { client, token } = &self.place {
            return ask(client, token.as_ref()).await;
        }
        let inner = self.clone();
        // The file may be on a file system that makes its readers wait.
        let read = tokio::task::spawn_blocking(move || inner.place.read());
        read.await.unwrap_or(Err(FetchError::Unread))
    }

    async fn keep_current(self: &Arc<Inner>) {
        let mut retry = FIRST_RETRY;
        loop {
            self.is_fetching.store(true, Ordering::Release);
            let fetched = self.fetch().await;
            let is_failing = self.is_failing.swap(fetched.is_err(), Ordering::AcqRel);
            let issuer = &self.issuer;
            let pause = match fetched {
                Ok(keys) => {
                    if is_failing {
                        tracing::info!(issuer, "the keys of a token issuer are there again");
                    }
                    self.hold(keys);
                    retry = FIRST_RETRY;
                    self.interval
                }
                Err(error) => {
                    if !is_failing {
                        tracing::warn!(issuer, %error, "no newer keys of a token issuer");
                    }
                    if error.withdraws_all() {
                        self.hold(KeySet::default());
                    }
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

    fn is_failing(&self) -> bool {
        self.inner.is_failing.load(Ordering::Acquire)
    }

    fn is_renewed(&self) -> bool {
        true
    }
}
