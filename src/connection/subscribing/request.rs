//! SUBSCRIBE and UNSUBSCRIBE packets that are not acknowledged yet.

use std::collections::VecDeque;

use super::retained::Subscription;
use crate::base::proto::command;
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
    /// Those that are not applied yet, where it may take several commands.
    pub(super) unapplied: VecDeque<command::Subscription>,
}

/// An UNSUBSCRIBE on its way through the log.
#[derive(Debug)]
pub(in crate::connection) struct UnsubscribeRequest {
    /// To be acknowledged.
    pub(super) packet_id: PacketId,
    pub(super) filters: Box<[Box<str>]>,
    /// One per filter, as far as it is applied: whether there was a subscription.
    pub(super) removed: Vec<bool>,
}

#[cfg(test)]
impl UnsubscribeRequest {
    /// One without filters.
    pub(in crate::connection) fn empty() -> UnsubscribeRequest {
        UnsubscribeRequest {
            packet_id: PacketId::MIN,
            filters: Box::default(),
            removed: Vec::new(),
        }
    }
}

impl SubscribeRequest {
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        let subscriptions = self.subscriptions.iter().map(Subscription::bytes);
        let unapplied = self
            .unapplied
            .iter()
            .map(|subscription| size_of::<command::Subscription>() + subscription.filter.len());
        self.reasons.len() + subscriptions.sum::<usize>() + unapplied.sum::<usize>()
    }
}

impl UnsubscribeRequest {
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        let filters = self.filters.iter();
        filters
            .map(|filter| size_of::<Box<str>>() + filter.len())
            .sum()
    }
}
