//! The connections between nodes that are open, in both directions: how many there may be, and their end when trust is
//! withdrawn, or what they rest on expires.
//!
//! Invariant: a connection of others is in here before a byte of it reaches HTTP/2, and leaves with its stream.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::sync::oneshot;

use super::counters::Counters;
use super::tls::next_end_s;
use crate::base::ids::NodeId;
use crate::base::network::client_of;

/// Connections of others in all: a cluster of a hundred nodes needs some five of each other node.
const MOST_CONNECTIONS: usize = 1024;
/// Connections of one node: those of each kind of traffic, and as many that it has left behind by starting anew. The
/// oldest ends when there is one more, because that is the one which nobody may use any more.
const MOST_OF_ONE_NODE: usize = 32;

/// Seconds since the Unix epoch.
pub(super) fn now_s() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

/// Who began a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// The other node.
    Incoming,
    /// This node.
    Outgoing,
}

/// What a connection rests on.
#[derive(Clone, Debug)]
pub(super) enum Credential {
    /// Nothing: everybody is believed.
    None,
    /// A chain of certificates, the node's own first.
    Chain(Vec<CertificateDer<'static>>),
    /// A secret, which nobody can tell from this.
    Secret([u8; 32]),
}

impl Credential {
    fn next_end_s(&self, now_s: i64) -> Option<i64> {
        match self {
            Credential::Chain(chain) => next_end_s(chain, now_s),
            Credential::None | Credential::Secret(_) => None,
        }
    }
}

struct Open {
    direction: Direction,
    node: Option<NodeId>,
    credential: Credential,
    /// When one of its certificates ends, seconds since the Unix epoch: it is judged again then.
    ends_at_s: Option<i64>,
    /// Dropped to end the connection.
    _end: oneshot::Sender<Infallible>,
}

/// Where a node was.
struct Known {
    address: IpAddr,
    /// What it has proved itself by.
    credential: Credential,
    /// As of [`Open`].
    ends_at_s: Option<i64>,
}

/// What is open. The order of the numbers is the order in which connections were made.
#[derive(Default)]
struct State {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Where each node has proved itself last, at both ends of a connection.
    known: HashMap<(NodeId, Direction), Known>,
}

/// Whether a node is a member of the cluster, as far as this node knows.
type IsMember = dyn Fn(NodeId) -> bool + Send + Sync;

/// The connections of this node.
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    members: Mutex<Option<Arc<IsMember>>>,
    pub counters: Counters,
}

/// A connection's place in the registry.
pub(super) struct Registration {
    number: u64,
    registry: Arc<Registry>,
    end: oneshot::Receiver<Infallible>,
    has_ended: bool,
}

impl Registry {
    /// Takes a connection in; `None` when there are too many. `credential` has proved that it is of `node`.
    pub fn add(
        self: &Arc<Self>,
        direction: Direction,
        node: Option<NodeId>,
        credential: Credential,
    ) -> Option<Registration> {
        let ends_at_s = credential.next_end_s(now_s());
        let mut state = self.state.lock();
        if direction == Direction::Incoming {
            let incoming = |open: &&Open| open.direction == Direction::Incoming;
            if state.open.values().filter(incoming).count() >= MOST_CONNECTIONS {
                Counters::count(&self.counters.turned_away);
                return None;
            }
            let of_node = |open: &Open| {
                node.is_some() && open.node == node && open.direction == Direction::Incoming
            };
            if state.open.values().filter(|open| of_node(open)).count() >= MOST_OF_ONE_NODE {
                let mut all = state.open.iter();
                let oldest = all
                    .find(|(_, open)| of_node(open))
                    .map(|(number, _)| *number);
                if let Some(oldest) = oldest {
                    state.open.remove(&oldest);
                    Counters::count(&self.counters.ended);
                }
            }
        }
        state.last += 1;
        let number = state.last;
        let (sender, end) = oneshot::channel();
        let open = Open {
            direction,
            node,
            credential,
            ends_at_s,
            _end: sender,
        };
        state.open.insert(number, open);
        drop(state);
        Some(Registration {
            number,
            registry: self.clone(),
            end,
            has_ended: false,
        })
    }

