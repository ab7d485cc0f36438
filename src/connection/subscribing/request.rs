//! SUBSCRIBE and UNSUBSCRIBE packets that are not acknowledged yet.

use super::retained::Subscription;
use crate::codec::{PacketId, ReasonCode};

/// A SUBSCRIBE on its way through the log and to the other nodes.
#[derive(Debug)]
pub(in crate::connection) struct SubscribeRequest {
    /// To be acknowledged.
    pub(super) packet_id: PacketId,
    /// One per filter; the successes count once the subscription is effective on every live node.
    pub(super) reasons: Box<[ReasonCode]>,
    /// One per subscription, until they are applied.
    pub(super) subscriptions: Vec<Subscription>,
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
    pub(in crate::connection) fn empty() -> UnsubscribeRequest {
        UnsubscribeRequest {
            packet_id: PacketId::MIN,
            filters: Vec::new(),
        }
    }
}

impl SubscribeRequest {
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        let subscriptions = self.subscriptions.iter();
        self.reasons.len() + subscriptions.map(Subscription::bytes).sum::<usize>()
    }
}

impl UnsubscribeRequest {
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        let filters = self.filters.iter();
        filters
            .map(|filter| size_of::<Box<str>>() + filter.as_ref().map_or(0, |filter| filter.len()))
            .sum()
    }
}
