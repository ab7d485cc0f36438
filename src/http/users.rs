//! `/v1/users`, `/v1/user`, `/v1/users/import` and `/v1/bans`: who may log in, and who may not connect.
//!
//! Invariant: a password is in no answer and in no log line. What it is read into is wiped when the request is done,
//! and so is the body of the request; the buffers that have received it, and the parser's own, which unescapes, are
//! not.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::{Extension, Json};
use serde::{Deserialize, Deserializer, Serialize};
use zeroize::Zeroizing;

use super::admin::{AdminError, AdminFuture, Posted, body, bounded};
use super::identity::Identity;
use super::sessions::{Listed, Page};
use crate::telemetry::audit::Kind;

/// A password or something that stands for one.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Secret(Zeroizing::new(String::deserialize(deserializer)?)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Names one user: `?name=NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserName {
    /// The user name.
    pub name: String,
}

/// Names one ban: `?target=TARGET`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BanTarget {
    /// `client:ID`, `user:NAME` or `address:NETWORK`.
    pub target: String,
}

/// One user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// Its name.
    pub name: String,
    /// Whether it may not log in for now.
    pub disabled: bool,
    /// What its password is compared with: `argon2id`, `pbkdf2-sha512`, `sha512`; empty: nothing.
    pub password: String,
    /// Mechanisms of SCRAM that it can log in with.
    pub scram: Vec<String>,
    /// Groups that rules may name.
    pub groups: Vec<String>,
    /// Attributes that rules may name.
    pub attributes: BTreeMap<String, String>,
    /// What operators have to say of it.
    pub note: String,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When its password was set, milliseconds since the Unix epoch.
    pub password_set_ms: u64,
    /// Rises with each change of the user.
    pub version: u64,
}

/// `POST /v1/users`: adds a user.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: Secret,
    /// Groups that rules may name.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Attributes that rules may name.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// What operators have to say of it.
    #[serde(default)]
    pub note: String,
    /// Whether it may not log in for now.
    #[serde(default)]
    pub disabled: bool,
}

/// `POST /v1/user?name=NAME`: changes a user. What is absent stays. Its connections end, and may come back if the user
/// may still log in.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserChange {
    /// A new password.
    pub password: Option<Secret>,
    /// Whether it may not log in for now.
    pub disabled: Option<bool>,
    /// Groups that rules may name.
    pub groups: Option<Vec<String>>,
    /// Attributes that rules may name.
    pub attributes: Option<BTreeMap<String, String>>,
    /// What operators have to say of it.
    pub note: Option<String>,
    /// The version that the user must have.
    pub version: Option<u64>,
}

impl UserChange {
    /// Whether it does nothing but disable the user.
    pub fn only_disables(&self) -> bool {
        let has_labels = self.groups.is_some() || self.attributes.is_some();
        let has_more = has_labels || self.note.is_some() || self.password.is_some();
        self.disabled == Some(true) && !has_more
    }
}

/// What a file of users is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserFormat {
    /// A password file of Mosquitto.
    Mosquitto,
    /// A file of SCRAM verifiers, as `auth.scram_file` is.
    Scram,
}

/// `POST /v1/users/import`: adds users of a file, or of a part of one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// What the text is.
    pub format: UserFormat,
    /// Lines of the file.
    pub text: Secret,
    /// Whether the credentials of users that are there already are replaced; otherwise these users stay as they are.
    #[serde(default)]
    pub replace: bool,
}

/// What an import has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportAnswer {
    /// Users that were added.
    pub added: u64,
    /// Users that have got other credentials.
    pub replaced: u64,
    /// Users that were there and stay as they are.
    pub kept: u64,
}

/// `POST /v1/bans`: bans a client id, a user or a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewBan {
    /// `client:ID`, `user:NAME` or `address:NETWORK`.
    pub target: String,
    /// For how long, seconds; absent: until it is removed.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// What operators have to say of it.
    #[serde(default)]
    pub reason: String,
}

/// One ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BanStatus {
    /// Whom it concerns, as it is kept.
    pub target: String,
    /// What operators have to say of it.
    pub reason: String,
    /// When it began, milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it ends, milliseconds since the Unix epoch; absent: when it is removed.
    pub expires_at_ms: Option<u64>,
}

/// What a node can do for who keeps users and bans. A change is effective on every node when it is answered.
pub trait Users: Send + Sync + 'static {
    /// Users in the order of their names.
    fn list(&self, page: Page) -> AdminFuture<'_, Listed<UserStatus>>;

    /// One user; `None` when there is none.
    fn show(&self, name: String) -> AdminFuture<'_, Option<UserStatus>>;

    /// Adds a user.
    fn add(&self, user: NewUser) -> AdminFuture<'_, UserStatus>;

    /// Changes a user; `None` when there is none.
    fn change(&self, name: String, change: UserChange) -> AdminFuture<'_, Option<UserStatus>>;

    /// Deletes a user; tells whether it was there.
    fn delete(&self, name: String) -> AdminFuture<'_, bool>;

    /// Adds users of a file, as somebody has asked for. Each is put into the audit log when it is written: an import
    /// may end halfway.
    fn import(&self, request: ImportRequest, by: Identity) -> AdminFuture<'_, ImportAnswer>;

    /// Bans in the order of whom they concern.
    fn bans(&self, page: Page) -> AdminFuture<'_, Listed<BanStatus>>;

    /// Bans somebody, or changes the ban.
    fn ban(&self, ban: NewBan) -> AdminFuture<'_, BanStatus>;

    /// Removes a ban; tells whether it was there.
    fn unban(&self, target: String) -> AdminFuture<'_, bool>;
}

