//! The state store over MQTT: requests arrive as PUBLISH on [`INVOKE`], answers and notifications leave as PUBLISH.
//!
//! [`INVOKE`]: crate::store::topics::INVOKE

use std::hash::Hasher;

use bytes::Bytes;
use rustc_hash::FxHasher;

use super::end::Ended;
use super::publish::remember;
use super::requests::{Request, StoreRequest};
use super::{Connection, Flow};
use crate::base::hlc::Hlc;
use crate::base::proto::command::{KeyNotify, command::Kind};
use crate::codec::{PacketId, Property, Publish, PublishPropertiesBuf, QoS, ReasonCode};
use crate::machine::effect::Change;
use crate::machine::store::{RequestIdentity, to_command};
use crate::mailbox::RequestId;
use crate::replica::proposer::Proposer;
use crate::replica::reader::Query;
use crate::router::Message;
use crate::store::{self, Properties, Reply, StoreError, WriteAction, notify, reply, topics};
use crate::telemetry::labels::{DisconnectReason, DropReason, Outcome, Verb};

/// How long a reply is remembered when the request has no message expiry (state store §6).
const REMEMBER_S: u32 = 60;

/// The longest a reply is remembered, whatever the request's message expiry: re-sent requests come within seconds.
const REMEMBER_AT_MOST_S: u32 = 600;

impl Connection {
    pub(super) fn handle_store_request(&mut self, publish: &Publish<'_>) -> Result<Flow, Ended> {
        let refusal = "a state store request needs QoS 1, a response topic and correlation data";
        let Some(packet_id) = publish.packet_id else {
            self.broker
                .metrics
                .messages_dropped
                .of(DropReason::Unanswerable)
                .increment();
            return Ok(Flow::Continue);
        };
        if !self.terms.version.is_v5() {
            // No properties, so nowhere to answer to (state store §1).
            self.broker
                .metrics
                .messages_dropped
                .of(DropReason::Unanswerable)
                .increment();
            self.acknowledge(
                packet_id,
                publish.qos == QoS::ExactlyOnce,
                ReasonCode::Success,
                None,
            );
            return Ok(Flow::Continue);
        }
        let (Some(response_topic), Some(correlation_data), QoS::AtLeastOnce) = (
            publish.properties.response_topic(),
            publish.properties.correlation_data(),
            publish.qos,
        ) else {
            let exactly_once = publish.qos == QoS::ExactlyOnce;
            self.acknowledge(
                packet_id,
                exactly_once,
                ReasonCode::ImplementationSpecificError,
                Some(refusal),
            );
            return Ok(Flow::Continue);
        };
        if topics::check_response_topic(response_topic).is_err() {
            return Err(self.refuse_response_topic(packet_id));
        }
        if self.is_busy() {
            return Err(Ended::told(
                DisconnectReason::ReceiveMaximum,
                ReasonCode::ReceiveMaximumExceeded,
                "more messages are unacknowledged than the receive maximum allows",
            ));
        }
        let request = StoreRequest {
            packet_id,
            response_topic: response_topic.into(),
            correlation_data: Bytes::copy_from_slice(correlation_data),
            verb: Verb::Unknown,
        };
        Ok(self.start(publish, request))
    }

    /// The PUBACK first, or the client sends the request again for ever (state store §1).
    pub(super) fn refuse_response_topic(&mut self, packet_id: PacketId) -> Ended {
        let text = "the response topic of a state store request is not allowed";
        self.acknowledge(packet_id, false, ReasonCode::TopicNameInvalid, Some(text));
        Ended::told(
            DisconnectReason::Protocol,
            ReasonCode::TopicNameInvalid,
            text,
        )
    }

