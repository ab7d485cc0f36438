//! Rules of the HTTP port: what one key asks of another.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::keys::HttpConfig;
use super::setting::{ClientCertificates, HttpAuthentication};

/// Every broken rule.
pub(super) fn findings(http: &HttpConfig) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |keys: &[&'static str], message: &str, hint: &str| {
        found.push(Finding {
            keys: keys.to_vec(),
            message: message.to_owned(),
            hint: hint.to_owned(),
        });
    };
    if !http.certificates.is_empty() {
        add(
            &["http.certificates"],
            "this version speaks plain HTTP",
            "remove it",
        );
    }
    let asks = http.client_certificates != ClientCertificates::Off;
    if http.certificates.is_empty() && asks {
        let hint = "http.certificates = [{ certificate = \"server.pem\", key = \"server.key\" }]";
        let keys = ["http.client_certificates", "http.certificates"];
        add(
            &keys,
            "client certificates are for TLS, which this port does not speak",
            hint,
        );
    }
    if asks && http.client_ca_file.is_none() {
        let keys = ["http.client_certificates", "http.client_ca_file"];
        add(
            &keys,
            "client certificates are judged by a CA, which is missing",
            "http.client_ca_file = \"ca.pem\"",
        );
    }
    if !asks && (http.client_ca_file.is_some() || !http.crl_files.is_empty()) {
        let keys = ["http.client_ca_file", "http.client_certificates"];
        add(
            &keys,
            "client certificates are not asked for",
            "http.client_certificates = \"optional\"",
        );
    }
    if !asks && !http.client_scopes.is_empty() {
        let keys = ["http.client_scopes", "http.client_certificates"];
        add(
            &keys,
            "client certificates are not asked for",
            "http.client_certificates = \"optional\"",
        );
    }
    if http.client_certificates == ClientCertificates::Required && http.admin_listen.is_none() {
        let keys = ["http.client_certificates", "http.admin_listen"];
        let hint = "client_certificates = \"optional\": /v1 asks all the same; or give /v1 a port of its own";
        add(
            &keys,
            "probes and scrapers of metrics would need a client certificate, too",
            hint,
        );
    }
    let mut names = BTreeSet::new();
    if !http
        .client_scopes
        .iter()
        .all(|named| names.insert(&named.name))
    {
        add(
            &["http.client_scopes"],
            "a name has two scopes",
            "leave the one that is meant",
        );
    }
    let proves = http.token_file.is_some() || !http.client_scopes.is_empty();
    if http.authentication == HttpAuthentication::Off && proves {
        let keys = [
            "http.authentication",
            "http.token_file",
            "http.client_scopes",
        ];
        add(
            &keys,
            "nobody would be asked for the token or the certificate",
            "http.authentication = \"auto\"",
        );
    }
    found
}
