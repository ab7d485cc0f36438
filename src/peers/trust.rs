//! How this node and its peers prove who they are, and the files that it rests on, read again when they change.
//!
//! Invariant: what can't be used replaces nothing. A node goes on with what it had, and says so.
//! Invariant: after a change of the files no connection is left that what is in them would refuse; nor one whose
//! certificate has expired, for longer than [`RELOAD_INTERVAL`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::{ServerName, UnixTime};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::counters::Counters;
use super::files::{self, FileError};
use super::reach::Reach;
use super::registry::{Credential, Direction, Registry, now_s};
use super::secret::{HandshakeError, Secret, SecretError};
use super::settings::{Settings, Source};
use super::stream::{Io, PeerStream};
use super::tls::{Material, TlsError};
use crate::base::ids::NodeId;
use crate::config::Config;
use crate::telemetry::audit::{self, Event, Kind, Outcome};

/// How often the files are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// Longest handshake: both sides do some milliseconds of work and wait for three round trips.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// A certificate that expires earlier than this is named.
const SOON: Duration = Duration::from_secs(30 * 24 * 3_600);
/// TLS wants a name to connect to; nobody looks at it.
const ANY_NAME: &str = "node.quorumq.invalid";

/// Why a node can't prove who it is.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// A handshake that proved nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproven {
    #[error(transparent)]
    Secret(#[from] HandshakeError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error("the handshake took more than {HANDSHAKE_TIMEOUT:?}")]
    TimedOut,
    #[error("there are too many connections")]
    TooMany,
    #[error("its proof is not trusted any more")]
    Withdrawn,
}

impl From<Unproven> for std::io::Error {
    fn from(error: Unproven) -> std::io::Error {
        match error {
            Unproven::Io(error) => error,
            other => std::io::Error::new(std::io::ErrorKind::PermissionDenied, other),
        }
    }
}

/// What is used now.
enum Proof {
    Open,
    Certificates(Box<Material>),
    Secret(Secret),
}

impl Proof {
    /// Whether a connection that was made with this goes on.
    fn trusts(&self, known: &Credential, direction: Direction) -> bool {
        match (self, known) {
            (Proof::Open, _) => true,
            (Proof::Certificates(material), Credential::Chain(chain)) => {
                material.trusts(chain, direction == Direction::Incoming)
            }
            (Proof::Secret(secret), Credential::Secret(digest)) => secret.has(digest),
            _ => false,
        }
    }
}

/// What was read, to tell whether it has changed.
type Fingerprint = [u8; 32];

/// Files that were read and could not be used.
#[derive(Default)]
struct Failed {
    fingerprint: Option<Fingerprint>,
    said: bool,
}

struct Inner {
    settings: Settings,
    proof: ArcSwap<Proof>,
    used: Mutex<Fingerprint>,
    failed: Mutex<Failed>,
    registry: Arc<Registry>,
}

/// How this node and its peers prove who they are. Clones are the same.
#[derive(Clone)]
pub struct Trust {
    inner: Arc<Inner>,
}

/// What came of looking at the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are as they were.
    Same,
    /// What is in them is used from now on.
    Used,
    /// They can't be used.
    Failed,
}

/// Reads what the settings name. The bytes come along as a fingerprint, also when they can't be used.
fn read(settings: &Settings) -> (Fingerprint, Result<Proof, TrustError>) {
    let mut digest = Sha256::new();
    let mut note = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_be_bytes());
        digest.update(bytes);
    };
    let mut make = || -> Result<Proof, TrustError> {
        match &settings.source {
            Source::Open => Ok(Proof::Open),
            Source::Secret(file) => {
                let text = files::read_secret(file)?;
                note(&text);
                let secret = Secret::parse(&text, &settings.cluster, settings.own.node)?;
                Ok(Proof::Secret(secret))
            }
            Source::Certificates {
                certificate,
                key,
                authorities,
                lists,
            } => {
                let chain = files::read(certificate)?;
                let key_bytes = files::read_secret(key)?;
                let signers = files::read(authorities)?;
                for bytes in [&chain, &key_bytes, &signers] {
                    note(bytes);
                }
                let mut revoked = Vec::new();
                for list in lists {
                    let bytes = files::read(list)?;
                    note(&bytes);
                    revoked.extend(files::lists(list, &bytes)?);
                }
                let material = Material::new(
                    &settings.own,
                    files::certificates(certificate, &chain)?,
                    files::key(key, &key_bytes)?,
                    files::certificates(authorities, &signers)?,
                    revoked,
                )?;
                Ok(Proof::Certificates(Box::new(material)))
            }
        }
    };
    let made = make();
    (digest.finalize().into(), made)
}

impl Trust {
    /// Reads the files.
    ///
    /// # Errors
    /// When they can't be used.
    pub fn new(settings: Settings) -> Result<Trust, TrustError> {
        let (fingerprint, proof) = read(&settings);
        Ok(Trust {
            inner: Arc::new(Inner {
                settings,
                proof: ArcSwap::from_pointee(proof?),
                used: Mutex::new(fingerprint),
                failed: Mutex::default(),
                registry: Arc::default(),
            }),
        })
    }

