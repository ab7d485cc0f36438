//! TLS in memory: names, versions, client certificates, resumption, files that change, and records cut anywhere.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::authority::{Authority, Identity};
use crate::config::{CertificatePair, ClientCertificates};
use crate::transport::TlsPeer;
use crate::transport::tls::{Files, Reload, ServerTls, Session};

/// A client and a session in memory.
struct Pair {
    client: ClientConnection,
    session: Session,
    /// What the session has received.
    received: Vec<u8>,
}

impl Pair {
    fn new(tls: &ServerTls, config: &Arc<ClientConfig>, name: &'static str) -> Pair {
        let name = ServerName::try_from(name).expect("a name");
        Pair {
            client: ClientConnection::new(config.clone(), name).expect("valid"),
            session: Session::new(tls.loaded()).expect("valid"),
            received: Vec::new(),
        }
    }

    /// Carries bytes both ways, in pieces of so many, until nobody has any.
    fn exchange(&mut self, piece: usize) -> Result<(), String> {
        loop {
            let mut sent = Vec::new();
            while self.client.wants_write() {
                self.client
                    .write_tls(&mut sent)
                    .map_err(|error| error.to_string())?;
            }
            let is_idle = sent.is_empty();
            let mut out = Vec::new();
            let mut failed = None;
            for piece in sent.chunks(piece.max(1)) {
                let mut input = [self.session.input(), piece].concat();
                let received = &mut self.received;
                let put = |bytes: &[u8]| received.extend_from_slice(bytes);
                if let Err(error) = self.session.receive(&mut input, put, &mut out) {
                    failed = Some(error.to_string());
                    break;
                }
            }
            let is_idle = is_idle && out.is_empty();
            self.give(&out)?;
            if let Some(error) = failed {
                return Err(error);
            }
            if is_idle {
                return Ok(());
            }
        }
    }

    /// Gives the client bytes of the server.
    fn give(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            self.client
                .read_tls(&mut bytes)
                .map_err(|error| error.to_string())?;
            self.client
                .process_new_packets()
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn client_reads(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        match self.client.reader().read_to_end(&mut read) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
            _ => read,
        }
    }
}

fn shaken(
    tls: &ServerTls,
    config: &Arc<ClientConfig>,
    name: &'static str,
) -> Result<(TlsPeer, bool), String> {
    let mut pair = Pair::new(tls, config, name);
    pair.exchange(usize::MAX)?;
    pair.session.finish().map_err(|error| error.to_string())
}

#[test]
fn the_certificate_is_that_of_the_name() {
    let authority = Authority::new();
    let files = authority.files(&["one.example", "two.example"], ClientCertificates::Off);
    let tls = ServerTls::load(files, &["mqtt"]).expect("good files");
    let config = Arc::new(authority.client_config(None));
    for name in ["one.example", "two.example"] {
        let (peer, _) = shaken(&tls, &config, name).expect("it is right for the name");
        assert_eq!(peer.server_name.as_deref(), Some(name));
        assert!(peer.certificates.is_empty());
    }
    let other = shaken(&tls, &config, "three.example");
    assert!(other.is_err(), "the client refuses the first one");
}

#[test]
fn a_protocol_that_is_named_must_be_known() {
    let authority = Authority::new();
    let files = authority.files(&["one.example"], ClientCertificates::Off);
    let tls = ServerTls::load(files, &["mqtt"]).expect("good files");
    let shaken_with = |protocols: &[&[u8]]| {
        let mut config = authority.client_config(None);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        shaken(&tls, &Arc::new(config), "one.example")
    };
    assert!(shaken_with(&[]).is_ok());
    assert!(shaken_with(&[b"x", b"mqtt"]).is_ok());
    assert!(shaken_with(&[b"h2"]).is_err());
}

#[test]
fn a_client_certificate_is_shown_judged_and_revoked() {
    let authority = Authority::new();
    let (good, bad) = (authority.client(7), authority.client(8));
    authority.revoke(&[&bad]);
    let stranger = Authority::new().client(9);
    let mut files = authority.files(&["one.example"], ClientCertificates::Required);
    files.crl_files = vec![authority.path("crl.pem")];
    let required = ServerTls::load(files.clone(), &[]).expect("good files");
    let try_with = |tls: &ServerTls, identity: Option<&Identity>| {
        let config = Arc::new(authority.client_config(identity));
        shaken(tls, &config, "one.example")
    };
    let (peer, _) = try_with(&required, Some(&good)).expect("it is good");
    assert_eq!(peer.certificates, std::slice::from_ref(&good.certificate));
    for refused in [None, Some(&bad), Some(&stranger)] {
        assert!(try_with(&required, refused).is_err());
    }
    files.client_certificates = ClientCertificates::Optional;
    let optional = ServerTls::load(files, &[]).expect("good files");
    assert!(try_with(&optional, None).is_ok_and(|(peer, _)| peer.certificates.is_empty()));
    assert!(try_with(&optional, Some(&bad)).is_err());
}

