//! Connections of other nodes: accepted, proved, and handed to the server.
//!
//! Invariant: who has proved nothing costs little. Handshakes under way are bounded, in all and per address, and so are
//! those that begin in a second; what is beyond is closed at once and counted. Invariant: nobody keeps nodes apart. No
//! address takes what is there for all, and a part of it is only for addresses at which nodes have proved themselves,
//! to this node or from it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::counters::Counters;
use super::stream::PeerStream;
use super::trust::Trust;
use crate::base::network::client_of;
use crate::telemetry::audit::{self, Event, Kind, Outcome};

/// What may be taken of something.
struct Share {
    /// By all.
    all: usize,
    /// By addresses that no node is known at, together.
    strangers: usize,
    /// By one of them.
    stranger: usize,
    /// By one address that a node is known at: several nodes may be behind it.
    known: usize,
}

/// Handshakes under way.
const UNDER_WAY: Share = Share {
    all: 512,
    strangers: 384,
    stranger: 32,
    known: 64,
};
/// Handshakes that begin in one second. They are done by the threads that replicate; this many take some percent of
/// one.
const PER_SECOND: Share = Share {
    all: 256,
    strangers: 192,
    stranger: 32,
    known: 128,
};
/// After the system refused to accept: it has no descriptors left, for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Proven connections that wait for the server.
const QUEUE: usize = 16;
/// Between two log lines about peers that prove nothing.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What was taken of a [`Share`].
#[derive(Default)]
struct Taken {
    all: usize,
    by_strangers: usize,
    of_address: HashMap<IpAddr, usize>,
}

impl Taken {
    fn has_room(&self, share: &Share, address: IpAddr, is_known: bool) -> bool {
        let own = self.of_address.get(&address).copied().unwrap_or(0);
        let fits = |own_share| self.all < share.all && own < own_share;
        match is_known {
            true => fits(share.known),
            false => fits(share.stranger) && self.by_strangers < share.strangers,
        }
    }

    fn take(&mut self, address: IpAddr, is_known: bool) {
        self.all += 1;
        self.by_strangers += usize::from(!is_known);
        *self.of_address.entry(address).or_default() += 1;
    }

    fn give_back(&mut self, address: IpAddr, was_known: bool) {
        self.all = self.all.saturating_sub(1);
        self.by_strangers = self.by_strangers.saturating_sub(usize::from(!was_known));
        let left = self.of_address.get(&address).copied().unwrap_or(0);
        match left {
            0 | 1 => self.of_address.remove(&address),
            _ => self.of_address.insert(address, left - 1),
        };
    }
}

/// Handshakes under way, and those of the second that is counted.
#[derive(Default)]
struct Handshakes {
    under_way: Taken,
    begun: Taken,
    second: Option<Instant>,
}

/// The place of one of them.
struct Slot {
    address: IpAddr,
    is_known: bool,
    handshakes: Arc<Mutex<Handshakes>>,
}