    /// Nothing is proved, by anybody: for a node whose cluster port only its own machine reaches.
    pub fn open() -> Trust {
        Trust {
            inner: Arc::new(Inner {
                settings: Settings::of(&Config::default()),
                proof: ArcSwap::from_pointee(Proof::Open),
                used: Mutex::default(),
                failed: Mutex::default(),
                registry: Arc::default(),
            }),
        }
    }

    /// Whether a peer has to prove which node it is.
    pub fn is_proved(&self) -> bool {
        self.inner.settings.source != Source::Open
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.registry.counters
    }

    /// Seconds until this node's certificate expires, 0 when it has; `None` without one.
    pub fn valid_for_s(&self) -> Option<u64> {
        let Proof::Certificates(material) = &**self.inner.proof.load() else {
            return None;
        };
        let now_s = UnixTime::now().as_secs();
        let end_s = u64::try_from(material.expires_at_s()).unwrap_or(0);
        Some(end_s.saturating_sub(now_s))
    }

    /// Names a certificate that expires soon, once a day.
    fn warn_of_expiry(&self, said: &mut Option<Instant>) {
        let is_due = said.is_none_or(|at| at.elapsed() >= DAY);
        if let Some(left_s) = self.valid_for_s()
            && left_s < SOON.as_secs()
            && is_due
        {
            *said = Some(Instant::now());
            let days = left_s / DAY.as_secs();
            tracing::warn!(
                days,
                "cluster.certificate expires soon: the other nodes will refuse this one then"
            );
        }
    }

    /// Says who is a member of the cluster, as far as this node knows at the moment of each call. Others are strangers,
    /// whatever they have proved.
    pub fn set_members(&self, is_member: impl Fn(NodeId) -> bool + Send + Sync + 'static) {
        self.inner.registry.set_members(Arc::new(is_member));
    }

    /// Whether this is the address of a member.
    #[cfg(test)]
    pub(crate) fn knows(&self, address: std::net::IpAddr) -> bool {
        self.inner.registry.knows(address)
    }

    pub(super) fn reach(&self) -> &Reach {
        &self.inner.settings.reach
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.inner.registry
    }

    /// Looks at the files and uses what has changed in them. Reads files: not for a thread that others wait for.
    pub fn reload(&self) -> Reload {
        let inner = &self.inner;
        let (fingerprint, made) = read(&inner.settings);
        let mut used = inner.used.lock();
        if *used == fingerprint {
            *inner.failed.lock() = Failed::default();
            return Reload::Same;
        }
        let proof = match made {
            Ok(proof) => Arc::new(proof),
            Err(error) => {
                let mut failed = inner.failed.lock();
                // Files are replaced one after the other: what is wrong is worth a line when it is there twice.
                let is_again = failed.fingerprint == Some(fingerprint);
                if is_again && !std::mem::replace(&mut failed.said, true) {
                    Counters::count(&inner.registry.counters.reloads_failed);
                    self.note(Outcome::Failed, Some(&error.to_string()));
                    tracing::error!(%error, "the files of this node's identity have changed and can't be used: the former ones stay");
                } else if !is_again {
                    *failed = Failed {
                        fingerprint: Some(fingerprint),
                        said: false,
                    };
                }
                return Reload::Failed;
            }
        };
        inner.proof.store(proof.clone());
        *used = fingerprint;
        *inner.failed.lock() = Failed::default();
        drop(used);
        Counters::count(&inner.registry.counters.reloads);
        self.note(Outcome::Accepted, None);
        let trusts = |known: &Credential, direction| proof.trusts(known, direction);
        let ended = inner.registry.keep(trusts);
        tracing::info!(
            ended,
            "the files of this node's identity have changed: they are used from now on"
        );
        Reload::Used
    }

    /// Puts it into the audit log: other files change who is trusted.
    fn note(&self, outcome: Outcome, reason: Option<&str>) {
        audit::record(&Event {
            reason,
            details: &[("files", &self.inner.settings.source.describe())],
            ..Event::new(Kind::Certificates, outcome)
        });
    }

    /// Ends connections that rest on a certificate that has expired. Returns how many.
    fn end_expired(&self, now_s: i64) -> usize {
        let proof = self.inner.proof.load_full();
        let trusts = |known: &Credential, direction| proof.trusts(known, direction);
        let ended = self.inner.registry.keep_unexpired(now_s, trusts);
        if ended > 0 {
            tracing::warn!(ended, "the certificates of connected nodes have expired");
        }
        ended
    }

    /// Keeps what is trusted current. Runs until the node stops.
    pub async fn keep_current(self) {
        if self.is_proved() {
            // Apart: a file system that does not answer keeps no connection that rests on what has expired.
            tokio::join!(self.keep_unexpired(), self.keep_read());
        }
    }

