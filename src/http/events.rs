//! `/v1/events`: events for readers who pull them.
//!
//! Invariant: nothing is kept for a reader. It keeps its token, and says it when it reads on.

use std::sync::{Arc, LazyLock};

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::admin::{AdminError, AdminFuture};
use super::answer_memory::AnswerMemory;

/// Most events of one answer.
const MOST_EVENTS: usize = 1_000;

/// Events of an answer, if the reader does not say.
const SOME_EVENTS: usize = 100;

/// Longest time that a reader may wait for the first event.
const LONGEST_WAIT_S: u64 = 30;

/// What a reader asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pull {
    /// The token of the answer before; empty: from the oldest event that is kept.
    pub after: String,
    /// Most events of the answer; 0: [`SOME_EVENTS`].
    pub limit: usize,
    /// How long to wait for the first event, seconds.
    pub wait_s: u64,
    /// The type in full; empty: the four of MQTT clients.
    pub r#type: String,
    /// What the subject begins with.
    pub subject: String,
}

impl Pull {
    /// Most events of the answer.
    pub fn size(&self) -> usize {
        match self.limit {
            0 => SOME_EVENTS,
            limit => limit.min(MOST_EVENTS),
        }
    }
}

/// What a reader gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// CloudEvents as JSON, in the order in which they were recorded.
    pub events: Vec<String>,
    /// What to read on after.
    pub next: String,
    /// Some events after the reader's token are gone.
    pub is_lost: bool,
}

/// What a node can do for who reads events. Its answers include everything that was acknowledged before.
pub trait Events: Send + Sync + 'static {
    /// Events after a token.
    fn pull(&self, pull: Pull) -> AdminFuture<'_, Pulled>;
}

pub(super) async fn pull(
    State(events): State<Arc<dyn Events>>,
    Query(pull): Query<Pull>,
) -> Result<Response, AdminError> {
    if pull.wait_s > LONGEST_WAIT_S {
        let text = format!("wait_s is at most {LONGEST_WAIT_S}");
        return Err(AdminError::Invalid(text));
    }
    let pulled = events.pull(pull).await?;
    let (next, lost) = (json!(pulled.next), json!(pulled.is_lost));
    let events = pulled.events.join(",");
    drop(pulled.events);
    let body = format!("{{\"events\":[{events}],\"next\":{next},\"lost\":{lost}}}");
    held(body)
}

/// What is answered to readers of events and dead letters has this memory until it is read, bytes.
const MOST_ANSWER_BYTES: usize = 64 << 20;

static ANSWERS: LazyLock<AnswerMemory> = LazyLock::new(|| AnswerMemory::of(MOST_ANSWER_BYTES));

/// A JSON text as an answer.
pub(super) fn held(json: String) -> Result<Response, AdminError> {
    held_in(&ANSWERS, json)
}

/// The same in a memory.
pub(super) fn held_in(memory: &AnswerMemory, json: String) -> Result<Response, AdminError> {
    let held = memory.try_hold(json);
    let held = held.map_err(|full| AdminError::Overloaded(full.to_string()))?;
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, held.into_bytes()).into_response())
}
