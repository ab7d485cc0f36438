//! Who asks: bearer tokens (RFC 6750) and client certificates, judged by the scope that each route declares, and by the
//! rules of the cluster, which take away some of what a scope allows.
//!
//! Invariant: a credential that is shown and wrong is refused, also where none would be needed.
//! Invariant: the holder of `http.token_file` is bound by nothing that the cluster keeps, so that no rule and no lost
//! token locks everybody out.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::admin::error_body;
use super::caller::Caller;
use super::identity::Identity;
use super::tokens::{Digest, TokenTable, digest};
use crate::acl::{Facts, RuleBook};
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

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    /// What the route asks for.
    pub(super) scope: Scope,
    pub(super) method: &'a Method,
    /// As it was sent, without the query.
    pub(super) path: &'a str,
}

/// Judges who asks.
pub struct Gate {
    tokens: Arc<TokenTable>,
    rules: Arc<RuleBook>,
    file_token: Option<Digest>,
    scopes: BTreeMap<String, Scope>,
    demand: Demand,
}

impl Gate {
    /// As configured; `tokens` and `rules` are those of the cluster.
    ///
    /// # Errors
    /// The file of a token can't be used.
    pub fn new(
        config: &HttpConfig,
        tokens: Arc<TokenTable>,
        rules: Arc<RuleBook>,
    ) -> Result<Gate, SecretFileError> {
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
            rules,
            file_token,
            scopes,
            demand,
        })
    }

    /// The tokens of the cluster.
    pub fn tokens(&self) -> &Arc<TokenTable> {
        &self.tokens
    }

    /// The rules of the cluster.
    pub fn rules(&self) -> &Arc<RuleBook> {
        &self.rules
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

    /// Whether the judgement of a request follows from what the cluster keeps, its tokens and its rules, so that a node
    /// which does not know of the last ones would judge wrongly.
    pub(super) fn rests_on_the_cluster(&self, headers: &HeaderMap, caller: &Caller) -> bool {
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        if let Some(value) = shown.next() {
            return bearer(value).is_some_and(|token| !self.is_file_token(&digest(token)));
        }
        let certificate = caller.certificate.as_ref();
        let has_scope =
            certificate.is_some_and(|certificate| self.scopes.contains_key(&*certificate.name));
        has_scope || self.demand != Demand::Always
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
                is_bound_by_rules: true,
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
            is_bound_by_rules: true,
        })
    }

    fn holder(&self, token: &str, caller: &Caller, now: Millis) -> Result<Identity, Refusal> {
        let shown = digest(token);
        let is_of_file = self.is_file_token(&shown);
        let found = match is_of_file {
            true => Some((FILE_TOKEN_NAME.to_owned(), Scope::Admin)),
            false => self.tokens.holder(token, &shown, now),
        };
        let (name, scope) = found.ok_or(Refusal::Token)?;
        Ok(Identity {
            name: name.into(),
            method: "token",
            scope,
            address: caller.address,
            is_bound_by_rules: !is_of_file,
        })
    }

    /// Who asks, if it may ask that.
    pub(super) fn judge(
        &self,
        question: Question<'_>,
        headers: &HeaderMap,
        caller: &Caller,
        now: Millis,
    ) -> Result<Identity, (Refusal, Option<Identity>)> {
        let identity = self
            .identify(headers, caller, now)
            .map_err(|refusal| (refusal, None))?;
        let has = identity.scope;
        let judged = match has < question.scope {
            true => Err(Refusal::Scope {
                needed: question.scope,
                has,
            }),
            false => self.judge_by_rules(&identity, question),
        };
        match judged {
            Ok(()) => Ok(identity),
            Err(refusal) => Err((refusal, Some(identity))),
        }
    }

    /// Judges by the rules who is within its scope. Where none speaks, the scope is enough.
    fn judge_by_rules(&self, identity: &Identity, question: Question<'_>) -> Result<(), Refusal> {
        if !identity.is_bound_by_rules {
            return Ok(());
        }
        let facts = Facts {
            name: identity.name.clone(),
            method: identity.method,
            address: identity.address.map(|address| address.ip()),
            ..Facts::default()
        };
        let rules = self.rules.rules();
        let verdict = rules.route(&facts, question.method.as_str(), question.path);
        match verdict {
            Some(verdict) if !verdict.is_allowed => Err(match verdict.rule {
                Some(rule) => Refusal::Rule {
                    rule,
                    version: rules.version(),
                },
                None => Refusal::UnreadableRules,
            }),
            _ => Ok(()),
        }
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
    #[error("rules[{rule}] of the cluster's rules does not allow this (version {version})")]
    Rule { rule: u32, version: u64 },
    #[error(
        "this node can't read the cluster's rules, so it takes no token but that of http.token_file"
    )]
    UnreadableRules,
}

impl Refusal {
    /// Whether it comes of the rules.
    pub(super) fn is_of_rules(&self) -> bool {
        matches!(self, Refusal::Rule { .. } | Refusal::UnreadableRules)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let challenge = match self {
            Refusal::Scope { .. } | Refusal::Rule { .. } | Refusal::UnreadableRules => {
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
