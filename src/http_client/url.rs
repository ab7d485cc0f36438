//! `http` and `https` URLs, as a configuration names services.

use std::fmt;
use std::str::FromStr;

use hyper::Uri;

/// Why a text is no URL of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL.
    #[error("it is not a URL")]
    Malformed,
    /// Another scheme.
    #[error("it does not begin with https:// or http://")]
    Scheme,
    /// A URL that has a user or a password in it, which would end in logs.
    #[error("it has a user or a password in it")]
    Secret,
    /// A URL without a host.
    #[error("it has no host")]
    Host,
    /// Plain HTTP to another machine.
    #[error("plain HTTP to another machine is refused: use https://, or allow it with plain_http")]
    PlainHttp,
}

/// A URL of a service.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    is_tls: bool,
    host: String,
    port: u16,
    path: String,
    /// Where its name leads to another machine, nothing is sent.
    loopback_only: bool,
}

impl Url {
    /// A URL of who gets events: `http` goes to this machine only, unless plain HTTP is allowed.
    ///
    /// # Errors
    /// It is no URL, or may not be sent to.
    pub fn of_endpoint(text: &str, plain_http: bool) -> Result<Url, UrlError> {
        let mut url: Url = text.parse()?;
        url.loopback_only = !url.is_tls && !plain_http;
        match url.loopback_only && !url.is_loopback() {
            true => Err(UrlError::PlainHttp),
            false => Ok(url),
        }
    }

    /// Whether nothing may be sent to an address of another machine: a resolver decides where even `localhost` is.
    pub fn is_loopback_only(&self) -> bool {
        self.loopback_only
    }

    /// Whether it is another URL, or below that as a path is: with the same scheme, host and port.
    ///
    /// A path that a server may take for another one is below nothing but itself: with parts that lead up, with
    /// separators that are escaped, with parameters of parts (RFC 3986 §3.3), which some servers cut off.
    pub fn is_at_or_below(&self, above: &Url) -> bool {
        if self.path == above.path && self.is_same_server(above) {
            return true;
        }
        let own = self.path.split('?').next().unwrap_or_default();
        let own = own.to_ascii_lowercase().replace("%2e", ".");
        let is_ambiguous = own.split('/').any(|part| part == "..")
            || ["%2f", "%5c", "\\", ";", "%3b"]
                .into_iter()
                .any(|sign| own.contains(sign));
        let is_same_server = self.is_same_server(above) && !is_ambiguous;
        let below = self.path.strip_prefix(above.path.as_str());
        is_same_server
            && below.is_some_and(|below| {
                below.is_empty() || above.path.ends_with('/') || below.starts_with(['/', '?'])
            })
    }

    fn is_same_server(&self, other: &Url) -> bool {
        self.is_tls == other.is_tls && self.host == other.host && self.port == other.port
    }

    /// Whether the scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host: a name or an IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path with the query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Host and port, as the header `Host` has them.
    pub fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Whether the host is this machine by name or by address.
    pub fn is_loopback(&self) -> bool {
        let address: Option<std::net::IpAddr> = self.host.parse().ok();
        self.host == "localhost" || address.is_some_and(|address| address.is_loopback())
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(UrlError::Scheme),
        };
        let authority = uri.authority().ok_or(UrlError::Host)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Secret);
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        if host.is_empty() {
            return Err(UrlError::Host);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Url {
            is_tls,
            host: host.to_ascii_lowercase(),
            port: authority
                .port_u16()
                .unwrap_or(if is_tls { 443 } else { 80 }),
            path: path.to_owned(),
            loopback_only: false,
        })
    }
}

impl fmt::Display for Url {
    /// Without the query, which may have a secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{}{path}", self.authority())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_stays_on_this_machine_unless_it_is_allowed() {
        for (text, plain_http, is_fine) in [
            ("https://a.example/", false, true),
            ("http://127.0.0.1:9/", false, true),
            ("http://localhost/", false, true),
            ("http://a.example/", false, false),
            ("http://a.example/", true, true),
            ("http://10.0.0.1/", false, false),
        ] {
            assert_eq!(
                Url::of_endpoint(text, plain_http).is_ok(),
                is_fine,
                "{text}"
            );
        }
    }

    #[test]
    fn urls_of_services() {
        let url: Url = "https://Issuer.example/keys?a=b"
            .parse()
            .expect("it is one");
        assert_eq!(
            (url.host(), url.port(), url.path()),
            ("issuer.example", 443, "/keys?a=b")
        );
        assert!(url.is_tls() && !url.is_loopback());
        assert_eq!(
            format!("{url} {url:?}"),
            "https://issuer.example/keys https://issuer.example/keys"
        );
        let url: Url = "http://[::1]:8080".parse().expect("it is one");
        assert_eq!((url.host(), url.path()), ("::1", "/"));
        assert_eq!(url.authority(), "[::1]:8080");
        assert!(url.is_loopback());
        let cases = [
            ("", UrlError::Malformed),
            ("issuer.example", UrlError::Scheme),
            ("ftp://issuer.example", UrlError::Scheme),
            ("https://user:secret@issuer.example/", UrlError::Secret),
            ("https:///keys", UrlError::Malformed),
            ("https://a b/", UrlError::Malformed),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Url>().err(), Some(error), "{text:?}");
        }
    }
}
