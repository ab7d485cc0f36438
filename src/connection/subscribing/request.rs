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
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        self.reasons.len()
            + self
                .readers
                .iter()
                .map(RetainedReader::bytes)
                .sum::<usize>()
    }
}
