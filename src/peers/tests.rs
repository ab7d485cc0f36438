//! Two ends of a connection over real sockets: who is believed, who is not, and what happens when trust changes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt as _;

use super::authority::{Authority, Files, Subject, put};
use super::settings::{Settings, Source};
use super::stream::PeerStream;
use super::trust::{Reload, Trust, TrustError};
use super::{Connector, NodeName, Reach, incoming};
use crate::base::ids::NodeId;
use crate::config::Config;

#[path = "ending_tests.rs"]
mod ending;
#[path = "flood_tests.rs"]
mod flood;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn settings(id: u64, source: Source) -> Settings {
    Settings {
        own: NodeName {
            cluster: "test".parse().expect("a word"),
            node: NodeId(id),
        },
        cluster: "7d3a5a0e-55a3-4d3f-9d6b-4a4f2a0f3c11".to_owned(),
        source,
        reach: Reach::default(),
    }
}

fn by_files(id: u64, files: &Files) -> Result<Trust, TrustError> {
    Trust::new(settings(
        id,
        Source::Certificates {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            authorities: files.authorities.clone(),
            // None is there, unless a test makes one.
            lists: Some(files.list.clone())
                .filter(|list| list.exists())
                .into_iter()
                .collect(),
        },
    ))
}

/// Certificates of a node, and the trust that they make.
struct Proved {
    directory: TempDir,
    files: Files,
    trust: Trust,
}

fn proved(authority: &Authority, id: u64) -> Proved {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = authority.files(directory.path(), "test", id);
    let trust = by_files(id, &files).expect("good files");
    Proved {
        directory,
        files,
        trust,
    }
}

type Incoming = tokio_stream::wrappers::ReceiverStream<io::Result<PeerStream>>;

async fn listen(trust: &Trust) -> (SocketAddr, Incoming) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    (address, incoming(listener, trust.clone()))
}

async fn connect(trust: &Trust, wanted: Option<u64>, to: SocketAddr) -> io::Result<PeerStream> {
    let connector = Connector::new(trust.clone(), wanted.map(NodeId));
    connector.connect("127.0.0.1", to.port()).await
}

/// Whether a byte goes to the other end and back. A client of TLS 1.3 learns only then that it was refused.
async fn works(one: &mut PeerStream, incoming: &mut Incoming) -> Option<PeerStream> {
    one.write_all(b"?").await.ok()?;
    one.flush().await.ok()?;
    let arrived = async {
        let mut other = incoming.next().await?.ok()?;
        let mut byte = [0];
        other.read_exact(&mut byte).await.ok()?;
        other.write_all(b"!").await.ok()?;
        other.flush().await.ok()?;
        Some(other)
    };
    let answered = async {
        let mut byte = [0];
        one.read_exact(&mut byte).await.map_err(|_| ())?;
        // What is not encrypted sees an alert here.
        if byte == *b"!" { Ok(()) } else { Err(()) }
    };
    tokio::pin!(arrived, answered);
    tokio::select! {
        answer = &mut answered => match answer {
            Ok(()) => arrived.await,
            Err(()) => None,
        },
        other = &mut arrived => {
            // Nothing is left unread.
            answered.await.ok()?;
            other
        }
    }
}

async fn is_closed(stream: &mut PeerStream) -> bool {
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_u8());
    matches!(read.await, Ok(Err(_)))
}

#[tokio::test]
async fn nodes_of_one_authority_prove_which_they_are() {
    let authority = Authority::new("a");
    let (one, two) = (proved(&authority, 1), proved(&authority, 2));
    let (address, mut at_two) = listen(&two.trust).await;
    for wanted in [Some(2), None] {
        let mut stream = connect(&one.trust, wanted, address).await.expect("proved");
        assert_eq!(stream.info().proven, Some(NodeId(2)));
        let other = works(&mut stream, &mut at_two).await.expect("open");
        assert_eq!(other.info().proven, Some(NodeId(1)));
    }
    let other = connect(&one.trust, Some(3), address).await;
    assert!(other.is_err(), "node 2 is not node 3");
}

#[tokio::test]
async fn who_has_another_certificate_or_none_reaches_nothing() {
    let (authority, foreign) = (Authority::new("a"), Authority::new("a"));
    let two = proved(&authority, 2);
    let (address, mut at_two) = listen(&two.trust).await;
    // Its own side would not connect: it is made to trust the right authority.
    let stranger = proved(&foreign, 1);
    stranger.files.put_authorities(&[&authority, &foreign]);
    let stranger = by_files(1, &stranger.files).expect("it trusts both");
    let mut refused = connect(&stranger, Some(2), address).await.expect("TLS 1.3");
    assert!(works(&mut refused, &mut at_two).await.is_none());
    // Without a certificate, and without TLS.
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\x16\x03\x01",
        b"",
    ] {
        let mut plain = TcpStream::connect(address).await.expect("it listens");
        plain.write_all(bytes).await.expect("it is read");
        plain.shutdown().await.expect("it is open");
        let mut said = Vec::new();
        let _ = plain.read_to_end(&mut said).await;
        // An alert, at most.
        assert!(said.len() < 16, "{said:?}");
    }
    let nobody = connect(&Trust::open(), Some(2), address).await;
    let mut nobody = nobody.expect("it proves nothing");
    assert!(works(&mut nobody, &mut at_two).await.is_none());
    assert!(two.trust.counters().handshakes_failed.load(Relaxed) >= 4);
    // Meanwhile and afterwards nodes are served.
    let one = proved(&authority, 1);
    let mut stream = connect(&one.trust, Some(2), address).await.expect("proved");
    assert!(works(&mut stream, &mut at_two).await.is_some());
}

