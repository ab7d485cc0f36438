//! `/v1/events/subscriptions…`: who is to get events, how far it has come, and what could not be delivered.
//!
//! Invariant: no secret is in an answer. A URL is shown without its query, and headers by their names, since both may
//! hold one.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::admin::{AdminError, AdminFuture, Posted, body, bounded};
use super::events::held;
use super::identity::Identity;
use crate::telemetry::audit::Kind;

/// Most dead letters of one answer.
const MOST_DEAD_LETTERS: usize = 1_000;

/// A header that every request has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FurtherHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// `PUT /v1/events/subscriptions/{name}`: what an event subscription asks for. What is absent has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewEventSubscription {
    /// Where events go.
    pub url: String,
    /// `cloudevents` or `eventgrid`.
    pub schema: Option<String>,
    /// `batch`, `structured` or `binary`.
    pub mode: Option<String>,
    /// Types in full; none: the four of MQTT clients.
    pub types: Vec<String>,
    /// What subjects begin with.
    pub subject_begins_with: String,
    /// What subjects end with.
    pub subject_ends_with: String,
    /// Whether case counts in both.
    pub case_sensitive: bool,
    /// Reasons of disconnections; none: all.
    pub reasons: Vec<String>,
    /// Age at which an event is given up, minutes.
    pub ttl_min: Option<u32>,
    /// Attempts after which an event is given up.
    pub max_attempts: Option<u32>,
    /// Most events of a request.
    pub max_events: Option<u32>,
    /// Most bytes of a request with more than one event.
    pub max_bytes: Option<u32>,
    /// Most requests in a minute.
    pub rate_per_min: Option<u32>,
    /// Longest time for a request and its answer.
    pub timeout_s: Option<u32>,
    /// Name of the secret that is sent as a bearer token.
    pub token: String,
    /// Names of the secrets that requests are signed with.
    pub signing_keys: Vec<String>,
    /// Headers that every request has.
    pub headers: Vec<FurtherHeader>,
    /// PEM file of the CAs that may vouch for the endpoint, on every node.
    pub ca_file: String,
    /// `required` or `off`.
    pub handshake: Option<String>,
    /// Whether plain HTTP may go to other machines.
    pub plain_http: bool,
    /// Whether a new one begins with the `oldest` event that is kept, or with the next one (`now`).
    pub from: Option<String>,
    /// The revision that it must have; 0: there must be none.
    pub revision: Option<u64>,
}

/// An event subscription, and how it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSubscriptionStatus {
    /// Its name.
    pub name: String,
    /// `active`, `awaiting_consent`, `backing_off`, `gone` or `paused`.
    pub state: String,
    /// Where events go, without the query.
    pub url: String,
    /// `cloudevents` or `eventgrid`.
    pub schema: String,
    /// `batch`, `structured` or `binary`.
    pub mode: String,
    /// Types in full.
    pub types: Vec<String>,
    /// What subjects begin with.
    pub subject_begins_with: String,
    /// What subjects end with.
    pub subject_ends_with: String,
    /// Whether case counts in both.
    pub case_sensitive: bool,
    /// Reasons of disconnections; none: all.
    pub reasons: Vec<String>,
    /// Age at which an event is given up, minutes.
    pub ttl_min: u32,
    /// Attempts after which an event is given up.
    pub max_attempts: u32,
    /// Most events of a request.
    pub max_events: u32,
    /// Most bytes of a request with more than one event.
    pub max_bytes: u32,
    /// Most requests in a minute.
    pub rate_per_min: u32,
    /// Longest time for a request and its answer.
    pub timeout_s: u32,
    /// Name of the secret that is sent as a bearer token.
    pub token: String,
    /// Names of the secrets that requests are signed with.
    pub signing_keys: Vec<String>,
    /// Names of the headers that every request has.
    pub headers: Vec<String>,
    /// PEM file of the CAs that may vouch for the endpoint.
    pub ca_file: String,
    /// `required` or `off`.
    pub handshake: String,
    /// Whether plain HTTP may go to other machines.
    pub plain_http: bool,
    /// Rises with each change of what it asks for.
    pub revision: u64,
    /// It is done with the events up to this number.
    pub cursor: u64,
    /// Events after the cursor, those included that it does not want.
    pub waiting: u64,
    /// When the oldest of them was recorded, milliseconds since the Unix epoch.
    pub waiting_since_ms: Option<u64>,
    /// Events that are delivered apart from the others.
    pub parked: u64,
    /// Dead letters that are kept.
    pub dead: u64,
    /// Events that were ever delivered.
    pub delivered: u64,
    /// What is wrong with the endpoint.
    pub last_error: Option<String>,
    /// Since when, milliseconds since the Unix epoch.
    pub last_error_ms: Option<u64>,
}

