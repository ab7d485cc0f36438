//! What stands before a route: it lets a request pass with the [`Identity`] of who asks, or refuses it.
//!
//! Invariant: who asks is judged by everything that was answered before the request came, on whichever node. A node
//! whose routing lease is over does not know that a token was removed: it finds out first.
//! Invariant: a change is judged when all of it is there, and then carried out and put into the audit log in a task of
//! its own: hanging up leaves neither half of it undone.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::admin::{AdminError, AdminFuture};
use super::caller::Caller;
use super::gate::{Gate, Question};
use super::identity::Identity;
use crate::base::time::wall_now;
use crate::base::wiped;
use crate::config::Scope;
use crate::telemetry::audit::{self, Event, Kind, Outcome};
use crate::telemetry::labels::Action;
use crate::telemetry::metrics::Metrics;

/// Largest body of a change, bytes; routes have smaller bounds of their own.
pub(super) const LARGEST_BODY_BYTES: usize = 1 << 20;

/// How long a request waits for its node to know what was answered before.
const CURRENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of the node waits for changes, also those whose clients have hung up.
const CHANGES_TIMEOUT: Duration = Duration::from_secs(5);

/// Changes of a kind that are carried out at once, those of clients that have hung up included. Others wait for their
/// turn.
const MOST_CHANGES: usize = 64;

/// What the gate has to know of the node.
pub trait Currency: Send + Sync + 'static {
    /// Completes when this node has applied every change of tokens and rules that was answered before.
    fn be_current(&self) -> AdminFuture<'_, ()>;
}

/// When a route is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// When this node knows who may ask.
    Current,
    /// Always: by what it knows, also while it is cut off.
    Always,
}

/// What stands before a route.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) gate: Arc<Gate>,
    pub(super) currency: Arc<dyn Currency>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) changes: Changes,
    pub(super) scope: Scope,
    pub(super) path: &'static str,
    pub(super) when: When,
}

/// Room for changes. What only administrators may change has turns of its own: whoever may operate the cluster, and has
/// it do what takes long, keeps nobody from removing its token.
#[derive(Clone)]
pub struct Changes {
    administration: Arc<Semaphore>,
    operation: Arc<Semaphore>,
    /// Until when they are carried out, once others are refused.
    end: Arc<OnceLock<Instant>>,
}

impl Default for Changes {
    fn default() -> Changes {
        let room = || Arc::new(Semaphore::new(MOST_CHANGES));
        Changes {
            administration: room(),
            operation: room(),
            end: Arc::default(),
        }
    }
}

impl Changes {
    /// A turn of those that a scope may have; `None` when the node stops.
    pub async fn turn(&self, scope: Scope) -> Option<OwnedSemaphorePermit> {
        if self.are_refused() {
            return None;
        }
        let room = match scope {
            Scope::Admin => &self.administration,
            Scope::Read | Scope::Operate => &self.operation,
        };
        room.clone().acquire_owned().await.ok()
    }

    /// The node stops: refuses those that have not come yet. The others are carried out until `end`.
    pub fn refuse(&self, end: Instant) {
        // It stops once.
        let _ = self.end.set(end);
    }

    /// Whether the node stops, so that changes are refused.
    pub fn are_refused(&self) -> bool {
        self.end.get().is_some()
    }

    /// Waits until changes are carried out and recorded, also those whose clients do not wait for them, as long as they
    /// may take. None begins afterwards.
    pub async fn carried_out(&self) {
        let all = u32::try_from(MOST_CHANGES).unwrap_or(u32::MAX);
        // It lives on when the time is over: what it has of the turns goes to nobody who waits for one.
        let mut both = pin!(futures::future::join(
            self.administration.acquire_many(all),
            self.operation.acquire_many(all),
        ));
        let most = Instant::now() + CHANGES_TIMEOUT;
        let end = self.end.get().map_or(most, |end| most.min(*end));
        let carried_out = tokio::time::timeout_at(end, &mut both).await;
        self.administration.close();
        self.operation.close();
        if carried_out.is_err() {
            tracing::warn!("the node stops while administrative changes are carried out");
        }
    }
}

/// A request as the audit log has it.
struct Asked {
    caller: Caller,
    method: Method,
    path: String,
    route: String,
    target: String,
}

