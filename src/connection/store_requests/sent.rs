//! What the state store sends its clients: answers and notifications, as messages.

use crate::acl::KeyAccess;
use crate::base::hlc::Hlc;
use crate::base::ids::SessionId;
use crate::codec::{Property, PublishPropertiesBuf, QoS, ReasonCode};
use crate::connection::context::Context;
use crate::connection::end::Ended;
use crate::machine::effect::Change;
use crate::mailbox::Refused;
use crate::router::Message;
use crate::store::{notify, reply};
use crate::telemetry::labels::{DisconnectReason, DropReason};

/// Tells a client that a key which it watches has changed. The notification goes to its connection only, whatever it
/// has subscribed to.
///
/// # Errors
/// The client reads too slowly, or does not accept a packet as large: it is disconnected, so that it knows that it
/// has missed something (P7).
pub(super) fn notify(context: &mut Context, key: &[u8], change: &Change) -> Result<(), Ended> {
    let metrics = &context.broker.metrics;
    if !context.rights.may_access(KeyAccess::Read, key, metrics) {
        metrics
            .messages_dropped
            .of(DropReason::NotAuthorized)
            .increment();
        return Ok(());
    }
    let Some(topic) = notify::topic(&context.options.client_id, key) else {
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
    context.work += 1;
    let message = message(context.session, &topic, properties.raw(), &payload);
    let router = &context.broker.services.router;
    match router.notify(&context.mailbox, &message) {
        Ok(()) => {}
        Err(Refused::TooLarge) => {
            return Err(Ended::disconnect(
                DisconnectReason::PacketTooLarge,
                ReasonCode::PacketTooLarge,
                "a notification is larger than the client accepts",
            ));
        }
        // What ends the connection is in the mailbox, and says why.
        Err(Refused::Ended) => return Ok(()),
        Err(Refused::Full) => {
            return Err(Ended::disconnect(
                DisconnectReason::SlowConsumer,
                ReasonCode::QuotaExceeded,
                "the client reads notifications too slowly",
            ));
        }
    }
    context.broker.metrics.store_notifications.increment();
    Ok(())
}

/// A message of the store's own.
pub(super) fn message<'a>(
    asker: SessionId,
    topic: &'a str,
    properties: &'a [u8],
    payload: &'a [u8],
) -> Message<'a> {
    Message {
        publisher: Some(asker),
        qos: QoS::AtLeastOnce,
        retain: false,
        topic,
        properties,
        expiry: None,
        direct: true,
        payload,
    }
}

/// The properties of an answer or a notification; `None` if they do not fit into MQTT's fields. They do: the
/// correlation data came in such a field, and versions are short.
pub(super) fn properties(
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
