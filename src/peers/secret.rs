//! Proof by a secret that all nodes have: challenge and response in both directions, before the first byte of HTTP/2.
//!
//! ```text
//! client → server   "quorumq" 1 | own node u64 | wanted node u64, 0 = any | nonce [32]
//! server → client   nonce [32]
//! client → server   HMAC-SHA-256(secret, "client" | all of the above | cluster)
//! server → client   own node u64 | HMAC-SHA-256(secret, "server" | all of the above | cluster)
//! ```
//!
//! Numbers are big-endian. Who has no secret learns a nonce, and then that the connection ends.
//!
//! It proves that both sides have the secret, on this connection. It does **not** encrypt, nothing after it is
//! protected, and whoever has the secret can be any node. So it is for one machine and for tests.
//!
//! Invariant: a response is compared in constant time, and no side answers a challenge of its own making: what is
//! signed names the side that signs.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

use crate::base::ids::NodeId;

const MAGIC: &[u8; 8] = b"quorumq\x01";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const HELLO_BYTES: usize = MAGIC.len() + 8 + 8 + NONCE_BYTES;

/// Shortest secret. Whoever poses as a node sees a response and can try secrets on it, so it must not be guessable.
const SHORTEST_BYTES: usize = 32;
/// Secrets in a file: an old and a new one while they are exchanged, and one to spare.
const MOST_SECRETS: usize = 4;

/// Why a file of secrets can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There is no line.
    #[error("cluster.secret_file is empty")]
    Empty,
    /// A line can be guessed.
    #[error(
        "cluster.secret_file: line {0} has less than {SHORTEST_BYTES} bytes; `openssl rand -hex 32` makes a secret"
    )]
    Short(usize),
    /// There are too many lines.
    #[error("cluster.secret_file has more than {MOST_SECRETS} secrets")]
    Many,
}

/// Why a peer was not believed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection ended, or the system refuses.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What came is something else.
    #[error("the peer does not begin with the handshake of cluster.secret_file")]
    NoHandshake,
    /// It wants another node.
    #[error("the peer wants node {0}")]
    OtherNode(NodeId),
    /// It is another node than was wanted.
    #[error("the peer is node {found}, not node {wanted}")]
    Found { found: NodeId, wanted: NodeId },
    /// It can't be a node.
    #[error("the peer names no node")]
    Nameless,
    /// The response is wrong.
    #[error("the peer has another secret")]
    Wrong,
    /// The system has no randomness.
    #[error("no random numbers: {0}")]
    Random(String),
}

/// What this node has in common with the others.
pub(super) struct Secret {
    /// The first is shown; each is accepted.
    secrets: Vec<Zeroizing<Vec<u8>>>,
    cluster: Box<str>,
    own: NodeId,
}

/// Tells secrets apart. Whoever has it can't use it: a secret is long enough not to be guessed.
fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// What both sides said.
struct Transcript {
    client: [u8; HELLO_BYTES],
    server: [u8; NONCE_BYTES],
}

fn nonce() -> Result<[u8; NONCE_BYTES], HandshakeError> {
    let mut nonce = [0; NONCE_BYTES];
    let filled = getrandom::fill(&mut nonce);
    filled.map_err(|error| HandshakeError::Random(error.to_string()))?;
    Ok(nonce)
}

/// Node that says hello, and node that it wants.
fn parse(hello: &[u8; HELLO_BYTES]) -> Result<(NodeId, NodeId), HandshakeError> {
    let rest = hello
        .strip_prefix(MAGIC)
        .ok_or(HandshakeError::NoHandshake)?;
    let (own, rest) = rest
        .split_first_chunk()
        .ok_or(HandshakeError::NoHandshake)?;
    let (wanted, _) = rest
        .split_first_chunk()
        .ok_or(HandshakeError::NoHandshake)?;
    let (own, wanted) = (u64::from_be_bytes(*own), u64::from_be_bytes(*wanted));
    match own {
        0 => Err(HandshakeError::Nameless),
        _ => Ok((NodeId(own), NodeId(wanted))),
    }
}