/// `POST …/test`: tries whether the endpoint gets what it is sent. The node that is asked sends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TestRequest {
    /// Send an event that says that it is a test, not the question whether the endpoint wants events.
    pub event: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestAnswer {
    /// Whether the endpoint has taken the event, or has said that it wants events.
    pub accepted: bool,
    /// What was sent: `validation` or `event`.
    pub sent: String,
    /// How the request has ended.
    pub answer: String,
}

/// Which dead letters: `?after=NUMBER&limit=N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetterPage {
    /// Those with higher numbers.
    pub after: u64,
    /// Most of them; 0: [`MOST_DEAD_LETTERS`].
    pub limit: usize,
}

impl DeadLetterPage {
    /// How many to give.
    pub fn size(&self) -> usize {
        match self.limit {
            0 => MOST_DEAD_LETTERS,
            limit => limit.min(MOST_DEAD_LETTERS),
        }
    }
}

/// Dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetters {
    /// Their numbers, and each as JSON in the schema of the event subscription.
    pub letters: Vec<(u64, String)>,
    /// Number to go on after, when there is more.
    pub next: Option<u64>,
}

/// Which dead letters are to be delivered again, or removed; all when it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetterRange {
    /// The lowest number.
    pub from: Option<u64>,
    /// The highest number.
    pub through: Option<u64>,
}

/// What is to become of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterFate {
    /// They are delivered again.
    Replayed,
    /// They go.
    Purged,
}

/// What a node can do with event subscriptions. A change is in the log when it is answered.
pub trait EventSubscriptions: Send + Sync + 'static {
    /// All of them, in the order of their names.
    fn list(&self) -> AdminFuture<'_, Vec<EventSubscriptionStatus>>;

    /// One; `None` when there is none.
    fn show(&self, name: String) -> AdminFuture<'_, Option<EventSubscriptionStatus>>;

    /// Makes or changes one.
    fn put(
        &self,
        name: String,
        new: NewEventSubscription,
    ) -> AdminFuture<'_, EventSubscriptionStatus>;

    /// Ends one; tells whether it was there.
    fn delete(&self, name: String) -> AdminFuture<'_, bool>;

    /// Keeps its events from being delivered, or lets them be delivered again; tells whether it was there.
    fn set_paused(&self, name: String, is_paused: bool) -> AdminFuture<'_, bool>;

    /// Tries its endpoint; `None` when there is none.
    fn test(&self, name: String, request: TestRequest) -> AdminFuture<'_, Option<TestAnswer>>;

    /// Its dead letters in the order of their numbers; `None` when there is no such event subscription.
    fn dead_letters(
        &self,
        name: String,
        page: DeadLetterPage,
    ) -> AdminFuture<'_, Option<DeadLetters>>;

    /// Has dead letters delivered again, or removed; tells whether there is such an event subscription.
    fn settle_dead_letters(
        &self,
        name: String,
        range: DeadLetterRange,
        fate: DeadLetterFate,
    ) -> AdminFuture<'_, bool>;
}

type Subscriptions = State<Arc<dyn EventSubscriptions>>;
type Answer<T> = Result<Json<T>, AdminError>;

