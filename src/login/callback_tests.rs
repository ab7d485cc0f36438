//! A service that judges clients: what it is asked, what holds without asking, and what happens without an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::Callback;
use super::callback::Unanswered;
use crate::auth::certificate::NameOf;
use crate::auth::{Check as _, Client, Verdict};
use crate::base::time::elapsed_now;
use crate::config::{AuthConfig, WhenUnavailable};

/// What a service has seen.
#[derive(Clone, Default)]
struct Service {
    requests: Arc<Mutex<Vec<String>>>,
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
}

impl Service {
    /// Answers everything in the same way, after a while.
    async fn start(&self, status: u16, body: &'static str, delay: Duration) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let service = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4096];
                    loop {
                        let read = stream.read(&mut bytes).await.unwrap_or(0);
                        if read == 0 {
                            return;
                        }
                        let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
                        service.requests.lock().push(text);
                        let now = service.at_once.fetch_add(1, Ordering::SeqCst) + 1;
                        service.most_at_once.fetch_max(now, Ordering::SeqCst);
                        tokio::time::sleep(delay).await;
                        service.at_once.fetch_sub(1, Ordering::SeqCst);
                        let length = body.len();
                        let head =
                            format!("HTTP/1.1 {status} Text\r\nContent-Length: {length}\r\n\r\n");
                        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                    }
                });
            }
        });
        format!("http://{address}/judge")
    }

    fn count(&self) -> usize {
        self.requests.lock().len()
    }
}

fn config(url: &str) -> AuthConfig {
    AuthConfig {
        http_url: url.into(),
        http_timeout_ms: 500,
        ..AuthConfig::default()
    }
}

fn callback(config: &AuthConfig) -> Callback {
    Callback::new(config, NameOf::CommonName).expect("it can be asked")
}

async fn judge(callback: &Callback, password: &str) -> String {
    judge_at(callback, password, None).await
}

async fn judge_at(callback: &Callback, password: &str, address: Option<SocketAddr>) -> String {
    let client = Client {
        address,
        client_id: "c",
        user_name: Some("anna"),
        password: Some(password.as_bytes()),
        listener: "l",
        now: crate::base::time::wall_now(),
        ..Client::default()
    };
    let mut verdict = callback.judge(&client);
    loop {
        verdict = match verdict {
            Verdict::Pending(later) => later.await,
            Verdict::NotApplicable => return "ignored".into(),
            Verdict::Accepted(principal) => {
                return format!("{} by {}", principal.name, principal.method);
            }
            Verdict::Refused(denial) => return format!("{:?}: {}", denial.reason, denial.detail),
        };
    }
}

#[tokio::test]
async fn a_client_is_asked_about_once_and_its_answer_is_for_it_alone() {
    let service = Service::default();
    let url = service
        .start(200, r#"{"result":"allow","groups":["g"]}"#, Duration::ZERO)
        .await;
    let callback = callback(&config(&url));
    for _ in 0..3 {
        assert_eq!(judge(&callback, "right").await, "anna by http");
    }
    assert_eq!(service.count(), 1);
    judge(&callback, "other").await;
    assert_eq!(service.count(), 2);
    let request = service.requests.lock()[0].clone();
    let expected = r#"{"client_id":"c","listener":"l","password":"right","user_name":"anna"}"#;
    assert!(request.starts_with("POST /judge HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with(expected), "{request}");
}

#[tokio::test]
async fn a_refusal_holds_for_a_while_too() {
    let service = Service::default();
    let url = service
        .start(200, r#"{"result":"deny"}"#, Duration::ZERO)
        .await;
    let callback = callback(&config(&url));
    for _ in 0..3 {
        assert!(judge(&callback, "wrong").await.starts_with("NotAuthorized"));
    }
    assert_eq!(service.count(), 1);
    let url = service
        .start(200, r#"{"result":"ignore"}"#, Duration::ZERO)
        .await;
    let uncached = AuthConfig {
        http_cache_denied_s: 0,
        ..config(&url)
    };
    let callback = super::callback_tests::callback(&uncached);
    for _ in 0..2 {
        assert_eq!(judge(&callback, "any").await, "ignored");
    }
    assert_eq!(service.count(), 3);
}

#[tokio::test]
async fn without_an_answer_nobody_is_let_in() {
    let service = Service::default();
    let allow = r#"{"result":"allow"}"#;
    let late = service.start(200, allow, Duration::from_secs(5)).await;
    let error = service.start(500, allow, Duration::ZERO).await;
    let moved = service.start(302, allow, Duration::ZERO).await;
    let nonsense = service.start(200, "allow", Duration::ZERO).await;
    let nobody = "http://127.0.0.1:1/".to_owned();
    for url in [late, error, moved, nonsense, nobody] {
        let refuses = callback(&config(&url));
        // Nobody has guessed: it is not counted, and the client may come again.
        let judged = judge(&refuses, "right").await;
        assert!(judged.starts_with("ServerBusy"), "{url} {judged}");
        let ignores = callback(&AuthConfig {
            http_unavailable: WhenUnavailable::Ignore,
            ..config(&url)
        });
        assert_eq!(judge(&ignores, "right").await, "ignored", "{url}");
    }
}

#[tokio::test]
async fn an_outage_is_told_once_however_many_clients_come() {
    let config = AuthConfig {
        http_unavailable: WhenUnavailable::Ignore,
        ..config("http://127.0.0.1:1/")
    };
    let callback = callback(&config);
    let silent = Unanswered::Status(hyper::StatusCode::BAD_GATEWAY);
    let start = elapsed_now();
    let told = |error: Option<&Unanswered>, after_s: u64| {
        callback.says(error, start.plus(Duration::from_secs(after_s)))
    };
    assert!(!told(None, 0), "nobody has asked yet");
    let lines = (0..10_000).filter(|_| told(Some(&silent), 0)).count();
    assert_eq!(lines, 1);
    assert!(told(None, 100), "it answers again");
    assert!(!told(None, 200) && told(Some(&silent), 300));
    // It answers one question and not the next, for ten minutes.
    let lines = (0..60_000).filter(|at| told((at % 2 == 0).then_some(&silent), 400 + at / 100));
    let lines = lines.count();
    assert!(lines <= 11, "{lines}");
    told(None, 2_000);
    assert!(!told(None, 3_000), "what holds at the end was said");
}

#[tokio::test]
async fn requests_and_those_who_wait_for_them_are_bounded() {
    let service = Service::default();
    let delay = Duration::from_millis(20);
    let url = service.start(200, r#"{"result":"allow"}"#, delay).await;
    let narrow = AuthConfig {
        http_concurrency: 1,
        http_timeout_ms: 5_000,
        ..config(&url)
    };
    // So many may wait: all of them, and half of them at one address.
    let one = Some(SocketAddr::from(([192, 0, 2, 7], 1)));
    for (address, most) in [(None, 16), (one, 8)] {
        let callback = callback(&narrow);
        let all = (0..40).map(|number| {
            let callback = callback.clone();
            let password = number.to_string();
            tokio::spawn(async move { judge_at(&callback, &password, address).await })
        });
        let all: Vec<_> = all.collect();
        let (mut allowed, mut busy) = (0, 0);
        for judged in all {
            match &*judged.await.expect("it does not panic") {
                "anna by http" => allowed += 1,
                text if text.starts_with("ServerBusy") => busy += 1,
                text => panic!("{text}"),
            }
        }
        assert_eq!((allowed, busy), (most, 40 - most));
        assert_eq!(service.most_at_once.load(Ordering::SeqCst), 1);
    }
}
