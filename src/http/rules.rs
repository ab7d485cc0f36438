//! `/v1/rules`: what principals may do. The rules are one document, which is read and replaced as a whole; its version
//! is the entity tag (RFC 9110 §8.8.3).

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::{AdminError, AdminFuture, bounded, error_body};
use super::identity::Identity;
use super::post::LARGEST_BODY_BYTES;
use crate::telemetry::audit::Kind;

/// The rules as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRules {
    /// Their version.
    pub version: u64,
    /// Their text, JSON.
    pub text: Bytes,
}

/// What became of new rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// They are in force on every node, and have this version.
    Version(u64),
    /// The rules have this version, not the expected one; 0: there are none. Nothing was changed.
    Conflict(u64),
}

/// What a node can do with the rules.
pub trait RulesAdmin: Send + Sync + 'static {
    /// The rules; `None` when nobody has written any.
    fn rules(&self) -> AdminFuture<'_, Option<StoredRules>>;

    /// Replaces the rules, if they have the expected version; 0: if there are none.
    fn set_rules(&self, text: Bytes, expected: Option<u64>) -> AdminFuture<'_, Written>;
}

/// Which version is to be replaced: `?expected_version=N`, where a header can't be sent.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Replaced {
    expected_version: Option<u64>,
}

fn tag(version: u64) -> String {
    format!("\"{version}\"")
}

fn tagged(status: StatusCode, version: u64, body: impl IntoResponse) -> Response {
    (status, [(header::ETAG, tag(version))], body).into_response()
}

/// The version that `If-Match` or `If-None-Match: *` asks for.
fn expected(headers: &HeaderMap) -> Result<Option<u64>, AdminError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let invalid = |what: &str| AdminError::Invalid(format!("{what} is not the tag of a version"));
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (None, None) => Ok(None),
        (None, Some("*")) => Ok(Some(0)),
        (None, Some(_)) => Err(invalid("If-None-Match")),
        (Some(tag), _) => {
            let version = tag.trim_matches('"').parse();
            version.map(Some).map_err(|_| invalid("If-Match"))
        }
    }
}

/// `GET`: the document and its version.
pub(super) async fn show(State(rules): State<Arc<dyn RulesAdmin>>) -> Result<Response, AdminError> {
    let found = bounded(rules.rules()).await?;
    let absent = || AdminError::Absent("there are no rules: everybody may do everything".into());
    let StoredRules { version, text } = found.ok_or_else(absent)?;
    let rules: Result<Value, _> = serde_json::from_slice(&text);
    let rules = rules.map_err(|error| AdminError::Internal(error.to_string()))?;
    let body = Json(json!({ "version": version, "rules": rules }));
    Ok(tagged(StatusCode::OK, version, body))
}

/// Puts new rules into the audit log, or why there are none.
fn note(identity: &Identity, written: &Result<Written, AdminError>) {
    let (result, version) = match written {
        Ok(Written::Version(version)) => (Ok(()), version),
        Ok(Written::Conflict(version)) => (Err("another version was expected"), version),
        Err(_) => return identity.note(Kind::Rules, written, &[]),
    };
    identity.note(Kind::Rules, &result, &[("version", &version.to_string())]);
}

/// `PUT`: replaces the document.
pub(super) async fn replace(
    State(rules): State<Arc<dyn RulesAdmin>>,
    Extension(identity): Extension<Identity>,
    Query(replaced): Query<Replaced>,
    request: Request,
) -> Result<Response, AdminError> {
    let expected = expected(request.headers())?.or(replaced.expected_version);
    let text = to_bytes(request.into_body(), LARGEST_BODY_BYTES).await;
    let text = text.map_err(|error| AdminError::Invalid(error.to_string()))?;
    let written = bounded(rules.set_rules(text, expected)).await;
    note(&identity, &written);
    match written? {
        Written::Version(version) => {
            let body = Json(json!({ "version": version }));
            Ok(tagged(StatusCode::OK, version, body))
        }
        Written::Conflict(version) => {
            let text = match version {
                0 => "there are no rules".to_owned(),
                version => format!("the rules have version {version}"),
            };
            let status = StatusCode::PRECONDITION_FAILED;
            Ok(tagged(
                status,
                version,
                error_body(status, "conflict", &text),
            ))
        }
    }
}