impl Slot {
    /// `is_known`: a node has proved itself at this address.
    fn take(
        handshakes: &Arc<Mutex<Handshakes>>,
        address: IpAddr,
        is_known: bool,
        now: Instant,
    ) -> Option<Slot> {
        let address = client_of(address);
        let mut state = handshakes.lock();
        let is_this_second = |since| now.duration_since(since) < Duration::from_secs(1);
        if !state.second.is_some_and(is_this_second) {
            state.second = Some(now);
            state.begun = Taken::default();
        }
        if !state.under_way.has_room(&UNDER_WAY, address, is_known)
            || !state.begun.has_room(&PER_SECOND, address, is_known)
        {
            return None;
        }
        state.under_way.take(address, is_known);
        state.begun.take(address, is_known);
        drop(state);
        Some(Slot {
            address,
            is_known,
            handshakes: handshakes.clone(),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.handshakes.lock();
        state.under_way.give_back(self.address, self.is_known);
    }
}

/// What is accepted with.
struct Acceptor {
    trust: Trust,
    handshakes: Arc<Mutex<Handshakes>>,
    streams: mpsc::Sender<io::Result<PeerStream>>,
    /// When a peer that proved nothing was last named in the log.
    said: Mutex<Option<Instant>>,
}

/// The connections of `listener` whose other ends have proved which nodes they are, as `trust` asks for. They are
/// accepted by the runtime that this is called in, as long as the stream is there.
pub fn incoming(listener: TcpListener, trust: Trust) -> ReceiverStream<io::Result<PeerStream>> {
    let (streams, receiver) = mpsc::channel(QUEUE);
    let acceptor = Arc::new(Acceptor {
        trust,
        handshakes: Arc::default(),
        streams,
        said: Mutex::default(),
    });
    tokio::spawn(acceptor.run(listener));
    ReceiverStream::new(receiver)
}

impl Acceptor {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.streams.closed() => return,
            };
            match accepted {
                Ok((stream, address)) => {
                    let (ip, now) = (address.ip(), Instant::now());
                    let is_known = self.trust.registry().knows(ip);
                    let slot = Slot::take(&self.handshakes, ip, is_known, now);
                    let Some(slot) = slot else {
                        Counters::count(&self.trust.counters().turned_away);
                        continue;
                    };
                    tokio::spawn(self.clone().admit(stream, slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection of another node can be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn admit(self: Arc<Self>, stream: TcpStream, slot: Slot) {
        // Without it answers wait some 40 ms for the acknowledgement of the packet before them.
        let _ = stream.set_nodelay(true);
        match self.trust.accept(stream).await {
            Ok(stream) => {
                // The server takes it at once, or has ended.
                let _ = self.streams.send(Ok(stream)).await;
            }
            Err(error) => {
                Counters::count(&self.trust.counters().handshakes_failed);
                note(slot.address, &error);
                self.say(slot.address, &error);
            }
        }
    }

    /// Names who proved nothing, now and then: whoever reaches the port could fill the log.
    fn say(&self, address: IpAddr, error: &dyn std::error::Error) {
        let now = Instant::now();
        let mut said = self.said.lock();
        if said.is_some_and(|at| now.duration_since(at) < LOG_INTERVAL) {
            return;
        }
        *said = Some(now);
        tracing::warn!(
            %address,
            %error,
            "a connection to the cluster port was closed: it did not prove that it is a node's"
        );
    }
}

/// Puts it into the audit log that somebody has proved nothing.
fn note(address: IpAddr, error: &dyn std::error::Error) {
    audit::record(&Event {
        reason: Some(&error.to_string()),
        details: &[("address", &address.to_string())],
        ..Event::new(Kind::Peer, Outcome::Refused)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Flood {
        handshakes: Arc<Mutex<Handshakes>>,
        start: Instant,
    }

    impl Flood {
        fn new() -> Flood {
            Flood {
                handshakes: Arc::default(),
                start: Instant::now(),
            }
        }

        fn take(&self, address: &str, is_known: bool, after_ms: u64) -> Option<Slot> {
            let now = self.start + Duration::from_millis(after_ms);
            let address = address.parse().expect("an address");
            Slot::take(&self.handshakes, address, is_known, now)
        }
    }

    #[test]
    fn one_address_leaves_room_for_all_others() {
        let flood = Flood::new();
        // As many as it likes, at once and one after the other: each is refused, or fails at once.
        let held: Vec<_> = (0..1_000)
            .map(|_| flood.take("10.0.0.1", false, 0))
            .collect();
        assert_eq!(held.iter().flatten().count(), UNDER_WAY.stranger);
        for round in 0..1_000 {
            drop(flood.take("10.0.0.2", false, round / 2));
        }
        assert!(flood.take("10.0.0.1", false, 1).is_none());
        assert!(flood.take("10.0.0.2", false, 999).is_none());
        assert!(flood.take("10.0.0.3", false, 999).is_some(), "another one");
        drop(held);
        assert!(
            flood.take("10.0.0.1", false, 1_001).is_some(),
            "a second later"
        );
        assert_eq!(flood.handshakes.lock().under_way.all, 0);
        assert!(flood.handshakes.lock().under_way.of_address.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let flood = Flood::new();
        let held: Vec<_> = (0..1_000)
            .map(|host| flood.take(&format!("2001:db8::{host:x}"), false, 0))
            .collect();
        assert_eq!(held.iter().flatten().count(), UNDER_WAY.stranger);
        assert!(flood.take("2001:db8:0:1::1", false, 0).is_some());
    }

    #[test]
    fn many_addresses_leave_room_for_those_of_nodes() {
        let flood = Flood::new();
        let mut held = Vec::new();
        for second in 0..4 {
            for address in 0..200 {
                let address = format!("10.1.{second}.{address}");
                held.extend((0..9).filter_map(|_| flood.take(&address, false, second * 1_000)));
            }
            assert!(flood.take("10.2.0.1", false, second * 1_000).is_none());
        }
        assert_eq!(held.len(), UNDER_WAY.strangers);
        let of_nodes: Vec<_> = (0..40)
            .map(|_| flood.take("10.0.0.2", true, 3_000))
            .collect();
        assert!(of_nodes.iter().all(Option::is_some));
    }
}
