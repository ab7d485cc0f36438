//! The connections between nodes that are open, in both directions: how many there may be, and their end when trust is
//! withdrawn.
//!
//! Invariant: a connection of others is in here before a byte of it reaches HTTP/2, and leaves with its stream.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::oneshot;

use super::counters::Counters;
use crate::base::ids::NodeId;

/// Connections of others in all: a cluster of a hundred nodes needs some five of each other node.
const MOST_CONNECTIONS: usize = 1024;
/// Connections of one node: those of each kind of traffic, and as many that it has left behind by starting anew. The
/// oldest ends when there is one more, because that is the one which nobody may use any more.
const MOST_OF_ONE_NODE: usize = 32;

/// Who began a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The other node.
    Incoming,
    /// This node.
    Outgoing,
}

struct Open {
    direction: Direction,
    node: Option<NodeId>,
    chain: Vec<CertificateDer<'static>>,
    /// Dropped to end the connection.
    _end: oneshot::Sender<Infallible>,
}

/// What is open. The order of the numbers is the order in which connections were made.
#[derive(Default)]
struct State {
    last: u64,
    open: BTreeMap<u64, Open>,
}

/// The connections of this node.
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
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
    /// Takes a connection in; `None` when there are too many. `node` is proved by `chain`, or by a secret.
    pub fn add(
        self: &Arc<Self>,
        direction: Direction,
        node: Option<NodeId>,
        chain: Vec<CertificateDer<'static>>,
    ) -> Option<Registration> {
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
            chain,
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

    /// Ends what is not trusted any more, and returns how many those were.
    pub fn keep(&self, trusts: impl Fn(&[CertificateDer<'static>], Direction) -> bool) -> usize {
        // Certificates are judged without the lock: a connection that comes meanwhile was judged by the new rules.
        let all: Vec<_> = {
            let state = self.state.lock();
            let all = state.open.iter().filter(|(_, open)| !open.chain.is_empty());
            all.map(|(number, open)| (*number, open.chain.clone(), open.direction))
                .collect()
        };
        let mut ended = 0;
        for (number, chain, direction) in all {
            if !trusts(&chain, direction) && self.state.lock().open.remove(&number).is_some() {
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
        let add = |node| registry.add(Direction::Incoming, Some(NodeId(node)), Vec::new());
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
    fn there_is_a_bound_for_all_together_that_outgoing_ones_do_not_count_against() {
        let registry = Arc::new(Registry::default());
        let add = |direction| registry.add(direction, None, Vec::new());
        let all: Vec<_> = (0..MOST_CONNECTIONS)
            .map(|_| add(Direction::Incoming))
            .collect();
        assert!(all.iter().all(Option::is_some));
        assert!(add(Direction::Incoming).is_none());
        assert!(add(Direction::Outgoing).is_some());
    }
}
