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
    /// One per filter of the packet: whether it is one.
    pub(super) valid: Box<[bool]>,
    /// Those that are.
    pub(super) filters: Box<[Box<str>]>,
    /// One per such filter, as far as it is applied: whether there was a subscription.
    pub(super) removed: Vec<bool>,
}

#[cfg(test)]
impl UnsubscribeRequest {
    /// One without filters.
    pub(in crate::connection) fn empty() -> UnsubscribeRequest {
        UnsubscribeRequest {
            packet_id: PacketId::MIN,
            valid: Box::default(),
            filters: Box::default(),
            removed: Vec::new(),
        }
    }
}

impl SubscribeRequest {
    /// There may be no more subscriptions: those at these positions, counted from the first that is not applied, are
    /// refused.
    pub(super) fn refuse(&mut self, positions: &[usize]) {
        // Of the others there is no subscription.
        let was_proposed = |reason: ReasonCode| {
            reason != ReasonCode::TopicFilterInvalid && reason != ReasonCode::NotAuthorized
        };
        let all = self.reasons.iter().filter(|reason| was_proposed(**reason));
        let applied = all.count() - self.subscriptions.len();
        let reasons = self.reasons.iter_mut();
        let mut unapplied = reasons
            .filter(|reason| was_proposed(**reason))
            .skip(applied);
        let mut next = 0;
        for position in positions {
            if let Some(reason) = unapplied.nth(position - next) {
                *reason = ReasonCode::QuotaExceeded;
            }
            next = position + 1;
        }
    }

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
        let filters = filters.map(|filter| size_of::<Box<str>>() + filter.len());
        self.valid.len() + filters.sum::<usize>()
    }
}
