//! Connections of other nodes: accepted, proved, and handed to the server.
//!
//! Invariant: who has proved nothing costs little. Handshakes under way are bounded, in all and per address, and so are
//! those that begin in a second; what is beyond is closed at once and counted.

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

/// Handshakes under way.
const MOST_HANDSHAKES: usize = 512;
/// Handshakes of one address under way: several nodes may be behind it.
const MOST_OF_ONE_ADDRESS: usize = 64;
/// Handshakes that begin in one second. They are done by the threads that replicate; this many take some percent of
/// one.
const MOST_PER_SECOND: u32 = 256;
/// After the system refused to accept: it has no descriptors left, for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Proven connections that wait for the server.
const QUEUE: usize = 16;
/// Between two log lines about peers that prove nothing.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Handshakes under way.
#[derive(Default)]
struct Handshakes {
    of_address: HashMap<IpAddr, usize>,
    all: usize,
    /// The second that is counted, and how many began in it.
    second: Option<(Instant, u32)>,
}

/// The place of one of them.
struct Slot {
    address: IpAddr,
    handshakes: Arc<Mutex<Handshakes>>,
}

impl Slot {
    fn take(handshakes: &Arc<Mutex<Handshakes>>, address: IpAddr, now: Instant) -> Option<Slot> {
        let mut state = handshakes.lock();
        let begun = match state.second {
            Some((since, begun)) if now.duration_since(since) < Duration::from_secs(1) => begun,
            _ => {
                state.second = Some((now, 0));
                0
            }
        };
        let of_address = state.of_address.get(&address).copied().unwrap_or(0);
        if state.all >= MOST_HANDSHAKES
            || of_address >= MOST_OF_ONE_ADDRESS
            || begun >= MOST_PER_SECOND
        {
            return None;
        }
        state.second = state.second.map(|(since, begun)| (since, begun + 1));
        state.all += 1;
        state.of_address.insert(address, of_address + 1);
        drop(state);
        Some(Slot {
            address,
            handshakes: handshakes.clone(),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.handshakes.lock();
        state.all = state.all.saturating_sub(1);
        let left = state.of_address.get(&self.address).copied().unwrap_or(0);
        match left {
            0 | 1 => state.of_address.remove(&self.address),
            _ => state.of_address.insert(self.address, left - 1),
        };
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
                    let slot = Slot::take(&self.handshakes, address.ip(), Instant::now());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_bounded_per_address_and_per_second_and_in_all() {
        let handshakes = Arc::new(Mutex::new(Handshakes::default()));
        let start = Instant::now();
        let take = |address: u8, after_ms| {
            let address = IpAddr::from([10, 0, 0, address]);
            Slot::take(
                &handshakes,
                address,
                start + Duration::from_millis(after_ms),
            )
        };
        let of_one: Vec<_> = (0..MOST_OF_ONE_ADDRESS).map(|_| take(1, 0)).collect();
        assert!(of_one.iter().all(Option::is_some));
        assert!(take(1, 0).is_none(), "one address has its bound");
        let kept = take(2, 0);
        assert!(kept.is_some(), "another one is not in its way");
        drop(of_one);
        let again: Vec<_> = (0..MOST_PER_SECOND).map(|_| take(3, 10)).collect();
        let let_in = again.iter().flatten().count();
        assert_eq!(let_in, MOST_OF_ONE_ADDRESS);
        drop(again);
        let mut begun = MOST_OF_ONE_ADDRESS * 2 + 1;
        while take(4, 20).is_some() {
            begun += 1;
        }
        assert_eq!(begun, MOST_PER_SECOND as usize);
        assert!(take(4, 1_100).is_some(), "the next second has its own");
        drop(kept);
        assert!(handshakes.lock().of_address.is_empty());
    }
}
