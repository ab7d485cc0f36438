//! Keys of files that change, and of servers that come and go.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use tokio::sync::Notify;

use super::files::TokenFile;
use super::keys::{Keys, Place};
use crate::auth::jwt::KeySource as _;
use crate::config::file::Guard;
use crate::http_client::{Excess, HttpClient, Options, TlsFiles};
use std::time::Duration;

const SET: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"KID","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// A server of keys: what it answers, and how often it was asked.
#[derive(Clone, Default)]
struct Server {
    answer: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
    last: Arc<Mutex<String>>,
}

impl Server {
    fn answers(&self, kid: &str) {
        let body = SET.replace("KID", kid);
        let length = body.len();
        *self.answer.lock() = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
    }

    fn fails(&self) {
        *self.answer.lock() =
            "HTTP/1.1 500 Oh\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into();
    }

    async fn start(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut bytes = vec![0; 4096];
                let read = stream.read(&mut bytes).await.unwrap_or(0);
                *server.last.lock() = String::from_utf8_lossy(&bytes[..read]).into_owned();
                server.asked.fetch_add(1, Ordering::SeqCst);
                // As the API server of Kubernetes does.
                let takes_keys = server.last.lock().contains("application/jwk-set+json");
                let answer = match takes_keys {
                    true => server.answer.lock().clone(),
                    false => "HTTP/1.1 406 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
                };
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        port
    }
}

fn keys(port: u16, max_age: Duration, token_file: Option<std::path::PathBuf>) -> Keys {
    let client = HttpClient::new(Options {
        url: format!("http://127.0.0.1:{port}/keys")
            .parse()
            .expect("a URL"),
        tls: TlsFiles::default(),
        timeout: Duration::from_secs(2),
        largest_answer: 4096,
        excess: Excess::Refused,
        refuses_local: true,
        repeats: true,
    });
    let place = Place::Url {
        client: Box::new(client.expect("there are no files")),
        token: token_file.map(|path| TokenFile::new(path, Guard::Key).expect("a token")),
    };
    Keys::of_url(
        place,
        "test".into(),
        Duration::from_secs(3600),
        max_age,
        Arc::default(),
    )
}

/// Returns when it is so.
async fn until(is_so: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "it is not so");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn ids(keys: &Keys) -> String {
    keys.keys()
        .map_or_else(|| "none".into(), |keys| format!("{keys:?}"))
}

#[tokio::test]
async fn published_keys_come_and_are_asked_for_again_but_not_too_often() {
    let server = Server::default();
    server.answers("first");
    let keys = keys(server.start().await, Duration::from_secs(3600), None);
    assert_eq!(ids(&keys), "none");
    tokio::spawn(keys.keep_current());
    let first = keys.refresh().expect("it may be asked");
    first.await;
    assert!(ids(&keys).contains("first"));
    server.answers("second");
    if let Some(again) = keys.refresh() {
        again.await;
    }
    // Whatever the beginning was, now it was asked for just now.
    let asked = server.asked.load(Ordering::SeqCst);
    for _ in 0..100 {
        assert!(keys.refresh().is_none());
    }
    assert_eq!(server.asked.load(Ordering::SeqCst), asked);
    assert!(asked <= 2);
}

#[tokio::test]
async fn keys_outlive_their_server_for_a_while() {
    let server = Server::default();
    server.answers("only");
    let age = Duration::from_millis(1500);
    let keys = keys(server.start().await, age, None);
    tokio::spawn(keys.keep_current());
    keys.refresh().expect("it may be asked").await;
    server.fails();
    assert!(ids(&keys).contains("only"));
    // They are too old in the end.
    until(|| ids(&keys) == "none").await;
}

#[tokio::test]
async fn the_token_for_the_server_is_read_each_time_and_is_never_shown() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "s3cret").expect("it is writable");
    let server = Server::default();
    server.answers("only");
    let port = server.start().await;
    let keys = keys(port, Duration::from_secs(60), Some(file.path().to_owned()));
    tokio::spawn(keys.keep_current());
    keys.refresh().expect("it may be asked").await;
    let request = server.last.lock().to_lowercase();
    assert!(
        request.contains("authorization: bearer s3cret\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("host: 127.0.0.1:{port}\r\n")),
        "{request}"
    );
}

#[tokio::test]
async fn a_file_is_read_again_and_a_broken_one_changes_nothing() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(file.path(), text).expect("it is writable");
    write(&SET.replace("KID", "first"));
    let interval = Duration::from_millis(20);
    let withdrawn = Arc::new(Notify::new());
    let of_file = |place: fn(std::path::PathBuf) -> Place| {
        let (place, withdrawn) = (place(file.path().to_owned()), withdrawn.clone());
        Keys::of_file(place, "test".into(), interval, withdrawn)
    };
    let keys = of_file(Place::Jwks).expect("it is good");
    tokio::spawn(keys.keep_current());
    write(&SET.replace("KID", "second"));
    until(|| ids(&keys).contains("second")).await;
    write("{");
    until(|| keys.is_failing()).await;
    assert!(ids(&keys).contains("second"));
    assert!(of_file(Place::Jwks).is_err(), "not at the start");
    write("a secret of more than 32 bytes, really\r\n");
    let secret = of_file(Place::Secret).expect("it is long enough");
    assert!(ids(&secret).contains("Secret(38)"));
}

#[tokio::test]
async fn a_key_that_is_not_published_any_more_is_withdrawn() {
    let other = SET
        .replace(
            "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "WKn-ZIGevcwGIyyrzFoZNBdaq9_TsqzGl96oc0CWuis",
        )
        .replace(
            "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
            "y77t-RvAHRKTsSGdIYUfweuOvwrvDD-Q3Hv5J0fSKbE",
        );
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(file.path(), text).expect("it is writable");
    write(&SET.replace("KID", "first"));
    let withdrawn = Arc::new(Notify::new());
    let interval = Duration::from_millis(20);
    let place = Place::Jwks(file.path().to_owned());
    let keys = Keys::of_file(place, "test".into(), interval, withdrawn.clone());
    let keys = keys.expect("it is good");
    tokio::spawn(keys.keep_current());
    // The same key under another name is the same key.
    write(&SET.replace("KID", "renamed"));
    until(|| ids(&keys).contains("renamed")).await;
    let gone = futures::FutureExt::now_or_never(withdrawn.notified());
    assert!(gone.is_none(), "it is still there");
    write(&other.replace("KID", "second"));
    let gone = tokio::time::timeout(Duration::from_secs(10), withdrawn.notified());
    gone.await
        .expect("whoever has logged in with it is judged again");
    // An issuer withdraws its last key by a set without any, or with one that is of no use here.
    for last in ["{\"keys\":[]}", "{\"keys\":[{\"kty\":\"none\"}]}"] {
        write(last);
        let gone = tokio::time::timeout(Duration::from_secs(10), withdrawn.notified());
        gone.await.expect("the last key is withdrawn, too");
        until(|| ids(&keys) == "[]").await;
        let place = Place::Jwks(file.path().to_owned());
        let at_start = Keys::of_file(place, "test".into(), interval, Arc::default());
        assert_eq!(ids(&at_start.expect("a node starts with it")), "[]");
        write(&other.replace("KID", "second"));
        until(|| ids(&keys).contains("second")).await;
    }
    write("");
    until(|| keys.is_failing()).await;
    assert!(ids(&keys).contains("second"), "an empty file is none yet");
}
