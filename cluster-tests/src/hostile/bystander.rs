//! Clients that behave: on each node one that pings, one that writes to the state store, and a publisher whose
//! subscriber is on the next node.

use crate::connection::{Connection, Fault};
use crate::store::{CallOutcome, Request, StoreClient};
use crate::wire::{self, Connect, Message, Packet, Publish, V5};
use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this a client gives up: whoever waits longer is as good as disconnected.
const GIVES_UP: Duration = Duration::from_secs(30);

/// Keep-alive of the clients that have one: half as long again without a packet ends them.
const KEEP_ALIVE_S: u16 = 3;

/// Between two PINGREQs.
const PING_EVERY: Duration = Duration::from_millis(250);

/// Between two SETs, and between two PUBLISHes: a load that everybody carries.
const PAUSE: Duration = Duration::from_millis(10);

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Ping,
    Set,
    /// Publishes or receives.
    Exchange,
    /// Sleeps, or syncs a file of its own: how long the machine itself stands still. Not judged: what others may take
    /// is beyond it.
    Nothing,
}

/// What a client saw.
pub(super) struct Seen {
    pub who: String,
    pub deed: Deed,
    /// Sorted.
    took: Vec<Duration>,
    /// Why it came to an end before it was told to.
    pub ended: Option<String>,
}

impl Seen {
    fn new(who: String, deed: Deed) -> Self {
        Self {
            who,
            deed,
            took: Vec::new(),
            ended: None,
        }
    }

    pub fn longest(&self) -> Duration {
        self.took.last().copied().unwrap_or_default()
    }

    pub fn percentile(&self, percent: usize) -> Duration {
        let at = (self.took.len() * percent / 100).min(self.took.len().saturating_sub(1));
        self.took.get(at).copied().unwrap_or_default()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, p50, p99) = (self.took.len(), self.percentile(50), self.percentile(99));
        let longest = self.longest();
        let who = &self.who;
        write!(
            f,
            "{who}: {count} times, p50 {p50:.1?}, p99 {p99:.1?}, longest {longest:.1?}"
        )
    }
}

/// Running clients.
pub(super) struct Bystanders {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Seen>>,
}

impl Bystanders {
    /// Starts the clients of some nodes; returns when each of them has been served once.
    #[track_caller]
    pub fn start(addresses: &[SocketAddr], nodes: &[usize]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let [a, b] = [(); 2].map(|()| stop.clone());
        let mut threads = vec![
            std::thread::spawn(move || sleep(&a)),
            std::thread::spawn(move || sync(&b)),
        ];
        for (index, node) in nodes.iter().enumerate() {
            let next = nodes[(index + 1) % nodes.len()];
            threads.extend(start_on(addresses[*node], *node, addresses[next], &stop));
        }
        Self { stop, threads }
    }

    /// Ends them; one that waits for an answer is given the time to get it.
    #[track_caller]
    pub fn stop(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.threads.into_iter().map(|thread| {
            let mut seen = thread.join().expect("a bystander does not panic");
            seen.took.sort_unstable();
            seen
        });
        seen.collect()
    }
}

#[track_caller]
fn start_on(
    address: SocketAddr,
    node: usize,
    next: SocketAddr,
    stop: &Arc<AtomicBool>,
) -> Vec<JoinHandle<Seen>> {
    let name = |what: &str| format!("{what} of node {node}");
    let with_keep_alive = |what: &str| {
        let connect = Connect::v5(&format!("bystander-{what}-{node}")).keep_alive(KEEP_ALIVE_S);
        Connection::connect(address, &connect).0
    };
    let mut pings = with_keep_alive("ping");
    pings.expect_nothing();
    let mut sets = StoreClient::connected(&format!("bystander-set-{node}"), address);
    sets.expect(
        &Request::set(format!("bystander/{node}"), "first"),
        "+OK\r\n",
    );
    let topic = format!("bystander/{node}");
    let mut subscriber = Connection::v5(next, &format!("bystander-subscriber-{node}"));
    subscriber.subscribe(&[(&topic, 1)]);
    let publisher = with_keep_alive("publisher");
    let (published, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let acknowledged = published.clone();
    let [a, b, c, d] = [(); 4].map(|()| stop.clone());
    let pings_seen = Seen::new(name("PINGREQ"), Deed::Ping);
    let sets_seen = Seen::new(name("SET"), Deed::Set);
    let publisher_seen = Seen::new(name("PUBACK"), Deed::Exchange);
    let subscriber_seen = Seen::new(name("delivery"), Deed::Exchange);
    vec![
        std::thread::spawn(move || ping(pings, pings_seen, &a)),
        std::thread::spawn(move || set(sets, node, sets_seen, &b)),
        std::thread::spawn(move || {
            publish(publisher, &topic, began, &published, publisher_seen, &c)
        }),
        std::thread::spawn(move || receive(subscriber, began, &acknowledged, subscriber_seen, &d)),
    ]
}

fn sleep(stop: &AtomicBool) -> Seen {
    let mut seen = Seen::new("the machine's own delay".into(), Deed::Nothing);
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        std::thread::sleep(PAUSE);
        seen.took.push(began.elapsed().saturating_sub(PAUSE));
    }
    seen
}

