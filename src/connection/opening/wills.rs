//! The will of a CONNECT.

use bytes::Bytes;

use crate::base::proto::command;
use crate::codec::{PublishPropertiesBuf, Will};
use crate::connection::broker::Broker;
use crate::connection::hub::identity::HubIdentity;

/// The will of a client. That of a device or a module says so of itself.
pub(super) fn will(will: &Will<'_>, hub: Option<&HubIdentity>, max_retained: u64) -> command::Will {
    let mut properties = will.properties.forwardable().into_owned();
    if hub.is_some() {
        properties.extend_from_slice(&will_mark());
    }
    command::Will {
        message: Some(command::PublishedMessage {
            topic: will.topic.to_owned(),
            qos: will.qos as u32,
            retain: will.retain,
            payload: Bytes::copy_from_slice(will.payload),
            properties: properties.into(),
            expiry_interval_s: will.properties.message_expiry(),
        }),
        delay_s: will.delay,
        max_retained: match will.retain {
            true => max_retained,
            false => 0,
        },
        max_retained_of_identity: hub.map(|hub| hub.max_retained),
    }
}

/// What the will of a device or a module is marked with.
fn will_mark() -> Vec<u8> {
    let mut properties = PublishPropertiesBuf::new();
    properties
        .push_user("iothub-MessageType", "Will")
        .expect("it is shorter than any property may be");
    properties.raw().to_vec()
}

/// Bytes of a will that is kept with its connection also while disks are low, as the connection itself is.
const KEPT_AT_LOW_DISK: usize = 512;

/// Whether a will adds to what is stored: when the client connects, because it is long, or when it is published, as a
/// PUBLISH that goes through the log does.
pub(super) fn is_stored(broker: &Broker, will: &Will<'_>) -> bool {
    let properties = will.properties.forwardable();
    if will.topic.len() + will.payload.len() + properties.len() > KEPT_AT_LOW_DISK {
        return true;
    }
    if will.retain {
        return !will.payload.is_empty();
    }
    let route = broker.services.router.route(will.topic, None);
    route.is_logged(will.qos)
}
