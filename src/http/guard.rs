//! Requests that a web page makes through its visitor's browser are refused, so that no foreign page administers a
//! cluster that the browser can reach.
//!
//! A browser sends what a page asks for also to addresses that the page's server cannot reach, and a name of the page's
//! own can be made to point there (DNS rebinding). Three checks of `/v1` stand against it: the `Host` must be an
//! address or a known name, an `Origin` must be this port's own, and a change must be sent as JSON, which a foreign
//! page may not do without asking first (Fetch Standard, "CORS-safelisted request-header").
//!
//! Probes and metrics change nothing and are asked under many names; they are not checked.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::admin::error_body;

/// The names under which this port may be addressed, beside every IP address and `localhost`.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Arc<BTreeSet<String>>);

impl Hosts {
    /// These names and no others; case does not matter.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Hosts {
        let names = names.into_iter().map(str::to_ascii_lowercase);
        Hosts(Arc::new(names.collect()))
    }

    fn know(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = bare.to_ascii_lowercase();
        bare.parse::<IpAddr>().is_ok() || name == "localhost" || self.0.contains(&name)
    }
}

/// Why a request is not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    /// 400
    #[error("the request has no Host")]
    NoHost,
    /// 421: the request was meant for another server.
    #[error("{0:?} is no name of this node; names beside addresses are listed in http.hosts")]
    Host(String),
    /// 403
    #[error("requests of web pages are not answered here (Origin: {0})")]
    Origin(String),
    /// 415
    #[error("a change is sent with Content-Type: application/json")]
    ContentType,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code) = match self {
            Refusal::NoHost => (StatusCode::BAD_REQUEST, "invalid"),
            Refusal::Host(_) => (StatusCode::MISDIRECTED_REQUEST, "host"),
            Refusal::Origin(_) => (StatusCode::FORBIDDEN, "origin"),
            Refusal::ContentType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type"),
        };
        error_body(status, code, &self.to_string())
    }
}

/// Lets a request to `/v1` pass, or refuses it.
pub(super) async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/v1/") {
        return next.run(request).await;
    }
    match judge(&hosts, request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

fn judge(hosts: &Hosts, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name| {
        let value = headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    // RFC 9112, 3.2.2: an absolute-form target goes before the Host field.
    let authority = match uri.authority() {
        Some(authority) => authority.clone(),
        None => {
            let host = text(header::HOST).ok_or(Refusal::NoHost)?;
            host.parse::<Authority>().map_err(|_| Refusal::Host(host))?
        }
    };
    if !hosts.know(authority.host()) {
        return Err(Refusal::Host(authority.host().to_owned()));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let from = origin.parse::<Uri>().ok();
        let is_own = from.is_some_and(|from| from.authority() == Some(&authority));
        if !is_own {
            return Err(Refusal::Origin(origin));
        }
    }
    let changes = !matches!(*method, Method::GET | Method::HEAD);
    let essence = text(header::CONTENT_TYPE).map(|value| {
        let essence = value.split(';').next().unwrap_or_default();
        essence.trim().to_ascii_lowercase()
    });
    if changes && essence.as_deref() != Some("application/json") {
        return Err(Refusal::ContentType);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(method: Method, target: &str, fields: &[(header::HeaderName, &str)]) -> u16 {
        let hosts = Hosts::new(["Node-1.example"]);
        let uri: Uri = target.parse().expect("a target");
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(name, value.parse().expect("a value"));
        }
        match judge(&hosts, &method, &uri, &headers) {
            Ok(()) => 200,
            Err(refusal) => refusal.into_response().status().as_u16(),
        }
    }

    #[test]
    fn the_host_is_an_address_or_a_known_name() {
        for (host, expected) in [
            ("127.0.0.1:8080", 200),
            ("[::1]:8080", 200),
            ("10.0.0.7", 200),
            ("LOCALHOST:1", 200),
            ("node-1.EXAMPLE:8080", 200),
            ("rebound.example:8080", 421),
            ("localhost.rebound.example", 421),
            ("127.0.0.1.rebound.example", 421),
            ("a b", 421),
        ] {
            let fields = [(header::HOST, host)];
            assert_eq!(
                judged(Method::GET, "/v1/sessions", &fields),
                expected,
                "{host}"
            );
        }
        assert_eq!(judged(Method::GET, "/v1/sessions", &[]), 400);
        let absolute = "http://rebound.example/v1/sessions";
        let fields = [(header::HOST, "localhost")];
        assert_eq!(judged(Method::GET, absolute, &fields), 421);
    }

    #[test]
    fn an_origin_is_this_ports_own() {
        for (origin, expected) in [
            ("http://localhost:8080", 200),
            ("http://localhost:9090", 403),
            ("http://evil.example", 403),
            ("null", 403),
            ("", 403),
        ] {
            let fields = [(header::HOST, "localhost:8080"), (header::ORIGIN, origin)];
            assert_eq!(
                judged(Method::GET, "/v1/sessions", &fields),
                expected,
                "{origin}"
            );
        }
    }

    #[test]
    fn a_change_is_json() {
        let host = || (header::HOST, "localhost");
        let kick = "/v1/session/kick?client_id=a";
        assert_eq!(judged(Method::POST, kick, &[host()]), 415);
        for (kind, expected) in [
            ("application/json", 200),
            ("Application/JSON; charset=utf-8", 200),
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
        ] {
            let fields = [host(), (header::CONTENT_TYPE, kind)];
            assert_eq!(judged(Method::POST, kick, &fields), expected, "{kind}");
            assert_eq!(judged(Method::DELETE, "/v1/session", &fields), expected);
        }
    }
}
