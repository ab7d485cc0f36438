//! SUBSCRIBE packets that are not acknowledged yet.

use super::retained::RetainedReader;
use crate::codec::{PacketId, ReasonCode};

/// A SUBSCRIBE on its way through the log and to the other nodes.
#[derive(Debug)]
pub(in crate::connection) struct SubscribeRequest {
    /// To be acknowledged.
    pub(super) packet_id: PacketId,
    /// One per filter; the successes count once the subscription is effective on every live node.
    pub(super) reasons: Box<[ReasonCode]>,
    /// One per subscription.
    pub(super) readers: Vec<RetainedReader>,
}

impl SubscribeRequest {
    /// Subscriptions have ended before they were acknowledged: nothing is read for them.
    pub(super) fn end_readers(&mut self, has_ended: impl Fn(&RetainedReader) -> bool) {
        self.readers.retain(|reader| !has_ended(reader));
    }
}

/// An UNSUBSCRIBE on its way through the log.
#[derive(Debug)]
pub(in crate::connection) struct UnsubscribeRequest {
    /// To be acknowledged.
    pub(super) packet_id: PacketId,
    /// Its filters; `None` for what is no filter.
    pub(super) filters: Vec<Option<Box<str>>>,
}

#[cfg(test)]
impl UnsubscribeRequest {
    /// One without filters.
    pub(in crate::connection) fn of_nothing() -> UnsubscribeRequest {
        UnsubscribeRequest {
            packet_id: PacketId::MIN,
            filters: Vec::new(),
        }
    }
}