fn sync(stop: &AtomicBool) -> Seen {
    let mut seen = Seen::new("the machine's own sync".into(), Deed::Nothing);
    let mut file = tempfile::tempfile().expect("a temporary file can be made");
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let written = file.write_all(b"x").and_then(|()| file.sync_data());
        written.expect("a temporary file can be written");
        seen.took.push(began.elapsed());
        std::thread::sleep(PAUSE * 5);
    }
    seen
}

fn ping(mut connection: Connection, mut seen: Seen, stop: &AtomicBool) -> Seen {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let answer = connection.try_send(&wire::PINGREQ);
        match answer.and_then(|()| connection.receive(GIVES_UP)) {
            Ok(Packet::Pingresp) => seen.took.push(began.elapsed()),
            other => {
                seen.ended = Some(format!("after {:.1?}: {other:?}", began.elapsed()));
                break;
            }
        }
        std::thread::sleep(PING_EVERY.saturating_sub(began.elapsed()));
    }
    seen
}

fn set(mut client: StoreClient, node: usize, mut seen: Seen, stop: &AtomicBool) -> Seen {
    let mut number: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let request = Request::set(format!("bystander/{node}/{}", number % 64), [b'v'; 100]);
        let began = Instant::now();
        match client.try_call(&request, GIVES_UP) {
            CallOutcome::Answered(reply) if reply.payload == b"+OK\r\n" => {
                seen.took.push(began.elapsed());
            }
            other => {
                seen.ended = Some(format!("after {:.1?}: {other:?}", began.elapsed()));
                break;
            }
        }
        std::thread::sleep(PAUSE);
    }
    seen
}

/// Publishes numbers from 1, each with the time since `began`.
fn publish(
    mut connection: Connection,
    topic: &str,
    began: Instant,
    published: &AtomicU64,
    mut seen: Seen,
    stop: &AtomicBool,
) -> Seen {
    let mut number: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let sent = began.elapsed();
        let payload = format!("{number} {}", sent.as_micros());
        let packet_id = connection.packet_id();
        let message = Message::new(topic, payload).qos(1, packet_id).bytes(V5);
        let answer = connection.try_send(&message);
        match answer.and_then(|()| connection.receive(GIVES_UP)) {
            Ok(Packet::Puback(ack)) if ack.code < 0x80 => {
                seen.took.push(began.elapsed().saturating_sub(sent));
                published.store(number, Ordering::Relaxed);
            }
            other => {
                seen.ended = Some(format!("after {:.1?}: {other:?}", began.elapsed() - sent));
                break;
            }
        }
        std::thread::sleep(PAUSE);
    }
    seen
}

/// Receives every number once and in order; at the end all that were acknowledged.
fn receive(
    mut connection: Connection,
    began: Instant,
    published: &AtomicU64,
    mut seen: Seen,
    stop: &AtomicBool,
) -> Seen {
    let mut expected: u64 = 1;
    let mut waited = Instant::now();
    loop {
        if stop.load(Ordering::Relaxed) && expected > published.load(Ordering::Relaxed) {
            return seen;
        }
        match connection.next_publish(Duration::from_millis(200)) {
            Ok(publish) => {
                waited = Instant::now();
                let Some((number, sent)) = parse(&publish) else {
                    seen.ended = Some(format!("received {publish:?}"));
                    return seen;
                };
                if number != expected {
                    seen.ended = Some(format!("{number} came instead of {expected}"));
                    return seen;
                }
                expected += 1;
                seen.took.push(began.elapsed().saturating_sub(sent));
            }
            Err(Fault::Timeout) if waited.elapsed() < GIVES_UP => {}
            Err(fault) => {
                seen.ended = Some(format!("instead of message {expected}: {fault:?}"));
                return seen;
            }
        }
    }
}

fn parse(publish: &Publish) -> Option<(u64, Duration)> {
    let text = std::str::from_utf8(&publish.payload).ok()?;
    let (number, micros) = text.split_once(' ')?;
    Some((
        number.parse().ok()?,
        Duration::from_micros(micros.parse().ok()?),
    ))
}
