//! A client against servers that do not mean it well, or not at all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A server that answers each request on a connection with the next of `answers`, and counts connections.
async fn server(answers: &'static [&'static str]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                for answer in answers {
                    if !matches!(stream.read(&mut bytes).await, Ok(1..)) {
                        return;
                    }
                    if answer.is_empty() {
                        std::future::pending::<()>().await;
                    }
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    (address, connections)
}

fn client_of(address: SocketAddr, excess: Excess) -> HttpClient {
    HttpClient::new(Options {
        url: format!("http://{address}/keys").parse().expect("a URL"),
        tls: TlsFiles::default(),
        timeout: Duration::from_millis(500),
        largest_answer: 64,
        excess,
        refuses_local: true,
        repeats: false,
    })
    .expect("there are no files")
}

fn client(address: SocketAddr) -> HttpClient {
    client_of(address, Excess::Refused)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_connection_is_used_again_and_a_closed_one_is_not() {
    let (address, connections) = server(&[OK, OK]).await;
    let client = client(address);
    for _ in 0..6 {
        let answer = client.get(&[]).await.expect("it answers");
        assert_eq!((answer.status, &*answer.body), (StatusCode::OK, &b"ok"[..]));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(connections.load(Ordering::Relaxed), 3);
}

/// The server has read the second request on the kept connection, and breaks it.
#[tokio::test]
async fn what_was_written_is_not_sent_again_unless_it_may_come_twice() {
    for (repeats, expected) in [(false, 1), (true, 2)] {
        let (address, connections) = server(&[OK, "nonsense\r\n\r\n"]).await;
        let client = HttpClient {
            repeats,
            ..client(address)
        };
        client.get(&[]).await.expect("it answers");
        let second = client.post(&[], Bytes::from_static(b"x")).await;
        assert_eq!(second.is_ok(), repeats, "{second:?}");
        assert_eq!(connections.load(Ordering::Relaxed), expected);
    }
}

#[tokio::test]
async fn plain_http_to_this_machine_stays_there_wherever_its_name_leads() {
    let url = Url::of_endpoint("http://localhost:1/", false).expect("a URL");
    let connector = Connector::new(url, &TlsFiles::default(), true).expect("there are no files");
    for (address, is_allowed) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("::ffff:127.0.0.1", true),
        ("10.0.0.1", false),
        ("203.0.113.1", false),
    ] {
        let address = address.parse().expect("an address");
        assert_eq!(connector.may_connect(address), is_allowed, "{address}");
    }
}

#[tokio::test]
async fn redirects_are_answers() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let (address, connections) = server(Box::leak(Box::new([moved]))).await;
    let answer = client(address).get(&[]).await.expect("it answers");
    assert_eq!(answer.status, StatusCode::FOUND);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn answers_are_bounded_in_time_and_size() {
    let announced = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
    let (address, _) = server(Box::leak(Box::new([announced]))).await;
    let failed = client(address).get(&[]).await;
    assert!(matches!(failed, Err(HttpError::TooLarge(64))), "{failed:?}");
    let endless = Box::leak(format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(65)).into_boxed_str());
    let (address, _) = server(Box::leak(Box::new([&*endless]))).await;
    let failed = client(address).get(&[]).await;
    assert!(matches!(failed, Err(HttpError::TooLarge(64))), "{failed:?}");
    let (address, _) = server(&[""]).await;
    let failed = client(address).get(&[]).await;
    assert!(matches!(failed, Err(HttpError::TimedOut(_))), "{failed:?}");
    let (address, _) = server(&["nonsense\r\n\r\n"]).await;
    let failed = client(address).get(&[]).await;
    assert!(matches!(failed, Err(HttpError::Http(_))), "{failed:?}");
}

