//! Clients whom something beside the cluster vouches for: Kubernetes, which signs the tokens of service accounts, and a
//! service that is asked over HTTP.

use super::*;
use std::io::Read as _;
use std::net::TcpStream;

/// Passwords that the service judges.
const ALLOWED: &str = "what the service allows";
const DENIED: &str = "what the service denies";

/// Tokens as clients of Azure IoT Operations show them, and passwords that the nodes know nothing of.
pub fn service_accounts_and_a_service_that_judges(place: &Place) {
    const ACCOUNT: &str = "system:serviceaccount:plant:press";
    let mut shown = Shown::by("service_accounts_and_a_service_that_judges");
    let in_auth = |secret: &str, ends_in_s| Connect {
        properties: with_method("K8S-SAT", token_of(ACCOUNT, secret, ends_in_s).into_bytes()),
        ..Connect::at("entry-account", V5)
    };
    let with = |password: &str, level| Connect {
        user_name: Some("berta".to_owned()),
        password: Some(password.as_bytes().to_vec()),
        ..Connect::at("bertas", level)
    };
    let rows = [
        (
            "asking",
            "a service account's token in AUTH (`K8S-SAT`)",
            in_auth(SECRET, 600),
        ),
        (
            "asking",
            "a service account's token that another key has signed",
            in_auth(OTHER_SECRET, 600),
        ),
        (
            "asking",
            "a service account's token that has expired",
            in_auth(SECRET, -600),
        ),
        (
            "judged",
            "a password that the service of `auth.http_url` allows",
            with(ALLOWED, V5),
        ),
        (
            "judged",
            "a password that the service denies",
            with(DENIED, V5),
        ),
        (
            "judged",
            "a password that the service denies, MQTT 3.1.1",
            with(DENIED, V311),
        ),
        (
            "judged",
            "a password, while the service is broken",
            with("broken", V5),
        ),
    ];
    for transport in Transport::ALL {
        for (kind, row, connect) in &rows {
            let outcome = told(&place.line(kind, transport), connect);
            shown.saw(PART, transport.name(), row, outcome);
        }
    }
    shown.finish();
}

/// What the service says of one request, which may come in pieces.
fn judgement(request: &str) -> Option<&'static str> {
    let (head, body) = request.split_once("\r\n\r\n")?;
    let lengths = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = lengths.next()?.1.trim().parse().ok()?;
    if body.len() < length {
        return None;
    }
    let asked: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    Some(match asked["password"].as_str() {
        Some(ALLOWED) => "{\"result\":\"allow\"}",
        Some(DENIED) => "{\"result\":\"deny\"}",
        _ => "it is broken",
    })
}

/// The service that `auth.http_url` names.
pub fn serve_judgements() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let answer = |mut stream: TcpStream| {
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut part) {
            request.extend_from_slice(&part[..read]);
            if let Some(said) = judgement(&String::from_utf8_lossy(&request)) {
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                // Whoever asked may be gone.
                let _ = write!(stream, "{head}content-length: {}\r\n\r\n{said}", said.len());
                return;
            }
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}
