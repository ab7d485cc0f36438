//! The HTTP request that becomes a WebSocket (RFC 6455 §4), from both sides.
//!
//! A web page may open a WebSocket to any server, and its browser sends along whom the page comes from. So the origin
//! is judged: without a list, a page may only reach the host that it came from. A name of the page's own can be made to
//! point here (DNS rebinding), so without TLS, which proves to the browser that the name is the server's, that host
//! must be an address or `localhost`.

use std::net::IpAddr;

use http::{HeaderMap, Request, header};
use tungstenite::error::{Error, ProtocolError};
use tungstenite::handshake::machine::TryParse as _;
use tungstenite::handshake::{client, derive_accept_key, server};
use tungstenite::http;

#[cfg(test)]
use super::HUB_PATH;
use super::SUBPROTOCOL;

/// Largest head of a request: cookies and the like of a browser.
pub(crate) const LARGEST_REQUEST_BYTES: usize = 16 << 10;

/// What a listener asks of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy<'a> {
    /// It must name one of these paths.
    pub(crate) paths: &'a [&'a str],
    /// Origins that may connect; empty: the request's own host.
    pub(crate) origins: &'a [String],
    /// TLS has shown that the host that the request names is this server's.
    pub(crate) is_tls: bool,
}

/// Why a request is refused. The client gets it as an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("the request is no HTTP")]
    Malformed,
    #[error("the head of the request is too large")]
    TooLarge,
    #[error("the path is not found")]
    Path,
    #[error("the request asks for no WebSocket of version 13")]
    NoWebSocket,
    #[error("the subprotocol mqtt is not offered")]
    Subprotocol,
    #[error("pages of this origin may not connect")]
    Origin,
    #[error("the server does not speak WebSocket")]
    Server,
}

impl UpgradeError {
    /// The status line and the head of the answer.
    pub(crate) fn response(self) -> Vec<u8> {
        let status = match self {
            UpgradeError::Malformed | UpgradeError::Subprotocol => "400 Bad Request",
            UpgradeError::TooLarge => "431 Request Header Fields Too Large",
            UpgradeError::Path => "404 Not Found",
            UpgradeError::NoWebSocket => "426 Upgrade Required",
            UpgradeError::Origin => "403 Forbidden",
            UpgradeError::Server => "502 Bad Gateway",
        };
        let text = format!("{self}\n");
        format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
        .into_bytes()
    }
}

/// Judges a request, as far as it has come. `None`: it is not whole. Otherwise its length, and what to answer. No
/// extension is agreed on, `permessage-deflate` neither: each would keep a window per connection, and what a frame
/// inflates to has no bound.
///
/// # Errors
/// It is refused.
pub(crate) fn answer(
    bytes: &[u8],
    policy: Policy<'_>,
) -> Result<Option<(usize, Vec<u8>)>, UpgradeError> {
    let parsed = server::Request::try_parse(bytes).map_err(|error| match error {
        Error::Protocol(ProtocolError::WrongHttpMethod | ProtocolError::WrongHttpVersion) => {
            UpgradeError::NoWebSocket
        }
        _ => UpgradeError::Malformed,
    })?;
    let Some((length, request)) = parsed else {
        return match bytes.len() {
            LARGEST_REQUEST_BYTES.. => Err(UpgradeError::TooLarge),
            _ => Ok(None),
        };
    };
    if !policy.paths.contains(&request.uri().path()) {
        return Err(UpgradeError::Path);
    }
    let response = server::create_response(&request).map_err(|_| UpgradeError::NoWebSocket)?;
    if !offers_mqtt(request.headers()) {
        return Err(UpgradeError::Subprotocol);
    }
    if !is_welcome(&request, policy) {
        return Err(UpgradeError::Origin);
    }
    let accept = response
        .headers()
        .get(header::SEC_WEBSOCKET_ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .ok_or(UpgradeError::NoWebSocket)?;
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    );
    Ok(Some((length, head.into_bytes())))
}

fn offers_mqtt(headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
    all.iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| name.trim() == SUBPROTOCOL)
}

