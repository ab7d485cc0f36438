//! What the API stands on, and the way of a request through it.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};

use super::answer::{Answer, Answered};
use super::changes::{Change, Changes, caller};
use super::error::{Code, Refusal};
use super::gate;
use super::query_threads::QueryThreads;
use super::route::{self, OfIdentity, OfTwin, Route, id};
use super::turns::Turns;
use super::{body, version};
use crate::connection::broker::Broker;
use crate::http::AnswerMemory;
use crate::login::hub::HubCredentials;
use crate::raft::Raft;
use crate::telemetry::audit::{self, Event, Kind, Outcome};
use crate::telemetry::labels::{self, HubOperation};

/// What is answered to all back ends has this memory until it is read, bytes.
const MOST_ANSWER_BYTES: usize = 128 << 20;

/// Large twins that are rendered at once.
const MOST_RENDERS: usize = 2;

/// Reads of large twins that wait until theirs is rendered.
const MOST_RENDERS_WAITING: usize = 64;

/// The hub, as back ends ask it.
pub struct Hub {
    pub(super) broker: Arc<Broker>,
    pub(super) raft: Raft,
    credentials: Arc<HubCredentials>,
    /// `hub.max_devices`
    pub(super) max_devices: u64,
    pub(super) queries: QueryThreads,
    /// Where large twins are rendered.
    pub(super) renders: Turns,
    pub(super) memory: AnswerMemory,
    pub(super) changes: Changes,
}

impl Hub {
    /// The hub of a node. Tokens are judged by these credentials.
    pub fn new(
        broker: Arc<Broker>,
        raft: Raft,
        credentials: Arc<HubCredentials>,
        max_devices: u64,
    ) -> Hub {
        Hub {
            broker,
            raft,
            credentials,
            max_devices,
            queries: QueryThreads::default(),
            renders: Turns::new(MOST_RENDERS, MOST_RENDERS_WAITING),
            memory: AnswerMemory::of(MOST_ANSWER_BYTES),
            changes: Changes::default(),
        }
    }

    /// Answers a request.
    pub(super) async fn answer(self: &Arc<Self>, request: Request) -> Answer {
        let started = Instant::now();
        let parts = route::parts(request.uri().path());
        let found = route::find(request.method(), &parts);
        let operation = found.map_or(HubOperation::Other, operation);
        let permission = found.ok().map(Route::permission);
        let broker = &self.broker;
        let now = gate::log_time(broker.state.is_serving(), &broker.services.clock);
        let check = |now| {
            let headers = request.headers();
            gate::check(&self.credentials, headers, &parts, permission, now)
        };
        let judged = now.and_then(check);
        let answered = match (judged, found) {
            (Err(refusal), _) => {
                if refusal.code == Code::Unauthorized {
                    note_refusal(&request, &refusal);
                }
                Err(refusal)
            }
            (Ok(_), Err(no_route)) => Err(no_route.into()),
            (Ok(policy), Ok(route)) => self.carry_out(route, request, policy).await,
        };
        let metrics = &self.broker.metrics;
        let outcome = outcome(&answered);
        metrics.hub_requests.of(operation).of(outcome).increment();
        metrics.hub_request_seconds.observe(started.elapsed());
        answered.unwrap_or_else(Answer::from)
    }

    /// Carries out a request whose caller may ask it.
    async fn carry_out(
        self: &Arc<Self>,
        route: Route<'_>,
        request: Request,
        policy: String,
    ) -> Answered {
        let query = request.uri().query().map(str::to_owned);
        version::check(query.as_deref())?;
        let (head, body) = request.into_parts();
        let has_body = matches!(
            route,
            Route::Query
                | Route::Twin(OfTwin::Patch | OfTwin::Put, _)
                | Route::Identity(OfIdentity::Put, _)
        );
        let body = match has_body {
            true => body::read(body).await?,
            false => Vec::new(),
        };
        let headers = &head.headers;
        match route {
            Route::Devices => self.devices(query.as_deref()).await,
            Route::Modules(device) => self.modules(device).await,
            Route::Identity(OfIdentity::Get, named) => self.identity(named).await,
            Route::Identity(OfIdentity::Put, named) => {
                let (hub, id, headers) = (self.clone(), id(named), headers.clone());
                let put = async move { hub.put_identity(id?, &headers, &body).await };
                let change = || Change::of(&head, policy);
                self.changes.carry_out(change, put).await
            }
            Route::Identity(OfIdentity::Delete, named) => {
                let (hub, id, headers) = (self.clone(), id(named), headers.clone());
                let delete = async move { hub.delete_identity(id?, &headers).await };
                let change = || Change::of(&head, policy);
                self.changes.carry_out(change, delete).await
            }
            Route::Twin(OfTwin::Get, named) => self.twin(named).await,
            Route::Twin(OfTwin::Patch, named) => {
                self.update_twin(named, headers, &body, false).await
            }
            Route::Twin(OfTwin::Put, named) => self.update_twin(named, headers, &body, true).await,
            Route::Query => self.query(headers, &body).await,
        }
    }
}

/// The value of a header; of several, the first.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let value = headers.get(name).map(|value| value.to_str()).transpose();
    value.map_err(|_| Refusal::invalid(format!("{name} is no text")))
}

/// What a request counts as.
fn operation(route: Route<'_>) -> HubOperation {
    match route {
        Route::Devices | Route::Modules(_) => HubOperation::ListIdentities,
        Route::Identity(OfIdentity::Get, _) => HubOperation::GetIdentity,
        Route::Identity(OfIdentity::Put, _) => HubOperation::PutIdentity,
        Route::Identity(OfIdentity::Delete, _) => HubOperation::DeleteIdentity,
        Route::Twin(OfTwin::Get, _) => HubOperation::GetTwin,
        Route::Twin(OfTwin::Patch, _) => HubOperation::PatchTwin,
        Route::Twin(OfTwin::Put, _) => HubOperation::ReplaceTwin,
        Route::Query => HubOperation::Query,
    }
}

fn outcome(answered: &Answered) -> labels::Outcome {
    let Err(refusal) = answered else {
        return labels::Outcome::Ok;
    };
    match refusal.code.status() {
        StatusCode::NOT_FOUND => labels::Outcome::Absent,
        status if status.is_server_error() => labels::Outcome::Error,
        _ => labels::Outcome::Refused,
    }
}

/// Puts a request into the audit log that was refused because of who asked.
fn note_refusal(request: &Request, refusal: &Refusal) {
    let route = format!("{} {}", request.method(), request.uri().path());
    audit::record(&Event {
        method: Some("sas"),
        address: caller(request.extensions()).address,
        reason: Some(&refusal.text),
        details: &[("route", route.as_str())],
        ..Event::new(Kind::HttpRefusal, Outcome::Refused)
    });
}
