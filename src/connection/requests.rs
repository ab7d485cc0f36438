//! What a connection has asked the node for and not got yet, by request id.

use super::acknowledgements::AcknowledgementsInLog;
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
}

/// The requests of a connection. A request id is used again once its request is answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<RequestId>,
    count: u32,
    /// Those of them that are requests to the state store.
    stores: u32,
}

impl Requests {
    /// Slots that an idle connection keeps.
    const KEPT_SLOTS: usize = 4;

    /// Adds a request.
    pub(super) fn insert(&mut self, request: Request) -> RequestId {
        self.count += 1;
        self.stores += u32::from(matches!(request, Request::Store(_)));
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
        self.slots.get(request_id as usize)?.as_ref()
    }

    /// A request under way, to be changed.
    pub(super) fn get_mut(&mut self, request_id: RequestId) -> Option<&mut Request> {
        self.slots.get_mut(request_id as usize)?.as_mut()
    }

    /// SUBSCRIBEs under way, to be changed.
    pub(super) fn subscribes_mut(&mut self) -> impl Iterator<Item = &mut SubscribeRequest> {
        let slots = self.slots.iter_mut().flatten();
        slots.filter_map(|request| match request {
            Request::Subscribe(request) => Some(request),
            _ => None,
        })
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, request_id: RequestId) -> Option<Request> {
        let request = self.slots.get_mut(request_id as usize)?.take()?;
        self.count -= 1;
        self.stores -= u32::from(matches!(request, Request::Store(_)));
        if self.count == 0 && self.slots.len() > Self::KEPT_SLOTS {
            *self = Requests::default();
        } else {
            self.free.push(request_id);
        }
        Some(request)
    }

    /// Number of requests under way.
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// Requests to the state store under way. They are messages with QoS 1, so they count against the receive maximum.
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
            .map(|_| requests.insert(Request::Unsubscribe(UnsubscribeRequest::of_nothing())))
            .collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        assert!(requests.remove(3).is_some() && requests.remove(3).is_none());
        assert!(requests.get(3).is_none() && requests.get(9).is_none());
        assert_eq!(
            requests.insert(Request::Unsubscribe(UnsubscribeRequest::of_nothing())),
            3
        );
        for id in ids.drain(..) {
            requests.remove(id);
        }
        assert_eq!((requests.len(), requests.slots.len()), (0, 0));
    }
}
