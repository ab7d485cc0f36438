//! Rules of `[hub]`: what one key asks of another, and of the listeners.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::hub_keys::HubConfig;
use super::keys::Config;
use super::setting::ListenAddress;

/// Longest name of a host, characters (RFC 1035 §2.3.4).
const LONGEST_HOST_NAME: usize = 253;

/// Every broken rule.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |keys: &[&'static str], message: String, hint: &str| {
        found.push(Finding {
            keys: keys.to_vec(),
            message,
            hint: hint.to_owned(),
        });
    };
    host_names(&config.hub, &mut add);
    needs_names(&config.hub, &mut add);
    https(&config.hub, &mut add);
    plaintext(config, &mut add);
    found
}

fn host_names(hub: &HubConfig, add: &mut impl FnMut(&[&'static str], String, &str)) {
    let mut names = BTreeSet::new();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    for name in &hub.host_names {
        if !(1..=LONGEST_HOST_NAME).contains(&name.len()) || !name.chars().all(fits) {
            let hint = "for example \"hub.example.com\", without a port";
            add(
                &["hub.host_names"],
                format!("{name:?} is no name of a host"),
                hint,
            );
        }
        if !names.insert(name.to_ascii_lowercase()) {
            let hint = "names are compared without case";
            add(
                &["hub.host_names"],
                format!("{name:?} is there twice"),
                hint,
            );
        }
    }
}

/// Everything else is about a hub, which has a name.
fn needs_names(hub: &HubConfig, add: &mut impl FnMut(&[&'static str], String, &str)) {
    if !hub.host_names.is_empty() {
        return;
    }
    for (key, is_set) in [
        ("hub.https_listen", hub.https_listen.is_some()),
        ("hub.https_certificates", !hub.https_certificates.is_empty()),
        ("hub.policies_file", hub.policies_file.is_some()),
        ("hub.client_ca_file", hub.client_ca_file.is_some()),
        ("hub.allow_plaintext", hub.allow_plaintext),
    ] {
        if is_set {
            let message = "there is no hub, because it has no name".to_owned();
            let hint = "hub.host_names = [\"hub.example.com\"]";
            add(&[key, "hub.host_names"], message, hint);
        }
    }
}

fn https(hub: &HubConfig, add: &mut impl FnMut(&[&'static str], String, &str)) {
    let Some(address) = &hub.https_listen else {
        if !hub.https_certificates.is_empty() {
            let keys = ["hub.https_certificates", "hub.https_listen"];
            let message = "certificates for an API that is served nowhere".to_owned();
            add(
                &keys,
                message,
                "for example hub.https_listen = \"0.0.0.0:8443\"",
            );
        }
        return;
    };
    if hub.https_certificates.is_empty() && !hub.allow_plaintext {
        let keys = ["hub.https_listen", "hub.https_certificates"];
        let message = "HTTPS without a certificate".to_owned();
        let hint = "hub.https_certificates = [{ certificate = \"server.pem\", key = \"server.key\" }]; \
                    `quorumq certificates` makes them";
        add(&keys, message, hint);
    }
    if hub.https_certificates.is_empty() && hub.allow_plaintext && !address.is_loopback() {
        let keys = ["hub.https_listen", "hub.allow_plaintext"];
        let message =
            format!("{address} is reached from other machines, and tokens would cross the network");
        add(
            &keys,
            message,
            "listen on 127.0.0.1, or set hub.https_certificates",
        );
    }
}

/// Tokens and keys never cross a network in the clear.
fn plaintext(config: &Config, add: &mut impl FnMut(&[&'static str], String, &str)) {
    if !config.hub.allow_plaintext {
        return;
    }
    for listener in config.listeners() {
        let is_local = match &listener.address {
            ListenAddress::Tcp(address) => address.is_loopback(),
            ListenAddress::Unix(_) => true,
        };
        if !listener.transport.is_tls() && !is_local {
            let message = format!(
                "{} has no TLS and is reached from other machines: devices' tokens could be read on the way",
                listener.address
            );
            let hint = "listen on 127.0.0.1, give the listener TLS, or remove hub.allow_plaintext";
            add(
                &["hub.allow_plaintext", "mqtt.listen", "listeners"],
                message,
                hint,
            );
        }
    }
}