impl Asked {
    fn of(request: &Request, path: &str) -> Asked {
        let target = request.uri().path_and_query();
        Asked {
            caller: request.extensions().get().cloned().unwrap_or_default(),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            route: format!("{} {path}", request.method()),
            target: target.map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn note_refusal(&self, identity: Option<&Identity>, outcome: Outcome, reason: &str) {
        audit::record(&Event {
            principal: identity.map(|identity| &*identity.name),
            method: identity.map(|identity| identity.method),
            address: self.caller.address,
            reason: Some(reason),
            details: &[("route", &self.route), ("target", &self.target)],
            ..Event::new(Kind::HttpRefusal, outcome)
        });
        let (route, address) = (&self.route, self.caller.address);
        tracing::debug!(%route, reason, ?address, "an HTTP request is refused");
    }

    fn note_change(&self, identity: &Identity, status: StatusCode) {
        let outcome = match status.is_success() {
            true => Outcome::Accepted,
            false => Outcome::Failed,
        };
        audit::record(&Event {
            principal: Some(&identity.name),
            method: Some(identity.method),
            address: self.caller.address,
            details: &[
                ("route", &self.route),
                ("target", &self.target),
                ("status", status.as_str()),
            ],
            ..Event::new(Kind::HttpRequest, outcome)
        });
    }
}

impl Post {
    /// Who asks, if it may; the answer if not.
    async fn admit(&self, asked: &Asked, headers: &HeaderMap) -> Result<Identity, Response> {
        if self.when == When::Current
            && self.gate.rests_on_the_cluster(headers, &asked.caller)
            && let Err(error) = self.be_current().await
        {
            asked.note_refusal(None, Outcome::Failed, &error.to_string());
            return Err(error.into_response());
        }
        let question = Question {
            scope: self.scope,
            method: &asked.method,
            path: &asked.path,
        };
        let judged = self
            .gate
            .judge(question, headers, &asked.caller, wall_now());
        judged.map_err(|(refusal, identity)| {
            if refusal.is_of_rules() {
                self.metrics.not_authorized.of(Action::Http).increment();
            }
            asked.note_refusal(identity.as_ref(), Outcome::Refused, &refusal.to_string());
            refusal.into_response()
        })
    }

    async fn be_current(&self) -> Result<(), AdminError> {
        let current = tokio::time::timeout(CURRENT_TIMEOUT, self.currency.be_current());
        let silent =
            "this node has no contact with the cluster's majority, so it does not know who may ask";
        let late = |_| Err(AdminError::NoLeader(silent.to_owned()));
        current.await.unwrap_or_else(late)
    }
}

/// Lets a request pass, or refuses it. Changes and refusals go to the audit log.
pub(super) async fn check(State(post): State<Post>, mut request: Request, next: Next) -> Response {
    let asked = Asked::of(&request, post.path);
    let identity = match post.admit(&asked, request.headers()).await {
        Ok(identity) => identity,
        Err(refusal) => return refusal,
    };
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        request.extensions_mut().insert(identity);
        return next.run(request).await;
    }
    match whole(request).await {
        Ok(request) => change(post, asked, request, next).await,
        Err(refusal) => refusal,
    }
}

/// The request with all of its body: what is cut off is not carried out, and nobody keeps a right by sending slowly.
/// The body may have a password: it is wiped when nobody needs it any more.
async fn whole(request: Request) -> Result<Request, Response> {
    let invalid = |text: String| AdminError::Invalid(text).into_response();
    let (head, mut body) = request.into_parts();
    let mut bytes = Zeroizing::new(Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| invalid(error.to_string()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > LARGEST_BODY_BYTES {
            let text = format!("a body has at most {LARGEST_BODY_BYTES} bytes");
            return Err(AdminError::TooLarge(text).into_response());
        }
        wiped::append(&mut bytes, &data);
    }
    Ok(Request::from_parts(
        head,
        Body::from(Bytes::from_owner(bytes)),
    ))
}

/// A change that is carried out. It is put into the audit log when this goes, also if its handler panics, which may
/// have changed something before.
struct Record {
    asked: Asked,
    identity: Identity,
    status: StatusCode,
    /// Given back when it is recorded.
    _turn: OwnedSemaphorePermit,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.asked.note_change(&self.identity, self.status);
    }
}

/// Carries a change out, whether or not somebody waits for the answer.
async fn change(post: Post, asked: Asked, mut request: Request, next: Next) -> Response {
    let Some(turn) = post.changes.turn(post.scope).await else {
        return AdminError::Stopping.into_response();
    };
    // The body, and the turn, may have taken their time.
    let identity = match post.admit(&asked, request.headers()).await {
        Ok(identity) => identity,
        Err(refusal) => return refusal,
    };
    request.extensions_mut().insert(identity.clone());
    let carried_out = tokio::spawn(async move {
        let mut record = Record {
            asked,
            identity,
            status: StatusCode::INTERNAL_SERVER_ERROR,
            _turn: turn,
        };
        let response = next.run(request).await;
        record.status = response.status();
        response
    });
    carried_out
        .await
        .unwrap_or_else(|error| AdminError::Internal(error.to_string()).into_response())
}
