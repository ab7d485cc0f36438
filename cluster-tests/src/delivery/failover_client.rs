//! The connections of a client that goes to the next node when its own does not serve it.

use crate::connection::{Connection, Fault};
use crate::random::Random;
use crate::wire::{Connack, Connect};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a CONNECT may go unanswered before the next node is tried: an election and a little more.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// A client and the nodes that it may connect to.
pub struct FailoverClient {
    nodes: Vec<SocketAddr>,
    at: usize,
    /// A CONNECT was sent and not answered: it may have taken effect.
    pub unanswered: bool,
    /// A connection that is not closed before the next one has taken its session over.
    left_open: Option<Connection>,
}

impl FailoverClient {
    /// Begins with `nodes[first]`.
    pub fn new(nodes: &[SocketAddr], first: usize) -> Self {
        Self {
            nodes: nodes.to_vec(),
            at: first % nodes.len(),
            unanswered: false,
            left_open: None,
        }
    }

    /// Ends the use of a connection: half of them are closed, the others are taken over by the next one.
    pub fn cut(&mut self, connection: Connection, random: &mut Random) {
        self.left_open = random.chance(50).then_some(connection);
    }

    /// Index of the node of the latest connection.
    pub fn node(&self) -> usize {
        self.at
    }

    /// The next connection goes to the next node.
    pub fn fail_over(&mut self) {
        self.at = (self.at + 1) % self.nodes.len();
    }

    /// Tries node after node until one accepts. `None` when `stop` is set before.
    pub fn connect(
        &mut self,
        connect: &Connect,
        stop: &AtomicBool,
    ) -> Option<(Connection, Connack)> {
        while !stop.load(Ordering::Relaxed) {
            let address = self.nodes[self.at];
            match Connection::try_connect_within(address, connect, CONNECT_TIMEOUT) {
                Ok((connection, connack)) if connack.code == 0 => {
                    self.left_open = None;
                    return Some((connection, connack));
                }
                // A refused CONNECT has no effect.
                Ok(_) => {}
                Err(Fault::Closed | Fault::Timeout) => self.unanswered = true,
                Err(Fault::Wrong(why)) => panic!("CONNECT to {address}: {why}"),
            }
            self.fail_over();
            std::thread::sleep(PAUSE);
        }
        None
    }
}
