//! A network between nodes that can be cut and slowed, one direction at a time: each node's cluster port is behind a
//! proxy, and the proxy looks up which node a connection comes from.
//!
//! A cut does not close connections: bytes stop, as they do when a cable is pulled, and flow again when it is healed.
//! A delay costs no bandwidth: bytes are read at once and written when they have been under way for that long.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How often a held or idle direction looks whether something changed.
const POLL: Duration = Duration::from_millis(20);

/// Bytes that one read takes.
const CHUNK: usize = 64 * 1024;

/// Reads of one direction that may be under way: 32 MiB at most, far above what any delay of a test needs.
const UNDER_WAY: usize = 512;

/// What all proxies share.
struct Links {
    /// `[from][to]`.
    cut: Vec<Vec<AtomicBool>>,
    /// `[from][to]`, in microseconds.
    delay: Vec<Vec<AtomicU64>>,
    /// Process of each node, 0 when it has none.
    processes: Vec<AtomicU32>,
    ended: AtomicBool,
}

/// The proxies of a cluster; they end with this value.
pub struct Network(Arc<Links>);

impl Network {
    /// Starts a proxy for each node: it listens on `outside[node]` and passes on to `inside[node]`.
    pub fn start(outside: &[SocketAddr], inside: &[SocketAddr]) -> Self {
        let size = outside.len();
        let links = Arc::new(Links {
            cut: (0..size)
                .map(|_| (0..size).map(|_| AtomicBool::new(false)).collect())
                .collect(),
            delay: (0..size)
                .map(|_| (0..size).map(|_| AtomicU64::new(0)).collect())
                .collect(),
            processes: (0..size).map(|_| AtomicU32::new(0)).collect(),
            ended: AtomicBool::new(false),
        });
        for (to, (outside, inside)) in outside.iter().zip(inside).enumerate() {
            let listener = TcpListener::bind(outside).expect("the port is free");
            listener
                .set_nonblocking(true)
                .expect("a listener can be made non-blocking");
            let (links, inside) = (links.clone(), *inside);
            std::thread::spawn(move || accept(&links, &listener, to, inside));
        }
        Self(links)
    }

    /// Tells which process is which node's.
    pub fn is(&self, node: usize, process: Option<u32>) {
        self.0.processes[node].store(process.unwrap_or(0), Ordering::Relaxed);
    }

    /// Nothing from one node reaches the other.
    pub fn cut(&self, from: usize, to: usize) {
        self.0.cut[from][to].store(true, Ordering::Relaxed);
    }

    /// Nothing passes between the two.
    pub fn separate(&self, one: usize, other: usize) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Nothing passes between this node and any other.
    pub fn isolate(&self, node: usize) {
        for other in (0..self.0.cut.len()).filter(|other| *other != node) {
            self.separate(node, other);
        }
    }

    /// What leaves one node for the other from now on arrives after that long.
    pub fn delay(&self, from: usize, to: usize, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("a delay of a test is short");
        self.0.delay[from][to].store(micros, Ordering::Relaxed);
    }

