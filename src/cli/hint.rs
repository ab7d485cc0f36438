//! What to try when who answers speaks something else than was expected: the wrong port, or TLS on one side only.

use std::error::Error;
use std::io;

/// Where a port of HTTP was expected that does not speak TLS.
pub const NOT_HTTP: &str = "\
    if it speaks TLS: https:// before the address, or --ca-file; \
    if it is a port of MQTT: that of http.listen or http.admin_listen";

/// Where a port of HTTP was expected that speaks TLS.
pub const NOT_HTTPS: &str = "\
    it does not speak TLS: http:// before the address, or the port of http.admin_listen";

/// Where a route is not.
pub const NO_ROUTE: &str = "\
    this port does not have it: /v1 is at http.admin_listen where that is set, and at http.listen otherwise";

/// Where MQTT was expected that does not speak TLS.
pub const NOT_MQTT: &str = "\
    if it speaks TLS: mqtts:// before the address; if WebSocket: ws:// or wss://; a port of HTTP goes to --http";

/// Where MQTT was expected that speaks TLS.
pub const NOT_MQTTS: &str = "\
    it does not speak TLS: mqtt:// or ws:// before the address, or another port";

/// Whether a TLS handshake has failed because the other side does not speak TLS: it has answered something else, or
/// has hung up instead of an answer.
pub fn speaks_no_tls(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidMessage(_)) = error.downcast_ref() {
            return true;
        }
        next = match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => return true,
            // What an I/O error was made of is not its source.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use rustls::InvalidMessage;

    use super::*;

    #[test]
    fn tls_that_is_none_is_told_from_other_failures() {
        let in_io = |error: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let none = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let other = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(speaks_no_tls(&none));
        assert!(speaks_no_tls(&io::Error::other(in_io(none))));
        assert!(speaks_no_tls(&io::Error::from(
            io::ErrorKind::UnexpectedEof
        )));
        assert!(!speaks_no_tls(&in_io(other)));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(!speaks_no_tls(&refused));
    }
}
