//! `/v1/sessions` and `/v1/retained`: what the cluster keeps for its clients, page by page.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::extract::{Query, State};
use axum::response::Response;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::admin::{AdminError, AdminFuture, bounded};
use super::answer_memory::AnswerMemory;
use super::events::held_in;

/// What is answered about sessions and retained messages has this memory until it is read, bytes: whoever does not read
/// events keeps no operator from looking.
const MOST_ANSWER_BYTES: usize = 64 << 20;

static ANSWERS: LazyLock<AnswerMemory> = LazyLock::new(|| AnswerMemory::of(MOST_ANSWER_BYTES));

/// Most entries of one page.
const LARGEST_PAGE: usize = 1_000;

/// Which page of a list: `?after=NAME&limit=N`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// What the page before says to go on after.
    pub after: String,
    /// Entries wanted, at most [`LARGEST_PAGE`]; 0: that many.
    pub limit: usize,
    /// Only sessions that have a connection.
    pub connected: bool,
    /// Only retained messages whose topic matches this filter.
    pub filter: String,
}

impl Page {
    /// How many entries to give.
    pub fn size(&self) -> usize {
        match self.limit {
            0 => LARGEST_PAGE,
            limit => limit.min(LARGEST_PAGE),
        }
    }
}

/// Names one client: `?client_id=ID`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientId {
    /// The client identifier.
    pub client_id: String,
}

/// Names one topic: `?topic=NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// The topic name.
    pub topic: String,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its client.
    pub client_id: String,
    /// The node its client is connected to.
    pub node: Option<u64>,
    /// The address from which it is connected, if that is to the node that answers: the others' are not known there.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// `5.0`, `3.1.1` or `3.1`.
    pub protocol: String,
    /// Seconds it outlives its connection; 4294967295: for ever.
    pub expiry_interval_s: u32,
    /// When it ends, milliseconds since the Unix epoch, while it has no connection.
    pub expires_at_ms: Option<u64>,
    /// Whether its messages with QoS 1 and 2 go through a replicated queue.
    pub durable: bool,
    /// Messages in its queue, those under way included.
    pub queued_messages: u64,
    /// Their size, bytes.
    pub queued_bytes: u64,
    /// Messages under way to its client.
    pub in_flight: u32,
    /// Messages dropped because its queue was full.
    pub dropped_messages: u64,
    /// Whether it has a will.
    pub has_will: bool,
    /// The principal that it belongs to; absent: it belongs to nobody.
    #[serde(default)]
    pub owner: Option<String>,
}

/// One subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// As it was sent, `$share/…` included.
    pub filter: String,
    /// Granted QoS.
    pub qos: u32,
    /// No Local.
    pub no_local: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Retain Handling.
    pub retain_handling: u32,
    /// Subscription identifier.
    pub identifier: Option<u32>,
}

/// One session with its subscriptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDetail {
    /// The session.
    #[serde(flatten)]
    pub session: SessionStatus,
    /// Its subscriptions.
    pub subscriptions: Vec<SubscriptionStatus>,
}

/// One retained message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedStatus {
    /// Its topic.
    pub topic: String,
    /// QoS it was published with.
    pub qos: u32,
    /// Size of its payload, bytes.
    pub payload_bytes: usize,
    /// When it goes, milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
    /// The payload, if it is text; only when one message is asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub payload: Option<String>,
    /// The payload in hexadecimal, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub payload_hex: Option<String>,
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed<T> {
    /// Its entries, in the order of their names.
    pub entries: Vec<T>,
    /// What to go on after, when there is more: the last name, or what sorts behind all that begin as a very long one.
    pub next: Option<String>,
}

/// What a node can tell of sessions and retained messages. Its answers include everything that was acknowledged before.
/// Clients choose how long they are, so they are made into texts where they are found, in turn.
pub trait Sessions: Send + Sync + 'static {
    /// Sessions in the order of their client ids, as JSON of [`Listed`].
    fn list(&self, page: Page) -> AdminFuture<'_, String>;

    /// One session as JSON of [`SessionDetail`]; `None` when there is none.
    fn show(&self, client_id: String) -> AdminFuture<'_, Option<String>>;

    /// Ends a session with its connection; tells whether it was there.
    fn delete(&self, client_id: String) -> AdminFuture<'_, bool>;

    /// Ends a session's connection; tells whether it had one.
    fn kick(&self, client_id: String) -> AdminFuture<'_, bool>;

    /// Retained messages in the order of their topics, as JSON of [`Listed`].
    fn retained(&self, page: Page) -> AdminFuture<'_, String>;

    /// The retained message of one topic as JSON of [`RetainedStatus`].
    fn retained_message(&self, topic: String) -> AdminFuture<'_, Option<String>>;
}

type Done = Result<Json<serde_json::Value>, AdminError>;

fn absent(what: &str) -> AdminError {
    AdminError::Absent(format!("there is no {what}"))
}

/// What clients have chosen has its place until it is read.
fn held(json: String) -> Result<Response, AdminError> {
    held_in(&ANSWERS, json)
}

async fn done(work: BoxFuture<'_, Result<bool, AdminError>>, what: &str) -> Done {
    match bounded(work).await? {
        true => Ok(Json(serde_json::json!({}))),
        false => Err(absent(what)),
    }
}

pub(super) async fn list(
    State(sessions): State<Arc<dyn Sessions>>,
    Query(page): Query<Page>,
) -> Result<Response, AdminError> {
    held(bounded(sessions.list(page)).await?)
}

pub(super) async fn show(
    State(sessions): State<Arc<dyn Sessions>>,
    Query(client): Query<ClientId>,
) -> Result<Response, AdminError> {
    let found = bounded(sessions.show(client.client_id)).await?;
    held(found.ok_or_else(|| absent("session of this client"))?)
}

pub(super) async fn delete(
    State(sessions): State<Arc<dyn Sessions>>,
    Query(client): Query<ClientId>,
) -> Done {
    let work = sessions.delete(client.client_id);
    done(work, "session of this client").await
}

pub(super) async fn kick(
    State(sessions): State<Arc<dyn Sessions>>,
    Query(client): Query<ClientId>,
) -> Done {
    let work = sessions.kick(client.client_id);
    done(work, "connection of this client").await
}

pub(super) async fn retained(
    State(sessions): State<Arc<dyn Sessions>>,
    Query(page): Query<Page>,
) -> Result<Response, AdminError> {
    held(bounded(sessions.retained(page)).await?)
}

pub(super) async fn retained_message(
    State(sessions): State<Arc<dyn Sessions>>,
    Query(topic): Query<Topic>,
) -> Result<Response, AdminError> {
    let found = bounded(sessions.retained_message(topic.topic)).await?;
    held(found.ok_or_else(|| absent("retained message of this topic"))?)
}