#[tokio::test]
async fn a_certificate_of_another_cluster_is_none_of_this_one() {
    let authority = Authority::new("a");
    let two = proved(&authority, 2);
    let (address, mut at_two) = listen(&two.trust).await;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = authority.files(directory.path(), "other", 1);
    let mut settings = settings(
        1,
        Source::Certificates {
            certificate: files.certificate,
            key: files.key,
            authorities: files.authorities,
            lists: Vec::new(),
        },
    );
    settings.own.cluster = "other".parse().expect("a word");
    let other = Trust::new(settings).expect("good files");
    assert!(
        connect(&other, None, address).await.is_err(),
        "it sees another cluster"
    );
    let at_other = listen(&other).await;
    assert!(connect(&two.trust, None, at_other.0).await.is_err());
    assert!(
        tokio::time::timeout(Duration::from_millis(50), at_two.next())
            .await
            .is_err()
    );
}

#[test]
fn a_node_uses_only_a_certificate_that_the_others_accept() {
    let (authority, foreign) = (Authority::new("a"), Authority::new("b"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = Files::in_directory(directory.path());
    files.put_authorities(&[&authority]);
    let good = Subject::node("test", 1);
    let refused = |authority: &Authority, change: &dyn Fn(&mut Subject)| {
        let mut subject = good.clone();
        change(&mut subject);
        files.put_certificate(authority, &subject);
        let error = by_files(1, &files).map(|_| ()).expect_err("it is refused");
        error.to_string()
    };
    let text = refused(&authority, &|subject| {
        subject.uris = Subject::node("test", 2).uris
    });
    assert!(text.contains("quorumq://test/nodes/2") && text.contains("quorumq://test/nodes/1"));
    refused(&authority, &|subject| subject.uris.clear());
    refused(&authority, &|subject| {
        subject.uris.push("quorumq://test/nodes/3".to_owned())
    });
    refused(&authority, &|subject| subject.expired = true);
    for usage in [
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ] {
        let text = refused(&authority, &|subject| subject.usages = vec![usage.clone()]);
        assert!(text.contains("cluster.ca_file"), "{text}");
    }
    refused(&foreign, &|_| {});
    // A name of another kind beside it is no matter.
    let mut subject = good.clone();
    subject.uris.push("spiffe://example.org/node".to_owned());
    files.put_certificate(&authority, &subject);
    assert!(by_files(1, &files).is_ok());
    // A key of another certificate.
    let (_, key) = authority.sign(&good);
    put(&files.key, &key);
    assert!(by_files(1, &files).is_err());
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let authority = Authority::new("a");
    let one = proved(&authority, 1);
    let open = std::fs::Permissions::from_mode(0o604);
    std::fs::set_permissions(&one.files.key, open).expect("it is ours");
    let error = by_files(1, &one.files).map(|_| ()).expect_err("it is open");
    assert!(error.to_string().contains("chmod"), "{error}");
    assert!(one.directory.path().exists());
}

fn by_secret(path: &Path, id: u64) -> Trust {
    Trust::new(settings(id, Source::Secret(path.to_owned()))).expect("a good secret")
}

#[tokio::test]
async fn a_secret_proves_nodes_of_one_machine() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (path, other) = (
        directory.path().join("secret"),
        directory.path().join("other"),
    );
    put(&path, SECRET);
    put(&other, &SECRET.replace('0', "1"));
    let (one, two) = (by_secret(&path, 1), by_secret(&path, 2));
    let (address, mut at_two) = listen(&two).await;
    let mut stream = connect(&one, Some(2), address).await.expect("proved");
    let arrived = works(&mut stream, &mut at_two).await.expect("open");
    assert_eq!(arrived.info().proven, Some(NodeId(1)));
    assert_eq!(stream.info().proven, Some(NodeId(2)));
    for (stranger, wanted) in [(by_secret(&other, 1), 2), (one, 3), (Trust::open(), 2)] {
        if let Ok(mut stream) = connect(&stranger, Some(wanted), address).await {
            assert!(works(&mut stream, &mut at_two).await.is_none());
        }
    }
}

#[tokio::test]
async fn an_authority_is_replaced_while_connections_go_on_and_then_the_old_one_ends() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (one, two) = (proved(&old, 1), proved(&old, 2));
    let (address, mut at_two) = listen(&two.trust).await;
    let mut first = connect(&one.trust, Some(2), address).await.expect("proved");
    let mut first_at_two = works(&mut first, &mut at_two).await.expect("open");
    // Both are trusted, then the certificates are replaced; nothing ends.
    for node in [&one, &two] {
        node.files.put_authorities(&[&old, &new]);
        assert_eq!(node.trust.reload(), Reload::Used);
        assert_eq!(node.trust.reload(), Reload::Same);
    }
    for (id, node) in [(1, &one), (2, &two)] {
        node.files.put_certificate(&new, &Subject::node("test", id));
        assert_eq!(node.trust.reload(), Reload::Used);
        let mut stream = connect(&one.trust, Some(2), address).await.expect("proved");
        assert!(works(&mut stream, &mut at_two).await.is_some());
    }
    first.write_all(b"?").await.expect("it is open");
    first.flush().await.expect("it is open");
    assert_eq!(first_at_two.read_u8().await.expect("it is open"), b'?');
    // The old one is trusted no more: what it has signed ends on both sides, what the new one has signed stays.
    let mut second = connect(&one.trust, Some(2), address).await.expect("proved");
    let mut second_at_two = works(&mut second, &mut at_two).await.expect("open");
    for node in [&one, &two] {
        node.files.put_authorities(&[&new]);
        assert_eq!(node.trust.reload(), Reload::Used);
    }
    assert!(is_closed(&mut first).await && is_closed(&mut first_at_two).await);
    second.write_all(b"?").await.expect("it is open");
    second.flush().await.expect("it is open");
    assert_eq!(second_at_two.read_u8().await.expect("it is open"), b'?');
}

