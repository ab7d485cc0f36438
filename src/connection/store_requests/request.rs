//! Requests to the state store that are not answered yet.

use std::sync::Arc;

use bytes::Bytes;

use crate::acl::Rights;
use crate::codec::PacketId;
use crate::telemetry::labels::Verb;

/// Bytes of an answer beside the client's own and what it tells, at most.
const BESIDE_BYTES: usize = 128;

/// A request's way back to the client.
#[derive(Debug)]
pub(in crate::connection) struct StoreRequest {
    /// To be acknowledged after the answer.
    pub(super) packet_id: PacketId,
    pub(super) response_topic: Box<str>,
    /// Repeated in the answer.
    pub(super) correlation_data: Bytes,
    pub(super) verb: Verb,
    /// What a GET asks for.
    pub(super) key: Bytes,
    /// What it was judged by: it may wait for long until it is carried out.
    pub(super) judged: Option<Arc<Rights>>,
    /// What a SCAN needs to go on.
    pub(super) scan: Option<Box<Scan>>,
}

impl StoreRequest {
    /// Memory that it takes, about.
    pub(in crate::connection) fn bytes(&self) -> usize {
        let scan = self.scan.as_ref().map_or(0, |scan| scan.bytes());
        let key = self.key.len();
        size_of::<StoreRequest>()
            + self.response_topic.len()
            + self.correlation_data.len()
            + key
            + scan
    }

    /// Bytes of the answer beside what it tells, about.
    pub(super) fn beside(&self) -> usize {
        BESIDE_BYTES + self.response_topic.len() + self.correlation_data.len()
    }
}

/// A SCAN that is not answered.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) pattern: Bytes,
    /// Where the next page begins.
    pub(super) token: Option<Bytes>,
    /// Keys that were found for it; a page of them and one more at most, and a few of the page that was read last.
    pub(super) found: Vec<Bytes>,
    /// What the page that is read is judged by.
    pub(super) rights: Option<Arc<Rights>>,
}

impl Scan {
    /// It begins there.
    pub(super) fn new(pattern: Bytes, token: Option<Bytes>) -> Scan {
        Scan {
            pattern,
            token,
            found: Vec::new(),
            rights: None,
        }
    }

    /// Memory that it takes.
    fn bytes(&self) -> usize {
        let found = self.found.iter().map(|key| size_of::<Bytes>() + key.len());
        let token = self.token.as_ref().map_or(0, |token| token.len());
        size_of::<Scan>() + self.pattern.len() + token + found.sum::<usize>()
    }
}