type Answer<T> = Result<Json<T>, AdminError>;

fn there<T>(found: Option<T>) -> Answer<T> {
    let absent = || AdminError::Absent("there is no such user".to_owned());
    found.map(Json).ok_or_else(absent)
}

fn done(was_there: bool, what: &str) -> Answer<serde_json::Value> {
    match was_there {
        true => Ok(Json(serde_json::json!({}))),
        false => Err(AdminError::Absent(format!("there is no such {what}"))),
    }
}

pub(super) async fn list(
    State(users): State<Arc<dyn Users>>,
    Query(page): Query<Page>,
) -> Answer<Listed<UserStatus>> {
    bounded(users.list(page)).await.map(Json)
}

pub(super) async fn show(
    State(users): State<Arc<dyn Users>>,
    Query(user): Query<UserName>,
) -> Answer<UserStatus> {
    there(bounded(users.show(user.name)).await?)
}

pub(super) async fn add(
    State(users): State<Arc<dyn Users>>,
    Extension(identity): Extension<Identity>,
    request: Posted<NewUser>,
) -> Answer<UserStatus> {
    let user = body(request)?;
    let name = user.name.clone();
    let added = bounded(users.add(user)).await;
    identity.note(Kind::User, &added, &[("action", "add"), ("name", &name)]);
    added.map(Json)
}

/// What a change of a user is about.
fn changed(change: &UserChange) -> String {
    let parts = [
        ("password", change.password.is_some()),
        ("disabled", change.disabled == Some(true)),
        ("enabled", change.disabled == Some(false)),
        ("groups", change.groups.is_some()),
        ("attributes", change.attributes.is_some()),
        ("note", change.note.is_some()),
    ];
    let parts = parts.iter().filter(|(_, is_changed)| *is_changed);
    parts.map(|(part, _)| *part).collect::<Vec<_>>().join(",")
}

pub(super) async fn change(
    State(users): State<Arc<dyn Users>>,
    Extension(identity): Extension<Identity>,
    Query(user): Query<UserName>,
    request: Posted<UserChange>,
) -> Answer<UserStatus> {
    let change = body(request)?;
    let parts = changed(&change);
    let details = [
        ("action", "change"),
        ("name", &*user.name),
        ("changed", &*parts),
    ];
    let found = bounded(users.change(user.name.clone(), change)).await;
    let changed = found.and_then(there);
    identity.note(Kind::User, &changed, &details);
    changed
}

pub(super) async fn delete(
    State(users): State<Arc<dyn Users>>,
    Extension(identity): Extension<Identity>,
    Query(user): Query<UserName>,
) -> Answer<serde_json::Value> {
    let was_there = bounded(users.delete(user.name.clone())).await;
    let deleted = was_there.and_then(|was_there| done(was_there, "user"));
    let details = [("action", "delete"), ("name", &*user.name)];
    identity.note(Kind::User, &deleted, &details);
    deleted
}

pub(super) async fn import(
    State(users): State<Arc<dyn Users>>,
    Extension(identity): Extension<Identity>,
    request: Posted<ImportRequest>,
) -> Answer<ImportAnswer> {
    let imported = bounded(users.import(body(request)?, identity.clone())).await;
    if imported.is_err() {
        identity.note(Kind::User, &imported, &[("action", "import")]);
    }
    imported.map(Json)
}

pub(super) async fn bans(
    State(users): State<Arc<dyn Users>>,
    Query(page): Query<Page>,
) -> Answer<Listed<BanStatus>> {
    bounded(users.bans(page)).await.map(Json)
}

pub(super) async fn ban(
    State(users): State<Arc<dyn Users>>,
    Extension(identity): Extension<Identity>,
    request: Posted<NewBan>,
) -> Answer<BanStatus> {
    let ban = body(request)?;
    let seconds = ban.seconds.map(|seconds| seconds.to_string());
    let target = ban.target.clone();
    let details = [
        ("action", "add"),
        ("name", &*target),
        ("seconds", seconds.as_deref().unwrap_or("unlimited")),
    ];
    let banned = bounded(users.ban(ban)).await;
    identity.note(Kind::Ban, &banned, &details);
    banned.map(Json)
}

pub(super) async fn unban(
    State(users): State<Arc<dyn Users>>,
    Extension(identity): Extension<Identity>,
    Query(ban): Query<BanTarget>,
) -> Answer<serde_json::Value> {
    let was_there = bounded(users.unban(ban.target.clone())).await;
    let lifted = was_there.and_then(|was_there| done(was_there, "ban"));
    let details = [("action", "delete"), ("name", &*ban.target)];
    identity.note(Kind::Ban, &lifted, &details);
    lifted
}