#[tokio::test]
async fn where_a_node_has_proved_itself_is_known_at_both_ends() {
    let authority = Authority::new("a");
    let (one, two) = (proved(&authority, 1), proved(&authority, 2));
    let (address, mut at_two) = listen(&two.trust).await;
    let knows = |trust: &Trust| trust.registry().knows(address.ip());
    drop(TcpStream::connect(address).await.expect("it listens"));
    assert!(!knows(&one.trust) && !knows(&two.trust));
    let mut stream = connect(&one.trust, Some(2), address).await.expect("proved");
    assert!(works(&mut stream, &mut at_two).await.is_some());
    assert!(knows(&one.trust) && knows(&two.trust));
}

/// A name is judged when it is connected to: it may have been another address when it was checked.
#[tokio::test]
async fn nobody_is_looked_for_where_no_node_can_be() {
    let authority = Authority::new("a");
    let (one, two) = (proved(&authority, 1), proved(&authority, 2));
    let (address, mut at_two) = listen(&two.trust).await;
    let reach_of = |advertised: &str| {
        let mut config = Config::default();
        config.cluster.advertise = Some(advertised.parse().expect("an address"));
        Reach::of(&config)
    };
    let mut settings = settings(
        1,
        Source::Certificates {
            certificate: one.files.certificate.clone(),
            key: one.files.key.clone(),
            authorities: one.files.authorities.clone(),
            lists: Vec::new(),
        },
    );
    settings.reach = reach_of("192.0.2.1:7883");
    let elsewhere = Connector::new(Trust::new(settings).expect("good files"), Some(NodeId(2)));
    for host in ["localhost", "127.0.0.1"] {
        let refused = elsewhere.connect(host, address.port()).await;
        let refused = refused.map(|_| ()).expect_err("no node is there");
        assert!(
            refused.to_string().contains("this machine alone"),
            "{refused}"
        );
    }
    let arrived = tokio::time::timeout(Duration::from_millis(100), at_two.next());
    assert!(arrived.await.is_err());
    assert_eq!(two.trust.counters().handshakes_failed.load(Relaxed), 0);
}

#[tokio::test]
async fn files_that_are_wrong_replace_nothing() {
    let authority = Authority::new("a");
    let (one, two) = (proved(&authority, 1), proved(&authority, 2));
    let (address, mut at_two) = listen(&two.trust).await;
    put(
        &two.files.certificate,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    assert_eq!(two.trust.reload(), Reload::Failed);
    assert_eq!(
        two.trust.counters().reloads_failed.load(Relaxed),
        0,
        "it may be half written"
    );
    assert_eq!(two.trust.reload(), Reload::Failed);
    assert_eq!(two.trust.reload(), Reload::Failed);
    assert_eq!(two.trust.counters().reloads_failed.load(Relaxed), 1);
    let mut stream = connect(&one.trust, Some(2), address).await.expect("proved");
    assert!(works(&mut stream, &mut at_two).await.is_some());
    std::fs::remove_file(&two.files.authorities).expect("it is there");
    assert_eq!(two.trust.reload(), Reload::Failed);
    authority.files(two.directory.path(), "test", 2);
    assert_eq!(two.trust.reload(), Reload::Used);
}
