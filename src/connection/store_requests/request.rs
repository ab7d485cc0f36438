//! Requests to the state store that are not answered yet.

use bytes::Bytes;

use crate::codec::PacketId;
use crate::telemetry::labels::Verb;

/// A request's way back to the client.
#[derive(Debug)]
pub(in crate::connection) struct StoreRequest {
    /// To be acknowledged after the answer.
    pub(super) packet_id: PacketId,
    pub(super) response_topic: Box<str>,
    /// Repeated in the answer.
    pub(super) correlation_data: Bytes,
    pub(super) verb: Verb,
}

impl StoreRequest {
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        size_of::<StoreRequest>() + self.response_topic.len() + self.correlation_data.len()
    }
}
