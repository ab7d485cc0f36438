//! Who asks: bearer tokens (RFC 6750) and client certificates, judged by the scope that each route declares.
//!
//! Invariant: a credential that is shown and wrong is refused, also where none would be needed.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::admin::error_body;
use super::caller::Caller;
use super::identity::Identity;
use super::tokens::{Digest, TokenTable, digest};
use crate::base::time::Millis;
use crate::config::secret_file::{SecretFileError, first_line};
use crate::config::{HttpAuthentication, HttpConfig, Scope};

/// Least length of the token of `http.token_file`, characters.
const LEAST_TOKEN_LENGTH: usize = 32;

/// Name of the holder of `http.token_file`.
const FILE_TOKEN_NAME: &str = "http.token_file";

/// When somebody must show who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Always,
    /// When the cluster has a token.
    WithTokens,
    Never,
}

/// Judges who asks.
pub struct Gate {
    tokens: Arc<TokenTable>,
    file_token: Option<Digest>,
    scopes: BTreeMap<String, Scope>,
    demand: Demand,
}

impl Gate {
    /// As configured; `tokens` are those of the cluster.
    ///
    /// # Errors
    /// The file of a token can't be used.
    pub fn new(config: &HttpConfig, tokens: Arc<TokenTable>) -> Result<Gate, SecretFileError> {
        let file_token = match &config.token_file {
            Some(path) => Some(digest(&first_line(path, LEAST_TOKEN_LENGTH)?)),
            None => None,
        };
        let scopes = config.client_scopes.iter();
        let scopes: BTreeMap<String, Scope> = scopes
            .map(|named| (named.name.clone(), named.scope))
            .collect();
        let address = config.admin_listen.as_ref().or(config.listen.as_ref());
        let is_public = address.is_some_and(|address| !address.is_loopback());
        let can_prove = file_token.is_some() || !scopes.is_empty();
        let demand = match config.authentication {
            HttpAuthentication::Off => Demand::Never,
            HttpAuthentication::Required => Demand::Always,
            HttpAuthentication::Auto if is_public || can_prove => Demand::Always,
            HttpAuthentication::Auto => Demand::WithTokens,
        };
        Ok(Gate {
            tokens,
            file_token,
            scopes,
            demand,
        })
    }

    /// The tokens of the cluster.
    pub fn tokens(&self) -> &Arc<TokenTable> {
        &self.tokens
    }

    /// Whether somebody can administer without a token of the cluster.
    pub fn has_own_admin(&self) -> bool {
        let certificates = self.scopes.values().any(|scope| *scope == Scope::Admin);
        self.file_token.is_some() || certificates
    }

    fn demands(&self) -> bool {
        match self.demand {
            Demand::Always => true,
            Demand::WithTokens => !self.tokens.is_empty(),
            Demand::Never => false,
        }
    }

    /// Whether the judgement of a request follows from the tokens of the cluster, so that a node which does not know of
    /// the last ones would judge wrongly.
    pub(super) fn rests_on_tokens(&self, headers: &HeaderMap, caller: &Caller) -> bool {
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        if let Some(value) = shown.next() {
            return bearer(value).is_some_and(|token| !self.is_file_token(&digest(token)));
        }
        let certificate = caller.certificate.as_ref();
        let has_scope =
            certificate.is_some_and(|certificate| self.scopes.contains_key(&*certificate.name));
        !has_scope && self.demand == Demand::WithTokens
    }

    fn is_file_token(&self, shown: &Digest) -> bool {
        let known = self.file_token.as_ref();
        known.is_some_and(|known| bool::from(known.ct_eq(shown)))
    }

    fn identify(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
        now: Millis,
    ) -> Result<Identity, Refusal> {
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        if let Some(value) = shown.next() {
            let token = bearer(value).filter(|_| shown.next().is_none());
            return self.holder(token.ok_or(Refusal::NoBearer)?, caller, now);
        }
        if let Some(certificate) = &caller.certificate
            && let Some(scope) = self.scopes.get(&*certificate.name)
        {
            if !certificate.counts_at(now) {
                return Err(Refusal::StaleCertificate);
            }
            return Ok(Identity {
                name: certificate.name.clone(),
                method: "certificate",
                scope: *scope,
                address: caller.address,
            });
        }
        if self.demands() {
            return Err(Refusal::Nothing);
        }
        Ok(Identity {
            name: "anonymous".into(),
            method: "anonymous",
            scope: Scope::Admin,
            address: caller.address,
        })
    }

    fn holder(&self, token: &str, caller: &Caller, now: Millis) -> Result<Identity, Refusal> {
        let shown = digest(token);
        let found = match self.is_file_token(&shown) {
            true => Some((FILE_TOKEN_NAME.to_owned(), Scope::Admin)),
            false => self.tokens.holder(token, &shown, now),
        };
        let (name, scope) = found.ok_or(Refusal::Token)?;
        Ok(Identity {
            name: name.into(),
            method: "token",
            scope,
            address: caller.address,
        })
    }

    /// Who asks, if it may ask a route of this scope.
    pub(super) fn judge(
        &self,
        scope: Scope,
        headers: &HeaderMap,
        caller: &Caller,
        now: Millis,
    ) -> Result<Identity, (Refusal, Option<Identity>)> {
        let identity = self
            .identify(headers, caller, now)
            .map_err(|refusal| (refusal, None))?;
        if identity.scope < scope {
            let refusal = Refusal::Scope {
                needed: scope,
                has: identity.scope,
            };
            return Err((refusal, Some(identity)));
        }
        Ok(identity)
    }
}

/// The token of an Authorization field, if that is its form.
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Why somebody is not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("this asks for a token (Authorization: Bearer …) or a client certificate with a scope")]
    Nothing,
    #[error("Authorization must be one Bearer token")]
    NoBearer,
    #[error("the token is not valid")]
    Token,
    #[error("the client certificate has expired, or certificates were read again: connect anew")]
    StaleCertificate,
    #[error("this needs the scope {needed}, not {has}")]
    Scope { needed: Scope, has: Scope },
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let challenge = match self {
            Refusal::Scope { .. } => {
                return error_body(StatusCode::FORBIDDEN, "forbidden", &self.to_string());
            }
            Refusal::Token => "Bearer realm=\"quorumq\", error=\"invalid_token\"",
            _ => "Bearer realm=\"quorumq\"",
        };
        let mut response = error_body(StatusCode::UNAUTHORIZED, "unauthorized", &self.to_string());
        let fields = response.headers_mut();
        fields.insert(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static(challenge),
        );
        if self == Refusal::StaleCertificate {
            fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