    /// Ends connections when what they rest on expires.
    async fn keep_unexpired(&self) {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let trust = self.clone();
            let ended = tokio::task::spawn_blocking(move || trust.end_expired(now_s()));
            match ended.await {
                Err(stopped) if stopped.is_cancelled() => return,
                Err(panicked) => tracing::error!(%panicked, "judging the connections of nodes"),
                Ok(_) => {}
            }
        }
    }

    /// Keeps reading the files again, also on SIGHUP.
    async fn keep_read(&self) {
        let mut hang_up = signal(SignalKind::hangup()).ok();
        let mut said = None;
        loop {
            self.warn_of_expiry(&mut said);
            let hung_up = async {
                match &mut hang_up {
                    Some(signals) => signals.recv().await,
                    None => std::future::pending().await,
                }
            };
            let asked = tokio::select! {
                _ = hung_up => true,
                () = tokio::time::sleep(RELOAD_INTERVAL) => false,
            };
            let trust = self.clone();
            let reloaded = tokio::task::spawn_blocking(move || {
                let first = trust.reload();
                // Whoever asks wants to know at once.
                match asked && first == Reload::Failed {
                    true => trust.reload(),
                    false => first,
                }
            });
            match reloaded.await {
                Err(stopped) if stopped.is_cancelled() => return,
                // A defect, which must not end the watch over what is trusted.
                Err(panicked) => {
                    tracing::error!(%panicked, "reading the files of this node's identity")
                }
                Ok(_) => {}
            }
        }
    }

    /// Has who connected prove itself.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<PeerStream, Unproven> {
        let (io, node, credential) = timed(async {
            match &*self.inner.proof.load_full() {
                Proof::Open => Ok((Io::Plain(stream), None, Credential::None)),
                Proof::Secret(secret) => {
                    let mut stream = stream;
                    let (node, digest) = secret.accept(&mut stream).await?;
                    Ok((Io::Plain(stream), Some(node), Credential::Secret(digest)))
                }
                Proof::Certificates(material) => {
                    let acceptor = TlsAcceptor::from(material.server());
                    let stream = acceptor.accept(stream).await?;
                    proven(material, TlsStream::Server(stream))
                }
            }
        })
        .await?;
        self.register(Direction::Incoming, io, node, credential)
            .await
    }

    /// Proves this node to whom it has connected to: `wanted`, or any node of the cluster.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        wanted: Option<NodeId>,
    ) -> Result<PeerStream, Unproven> {
        let (io, node, credential) = timed(async {
            match &*self.inner.proof.load_full() {
                Proof::Open => Ok((Io::Plain(stream), None, Credential::None)),
                Proof::Secret(secret) => {
                    let mut stream = stream;
                    let (node, digest) = secret.connect(&mut stream, wanted).await?;
                    Ok((Io::Plain(stream), Some(node), Credential::Secret(digest)))
                }
                Proof::Certificates(material) => {
                    let connector = TlsConnector::from(material.client(wanted)?);
                    let name = ServerName::try_from(ANY_NAME).map_err(std::io::Error::other)?;
                    let stream = connector.connect(name, stream).await?;
                    proven(material, TlsStream::Client(stream))
                }
            }
        })
        .await?;
        self.register(Direction::Outgoing, io, node, credential)
            .await
    }

    async fn register(
        &self,
        direction: Direction,
        mut io: Io,
        node: Option<NodeId>,
        credential: Credential,
    ) -> Result<PeerStream, Unproven> {
        let Some(registration) = self.registry().add(direction, node, credential.clone()) else {
            if let Io::Tls(stream) = &mut io {
                let _ = timed(async { Ok(stream.shutdown().await?) }).await;
            }
            return Err(Unproven::TooMany);
        };
        // The files may have changed during the handshake, before the connection could be found here.
        if !self.inner.proof.load().trusts(&credential, direction) {
            return Err(Unproven::Withdrawn);
        }
        if let (Some(node), Ok(address)) = (node, io.peer_addr()) {
            let registry = self.registry();
            registry.proved(node, direction, address.ip(), credential);
        }
        Ok(PeerStream::new(io, node, registration))
    }
}

/// The node that a finished handshake has proved.
fn proven(
    material: &Material,
    stream: TlsStream<TcpStream>,
) -> Result<(Io, Option<NodeId>, Credential), Unproven> {
    let (_, connection) = stream.get_ref();
    let chain = connection.peer_certificates().unwrap_or_default();
    let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
    match material.node(&chain) {
        Some(node) => Ok((
            Io::Tls(Box::new(stream)),
            Some(node),
            Credential::Chain(chain),
        )),
        None => Err(rustls::Error::NoCertificatesPresented.into()),
    }
}

async fn timed<T>(handshake: impl Future<Output = Result<T, Unproven>>) -> Result<T, Unproven> {
    tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .unwrap_or(Err(Unproven::TimedOut))
}
