//! TLS records of a client, cut anywhere, and damaged.
//!
//! What a client sends to a session, and what the session sends back, arrives as it was sent, however the records are
//! cut. Of what was damaged on its way nothing arrives, and nothing of what comes behind it.

#![allow(dead_code)]

#[path = "../../../src/transport/tls/loaded.rs"]
mod loaded;
#[path = "../../../src/transport/tls/names.rs"]
mod names;
#[path = "../../../src/transport/tls/session.rs"]
mod session;

use std::io::{Read as _, Write as _};
use std::sync::{Arc, OnceLock};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

use loaded::{Authorities, Loaded};
use session::Session;

const NAME: &str = "broker.example";

/// What a session may hold of input that is not whole: a record, and the keys that are counted with it.
const MOST_HELD_BYTES: usize = 32 << 10;

/// What is tried, as the first bytes of the input say.
struct Script<'i> {
    /// TLS 1.2, not 1.3.
    is_old: bool,
    /// The client shows a certificate.
    is_known: bool,
    /// The client changes its keys halfway, and asks for the same.
    renews: bool,
    /// The rest of the input is what the client sends: there is no client.
    is_raw: bool,
    /// This byte of what the client sends arrives as another one.
    damage: Option<(usize, u8)>,
    /// Lengths of the pieces, one after the other, again and again.
    cuts: &'i [u8],
    /// What the client says when the handshake is done.
    content: &'i [u8],
}

impl Script<'_> {
    fn read(input: &[u8]) -> Option<Script<'_>> {
        let (head, rest) = input.split_first_chunk::<5>()?;
        let [flags, damage @ .., cuts] = *head;
        let [high, low, difference] = damage;
        let (cuts, content) = rest.split_at_checked(usize::from(cuts))?;
        let at = usize::from(u16::from_be_bytes([high, low]));
        Some(Script {
            is_old: flags & 1 != 0,
            is_known: flags & 2 != 0,
            renews: flags & 4 != 0,
            is_raw: flags & 8 != 0,
            damage: (flags & 16 != 0 && difference != 0).then_some((at, difference)),
            cuts,
            content,
        })
    }

    /// Cuts bytes into pieces; without lengths they stay whole.
    fn pieces<'b>(&self, mut bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let mut lengths = self.cuts.iter().cycle().map(|cut| match cut {
            0..200 => usize::from(*cut) + 1,
            long => usize::from(long - 199) * 97,
        });
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let length = lengths.next().unwrap_or(bytes.len());
            let (piece, rest) = bytes.split_at(length.min(bytes.len()));
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }
}

/// Whatever the input says.
pub fn records(input: &[u8]) {
    let Some(script) = Script::read(input) else {
        return;
    };
    if script.is_raw {
        let whole = raw(&script, &[script.content]);
        assert_eq!(raw(&script, &script.pieces(script.content)), whole);
        return;
    }
    let mut pair = Pair::new(&script);
    let spoken = pair.speak(&script);
    match script.damage.filter(|(at, _)| *at < pair.arrived) {
        None => {
            spoken.expect("nothing is wrong with it");
            assert_eq!(pair.received, script.content);
            assert_eq!(pair.echoed, script.content);
            assert!(pair.session.is_closed() && pair.session.input().is_empty());
        }
        // Parts of the first hello are nothing to anybody.
        Some(_) => {
            assert!(script.content.starts_with(&pair.received));
            assert!(pair.received.starts_with(&pair.echoed));
        }
    }
}

/// What comes of these pieces: the content, and how it ended.
fn raw(script: &Script<'_>, pieces: &[&[u8]]) -> (Vec<u8>, bool, bool, Option<String>) {
    let mut session = Session::new(material().server(script)).expect("the library takes it");
    let (mut received, mut out) = (Vec::new(), Vec::new());
    let mut failed = None;
    for piece in pieces {
        let mut input = [session.input(), piece].concat();
        let content = |bytes: &[u8]| received.extend_from_slice(bytes);
        if let Err(error) = session.receive(&mut input, content, &mut out) {
            failed = Some(error.to_string());
            break;
        }
    }
    let (is_handshaking, is_closed) = (session.is_handshaking(), session.is_closed());
    (received, is_handshaking, is_closed, failed)
}

/// A client and a session.
struct Pair {
    client: ClientConnection,
    session: Session,
    /// Bytes of the client that have arrived.
    arrived: usize,
    /// What the session has made of them.
    received: Vec<u8>,
    /// What the client has got back.
    echoed: Vec<u8>,
    has_finished: bool,
}

impl Pair {
    fn new(script: &Script<'_>) -> Pair {
        let config = material().client(script);
        let name = ServerName::try_from(NAME).expect("a name");
        Pair {
            client: ClientConnection::new(config, name).expect("the library takes it"),
            session: Session::new(material().server(script)).expect("the library takes it"),
            arrived: 0,
            received: Vec::new(),
            echoed: Vec::new(),
            has_finished: false,
        }
    }