    /// Proposes or reads what the request asks for, or answers at once when it is wrong.
    fn start(&mut self, publish: &Publish<'_>, mut request: StoreRequest) -> Flow {
        let properties = Properties::collect(publish.properties.user_properties().iter());
        let parsed = match store::request::parse(publish.payload, &properties) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.answer(&request, &Reply::Error(error));
                return Flow::Continue;
            }
        };
        match parsed {
            store::Request::Write(write) => {
                request.verb = match write.action {
                    WriteAction::Set { .. } => Verb::Set,
                    WriteAction::Del => Verb::Del,
                    WriteAction::VDel { .. } => Verb::Vdel,
                };
                let identity = RequestIdentity {
                    correlation_data: &request.correlation_data,
                    remember_s: publish
                        .properties
                        .message_expiry()
                        .unwrap_or(REMEMBER_S)
                        .min(REMEMBER_AT_MOST_S),
                    fingerprint: fingerprint(publish.payload, &properties),
                };
                let command = to_command(
                    &write,
                    &self.terms.client_id,
                    &identity,
                    self.broker.store_quota,
                );
                let submit = if properties.high_priority {
                    Proposer::submit_urgent
                } else {
                    Proposer::submit
                };
                let request = Request::Store(Box::new(request));
                self.propose_by(Kind::StoreWrite(command), request, submit)
            }
            store::Request::KeyNotify { key, stop } => {
                request.verb = Verb::Keynotify;
                if notify::topic(&self.terms.client_id, key).is_none() {
                    // The notification's topic would not fit into an MQTT string.
                    self.answer(&request, &Reply::Error(StoreError::Syntax));
                    return Flow::Continue;
                }
                let command = KeyNotify {
                    client_id: self.terms.client_id.to_string(),
                    connection: self.mailbox.connection.0,
                    key: Bytes::copy_from_slice(key),
                    stop,
                };
                self.propose(Kind::KeyNotify(command), Request::Store(Box::new(request)))
            }
            store::Request::Get { key } => {
                request.verb = Verb::Get;
                self.read(Query::Get(Bytes::copy_from_slice(key)), request)
            }
            store::Request::Scan { pattern, token } => {
                request.verb = Verb::Scan;
                let token = token.map(Bytes::copy_from_slice);
                let query = Query::Scan(
                    Bytes::copy_from_slice(pattern),
                    token,
                    self.broker.scan_page,
                );
                self.read(query, request)
            }
        }
    }

    fn read(&mut self, query: Query, request: StoreRequest) -> Flow {
        let request_id = self.requests.insert(Request::Store(Box::new(request)));
        self.broker.reader.submit(query, &self.mailbox, request_id);
        Flow::Continue
    }

    /// The machine or the reader has the reply.
    pub(super) fn answer_store_request(&mut self, request_id: RequestId, reply: &Reply) {
        if let Some(Request::Store(request)) = self.requests.remove(request_id) {
            self.answer(&request, reply);
        }
    }

    /// Publishes the answer, then acknowledges the request: a client that has the PUBACK has the answer.
    fn answer(&mut self, request: &StoreRequest, reply: &Reply) {
        let outcome = match reply {
            Reply::Error(_) => Outcome::Error,
            Reply::NoValue | Reply::NothingToDelete | Reply::NotWatched => Outcome::Absent,
            Reply::NotSet { .. } | Reply::ValueDiffers => Outcome::Refused,
            _ => Outcome::Ok,
        };
        self.broker
            .metrics
            .store_commands
            .of(request.verb)
            .of(outcome)
            .increment();
        let mut payload = Vec::with_capacity(64);
        reply.write_payload(&mut payload);
        let status = Some(reply::STATUS);
        if let Some(properties) =
            properties(Some(&request.correlation_data), status, reply.timestamp())
        {
            self.publish_answer(&request.response_topic, properties.raw(), &payload);
        }
        self.acknowledge(request.packet_id, false, ReasonCode::Success, None);
    }

    /// The store is the publisher, so a No Local subscription of the requester gets it (state store §2).
    fn publish_answer(&mut self, topic: &str, properties: &[u8], payload: &[u8]) {
        let message = Message {
            publisher: None,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            properties,
            expiry: None,
            direct: true,
            payload,
        };
        let router = &self.broker.router;
        if self
            .response_routes
            .get(topic)
            .is_none_or(|route| !router.is_current(route))
        {
            let route = router.route(topic, None);
            remember(&mut self.response_routes, topic, route);
        }
        router.deliver(&self.response_routes[topic], &message, None, &mut self.wake);
    }

    /// A key this connection watches has changed. Sent directly: no subscription is needed, none gets it twice.
    /// An observer that reads too slowly is disconnected, so that it knows that it has missed something.
    pub(super) fn notify(&mut self, key: &[u8], change: &Change) -> Result<(), Ended> {
        let Some(topic) = notify::topic(&self.terms.client_id, key) else {
            return Ok(());
        };
        let mut payload = Vec::with_capacity(64);
        let version = match change {
            Change::Set { value, version } => {
                notify::write_set(value, &mut payload);
                version
            }
            Change::Delete { version } => {
                notify::write_delete(&mut payload);
                version
            }
        };
        let Some(properties) = properties(None, None, Some(version)) else {
            return Ok(());
        };
        let message = Message {
            publisher: None,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: &topic,
            properties: properties.raw(),
            expiry: None,
            direct: true,
            payload: &payload,
        };
        if !self.broker.router.deliver_to(&self.mailbox, &message) {
            return Err(Ended::told(
                DisconnectReason::SlowConsumer,
                ReasonCode::QuotaExceeded,
                "the client reads notifications too slowly",
            ));
        }
        self.broker.metrics.store_notifications.increment();
        Ok(())
    }
}

/// Tells requests with the same correlation data apart.
fn fingerprint(payload: &[u8], properties: &Properties<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(payload);
    hasher.write(properties.timestamp.unwrap_or_default().as_bytes());
    hasher.write(properties.fencing_token.unwrap_or_default().as_bytes());
    hasher.finish()
}

/// The properties of an answer or a notification; `None` if they do not fit into MQTT's fields, which correlation data
/// that came in and a version that was read can't make happen.
fn properties(
    correlation_data: Option<&[u8]>,
    status: Option<&str>,
    version: Option<&Hlc>,
) -> Option<PublishPropertiesBuf> {
    let mut properties = PublishPropertiesBuf::new();
    properties
        .push(Property::ContentType(reply::CONTENT_TYPE))
        .ok()?;
    if let Some(data) = correlation_data {
        properties.push(Property::CorrelationData(data)).ok()?;
    }
    if let Some(status) = status {
        properties.push_user("__stat", status).ok()?;
    }
    properties
        .push_user("__protVer", reply::PROTOCOL_VERSION)
        .ok()?;
    if let Some(version) = version {
        properties.push_user("__ts", &version.to_string()).ok()?;
    }
    Some(properties)
}
