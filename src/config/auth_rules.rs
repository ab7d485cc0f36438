//! Rules of `[auth]`: what one key asks of another, and a listener's methods of both.

use super::finding::Finding;
use super::keys::{AuthConfig, Config};
use super::setting::AuthenticationMethod;
use super::token_issuer::TokenIssuer;
use crate::http_client::Url;

/// Every broken rule.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, issuer) in config.auth.jwt.iter().enumerate() {
        let mut add = |message: String, hint: &str| {
            let issuer = match &*issuer.issuer {
                "" => format!("issuer {}", index + 1),
                name => format!("the issuer {name:?}"),
            };
            found.push(Finding {
                keys: vec!["auth.jwt"],
                message: format!("{issuer}: {message}"),
                hint: hint.to_owned(),
            });
        };
        token_issuer(issuer, &mut add);
        let others = &config.auth.jwt[..index];
        if others.iter().any(|other| other.issuer == issuer.issuer) {
            let hint = "one table for each issuer; its key set may have several keys";
            add("another table is for the same issuer".into(), hint);
        }
    }
    callback(&config.auth, &mut found);
    methods(config, &mut found);
    found
}

/// A URL of a service that is told secrets, or believed.
fn service_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
    match url.is_tls() || url.is_loopback() {
        true => Ok(url),
        false => Err(format!("{url} is not encrypted, and not of this machine")),
    }
}

fn token_issuer(issuer: &TokenIssuer, add: &mut impl FnMut(String, &str)) {
    let files = [&issuer.keys_file, &issuer.jwks_file, &issuer.secret_file];
    let sources = files.iter().filter(|file| file.is_some()).count();
    if sources + usize::from(!issuer.jwks_url.is_empty()) != 1 {
        let hint = "one of keys_file, jwks_file, jwks_url and secret_file";
        add("it needs one source of keys".into(), hint);
    }
    if issuer.algorithms.is_empty() {
        add(
            "algorithms is empty".into(),
            "for example algorithms = [\"ES256\"]",
        );
    }
    let symmetric = issuer
        .algorithms
        .iter()
        .filter(|name| name.is_symmetric())
        .count();
    if symmetric != 0 && symmetric != issuer.algorithms.len() {
        let hint = "HS… alone, or the others alone";
        add(
            "algorithms has such with a secret and such with a public key".into(),
            hint,
        );
    }
    if (symmetric == 0) != issuer.secret_file.is_none() && issuer.jwks_file.is_none() {
        let hint = "HS256, HS384 and HS512 go with secret_file (or a jwks_file), all others with public keys";
        add("the algorithms do not go with the keys".into(), hint);
    }
    if !issuer.jwks_url.is_empty()
        && let Err(error) = service_url(&issuer.jwks_url)
    {
        add(
            format!("jwks_url: {error}"),
            "for example \"https://issuer.example/jwks\"",
        );
    }
    if issuer.jwks_max_age_s < issuer.jwks_refresh_s {
        let hint = "jwks_max_age_s of several times jwks_refresh_s";
        add(
            "the keys would be too old before they are asked for again".into(),
            hint,
        );
    }
    if let Err(attribute) = issuer.attribute_claims() {
        let message = format!("attributes: {attribute:?} is not name=claim");
        add(message, "for example attributes = [\"site=site_id\"]");
    }
    if issuer.name_claim.is_empty() {
        add("name_claim is empty".into(), "for example \"sub\"");
    }
    if issuer.accept.is_empty() {
        add("accept is empty".into(), "accept = [\"password\", \"JWT\"]");
    }
}

fn callback(auth: &AuthConfig, found: &mut Vec<Finding>) {
    let mut add = |key, message: String, hint: &str| {
        found.push(Finding {
            keys: vec![key],
            message,
            hint: hint.to_owned(),
        });
    };
    if !auth.http_url.is_empty()
        && let Err(error) = service_url(&auth.http_url)
    {
        add(
            "auth.http_url",
            error,
            "for example \"https://users.example/mqtt\"",
        );
    }
    if auth.http_certificate_file.is_some() != auth.http_key_file.is_some() {
        let message = "a certificate needs its key, and a key its certificate".into();
        add("auth.http_key_file", message, "set both, or neither");
    }
}

/// What the methods of the listeners need, and what no listener needs.
fn methods(config: &Config, found: &mut Vec<Finding>) {
    let auth = &config.auth;
    let is_used = |method| {
        let mut listeners = config.listeners.iter();
        listeners.any(|listener| listener.authentication.contains(&method))
    };
    let (jwt, http) = (AuthenticationMethod::Jwt, AuthenticationMethod::Http);
    for (key, is_set, method) in [
        ("auth.jwt", !auth.jwt.is_empty(), jwt),
        ("auth.http_url", !auth.http_url.is_empty(), http),
    ] {
        if is_set && !is_used(method) {
            found.push(Finding {
                keys: vec![key, "listeners"],
                message: format!("no listener has the method {method}"),
                hint: format!("a table [[listeners]] with authentication = [\"{method}\"]"),
            });
        }
    }
    for listener in &config.listeners {
        let mut first = listener.authentication.iter().rev().skip(1);
        if first.any(|method| *method == AuthenticationMethod::Anonymous) {
            found.push(Finding {
                keys: vec!["listeners"],
                message: format!(
                    "the listener {:?} has the method anonymous before others, which are never asked then",
                    listener.name
                ),
                hint: "anonymous comes last, or not at all".to_owned(),
            });
        }
        for method in &listener.authentication {
            let missing = match method {
                AuthenticationMethod::Jwt if auth.jwt.is_empty() => "auth.jwt",
                AuthenticationMethod::Http if auth.http_url.is_empty() => "auth.http_url",
                _ => continue,
            };
            found.push(Finding {
                keys: vec!["listeners"],
                message: format!(
                    "the listener {:?} has the method {method}, and there is no {missing}",
                    listener.name
                ),
                hint: format!("set {missing}, or take {method} off the listener's methods"),
            });
        }
    }
}
