//! `/v1/tokens`: who may ask over HTTP.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderName, header};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::admin::{AdminError, AdminFuture, Posted, body, bounded};
use super::identity::Identity;
use super::tokens::{TokenStatus, is_token_name};
use crate::config::Scope;
use crate::telemetry::audit::Kind;

/// Longest time that a token may be given, seconds: a hundred years.
const LONGEST_LIFE_S: u64 = 100 * 365 * 24 * 3_600;

/// `POST /v1/tokens`: makes a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its name: letters, digits, dashes and underscores, 64 at most.
    pub name: String,
    /// `read`, `operate` or `admin`.
    pub scope: String,
    /// Seconds after which it ends; absent: it does not.
    #[serde(default)]
    pub expires_in_s: Option<u64>,
}

/// A token that was made: the only place where its text is.
#[derive(Serialize)]
pub struct MadeToken {
    /// Its name.
    pub name: String,
    /// The token.
    pub token: String,
}

impl Drop for MadeToken {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

/// Names one token: `?name=NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenName {
    /// Its name.
    pub name: String,
}

/// Makes and removes tokens of the cluster.
pub trait Tokens: Send + Sync + 'static {
    /// Every token, those that were acknowledged before included.
    fn list(&self) -> AdminFuture<'_, Vec<TokenStatus>>;

    /// Makes a token, which is valid on every node then.
    fn add(
        &self,
        name: String,
        scope: Scope,
        expires_in_s: Option<u64>,
    ) -> AdminFuture<'_, MadeToken>;

    /// Removes a token, which is valid on no node then; tells whether it was there.
    fn remove(&self, name: String) -> AdminFuture<'_, bool>;
}

pub(super) async fn list(
    State(tokens): State<Arc<dyn Tokens>>,
) -> Result<Json<serde_json::Value>, AdminError> {
    let entries = bounded(tokens.list()).await?;
    Ok(Json(serde_json::json!({ "entries": entries })))
}

type NotCached = [(HeaderName, &'static str); 1];

pub(super) async fn add(
    State(tokens): State<Arc<dyn Tokens>>,
    Extension(identity): Extension<Identity>,
    request: Posted<NewToken>,
) -> Result<(NotCached, Json<MadeToken>), AdminError> {
    let request = body(request)?;
    let invalid = |text: &str| AdminError::Invalid(text.to_owned());
    if !is_token_name(&request.name) {
        return Err(invalid(
            "a token's name is 1 to 64 letters, digits, dashes or underscores",
        ));
    }
    let scope = request.scope.parse::<Scope>();
    let scope = scope.map_err(|_| invalid("the scope is read, operate or admin"))?;
    let life = request.expires_in_s;
    if life.is_some_and(|life| life == 0 || life > LONGEST_LIFE_S) {
        return Err(invalid("expires_in_s is 1 s to a hundred years"));
    }
    let name = request.name;
    let made = bounded(tokens.add(name.clone(), scope, life)).await;
    let details = [
        ("action", "add"),
        ("name", name.as_str()),
        ("scope", scope.as_str()),
    ];
    identity.note(Kind::Token, &made, &details);
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(made?)))
}

pub(super) async fn remove(
    State(tokens): State<Arc<dyn Tokens>>,
    Extension(identity): Extension<Identity>,
    Query(query): Query<TokenName>,
) -> Result<Json<serde_json::Value>, AdminError> {
    let removed = match bounded(tokens.remove(query.name.clone())).await {
        Ok(true) => Ok(Json(serde_json::json!({}))),
        Ok(false) => Err(AdminError::Absent(
            "there is no token of this name".to_owned(),
        )),
        Err(error) => Err(error),
    };
    let details = [("action", "remove"), ("name", query.name.as_str())];
    identity.note(Kind::Token, &removed, &details);
    removed
}