/// Nothing was sent, so nothing can be the request's fault.
#[tokio::test]
async fn who_has_got_nothing_is_told_from_who_does_not_answer() {
    // It takes the connection, and says nothing of TLS.
    let (address, _) = server(&["", ""]).await;
    let client = HttpClient::new(Options {
        url: format!("https://{address}/keys").parse().expect("a URL"),
        tls: TlsFiles::default(),
        timeout: Duration::from_millis(200),
        largest_answer: 64,
        excess: Excess::Refused,
        refuses_local: true,
        repeats: false,
    });
    let failed = client.expect("there are no files").get(&[]).await;
    assert!(
        matches!(failed, Err(HttpError::NotConnected(_))),
        "{failed:?}"
    );
    // A connection that was kept is one on which something was sent.
    let (address, _) = server(&[OK, ""]).await;
    let client = self::client(address);
    client.get(&[]).await.expect("it answers");
    let failed = client.get(&[]).await;
    assert!(matches!(failed, Err(HttpError::TimedOut(_))), "{failed:?}");
}

#[tokio::test]
async fn where_the_status_says_enough_an_answer_is_cut_and_its_connection_closed() {
    let announced = Box::leak(
        format!(
            "HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\n{}",
            "x".repeat(100)
        )
        .into_boxed_str(),
    );
    let (address, connections) = server(Box::leak(Box::new([&*announced, OK]))).await;
    let client = client_of(address, Excess::Cut);
    for expected in 1..=2 {
        let answer = client.options(&[]).await.expect("it answers");
        assert_eq!((answer.status.as_u16(), answer.body.len()), (500, 64));
        assert_eq!(connections.load(Ordering::Relaxed), expected);
    }
    // One that ends before its announced end is none.
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nxx";
    let (address, _) = server(Box::leak(Box::new([cut]))).await;
    let failed = client_of(address, Excess::Cut).get(&[]).await;
    assert!(matches!(failed, Err(HttpError::Http(_))), "{failed:?}");
}

#[tokio::test]
async fn link_local_addresses_are_not_asked() {
    let address: SocketAddr = "169.254.169.254:80".parse().expect("an address");
    let failed = client(address).get(&[]).await;
    assert!(
        matches!(failed, Err(HttpError::RefusedAddress)),
        "{failed:?}"
    );
}

#[tokio::test]
async fn tls_asks_for_the_name_of_the_url() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("it can be signed");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, certificate.pem()).expect("a file");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .expect("a certificate");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(OK.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        }
    });
    let options_for = |host: &str| Options {
        url: format!("https://{host}:{port}/").parse().expect("a URL"),
        tls: TlsFiles {
            authorities: Some(path.clone()),
            certificate: None,
        },
        timeout: Duration::from_secs(5),
        largest_answer: 64,
        excess: Excess::Refused,
        refuses_local: true,
        repeats: false,
    };
    let options = || options_for("localhost");
    let ask = async |host: &str| {
        let client = HttpClient::new(options_for(host));
        client.expect("the file is good").get(&[]).await
    };
    assert!(ask("localhost").await.is_ok());
    let failed = ask("127.0.0.1").await;
    assert!(matches!(failed, Err(HttpError::Tls(_))), "{failed:?}");
    // Another authority vouches for the server: the file is replaced while the client is in use.
    let other = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["other".to_owned()]).expect("a name");
    let other = params.self_signed(&other).expect("it can be signed");
    std::fs::write(&path, other.pem()).expect("a file");
    let client = HttpClient::new(options());
    let client = client.expect("the file is good");
    assert!(client.get(&[]).await.is_err());
    let new = directory.path().join("new.pem");
    // One that can't be read changes nothing.
    for content in [certificate.pem(), "broken".to_owned()] {
        std::fs::write(&new, content).expect("a file");
        std::fs::rename(&new, &path).expect("it is moved");
        client.connector.look_again();
        assert!(client.get(&[]).await.is_ok());
    }
    std::fs::write(&path, "").expect("a file");
    let empty = HttpClient::new(options());
    assert!(matches!(empty, Err(TlsError::File(_))));
}