fn is_welcome<T>(request: &Request<T>, policy: Policy<'_>) -> bool {
    let mut sent = request.headers().get_all(header::ORIGIN).iter();
    let origin = match (sent.next(), sent.next()) {
        // No browser.
        (None, _) => return true,
        (Some(origin), None) => origin.to_str().unwrap_or_default(),
        _ => return false,
    };
    if !policy.origins.is_empty() {
        let mut known = policy.origins.iter();
        return known.any(|known| known == "*" || known.eq_ignore_ascii_case(origin));
    }
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    let of_origin = origin.split_once("://").map(|(_, host)| host);
    let host = host_of(host);
    let is_own = !host.is_empty() && of_origin.is_some_and(|of_origin| host_of(of_origin) == host);
    is_own && (policy.is_tls || cannot_be_rebound(&host))
}

/// Whether a host is no name that its owner could point elsewhere.
fn cannot_be_rebound(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    host == "localhost" || bare.unwrap_or(host).parse::<IpAddr>().is_ok()
}

/// A host without its port, in lower case: a page and its broker differ in the port.
fn host_of(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.to_ascii_lowercase()
}

/// A client's request, and what judges the answer.
pub(crate) fn request(host: &str, path: &str) -> (Vec<u8>, Expected) {
    let key = client::generate_key();
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    );
    (head.into_bytes(), Expected { accept })
}

/// What a server must answer.
#[derive(Debug)]
pub(crate) struct Expected {
    accept: String,
}

