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
    certificates(http, &mut add);
    scopes(http, &mut add);
    found
}

fn certificates(http: &HttpConfig, add: &mut impl FnMut(&[&'static str], &str, &str)) {
    let asks = http.client_certificates != ClientCertificates::Off;
    if http.certificates.is_empty() && asks {
        let hint = "http.certificates = [{ certificate = \"server.pem\", key = \"server.key\" }]";
        let message = "client certificates are for TLS, which this port does not speak";
        let keys = ["http.client_certificates", "http.certificates"];
        add(&keys, message, hint);
    }
    if asks && http.client_ca_file.is_none() {
        let keys = ["http.client_certificates", "http.client_ca_file"];
        let message = "client certificates are judged by a CA, which is missing";
        add(&keys, message, "http.client_ca_file = \"ca.pem\"");
    }
    let message = "client certificates are not asked for";
    let hint = "http.client_certificates = \"optional\"";
    if !asks && (http.client_ca_file.is_some() || !http.crl_files.is_empty()) {
        let keys = ["http.client_ca_file", "http.client_certificates"];
        add(&keys, message, hint);
    }
    if !asks && !http.client_scopes.is_empty() {
        let keys = ["http.client_scopes", "http.client_certificates"];
        add(&keys, message, hint);
    }
    if http.client_certificates == ClientCertificates::Required && http.admin_listen.is_none() {
        let keys = ["http.client_certificates", "http.admin_listen"];
        let message = "probes and scrapers of metrics would need a client certificate, too";
        let hint = "client_certificates = \"optional\": /v1 asks all the same; or give /v1 a port of its own";
        add(&keys, message, hint);
    }
}

fn scopes(http: &HttpConfig, add: &mut impl FnMut(&[&'static str], &str, &str)) {
    let mut names = BTreeSet::new();
    let mut scopes = http.client_scopes.iter();
    if !scopes.all(|named| names.insert(&named.name)) {
        let hint = "leave the one that is meant";
        add(&["http.client_scopes"], "a name has two scopes", hint);
    }
    let proves = http.token_file.is_some() || !http.client_scopes.is_empty();
    if http.authentication == HttpAuthentication::Off && proves {
        let keys = [
            "http.authentication",
            "http.token_file",
            "http.client_scopes",
        ];
        let message = "nobody would be asked for the token or the certificate";
        add(&keys, message, "http.authentication = \"auto\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CertificatePair, NamedScope, Scope};

    #[test]
    fn what_has_no_effect_or_locks_probes_out_is_named() {
        let scope = NamedScope {
            name: "ops".into(),
            scope: Scope::Admin,
        };
        let pair = CertificatePair {
            certificate: "a.pem".into(),
            key: "a.key".into(),
        };
        let good = HttpConfig {
            certificates: vec![pair],
            client_certificates: ClientCertificates::Optional,
            client_ca_file: Some("ca.pem".into()),
            client_scopes: vec![scope.clone()],
            ..HttpConfig::default()
        };
        assert!(findings(&HttpConfig::default()).is_empty());
        assert!(findings(&good).is_empty());
        let wrong: [fn(&mut HttpConfig); 6] = [
            |http| http.certificates.clear(),
            |http| http.client_ca_file = None,
            |http| http.client_certificates = ClientCertificates::Off,
            |http| http.client_certificates = ClientCertificates::Required,
            |http| http.client_scopes.push(http.client_scopes[0].clone()),
            |http| http.authentication = HttpAuthentication::Off,
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut http = good.clone();
            change(&mut http);
            assert!(!findings(&http).is_empty(), "{number}");
        }
    }
}
