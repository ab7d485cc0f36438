//! What a connection has asked the node for and not got yet, by request id.

use bytes::Bytes;

use super::retained::Feed;
use crate::codec::{PacketId, QoS, ReasonCode};
use crate::mailbox::RequestId;
use crate::telemetry::labels::Verb;

/// A state-store request's way back.
#[derive(Debug)]
pub struct StoreRequest {
    /// To be acknowledged after the answer.
    pub packet_id: PacketId,
    /// Where the answer goes.
    pub response_topic: Box<str>,
    /// What it repeats.
    pub correlation_data: Bytes,
    /// What was asked.
    pub verb: Verb,
}

/// A request under way.
#[derive(Debug)]
pub enum Request {
    /// A PUBLISH that other nodes must confirm, or that waits for slow subscribers.
    Publish {
        /// To be acknowledged.
        packet_id: PacketId,
        /// PUBREC instead of PUBACK.
        exactly_once: bool,
        /// Nodes that have not confirmed yet.
        unconfirmed: u32,
        /// Subscribers of this node, and other nodes that have some, that read too slowly.
        held: u32,
        /// Its size.
        bytes: usize,
    },
    /// A PUBLISH on its way through the log.
    Logged {
        /// To be acknowledged; `None` with QoS 0.
        packet_id: Option<PacketId>,
        /// Its QoS.
        qos: QoS,
        /// It was to be retained.
        retain: bool,
        /// Subscribers of this node that read too slowly.
        held: u32,
        /// Its size.
        bytes: usize,
    },
    /// Acknowledgements of the client's on their way through the log.
    Acknowledge {
        /// Messages of its session's queue whose PUBREC came: PUBREL follows.
        received: Vec<u64>,
        /// Its own publishes whose PUBREL came: PUBCOMP follows.
        released: Vec<u32>,
    },
    /// SUBSCRIBE: the reason codes, of which the successes count once the subscription is everywhere.
    Subscribe {
        /// To be acknowledged.
        packet_id: PacketId,
        /// One per filter.
        reasons: Box<[ReasonCode]>,
        /// The subscriptions that were asked for, for their retained messages.
        feeds: Vec<Feed>,
    },
    /// UNSUBSCRIBE.
    Unsubscribe {
        /// To be acknowledged.
        packet_id: PacketId,
    },
    /// A request to the state store.
    Store(Box<StoreRequest>),
}

/// The requests of a connection. Tickets are reused once their request is answered.
#[derive(Debug, Default)]
pub struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<RequestId>,
    count: usize,
}

impl Requests {
    /// Slots that an idle connection keeps.
    const KEPT_SLOTS: usize = 4;

    /// Adds a request.
    pub fn insert(&mut self, request: Request) -> RequestId {
        self.count += 1;
        match self.free.pop() {
            Some(request_id) => {
                self.slots[request_id as usize] = Some(request);
                request_id
            }
            None => {
                self.slots.push(Some(request));
                // A connection's requests are bounded far below 2^32.
                (self.slots.len() - 1) as RequestId
            }
        }
    }

    /// The request of a request id.
    pub fn get_mut(&mut self, request_id: RequestId) -> Option<&mut Request> {
        self.slots.get_mut(request_id as usize)?.as_mut()
    }

    /// Takes a request out.
    pub fn remove(&mut self, request_id: RequestId) -> Option<Request> {
        let request = self.slots.get_mut(request_id as usize)?.take()?;
        self.count -= 1;
        if self.count == 0 && self.slots.len() > Self::KEPT_SLOTS {
            *self = Requests::default();
        } else {
            self.free.push(request_id);
        }
        Some(request)
    }

    /// Number of requests under way.
    pub fn len(&self) -> usize {
        self.count
    }
}
