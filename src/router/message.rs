//! A message as routing sees it, wherever it comes from: a client, the log, another node, or the node itself; and whom
//! it is for at another node.
//!
//! Invariant: nothing but the lowest rooms is used here, so that the bytes between nodes can be fuzzed without the rest
//! (`cluster-tests/fuzz`).

use crate::base::ids::SessionId;
use crate::codec::QoS;

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

/// Which subscriptions of another node a message is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recipients<'a> {
    /// Shared subscriptions, as `$share/{name}/{filter}`: one member of each gets the message.
    pub groups: &'a [&'a str],
    /// Subscriptions that are not shared do not get it.
    pub only_groups: bool,
}
