//! Issuers of tokens, as the configuration names them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::Background;
use super::files::{FileError, TokenFile};
use super::keys::{FILE_INTERVAL, FetchError, Keys, Place};
use crate::auth::jwt::{Issuer, JWT, K8S_SAT, Rules};
use crate::config::file::Guard;
use crate::config::{TokenIssuer, TokenUse};
use crate::http_client::{Excess, HttpClient, Options, TlsError, TlsFiles, UrlError};

/// The longest time for a set of keys to come.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest set of keys that is read.
const LARGEST_SET_BYTES: usize = 256 << 10;

/// Why tokens of an issuer can't be judged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssuerError {
    /// Its keys can't be read.
    #[error(transparent)]
    Keys(#[from] FetchError),
    /// The file of the token with which they are asked for.
    #[error(transparent)]
    Token(#[from] FileError),
    /// The URL of its keys.
    #[error("jwks_url: {0}")]
    Url(#[from] UrlError),
    /// The files for TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An attribute that is not `name=claim`.
    #[error("attributes: {0:?} is not name=claim")]
    Attribute(String),
}

/// An issuer, and what keeps its keys current. `withdrawn` is told when one of them is not there any more.
///
/// # Errors
/// Its keys can't be read. Those of a URL are not asked for yet.
pub(crate) fn issuer(
    config: &TokenIssuer,
    withdrawn: &Arc<Notify>,
) -> Result<(Issuer, Background), IssuerError> {
    let name = match &*config.issuer {
        "" => "any".to_owned(),
        issuer => issuer.to_owned(),
    };
    let file = |place| Keys::of_file(place, name.clone(), FILE_INTERVAL, withdrawn.clone());
    let keys = match (&config.keys_file, &config.jwks_file, &config.secret_file) {
        (Some(path), ..) => file(Place::Pem(path.clone()))?,
        (_, Some(path), _) => file(Place::Jwks(path.clone()))?,
        (.., Some(path)) => file(Place::Secret(path.clone()))?,
        (None, None, None) => {
            let client = HttpClient::new(Options {
                url: config.jwks_url.parse()?,
                tls: TlsFiles {
                    authorities: config.jwks_ca_file.clone(),
                    certificate: None,
                },
                timeout: KEYS_TIMEOUT,
                largest_answer: LARGEST_SET_BYTES,
                excess: Excess::Refused,
                refuses_local: true,
                repeats: true,
            })?;
            // The token of a service account is a file that everybody in its container may read.
            let token = config.jwks_token_file.clone();
            let token = token.map(|path| TokenFile::new(path, Guard::Key));
            let place = Place::Url {
                client: Box::new(client),
                token: token.transpose()?,
            };
            let interval = Duration::from_secs(config.jwks_refresh_s.into());
            let max_age = Duration::from_secs(config.jwks_max_age_s.into());
            Keys::of_url(place, name, interval, max_age, withdrawn.clone())
        }
    };
    let background = keys.keep_current();
    let methods = [(TokenUse::Jwt, JWT), (TokenUse::K8sSat, K8S_SAT)];
    let methods = methods
        .into_iter()
        .filter(|(word, _)| config.accept.contains(word));
    let issuer = Issuer {
        rules: rules(config)?,
        keys: Box::new(keys),
        in_password: config.accept.contains(&TokenUse::Password),
        methods: methods.map(|(_, method)| method).collect(),
    };
    Ok((issuer, background))
}

fn rules(config: &TokenIssuer) -> Result<Rules, IssuerError> {
    let attributes = config.attribute_claims();
    let attributes = attributes.map_err(|text| IssuerError::Attribute(text.to_owned()))?;
    let attributes = attributes.into_iter();
    Ok(Rules {
        issuer: config.issuer.as_str().into(),
        audiences: config
            .audiences
            .iter()
            .map(|text| text.as_str().into())
            .collect(),
        algorithms: config.algorithms.clone(),
        leeway_ms: u64::from(config.leeway_s) * 1000,
        allows_endless: config.allow_endless,
        name: config.name_claim.as_str().into(),
        groups: Some(config.groups_claim.as_str())
            .filter(|claim| !claim.is_empty())
            .map(Into::into),
        attributes: attributes
            .map(|(name, claim)| (name.into(), claim.into()))
            .collect(),
        user_name: config.user_name.as_str().into(),
    })
}