impl Expected {
    /// Judges the answer, as far as it has come. `None`: it is not whole. Otherwise its length.
    ///
    /// # Errors
    /// The server does not agree.
    pub(crate) fn judge(&self, bytes: &[u8]) -> Result<Option<usize>, UpgradeError> {
        let parsed = client::Response::try_parse(bytes).map_err(|_| UpgradeError::Malformed)?;
        let Some((length, response)) = parsed else {
            return match bytes.len() {
                LARGEST_REQUEST_BYTES.. => Err(UpgradeError::TooLarge),
                _ => Ok(None),
            };
        };
        let is = |name, value: &str| {
            let found = response.headers().get(name);
            found.is_some_and(|found| found.as_bytes() == value.as_bytes())
        };
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS
            || !is(header::SEC_WEBSOCKET_ACCEPT, &self.accept)
        {
            return Err(UpgradeError::Server);
        }
        match is(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
            true => Ok(Some(length)),
            false => Err(UpgradeError::Subprotocol),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: Policy<'_> = Policy {
        paths: &["/mqtt", HUB_PATH],
        origins: &[],
        is_tls: true,
    };

    fn head(first: &str, more: &[&str]) -> Vec<u8> {
        head_to("broker.example:8083", first, more)
    }

    fn head_to(host: &str, first: &str, more: &[&str]) -> Vec<u8> {
        let host = format!("Host: {host}");
        let mut lines = vec![
            first,
            &host,
            "Upgrade: websocket",
            "Connection: keep-alive, Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
        ];
        lines.extend_from_slice(more);
        format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes()
    }

    const MQTT: &str = "Sec-WebSocket-Protocol: mqttv3.1, mqtt";

    #[test]
    fn the_answer_names_the_subprotocol_and_no_extension() {
        let mut request = head("GET /mqtt HTTP/1.1", &[MQTT]);
        let length = request.len();
        assert_eq!(answer(&request[..length - 1], POLICY), Ok(None));
        request.extend_from_slice(b"behind it");
        let (read, head) = answer(&request, POLICY)
            .expect("it is right")
            .expect("it is whole");
        assert_eq!(read, length);
        let head = String::from_utf8(head).expect("text");
        // The example of RFC 6455 §1.3.
        assert!(head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(head.contains("Sec-WebSocket-Protocol: mqtt\r\n"));
        assert!(!head.contains("deflate"));
    }

    #[test]
    fn the_path_of_a_hub_is_found_whatever_its_query() {
        for path in [
            "/$iothub/websocket",
            "/$iothub/websocket?iothub-no-client-cert=true",
        ] {
            let request = head(&format!("GET {path} HTTP/1.1"), &[MQTT]);
            assert!(matches!(answer(&request, POLICY), Ok(Some(_))), "{path}");
        }
        let policy = Policy {
            paths: &["/mqtt"],
            ..POLICY
        };
        let request = head("GET /$iothub/websocket HTTP/1.1", &[MQTT]);
        assert_eq!(answer(&request, policy), Err(UpgradeError::Path));
    }

    #[test]
    fn what_is_refused_has_its_status() {
        let origin = |origin| head("GET /mqtt HTTP/1.1", &[MQTT, origin]);
        let large = [
            &b"GET /mqtt HTTP/1.1\r\nX: "[..],
            &[b'x'; LARGEST_REQUEST_BYTES],
        ]
        .concat();
        let cases = [
            (head("GET / HTTP/1.1", &[MQTT]), UpgradeError::Path),
            (
                head("POST /mqtt HTTP/1.1", &[MQTT]),
                UpgradeError::NoWebSocket,
            ),
            (
                head("GET /mqtt HTTP/1.0", &[MQTT]),
                UpgradeError::NoWebSocket,
            ),
            (head("GET /mqtt HTTP/1.1", &[]), UpgradeError::Subprotocol),
            (origin("Origin: http://evil.example"), UpgradeError::Origin),
            (origin("Origin: null"), UpgradeError::Origin),
            (
                b"\x10\x0d\0\x04MQTT\x05\x02\0\0\0\0\0".to_vec(),
                UpgradeError::Malformed,
            ),
            (large, UpgradeError::TooLarge),
        ];
        for (request, error) in cases {
            assert_eq!(answer(&request, POLICY), Err(error));
            assert!(error.response().starts_with(b"HTTP/1.1 4"));
        }
        let own = origin("Origin: http://BROKER.example");
        assert!(matches!(answer(&own, POLICY), Ok(Some(_))));
        let origins = ["https://dash.example".to_owned()];
        let policy = Policy {
            origins: &origins,
            ..POLICY
        };
        let listed = origin("Origin: https://dash.example");
        assert!(matches!(answer(&listed, policy), Ok(Some(_))));
        assert_eq!(answer(&own, policy), Err(UpgradeError::Origin));
    }

    /// `evil.example` is made to point to the node once its page is loaded.
    #[test]
    fn without_tls_a_page_of_a_name_is_welcome_only_if_it_is_listed() {
        let plain = Policy {
            is_tls: false,
            ..POLICY
        };
        let judged = |host: &str, policy: Policy<'_>| {
            let origin = format!("Origin: http://{host}");
            let request = head_to(host, "GET /mqtt HTTP/1.1", &[MQTT, &origin]);
            answer(&request, policy).map(|answer| answer.is_some())
        };
        for name in [
            "evil.example:8083",
            "evil.example",
            "127.0.0.1.evil.example:80",
        ] {
            assert_eq!(judged(name, plain), Err(UpgradeError::Origin), "{name}");
            assert_eq!(judged(name, POLICY), Ok(true), "{name}");
        }
        for address in [
            "127.0.0.1:8083",
            "[::1]:8083",
            "[::1]",
            "localhost:8083",
            "192.0.2.1",
        ] {
            assert_eq!(judged(address, plain), Ok(true), "{address}");
        }
        let origins = ["http://broker.example:8083".to_owned()];
        let listed = Policy {
            origins: &origins,
            ..plain
        };
        assert_eq!(judged("broker.example:8083", listed), Ok(true));
        // Who is no browser sends no origin.
        let request = head_to("evil.example", "GET /mqtt HTTP/1.1", &[MQTT]);
        assert!(matches!(answer(&request, plain), Ok(Some(_))));
    }

    #[test]
    fn both_sides_agree() {
        let (request, expected) = request("broker.example", "/mqtt");
        let (length, head) = answer(&request, POLICY)
            .expect("it is right")
            .expect("it is whole");
        assert_eq!(length, request.len());
        assert_eq!(expected.judge(&head[..20]), Ok(None));
        assert_eq!(expected.judge(&head), Ok(Some(head.len())));
        let other = super::request("broker.example", "/mqtt").1;
        assert_eq!(other.judge(&head), Err(UpgradeError::Server));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = answer(&bytes, POLICY);
            let _ = answer(&[&b"GET /mqtt HTTP/1.1\r\n"[..], &bytes].concat(), POLICY);
        }
    }
}
