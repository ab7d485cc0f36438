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
}

/// A URL of a service.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    is_tls: bool,
    host: String,
    port: u16,
    path: String,
}

impl Url {
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