/// Whose certificate nobody vouches for has shown that it has the key, and no more; where one is required, it does not
/// come in.
#[test]
fn where_everybody_is_asked_a_certificate_is_told_apart_by_who_vouches_for_it() {
    let authority = Authority::new();
    let (good, stranger) = (authority.client(7), Authority::new().client(9));
    let shown = |asks: ClientCertificates, identity: Option<&Identity>| {
        let files = Files {
            asks_everybody: true,
            ..authority.files(&["one.example"], asks)
        };
        let tls = ServerTls::load(files, &[]).expect("good files");
        let config = Arc::new(authority.client_config(identity));
        let first = shaken(&tls, &config, "one.example")?;
        assert!(!first.1);
        let (peer, is_resumed) = shaken(&tls, &config, "one.example")?;
        assert!(is_resumed);
        assert_eq!(peer.certificates, first.0.certificates);
        assert_eq!(peer.unverified, first.0.unverified);
        Ok::<_, String>((peer.certificates, peer.unverified))
    };
    let of = |identity: &Identity| vec![identity.certificate.clone()];
    let (off, optional) = (ClientCertificates::Off, ClientCertificates::Optional);
    for asks in [off, optional] {
        assert_eq!(shown(asks, None), Ok((vec![], vec![])));
        assert_eq!(shown(asks, Some(&stranger)), Ok((vec![], of(&stranger))));
    }
    assert_eq!(shown(off, Some(&good)), Ok((vec![], of(&good))));
    assert_eq!(shown(optional, Some(&good)), Ok((of(&good), vec![])));
    let required = ClientCertificates::Required;
    assert_eq!(shown(required, Some(&good)), Ok((of(&good), vec![])));
    for refused in [None, Some(&stranger)] {
        assert!(shown(required, refused).is_err());
    }
}

#[test]
fn a_session_is_resumed_until_its_client_is_judged_anew() {
    let authority = Authority::new();
    let client = authority.client(7);
    authority.revoke(&[]);
    let mut files = authority.files(&["one.example"], ClientCertificates::Required);
    files.crl_files = vec![authority.path("crl.pem")];
    let tls = ServerTls::load(files, &[]).expect("good files");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut config = authority.client_config(Some(&client));
        let only = ClientConfig::builder_with_provider(config.crypto_provider().clone())
            .with_protocol_versions(&[version])
            .expect("a version");
        let mut roots = RootCertStore::empty();
        roots.add(authority.issuer.der().clone()).expect("a CA");
        config = only
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![client.certificate.clone()], client.key.clone_key())
            .expect("a certificate");
        let config = Arc::new(config);
        assert!(!shaken(&tls, &config, "one.example").expect("it is good").1);
        let (peer, is_resumed) = shaken(&tls, &config, "one.example").expect("it is good");
        assert!(is_resumed, "{version:?}");
        assert_eq!(peer.certificates, std::slice::from_ref(&client.certificate));
        // A server's certificate that is renewed changes nothing for clients.
        authority.server("one.example", 3);
        assert!(matches!(tls.reload(true), Reload::Loaded));
        assert!(shaken(&tls, &config, "one.example").expect("it is good").1);
    }
    authority.revoke(&[&client]);
    assert!(matches!(tls.reload(false), Reload::Loaded));
    let config = Arc::new(authority.client_config(Some(&client)));
    assert!(shaken(&tls, &config, "one.example").is_err());
}

/// A revocation that can't be read for a moment, because there is no descriptor left, is read at the next look.
#[test]
fn files_that_could_not_be_read_are_tried_again() {
    let authority = Authority::new();
    let client = authority.client(2);
    authority.revoke(&[]);
    let mut files = authority.files(&["one.example"], ClientCertificates::Required);
    files.crl_files = vec![authority.path("crl.pem")];
    let tls = ServerTls::load(files, &[]).expect("good files");
    let config = Arc::new(authority.client_config(Some(&client)));
    assert!(shaken(&tls, &config, "one.example").is_ok());
    authority.revoke(&[&client]);
    let fails = || {
        let error = rustls::Error::General("no descriptor is left".into());
        tls.reload_by(false, |_| Err(error.into()))
    };
    assert!(matches!(fails(), Reload::Failed(_)));
    assert!(matches!(fails(), Reload::Unchanged), "told once");
    assert!(matches!(tls.reload(false), Reload::Loaded));
    assert!(shaken(&tls, &config, "one.example").is_err());
}

