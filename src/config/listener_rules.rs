//! Rules of the listeners: what one key asks of another, and one listener of the others.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::listener::{DEFAULT_LISTENER, Listener};
use super::setting::{AuthenticationMethod, ClientCertificates};

/// The same as for `mqtt.max_packet_size_bytes`.
const LEAST_PACKET_BYTES: u32 = 128;

/// Every broken rule.
pub(super) fn findings(listeners: &[Listener]) -> Vec<Finding> {
    let mut found = Vec::new();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for listener in listeners {
        let mut add = |message: &str, hint: &str| {
            found.push(Finding {
                keys: vec!["listeners"],
                message: format!("the listener {:?}: {message}", listener.name),
                hint: hint.to_owned(),
            });
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=64).contains(&listener.name.len()) || !listener.name.chars().all(fits) {
            add(
                "this is no name",
                "1 to 64 letters, digits, dots, dashes or underscores",
            );
        }
        if !names.insert(&listener.name) || listener.name == DEFAULT_LISTENER {
            let hint = "each has its own name, and \"default\" is that of mqtt.listen";
            add("another one has the same name", hint);
        }
        if let Some(path) = listener.address.path()
            && !paths.insert(path)
        {
            add(
                "another one has the same address",
                "each has a socket of its own",
            );
        }
        if (1..LEAST_PACKET_BYTES).contains(&listener.max_packet_size_bytes) {
            let hint = "128 bytes or more, or 0 for mqtt.max_packet_size_bytes";
            add("max_packet_size_bytes leaves no room for a CONNECT", hint);
        }
        if listener.unix_mode.is_some() && listener.address.path().is_none() {
            let hint = "address = \"unix:/path\", or remove unix_mode";
            add(
                "unix_mode is for the file of a Unix socket, which it is not",
                hint,
            );
        }
        tls(listener, &mut add);
        websocket(listener, &mut add);
    }
    found
}

fn tls(listener: &Listener, add: &mut impl FnMut(&str, &str)) {
    let asks = listener.client_certificates != ClientCertificates::Off;
    if listener.transport.is_tls() && listener.certificates.is_empty() {
        let hint = "certificates = [{ certificate = \"server.pem\", key = \"server.key\" }]; \
                    `quorumq certificates` makes them";
        add("TLS without a certificate", hint);
    }
    if !listener.transport.is_tls()
        && (!listener.certificates.is_empty() || asks || listener.client_ca_file.is_some())
    {
        let hint = "transport = \"tls\" or \"wss\", or remove the certificates";
        add("certificates are for TLS, which it has not", hint);
    }
    if asks && listener.client_ca_file.is_none() {
        let hint = "client_ca_file = \"ca.pem\"";
        add(
            "client certificates are judged by a CA, which is missing",
            hint,
        );
    }
    if !asks && (listener.client_ca_file.is_some() || !listener.crl_files.is_empty()) {
        let hint = "client_certificates = \"optional\" or \"required\"";
        add("client certificates are not asked for", hint);
    }
    if !asks
        && listener
            .authentication
            .contains(&AuthenticationMethod::Certificate)
    {
        let hint = "client_certificates = \"optional\" or \"required\"";
        add(
            "authentication by certificates that are not asked for",
            hint,
        );
    }
}

fn websocket(listener: &Listener, add: &mut impl FnMut(&str, &str)) {
    let path = listener.url_path();
    if !path.starts_with('/') || path.contains(|c: char| c.is_whitespace() || c.is_control()) {
        add(
            "websocket_path is no path of a URL",
            "for example \"/mqtt\"",
        );
    }
    let is_set = !listener.websocket_path.is_empty() || !listener.websocket_origins.is_empty();
    if is_set && !listener.transport.is_websocket() {
        let hint = "transport = \"ws\" or \"wss\", or remove websocket_path and websocket_origins";
        add("settings of WebSocket, which it has not", hint);
    }
}