    /// A node has proved itself at an address.
    pub fn proved(
        &self,
        node: NodeId,
        direction: Direction,
        address: IpAddr,
        credential: Credential,
    ) {
        let known = Known {
            address: client_of(address),
            ends_at_s: credential.next_end_s(now_s()),
            credential,
        };
        let mut state = self.state.lock();
        // There are no more nodes than numbers, so that this is bounded.
        state.known.insert((node, direction), known);
    }

    /// Says who is a member of the cluster.
    pub fn set_members(&self, is_member: Arc<IsMember>) {
        *self.members.lock() = Some(is_member);
    }

    /// Whether a node has proved itself at this address that is a member of the cluster. A node that was removed may
    /// have a certificate that is good for years: it is a stranger.
    pub fn knows(&self, address: IpAddr) -> bool {
        let address = client_of(address);
        let at: Vec<NodeId> = {
            let state = self.state.lock();
            let at = state.known.iter();
            let at = at.filter(|(_, known)| known.address == address);
            at.map(|((node, _), _)| *node).collect()
        };
        if at.is_empty() {
            return false;
        }
        // Asked without the locks: it looks elsewhere.
        let members = self.members.lock().clone();
        let is_member = |node: &NodeId| members.as_ref().is_none_or(|is_member| is_member(*node));
        at.iter().any(is_member)
    }

    /// Ends what is not trusted any more, and returns how many those were. Nobody is known any more where it was last
    /// that has proved itself by such a thing.
    pub fn keep(&self, trusts: impl Fn(&Credential, Direction) -> bool) -> usize {
        self.forget(|_| true, &trusts);
        self.keep_of(|_| true, trusts)
    }

    fn forget(
        &self,
        is_judged: impl Fn(&Known) -> bool,
        trusts: impl Fn(&Credential, Direction) -> bool,
    ) {
        // Judged without the lock, like connections: who proves itself meanwhile does so by the new rules.
        let known: Vec<_> = {
            let state = self.state.lock();
            let known = state.known.iter().filter(|(_, known)| is_judged(known));
            known
                .map(|(of, known)| (*of, known.credential.clone()))
                .collect()
        };
        for (of, credential) in known {
            if !trusts(&credential, of.1) {
                self.state.lock().known.remove(&of);
            }
        }
    }

    /// As [`Registry::keep`], of those alone of which a certificate has ended by `now_s` that had not before.
    pub fn keep_unexpired(
        &self,
        now_s: i64,
        trusts: impl Fn(&Credential, Direction) -> bool,
    ) -> usize {
        let is_over = |end: Option<i64>| end.is_some_and(|end_s| end_s < now_s);
        let has_ended = |open: &Open| is_over(open.ends_at_s);
        self.forget(|known| is_over(known.ends_at_s), &trusts);
        let ended = self.keep_of(has_ended, trusts);
        // It was one that the chain does not need.
        let mut state = self.state.lock();
        for known in state
            .known
            .values_mut()
            .filter(|known| is_over(known.ends_at_s))
        {
            known.ends_at_s = known.credential.next_end_s(now_s);
        }
        for open in state.open.values_mut().filter(|open| has_ended(open)) {
            open.ends_at_s = open.credential.next_end_s(now_s);
        }
        ended
    }

    fn keep_of(
        &self,
        is_judged: impl Fn(&Open) -> bool,
        trusts: impl Fn(&Credential, Direction) -> bool,
    ) -> usize {
        // Certificates are judged without the lock: a connection that comes meanwhile was judged by the new rules.
        let all: Vec<_> = {
            let state = self.state.lock();
            let all = state.open.iter().filter(|(_, open)| is_judged(open));
            all.map(|(number, open)| (*number, open.credential.clone(), open.direction))
                .collect()
        };
        let mut ended = 0;
        for (number, credential, direction) in all {
            if !trusts(&credential, direction) && self.state.lock().open.remove(&number).is_some() {
                Counters::count(&self.counters.ended);
                ended += 1;
            }
        }
        ended
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.state.lock().open.len()
    }
}

