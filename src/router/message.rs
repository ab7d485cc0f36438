//! A message as routing sees it, wherever it comes from: a client, the log, another node, or the node itself.

use crate::base::ids::SessionId;
use crate::codec::QoS;
use crate::machine::effect::ApplicationMessage;

/// A message on its way to subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The publisher's session, for No Local. Of a direct message, the session that has asked for it.
    pub publisher: Option<SessionId>,
    /// QoS it was published with.
    pub qos: QoS,
    /// RETAIN as published.
    pub retain: bool,
    /// Topic name.
    pub topic: &'a str,
    /// Properties as they are forwarded: a checked list without its length.
    pub properties: &'a [u8],
    /// Message expiry interval left, seconds.
    pub expiry: Option<u32>,
    /// The message never goes through the log. So sessions that get their messages through a queue otherwise get it
    /// straight too, while they are connected.
    pub direct: bool,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// A message from the log.
    pub(super) fn logged(published: &'a ApplicationMessage, expiry_s: Option<u32>) -> Message<'a> {
        Message {
            publisher: published.publisher,
            qos: published.qos,
            retain: published.retain,
            topic: &published.topic,
            properties: &published.properties,
            expiry: expiry_s,
            direct: false,
            payload: &published.payload,
        }
    }
}