    /// The handshake, then each piece of the content in records of its own, then the end.
    fn speak(&mut self, script: &Script<'_>) -> Result<(), String> {
        self.exchange(script)?;
        let pieces = script.pieces(script.content);
        for (number, piece) in pieces.iter().enumerate() {
            if script.renews && number == pieces.len() / 2 {
                // TLS 1.2 has no such thing.
                let _ = self.client.refresh_traffic_keys();
            }
            let mut writer = self.client.writer();
            writer.write_all(piece).map_err(text)?;
            // Some go together.
            if number % 3 != 1 {
                self.exchange(script)?;
            }
        }
        self.client.send_close_notify();
        self.exchange(script)
    }

    /// Carries bytes both ways until nobody has any; the session says everything back.
    fn exchange(&mut self, script: &Script<'_>) -> Result<(), String> {
        loop {
            let mut sent = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut sent).map_err(text)?;
            }
            if let Some((at, difference)) = script.damage
                && let Some(byte) = at.checked_sub(self.arrived).and_then(|at| sent.get_mut(at))
            {
                *byte ^= difference;
            }
            let mut out = Vec::new();
            for piece in script.pieces(&sent) {
                self.arrived += piece.len();
                self.receive(piece, &mut out)?;
            }
            for mut piece in script.pieces(&out) {
                while !piece.is_empty() {
                    self.client.read_tls(&mut piece).map_err(text)?;
                    self.client.process_new_packets().map_err(text)?;
                }
            }
            // That nothing is there now is no error.
            let _ = self.client.reader().read_to_end(&mut self.echoed);
            if sent.is_empty() && out.is_empty() {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let mut input = [self.session.input(), piece].concat();
        let mut new = Vec::new();
        let content = |bytes: &[u8]| new.extend_from_slice(bytes);
        let judged = self.session.receive(&mut input, content, out);
        assert!(self.session.held_bytes() < MOST_HELD_BYTES);
        self.received.extend_from_slice(&new);
        if let Err(error) = judged {
            let nothing = |_: &[u8]| panic!("the session is over");
            let again = self.session.receive(&mut input, nothing, &mut Vec::new());
            assert!(again.is_err() && self.session.encrypt(b"1", &mut Vec::new()).is_err());
            return Err(text(error));
        }
        if self.session.is_handshaking() {
            assert!(new.is_empty(), "nobody is known yet");
            return Ok(());
        }
        if !std::mem::replace(&mut self.has_finished, true) {
            let (peer, is_resumed) = self.session.finish().map_err(text)?;
            assert!(!is_resumed && peer.unverified.is_empty());
            // Damage may have taken the extension away, and then the rest of the handshake does not go on.
            assert_eq!(peer.server_name.as_deref(), Some(NAME));
        }
        if !new.is_empty() {
            self.session.encrypt(&new, out).map_err(text)?;
        }
        Ok(())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Certificates, made once: handshakes take long enough.
struct Material {
    chain: Vec<CertificateDer<'static>>,
    key: PrivatePkcs8KeyDer<'static>,
    /// One that asks for a certificate, and one that does not.
    servers: [Arc<Loaded>; 2],
}

fn material() -> &'static Material {
    static MATERIAL: OnceLock<Material> = OnceLock::new();
    MATERIAL.get_or_init(|| {
        let key = rcgen::KeyPair::generate().expect("a key can be made");
        let parameters = rcgen::CertificateParams::new([NAME.to_owned()]).expect("a name");
        let certificate = parameters.self_signed(&key).expect("it can be signed");
        let chain = vec![certificate.der().clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Material {
            servers: [false, true].map(|asks| Arc::new(server(&chain, &key, asks))),
            chain,
            key,
        }
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(chain: &[CertificateDer<'static>]) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in chain {
        roots.add(certificate.clone()).expect("it was just made");
    }
    Arc::new(roots)
}

/// As `ServerTls` loads it from files.
fn server(
    chain: &[CertificateDer<'static>],
    key: &PrivatePkcs8KeyDer<'static>,
    asks: bool,
) -> Loaded {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(chain), provider()).build();
    let verifier = asks.then(|| verifier.expect("it has a root"));
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("they are known");
    let builder = match &verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        None => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::from(key.clone_key());
    let key = CertifiedKey::from_der(chain.to_vec(), key, &provider()).expect("they are a pair");
    let resolver = names::Certificates(vec![Arc::new(key)]);
    Loaded {
        config: Arc::new(builder.with_cert_resolver(Arc::new(resolver))),
        verifier,
        asks_everybody: false,
        authorities: Authorities::default(),
        expiries: Vec::new(),
    }
}

impl Material {
    fn server(&self, script: &Script<'_>) -> Arc<Loaded> {
        self.servers[usize::from(script.is_known)].clone()
    }

    fn client(&self, script: &Script<'_>) -> Arc<ClientConfig> {
        let versions = match script.is_old {
            true => &[&TLS12],
            false => &[&TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .expect("they are known")
            .with_root_certificates(roots(&self.chain));
        let mut config = match script.is_known {
            true => {
                let key = PrivateKeyDer::from(self.key.clone_key());
                let built = builder.with_client_auth_cert(self.chain.clone(), key);
                built.expect("they are a pair")
            }
            false => builder.with_no_client_auth(),
        };
        // What one input leaves behind is nothing to the next one.
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}
