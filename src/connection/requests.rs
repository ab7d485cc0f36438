//! What a connection has asked the node for and not got yet, by request id.

use super::acknowledgements::AcknowledgementsInLog;
use super::hub::request::HubRequest;
use super::publishing::request::{DirectPublish, LoggedPublish};
use super::store_requests::request::StoreRequest;
use super::subscribing::request::{SubscribeRequest, UnsubscribeRequest};
use crate::base::limits;
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

#[derive(Debug)]
struct Slot {
    request: Request,
    /// Bytes that its content takes, which are those of a packet at most.
    bytes: u32,
    /// What its command weighs until it is applied, in units; much, if that is more than much.
    weight: u32,
}

/// Bytes of weight in a unit, so that the sum over as many requests as a client may have fits into 32 bits.
const WEIGHT_UNIT: usize = limits::LOGGED_DELIVERY_BYTES;

/// As much as one client may have under way while others wait, in units.
const MUCH: u32 = (limits::CLIENT_WEIGHT_UNDER_WAY / WEIGHT_UNIT) as u32;

const _: () = assert!(MUCH.checked_mul(u16::MAX as u32).is_some());

/// The requests of a connection. A request id is used again once its request is answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Slot>>,
    free: Vec<RequestId>,
    /// Those of them that are messages with QoS 1 to the state store or to the hub.
    stores: u32,
    /// Of all commands that are not applied.
    weight: u32,
    bytes: usize,
}

impl Requests {
    /// Slots that an idle connection keeps.
    const KEPT_SLOTS: usize = 4;

    /// Adds a request whose command, if it has one, does not count in what the client has under way.
    pub(super) fn insert(&mut self, request: Request) -> RequestId {
        self.insert_weighing(request, 0)
    }

    /// Adds a request whose command counts so many bytes in a proposal beyond those it has.
    pub(super) fn insert_weighing(&mut self, request: Request, weight: usize) -> RequestId {
        let bytes = u32::try_from(request.bytes()).unwrap_or(u32::MAX);
        let weight = weight.div_ceil(WEIGHT_UNIT).min(MUCH as usize) as u32;
        self.stores += u32::from(is_message(&request));
        self.bytes += bytes as usize;
        self.weight += weight;
        let slot = Slot {
            request,
            bytes,
            weight,
        };
        match self.free.pop() {
            Some(request_id) => {
                self.slots[request_id as usize] = Some(slot);
                request_id
            }
            None => {
                self.slots.push(Some(slot));
                // A connection's requests are bounded far below 2^32.
                (self.slots.len() - 1) as RequestId
            }
        }
    }

    /// A request under way.
    pub(super) fn get(&self, request_id: RequestId) -> Option<&Request> {
        let slot = self.slots.get(request_id as usize)?.as_ref();
        slot.map(|slot| &slot.request)
    }

    /// A request under way, to be changed.
    pub(super) fn get_mut(&mut self, request_id: RequestId) -> Option<&mut Request> {
        let slot = self.slots.get_mut(request_id as usize)?.as_mut();
        slot.map(|slot| &mut slot.request)
    }

    /// The command of a request is applied: the nodes have done what it weighed, whatever it still waits for.
    pub(super) fn applied(&mut self, request_id: RequestId) {
        if let Some(Some(slot)) = self.slots.get_mut(request_id as usize) {
            self.weight -= std::mem::take(&mut slot.weight);
        }
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, request_id: RequestId) -> Option<Request> {
        let slot = self.slots.get_mut(request_id as usize)?.take()?;
        self.bytes -= slot.bytes as usize;
        self.weight -= slot.weight;
        self.stores -= u32::from(is_message(&slot.request));
        self.free.push(request_id);
        if self.len() == 0 && self.slots.len() > Self::KEPT_SLOTS {
            *self = Requests::default();
        }
        Some(slot.request)
    }

    /// Bytes that requests under way take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.slots.len() * size_of::<Option<Slot>>()
    }

    /// Number of requests under way.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether what is not applied weighs so many times as much as one client may have under way while others wait.
    pub(super) fn is_much(&self, times: u32) -> bool {
        self.weight >= times * MUCH
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
    fn a_request_weighs_until_it_is_applied_or_taken_out() {
        let mut requests = Requests::default();
        let request = || Request::Unsubscribe(UnsubscribeRequest::empty());
        let half = limits::CLIENT_WEIGHT_UNDER_WAY / 2;
        let first = requests.insert_weighing(request(), half);
        assert!(!requests.is_much(1));
        let second = requests.insert_weighing(request(), half);
        assert!(requests.is_much(1) && !requests.is_much(2));
        requests.applied(first);
        assert!(!requests.is_much(1));
        let third = requests.insert_weighing(request(), half);
        assert!(requests.is_much(1));
        for id in [first, third, second] {
            requests.remove(id);
            requests.applied(id);
            assert_eq!(requests.is_much(1), id == first);
        }
        assert_eq!((requests.len(), requests.weight), (0, 0));
        // As many as there are packet ids, and each for everybody.
        for _ in 0..u16::MAX {
            requests.insert_weighing(request(), usize::MAX);
        }
        assert!(requests.is_much(u16::MAX.into()));
    }

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
