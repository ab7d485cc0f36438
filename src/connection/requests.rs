//! What a connection has asked the node for and not got yet, by request id.

use super::acknowledgements::AcknowledgementsInLog;
use super::hub::request::HubRequest;
use super::publishing::request::{DirectPublish, LoggedPublish};
use super::store_requests::request::StoreRequest;
use super::subscribing::request::{SubscribeRequest, UnsubscribeRequest};
use crate::mailbox::RequestId;

/// A request under way. Its type tells which part of the connection gets the reply; the content is private to that
/// part.
#[derive(Debug)]
pub(super) enum Request {
    /// A PUBLISH on its way through the log.
    LoggedPublish(LoggedPublish),
    /// A PUBLISH past the log that is not acknowledged yet.
    DirectPublish(DirectPublish),
    /// SUBSCRIBE.
    Subscribe(SubscribeRequest),
    /// UNSUBSCRIBE.
    Unsubscribe(UnsubscribeRequest),
    /// Acknowledgements of the client on their way through the log.
    Acknowledge(AcknowledgementsInLog),
    /// A request to the state store.
    Store(Box<StoreRequest>),
    /// A request of a device or a module to the hub.
    Hub(HubRequest),
}

/// Whether a request is a message that is not acknowledged before it is answered.
fn is_message(request: &Request) -> bool {
    match request {
        Request::Store(_) => true,
        Request::Hub(request) => request.counts,
        _ => false,
    }
}

impl Request {
    /// Bytes of what was copied from the client's packet.
    fn bytes(&self) -> usize {
        match self {
            Request::Subscribe(subscribe) => subscribe.bytes(),
            Request::Unsubscribe(unsubscribe) => unsubscribe.bytes(),
            Request::Store(store) => store.bytes(),
            Request::LoggedPublish(_)
            | Request::DirectPublish(_)
            | Request::Acknowledge(_)
            | Request::Hub(_) => 0,
        }
    }
}

/// The requests of a connection. A request id is used again once its request is answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Each with the bytes that its content takes.
    slots: Vec<Option<(usize, Request)>>,
    free: Vec<RequestId>,
    count: u32,
    /// Those of them that are messages with QoS 1 to the state store or to the hub.
    stores: u32,
    bytes: usize,
}

impl Requests {
    /// Slots that an idle connection keeps.
    const KEPT_SLOTS: usize = 4;

    /// Adds a request.
    pub(super) fn insert(&mut self, request: Request) -> RequestId {
        let bytes = request.bytes();
        self.count += 1;
        self.stores += u32::from(is_message(&request));
        self.bytes += bytes;
        let request = (bytes, request);
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

    /// A request under way.
    pub(super) fn get(&self, request_id: RequestId) -> Option<&Request> {
        let slot = self.slots.get(request_id as usize)?.as_ref();
        slot.map(|(_, request)| request)
    }

    /// A request under way, to be changed.
    pub(super) fn get_mut(&mut self, request_id: RequestId) -> Option<&mut Request> {
        let slot = self.slots.get_mut(request_id as usize)?.as_mut();
        slot.map(|(_, request)| request)
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, request_id: RequestId) -> Option<Request> {
        let (bytes, request) = self.slots.get_mut(request_id as usize)?.take()?;
        self.count -= 1;
        self.bytes -= bytes;
        self.stores -= u32::from(is_message(&request));
        if self.count == 0 && self.slots.len() > Self::KEPT_SLOTS {
            *self = Requests::default();
        } else {
            self.free.push(request_id);
        }
        Some(request)
    }

    /// Bytes that requests under way take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.slots.len() * size_of::<Option<(usize, Request)>>()
    }

    /// Number of requests under way.
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// Requests to the state store and to the hub under way. They are messages with QoS 1, so they count against the
    /// receive maximum.
    pub(super) fn stores(&self) -> usize {
        self.stores as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_used_again_and_many_slots_are_given_back() {
        let mut requests = Requests::default();
        let mut ids: Vec<_> = (0..6)
            .map(|_| requests.insert(Request::Unsubscribe(UnsubscribeRequest::empty())))
            .collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        assert!(requests.remove(3).is_some() && requests.remove(3).is_none());
        assert!(requests.get(3).is_none() && requests.get(9).is_none());
        assert_eq!(
            requests.insert(Request::Unsubscribe(UnsubscribeRequest::empty())),
            3
        );
        for id in ids.drain(..) {
            requests.remove(id);
        }
        assert_eq!((requests.len(), requests.slots.len()), (0, 0));
    }
}