fn absent() -> AdminError {
    AdminError::Absent("there is no such event subscription".to_owned())
}

fn there<T>(found: Option<T>) -> Answer<T> {
    found.map(Json).ok_or_else(absent)
}

fn done(was_there: bool) -> Answer<serde_json::Value> {
    match was_there {
        true => Ok(Json(json!({}))),
        false => Err(absent()),
    }
}

/// Puts a change into the audit log.
fn note<T>(identity: &Identity, result: &Result<T, AdminError>, action: &str, name: &str) {
    identity.note(
        Kind::EventSubscription,
        result,
        &[("action", action), ("name", name)],
    );
}

pub(super) async fn list(State(events): Subscriptions) -> Answer<serde_json::Value> {
    let entries = bounded(events.list()).await?;
    Ok(Json(json!({ "entries": entries })))
}

pub(super) async fn show(
    State(events): Subscriptions,
    Path(name): Path<String>,
) -> Answer<EventSubscriptionStatus> {
    there(bounded(events.show(name)).await?)
}

pub(super) async fn put(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    request: Posted<NewEventSubscription>,
) -> Answer<EventSubscriptionStatus> {
    let put = bounded(events.put(name.clone(), body(request)?)).await;
    note(&identity, &put, "put", &name);
    put.map(Json)
}

pub(super) async fn delete(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Answer<serde_json::Value> {
    let deleted = bounded(events.delete(name.clone())).await;
    note(&identity, &deleted, "delete", &name);
    done(deleted?)
}

pub(super) async fn pause(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Answer<serde_json::Value> {
    let paused = bounded(events.set_paused(name.clone(), true)).await;
    note(&identity, &paused, "pause", &name);
    done(paused?)
}

pub(super) async fn resume(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
) -> Answer<serde_json::Value> {
    let resumed = bounded(events.set_paused(name.clone(), false)).await;
    note(&identity, &resumed, "resume", &name);
    done(resumed?)
}

pub(super) async fn test(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    request: Posted<TestRequest>,
) -> Answer<TestAnswer> {
    // Consent that the endpoint gives, or takes back, is a change.
    let tested = bounded(events.test(name.clone(), body(request)?)).await;
    note(&identity, &tested, "test", &name);
    there(tested?)
}

pub(super) async fn dead_letters(
    State(events): Subscriptions,
    Path(name): Path<String>,
    Query(page): Query<DeadLetterPage>,
) -> Result<Response, AdminError> {
    let found = bounded(events.dead_letters(name, page)).await?;
    let found = found.ok_or_else(absent)?;
    let letters = found.letters.iter();
    let letters: Vec<String> = letters
        .map(|(number, letter)| format!("{{\"number\":{number},\"letter\":{letter}}}"))
        .collect();
    let (letters, next) = (letters.join(","), json!(found.next));
    let body = format!("{{\"entries\":[{letters}],\"next\":{next}}}");
    held(body)
}

async fn settle(
    events: &Arc<dyn EventSubscriptions>,
    identity: &Identity,
    name: String,
    range: DeadLetterRange,
    fate: DeadLetterFate,
) -> Answer<serde_json::Value> {
    let action = match fate {
        DeadLetterFate::Replayed => "replay",
        DeadLetterFate::Purged => "purge",
    };
    let settled = bounded(events.settle_dead_letters(name.clone(), range, fate)).await;
    note(identity, &settled, action, &name);
    done(settled?)
}

pub(super) async fn replay(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    request: Posted<DeadLetterRange>,
) -> Answer<serde_json::Value> {
    let range = body(request)?;
    settle(&events, &identity, name, range, DeadLetterFate::Replayed).await
}

pub(super) async fn purge(
    State(events): Subscriptions,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    request: Posted<DeadLetterRange>,
) -> Answer<serde_json::Value> {
    let range = body(request)?;
    settle(&events, &identity, name, range, DeadLetterFate::Purged).await
}