impl Registration {
    /// Whether the connection has to end; the task is woken when it has.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> bool {
        if !self.has_ended {
            self.has_ended = matches!(Pin::new(&mut self.end).poll(context), Poll::Ready(_));
        }
        self.has_ended
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.state.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_of_a_node_makes_room_for_its_newest() {
        let registry = Arc::new(Registry::default());
        let add = |node| registry.add(Direction::Incoming, Some(NodeId(node)), Credential::None);
        let mut first = add(1).expect("there is room");
        let mut other = add(2).expect("there is room");
        let rest: Vec<_> = (0..MOST_OF_ONE_NODE).map(|_| add(1)).collect();
        assert!(rest.iter().all(Option::is_some));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(first.poll_ended(&mut context) && first.poll_ended(&mut context));
        assert!(!other.poll_ended(&mut context), "another node's stays");
        assert_eq!(registry.count(), MOST_OF_ONE_NODE + 1);
        drop((first, other, rest));
        assert_eq!(registry.count(), 0);
    }

    #[test]
    fn where_somebody_was_whose_credential_was_withdrawn_nobody_is_known() {
        let registry = Registry::default();
        let at = |last: u8| IpAddr::from([10, 0, 0, last]);
        for node in 1..=2 {
            for direction in [Direction::Incoming, Direction::Outgoing] {
                let credential = Credential::Secret([node; 32]);
                registry.proved(NodeId(node.into()), direction, at(node), credential);
            }
        }
        // No connection of it is open now.
        registry.keep(|known, _| matches!(known, Credential::Secret([2, ..])));
        assert_eq!(
            (registry.knows(at(1)), registry.knows(at(2))),
            (false, true)
        );
    }

    #[test]
    fn where_somebody_was_whose_certificate_has_expired_nobody_is_known() {
        let now_s = now_s();
        let registry = Registry::default();
        let at = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut state = registry.state.lock();
        for (node, ends_at_s) in [(1, Some(now_s - 1)), (2, Some(now_s + 60)), (3, None)] {
            let known = Known {
                address: at(node),
                credential: Credential::Secret([node; 32]),
                ends_at_s,
            };
            let of = (NodeId(node.into()), Direction::Incoming);
            state.known.insert(of, known);
        }
        drop(state);
        // Of those that have not expired nobody asks.
        registry.keep_unexpired(now_s, |known, _| {
            assert!(matches!(known, Credential::Secret([1, ..])));
            false
        });
        let known = [1, 2, 3].map(|node| registry.knows(at(node)));
        assert_eq!(known, [false, true, true]);
    }

    #[test]
    fn where_somebody_was_who_is_no_member_any_more_nobody_is_known() {
        let registry = Registry::default();
        let at = |last: u8| IpAddr::from([10, 0, 0, last]);
        for node in 1..=3 {
            let credential = Credential::Secret([node; 32]);
            let direction = Direction::Incoming;
            // Two of them were at the same address.
            registry.proved(NodeId(node.into()), direction, at(node.min(2)), credential);
        }
        let known = || [1, 2].map(|last| registry.knows(at(last)));
        assert_eq!(known(), [true, true], "nobody has said who is a member");
        registry.set_members(Arc::new(|node| node != NodeId(1)));
        assert_eq!(known(), [false, true]);
        registry.set_members(Arc::new(|node| node == NodeId(3)));
        assert_eq!(known(), [false, true]);
        // It is added again.
        registry.set_members(Arc::new(|node| node == NodeId(1)));
        assert_eq!(known(), [true, false]);
    }

    #[test]
    fn there_is_a_bound_for_all_together_that_outgoing_ones_do_not_count_against() {
        let registry = Arc::new(Registry::default());
        let add = |direction| registry.add(direction, None, Credential::None);
        let all: Vec<_> = (0..MOST_CONNECTIONS)
            .map(|_| add(Direction::Incoming))
            .collect();
        assert!(all.iter().all(Option::is_some));
        assert!(add(Direction::Incoming).is_none());
        assert!(add(Direction::Outgoing).is_some());
    }
}