impl Secret {
    /// Reads the lines of a file: the first secret is the one that this node shows, each one is accepted.
    pub fn parse(text: &[u8], cluster: &str, own: NodeId) -> Result<Secret, SecretError> {
        let mut secrets = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            if line.len() < SHORTEST_BYTES {
                return Err(SecretError::Short(index + 1));
            }
            secrets.push(Zeroizing::new(line.to_vec()));
        }
        match secrets.len() {
            0 => Err(SecretError::Empty),
            1..=MOST_SECRETS => Ok(Secret {
                secrets,
                cluster: cluster.into(),
                own,
            }),
            _ => Err(SecretError::Many),
        }
    }

    /// Whether the secret of which `known` is the digest is in the file.
    pub fn has(&self, known: &[u8; 32]) -> bool {
        self.secrets.iter().any(|secret| digest(secret) == *known)
    }

    fn proof(&self, secret: &[u8], side: &[u8], said: &Transcript, node: NodeId) -> [u8; 32] {
        let mac = Hmac::<Sha256>::new_from_slice(secret);
        let mut mac = mac.expect("HMAC takes a key of every length");
        // Every part but the last has one length, so no two transcripts have the same bytes.
        mac.update(side);
        mac.update(&said.client);
        mac.update(&said.server);
        mac.update(&node.0.to_be_bytes());
        mac.update(self.cluster.as_bytes());
        mac.finalize().into_bytes().into()
    }

    /// Proves this node to whom it has connected to, and has that node prove itself. Returns which node it is, and the
    /// digest of the secret.
    pub async fn connect<S>(
        &self,
        stream: &mut S,
        wanted: Option<NodeId>,
    ) -> Result<(NodeId, [u8; 32]), HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut said = Transcript {
            client: [0; HELLO_BYTES],
            server: [0; NONCE_BYTES],
        };
        let hello = [
            &MAGIC[..],
            &self.own.0.to_be_bytes(),
            &wanted.map_or(0, |wanted| wanted.0).to_be_bytes(),
            &nonce()?,
        ];
        said.client.copy_from_slice(&hello.concat());
        stream.write_all(&said.client).await?;
        stream.read_exact(&mut said.server).await?;
        let shown = &self.secrets[0];
        let proof = self.proof(shown, b"client", &said, self.own);
        stream.write_all(&proof).await?;
        let found = NodeId(stream.read_u64().await?);
        let mut answer = [0; PROOF_BYTES];
        stream.read_exact(&mut answer).await?;
        let expected = self.proof(shown, b"server", &said, found);
        if !bool::from(expected.ct_eq(&answer)) {
            return Err(HandshakeError::Wrong);
        }
        match wanted {
            Some(wanted) if wanted != found => Err(HandshakeError::Found { found, wanted }),
            _ => Ok((found, digest(shown))),
        }
    }

    /// Has who connected prove itself, then proves this node. Returns which node it is, and the digest of the secret
    /// that it has used.
    pub async fn accept<S>(&self, stream: &mut S) -> Result<(NodeId, [u8; 32]), HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut said = Transcript {
            client: [0; HELLO_BYTES],
            server: nonce()?,
        };
        stream.read_exact(&mut said.client).await?;
        let (node, wanted) = parse(&said.client)?;
        if wanted.0 != 0 && wanted != self.own {
            return Err(HandshakeError::OtherNode(wanted));
        }
        stream.write_all(&said.server).await?;
        let mut answer = [0; PROOF_BYTES];
        stream.read_exact(&mut answer).await?;
        // All are tried, whichever fits.
        let mut fits = None;
        for secret in &self.secrets {
            let expected = self.proof(secret, b"client", &said, node);
            if bool::from(expected.ct_eq(&answer)) {
                fits = Some(secret);
            }
        }
        let secret = fits.ok_or(HandshakeError::Wrong)?;
        let proof = self.proof(secret, b"server", &said, self.own);
        let own = self.own.0.to_be_bytes();
        stream.write_all(&[&own[..], &proof].concat()).await?;
        Ok((node, digest(secret)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    const ONE: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";

    fn secret(text: &str, cluster: &str, own: u64) -> Secret {
        Secret::parse(text.as_bytes(), cluster, NodeId(own)).expect("well-formed")
    }

    type Both = (
        Result<NodeId, HandshakeError>,
        Result<NodeId, HandshakeError>,
    );

    async fn meet(client: &Secret, wanted: Option<u64>, server: &Secret) -> Both {
        let (mut one, mut other) = duplex(1024);
        let connect = async {
            let met = client.connect(&mut one, wanted.map(NodeId)).await;
            drop(one);
            met.map(|(node, _)| node)
        };
        let accept = async {
            let met = server.accept(&mut other).await;
            drop(other);
            met.map(|(node, _)| node)
        };
        tokio::join!(connect, accept)
    }

    #[tokio::test]
    async fn nodes_with_one_secret_prove_which_they_are() {
        for wanted in [None, Some(2)] {
            let met = meet(&secret(ONE, "c", 1), wanted, &secret(ONE, "c", 2)).await;
            assert!(matches!(met, (Ok(NodeId(2)), Ok(NodeId(1)))), "{met:?}");
        }
    }

    #[tokio::test]
    async fn another_secret_cluster_or_node_proves_nothing() {
        let own = secret(ONE, "c", 2);
        let met = meet(&secret(OTHER, "c", 1), None, &own).await;
        assert!(
            matches!(met, (Err(_), Err(HandshakeError::Wrong))),
            "{met:?}"
        );
        let met = meet(&secret(ONE, "d", 1), None, &own).await;
        assert!(
            matches!(met, (Err(_), Err(HandshakeError::Wrong))),
            "{met:?}"
        );
        let met = meet(&secret(ONE, "c", 1), Some(3), &own).await;
        assert!(
            matches!(met, (Err(_), Err(HandshakeError::OtherNode(NodeId(3))))),
            "{met:?}"
        );
    }

    #[tokio::test]
    async fn secrets_are_exchanged_one_node_after_the_other() {
        let both = format!("{OTHER}\n{ONE}\n");
        let met = meet(&secret(ONE, "c", 1), None, &secret(&both, "c", 2)).await;
        assert!(met.0.is_ok() && met.1.is_ok(), "the second is accepted");
        let reversed = format!("{ONE}\n{OTHER}\n");
        let met = meet(&secret(&both, "c", 1), None, &secret(&reversed, "c", 2)).await;
        assert!(met.0.is_ok() && met.1.is_ok(), "the first is shown");
    }

    #[tokio::test]
    async fn what_was_said_on_another_connection_is_no_proof() {
        let (own, peer) = (secret(ONE, "c", 2), secret(ONE, "c", 1));
        // A recording of a whole handshake of node 1.
        let (mut one, mut other) = duplex(1024);
        let (mut seen, mut said) = (Vec::new(), Vec::new());
        let record = async {
            let (mut inner, mut outer) = duplex(1024);
            let relay = async {
                let mut hello = [0; HELLO_BYTES];
                outer.read_exact(&mut hello).await?;
                other.write_all(&hello).await?;
                let mut nonce = [0; NONCE_BYTES];
                other.read_exact(&mut nonce).await?;
                outer.write_all(&nonce).await?;
                let mut proof = [0; PROOF_BYTES];
                outer.read_exact(&mut proof).await?;
                seen.extend_from_slice(&hello);
                said.extend_from_slice(&proof);
                drop(outer);
                Ok::<_, std::io::Error>(())
            };
            let (_, relayed) = tokio::join!(peer.connect(&mut inner, None), relay);
            relayed.expect("both are there");
            drop(other);
        };
        let _ = tokio::join!(own.accept(&mut one), record);
        let (mut replayed, mut to) = duplex(1024);
        let replay = async {
            to.write_all(&seen).await?;
            let mut nonce = [0; NONCE_BYTES];
            to.read_exact(&mut nonce).await?;
            to.write_all(&said).await
        };
        let (met, _) = tokio::join!(own.accept(&mut replayed), replay);
        assert!(matches!(met, Err(HandshakeError::Wrong)), "{met:?}");
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused() {
        let refused = |text: &str| {
            let parsed = Secret::parse(text.as_bytes(), "c", NodeId(1));
            parsed.map(|_| ()).expect_err("it is refused")
        };
        assert_eq!(refused("\n \n"), SecretError::Empty);
        assert_eq!(refused(&format!("{ONE}\nshort\n")), SecretError::Short(2));
        assert_eq!(refused(&format!("{ONE}\n").repeat(5)), SecretError::Many);
    }

    proptest::proptest! {
        #[test]
        fn no_hello_makes_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, HELLO_BYTES)) {
            let mut hello = [0; HELLO_BYTES];
            hello.copy_from_slice(&bytes);
            let _ = parse(&hello);
        }
    }
}