    /// The same for every direction between any two nodes.
    pub fn delay_all(&self, delay: Duration) {
        let size = self.0.delay.len();
        for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
            self.delay(from, to, delay);
        }
    }

    /// Everything passes; delays stay.
    pub fn heal(&self) {
        for cut in self.0.cut.iter().flatten() {
            cut.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

fn accept(links: &Arc<Links>, listener: &TcpListener, to: usize, inside: SocketAddr) {
    while !links.ended.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((from, peer)) => {
                let links = links.clone();
                std::thread::spawn(move || connect(&links, from, peer, to, inside));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

fn connect(links: &Arc<Links>, near: TcpStream, peer: SocketAddr, to: usize, inside: SocketAddr) {
    // First, because it is cheap: nodes try a node that is down again and again, and finding the origin of a connection
    // takes reading the machine's whole connection table.
    let Ok(far) = TcpStream::connect_timeout(&inside, Duration::from_secs(2)) else {
        return;
    };
    let Some(from) = links.origin(peer) else {
        return;
    };
    let prepared = [&near, &far].into_iter().all(|stream| {
        stream.set_nonblocking(false).is_ok()
            && stream.set_nodelay(true).is_ok()
            && stream.set_read_timeout(Some(POLL)).is_ok()
    });
    let (Ok(near_copy), Ok(far_copy)) = (near.try_clone(), far.try_clone()) else {
        return;
    };
    if prepared {
        let back = links.clone();
        std::thread::spawn(move || copy(&back, far_copy, near_copy, to, from));
        copy(links, near, far, from, to);
    }
}

/// Passes bytes on until one side ends, and holds them while the link is cut.
fn copy(links: &Arc<Links>, source: TcpStream, sink: TcpStream, from: usize, to: usize) {
    let (under_way, arriving) = sync_channel(UNDER_WAY);
    let (links, far_links) = (links.clone(), links.clone());
    std::thread::spawn(move || pass_on(&far_links, &arriving, sink, from, to));
    take_in(&links, &under_way, source, from, to);
}

/// Bytes, and when they arrive.
type UnderWay = (Instant, Vec<u8>);

/// Reads what leaves a node.
fn take_in(
    links: &Links,
    under_way: &SyncSender<UnderWay>,
    mut source: TcpStream,
    from: usize,
    to: usize,
) {
    let mut chunk = vec![0; CHUNK];
    while !links.ended.load(Ordering::Relaxed) {
        if links.is_cut(from, to) {
            std::thread::sleep(POLL);
            continue;
        }
        let read = match source.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(_) => break,
        };
        let arrives = Instant::now() + links.delay_of(from, to);
        if under_way.send((arrives, chunk[..read].to_vec())).is_err() {
            break;
        }
    }
    let _ = source.shutdown(std::net::Shutdown::Both);
}

/// Writes what arrives at a node, in the order in which it left.
fn pass_on(
    links: &Links,
    arriving: &Receiver<UnderWay>,
    mut sink: TcpStream,
    from: usize,
    to: usize,
) {
    while let Ok((arrives, bytes)) = arriving.recv() {
        std::thread::sleep(arrives.saturating_duration_since(Instant::now()));
        while links.is_cut(from, to) && !links.ended.load(Ordering::Relaxed) {
            std::thread::sleep(POLL);
        }
        if sink.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = sink.shutdown(std::net::Shutdown::Both);
}

impl Links {
    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut[from][to].load(Ordering::Relaxed)
    }

    fn delay_of(&self, from: usize, to: usize) -> Duration {
        Duration::from_micros(self.delay[from][to].load(Ordering::Relaxed))
    }

    /// The node whose process holds the socket at that address.
    fn origin(&self, peer: SocketAddr) -> Option<usize> {
        let inode = inode_of(peer)?;
        self.processes.iter().position(|process| {
            let process = process.load(Ordering::Relaxed);
            process != 0 && holds(process, &inode)
        })
    }
}

/// The inode of the local TCP socket bound to that address, from `/proc/net/tcp`.
fn inode_of(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(v4) = address else {
        return None;
    };
    let ip = u32::from_le_bytes(v4.ip().octets());
    let wanted = format!("{ip:08X}:{:04X}", v4.port());
    // Line by line: the row is often near the beginning, and the rest is not asked of the kernel then.
    let table = BufReader::new(File::open("/proc/net/tcp").ok()?);
    table.lines().map_while(Result::ok).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        (columns.get(1) == Some(&wanted.as_str()))
            .then(|| columns.get(9).map(|inode| (*inode).to_owned()))?
    })
}

fn holds(process: u32, inode: &str) -> bool {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    std::fs::read_dir(format!("/proc/{process}/fd")).is_ok_and(|files| {
        files
            .filter_map(Result::ok)
            .any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == wanted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::allowed;
    use std::time::Instant;

    /// A server that sends back what it gets, behind the proxy of node 1; the caller is node 0.
    fn echo() -> (Network, SocketAddr) {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let inside = server.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            for stream in server.incoming().filter_map(Result::ok) {
                std::thread::spawn(move || {
                    let (mut stream, mut chunk) = (stream, [0; 1024]);
                    while let Ok(read @ 1..) = stream.read(&mut chunk) {
                        if stream.write_all(&chunk[..read]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            listener.local_addr().expect("it is bound")
        };
        let outside = [free(), free()];
        let network = Network::start(&outside, &[inside, inside]);
        network.is(0, Some(std::process::id()));
        (network, outside[1])
    }

    fn ask(stream: &mut TcpStream, within: Duration) -> bool {
        stream
            .set_read_timeout(Some(within))
            .expect("a socket option can be set");
        stream.write_all(b"x").expect("the proxy takes it");
        stream.read_exact(&mut [0; 1]).is_ok()
    }

    #[test]
    fn bytes_pass_quickly_until_the_link_is_cut_and_again_when_it_is_healed() {
        let (network, address) = echo();
        let mut stream = TcpStream::connect(address).expect("the proxy listens");
        stream
            .set_nodelay(true)
            .expect("a socket option can be set");
        assert!(ask(&mut stream, Duration::from_secs(5)));
        let began = Instant::now();
        for _ in 0..200 {
            assert!(ask(&mut stream, Duration::from_secs(5)));
        }
        let each = began.elapsed() / 200;
        assert!(
            each < allowed(Duration::from_millis(5)),
            "{each:?} for a round trip"
        );
        for (from, to) in [(0, 1), (1, 0)] {
            network.cut(from, to);
            std::thread::sleep(POLL * 3);
            assert!(!ask(&mut stream, Duration::from_millis(200)));
            network.heal();
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .expect("a socket option can be set");
            stream.read_exact(&mut [0; 1]).expect("what was held comes");
            assert!(ask(&mut stream, Duration::from_secs(5)));
        }
    }

    #[test]
    fn a_delay_is_one_of_time_and_not_of_bandwidth() {
        let (network, address) = echo();
        let mut stream = TcpStream::connect(address).expect("the proxy listens");
        stream
            .set_nodelay(true)
            .expect("a socket option can be set");
        assert!(ask(&mut stream, Duration::from_secs(5)));
        network.delay(0, 1, Duration::from_millis(20));
        network.delay(1, 0, Duration::from_millis(10));
        let began = Instant::now();
        assert!(ask(&mut stream, Duration::from_secs(5)));
        let each = began.elapsed();
        assert!(each >= Duration::from_millis(30), "{each:?}");
        // What follows closely does not wait for what is ahead of it.
        let began = Instant::now();
        for _ in 0..50 {
            stream.write_all(b"x").expect("the proxy takes it");
            std::thread::sleep(Duration::from_millis(1));
        }
        stream.read_exact(&mut [0; 50]).expect("all comes back");
        let all = began.elapsed();
        assert!(
            all < allowed(Duration::from_millis(250)),
            "{all:?} for 50 bytes"
        );
    }

    #[test]
    fn a_new_connection_is_quick() {
        let (_network, address) = echo();
        for _ in 0..10 {
            let began = Instant::now();
            let mut stream = TcpStream::connect(address).expect("the proxy listens");
            assert!(ask(&mut stream, Duration::from_secs(5)));
            assert!(
                began.elapsed() < allowed(Duration::from_millis(500)),
                "{:?}",
                began.elapsed()
            );
        }
    }
}
