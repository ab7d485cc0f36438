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
    /// Those before it are of filters that are applied, or are none.
    next_reason: usize,
    /// One per subscription, until they are applied.
    pub(super) subscriptions: VecDeque<Subscription>,
    /// Those that are not applied yet, where it may take several commands.
    pub(super) unapplied: VecDeque<command::Subscription>,
    /// The number of changes of the rules at which its filters were judged.
    pub(super) judged_at: u64,
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
    /// A SUBSCRIBE that is proposed.
    pub(super) fn new(
        packet_id: PacketId,
        reasons: Vec<ReasonCode>,
        subscriptions: Vec<Subscription>,
        unapplied: VecDeque<command::Subscription>,
        judged_at: u64,
    ) -> SubscribeRequest {
        SubscribeRequest {
            packet_id,
            reasons: reasons.into(),
            next_reason: 0,
            subscriptions: subscriptions.into(),
            unapplied,
            judged_at,
        }
    }

    /// The next `count` subscriptions are applied. Those of them at the positions `refused`, in order, are not made:
    /// there may be no more.
    pub(super) fn apply(
        &mut self,
        count: usize,
        refused: &[usize],
    ) -> impl Iterator<Item = Subscription> {
        let mut position = 0;
        while position < count
            && let Some(reason) = self.reasons.get_mut(self.next_reason)
        {
            self.next_reason += 1;
            // Of these there is no subscription.
            if matches!(
                *reason,
                ReasonCode::TopicFilterInvalid | ReasonCode::NotAuthorized
            ) {
                continue;
            }
            if refused.binary_search(&position).is_ok() {
                *reason = ReasonCode::QuotaExceeded;
            }
            position += 1;
        }
        self.unapplied.drain(..count.min(self.unapplied.len()));
        self.subscriptions
            .drain(..count.min(self.subscriptions.len()))
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::codec::QoS;

    /// A SUBSCRIBE with `count` filters, between which some are none.
    fn request(count: usize) -> SubscribeRequest {
        let mut reasons = Vec::new();
        let mut subscriptions = Vec::new();
        for number in 0..count {
            if number % 3 == 0 {
                reasons.push(ReasonCode::TopicFilterInvalid);
            }
            reasons.push(ReasonCode::GrantedQos1);
            subscriptions.push(Subscription {
                filter: number.to_string().into(),
                qos: QoS::AtLeastOnce,
                no_local: false,
                retain_handling: 0,
                identifier: 0,
            });
        }
        SubscribeRequest::new(PacketId::MIN, reasons, subscriptions, VecDeque::new(), 0)
    }

    #[test]
    fn each_filter_gets_its_own_code_however_many_are_applied_at_once() {
        let mut request = request(8);
        let mut applied = Vec::new();
        for (count, refused) in [(3, &[1][..]), (1, &[][..]), (2, &[0, 1][..]), (2, &[][..])] {
            applied.extend(request.apply(count, refused).map(|one| one.filter));
        }
        let filters: Vec<_> = (0..8).map(|number| number.to_string().into()).collect();
        assert_eq!(applied, filters);
        let valid = request.reasons.iter();
        let valid = valid.filter(|reason| **reason != ReasonCode::TopicFilterInvalid);
        let refused: Vec<bool> = valid
            .map(|reason| *reason == ReasonCode::QuotaExceeded)
            .collect();
        assert_eq!(
            refused,
            [false, true, false, false, true, true, false, false]
        );
    }

    /// A log entry that has much else to do applies few at once.
    #[test]
    fn few_at_once_cost_in_proportion_to_all() {
        let least = |count: usize| {
            let runs = (0..5).map(|_| {
                let mut request = request(count);
                let started = Instant::now();
                for _ in 0..count / 8 {
                    assert_eq!(request.apply(8, &[7]).count(), 8);
                }
                started.elapsed()
            });
            runs.min().unwrap_or_default()
        };
        let (few, many) = (least(4_000), least(64_000));
        let bound = 64 * few.max(Duration::from_millis(1));
        assert!(many < bound, "{few:?}, {many:?}");
    }
}