#[test]
fn files_that_are_broken_change_nothing() {
    let authority = Authority::new();
    let files = authority.files(&["one.example"], ClientCertificates::Off);
    let pair = files.certificates[0].clone();
    let tls = ServerTls::load(files, &[]).expect("good files");
    let config = Arc::new(authority.client_config(None));
    assert!(matches!(tls.reload(false), Reload::Unchanged));
    let before = tls.loaded();
    for broken in [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        std::fs::write(&pair.certificate, broken).expect("writable");
        assert!(matches!(tls.reload(false), Reload::Failed(_)));
        assert!(matches!(tls.reload(false), Reload::Unchanged), "told once");
    }
    // The key of another certificate.
    let other = authority.server("two.example", 9);
    std::fs::copy(&other.certificate, &pair.certificate).expect("writable");
    assert!(matches!(tls.reload(false), Reload::Failed(_)));
    assert!(Arc::ptr_eq(&before, &tls.loaded()));
    assert!(shaken(&tls, &config, "one.example").is_ok());
    authority.server("one.example", 4);
    assert!(matches!(tls.reload(false), Reload::Loaded));
    assert!(shaken(&tls, &config, "one.example").is_ok());
}

#[test]
fn a_key_that_everybody_may_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let authority = Authority::new();
    let files = authority.files(&["a.example"], ClientCertificates::Off);
    let key = files.certificates[0].key.clone();
    for (mode, is_used) in [(0o600, true), (0o644, true), (0o666, false)] {
        let mode_of_key = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&key, mode_of_key).expect("it is ours");
        let loaded = ServerTls::load(files.clone(), &[]);
        assert_eq!(loaded.is_ok(), is_used, "{mode:o}");
    }
}

#[test]
fn an_idle_session_holds_no_buffer() {
    let authority = Authority::new();
    let files = authority.files(&["one.example"], ClientCertificates::Off);
    let tls = ServerTls::load(files, &[]).expect("good files");
    let mut pair = Pair::new(
        &tls,
        &Arc::new(authority.client_config(None)),
        "one.example",
    );
    pair.exchange(5).expect("a handshake");
    pair.client.writer().write_all(&[1; 50_000]).expect("room");
    pair.exchange(700).expect("data");
    assert_eq!(pair.received.len(), 50_000);
    assert!(pair.session.held_bytes() <= 6 << 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn records_may_be_cut_anywhere(
        piece in 1..3_000usize,
        to_server in proptest::collection::vec(1..40_000usize, 1..4),
        to_client in proptest::collection::vec(1..70_000usize, 1..4),
    ) {
        let authority = Authority::new();
        let files = authority.files(&["one.example"], ClientCertificates::Off);
        let tls = ServerTls::load(files, &[]).expect("good files");
        let mut pair = Pair::new(&tls, &Arc::new(authority.client_config(None)), "one.example");
        pair.exchange(piece).map_err(TestCaseError::fail)?;
        pair.session.finish().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let (mut sent, mut answered, mut read) = (Vec::new(), Vec::new(), Vec::new());
        for (number, length) in to_server.iter().enumerate() {
            let bytes = vec![number as u8; *length];
            pair.client.writer().write_all(&bytes).expect("room");
            pair.exchange(piece).map_err(TestCaseError::fail)?;
            sent.extend(bytes);
        }
        for (number, length) in to_client.iter().enumerate() {
            let bytes = vec![number as u8; *length];
            let mut out = Vec::new();
            pair.session.encrypt(&bytes, &mut out).expect("it is open");
            answered.extend(bytes);
            for piece in out.chunks(piece) {
                pair.give(piece).map_err(TestCaseError::fail)?;
                read.extend(pair.client_reads());
            }
        }
        prop_assert!(pair.received == sent && read == answered);
        let mut out = Vec::new();
        pair.session.close(&mut out).expect("it is open");
        pair.give(&out).map_err(TestCaseError::fail)?;
        pair.client.send_close_notify();
        pair.exchange(piece).map_err(TestCaseError::fail)?;
        prop_assert!(pair.session.is_closed());
    }

    #[test]
    fn no_bytes_make_a_session_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0..400usize,
        piece in 1..100usize,
    ) {
        let authority = Authority::new();
        let files = authority.files(&["one.example"], ClientCertificates::Off);
        let tls = ServerTls::load(files, &[]).expect("good files");
        let config = Arc::new(authority.client_config(None));
        let mut pair = Pair::new(&tls, &config, "one.example");
        let mut hello = Vec::new();
        pair.client.write_tls(&mut hello).expect("it goes first");
        hello.truncate(at);
        hello.extend(bytes);
        let mut out = Vec::new();
        for piece in hello.chunks(piece) {
            let mut input = [pair.session.input(), piece].concat();
            if pair.session.receive(&mut input, |_| {}, &mut out).is_err() {
                break;
            }
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let files = Files {
        certificates: vec![CertificatePair {
            certificate: Path::new("/nonexistent.pem").to_owned(),
            key: Path::new("/nonexistent.key").to_owned(),
        }],
        client_certificates: ClientCertificates::Off,
        client_ca_file: None,
        crl_files: Vec::new(),
        asks_everybody: false,
    };
    let error = ServerTls::load(files, &[]).expect_err("there is none");
    assert!(error.to_string().starts_with("/nonexistent.pem: "));
}
