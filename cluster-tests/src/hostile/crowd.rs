//! Many connections at once.

use crate::connection::Connection;
use crate::wire::{self, Packet, Properties};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections that are opened before the first of them must answer.
const AT_ONCE: usize = 500;

/// How long each may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Connections that belong together.
#[derive(Default)]
pub struct Crowd(pub Vec<Connection>);

impl Crowd {
    /// Lets this process, and the nodes that it starts from now on, hold as many connections as the machine lets it.
    pub fn raise_limits() {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
    }

    /// Connects `count` clients with CONNECTs of the caller's making, and subscribes each to a filter where there is
    /// one.
    #[track_caller]
    pub fn connect(
        addresses: &[SocketAddr],
        count: usize,
        connect: impl Fn(usize) -> wire::Connect,
        filter: impl Fn(usize) -> Option<String>,
    ) -> Self {
        let mut crowd = Vec::with_capacity(count);
        let numbers: Vec<usize> = (0..count).collect();
        for numbers in numbers.chunks(AT_ONCE) {
            let from = crowd.len();
            let mut answers = Vec::new();
            for number in numbers {
                let connect = connect(*number);
                let address = addresses[number % addresses.len()];
                let mut connection = Connection::open(address, connect.level)
                    .unwrap_or_else(|error| panic!("connection {number} of {count}: {error}"));
                let mut bytes = connect.bytes();
                let filter = filter(*number);
                if let Some(filter) = &filter {
                    let filters = [(filter.as_str(), 1)];
                    let none = Properties::new();
                    bytes.extend(wire::subscribe(connect.level, 1, &none, &filters));
                }
                answers.push(1 + usize::from(filter.is_some()));
                connection.send(&bytes);
                crowd.push(connection);
            }
            for (connection, answers) in crowd[from..].iter_mut().zip(answers) {
                for _ in 0..answers {
                    match connection.receive(ANSWER_WITHIN) {
                        Ok(Packet::Connack(connack)) if connack.code == 0 => {}
                        Ok(Packet::Suback(suback)) if suback.codes[0] < 0x80 => {}
                        other => panic!("one of {count} clients: {other:?}"),
                    }
                }
            }
        }
        Self(crowd)
    }

    /// Ends every connection without a DISCONNECT, as closely together as can be.
    pub fn hang_up(self) {
        for connection in &self.0 {
            let _ = connection.stream().shutdown(std::net::Shutdown::Both);
        }
    }

    /// Reads whatever comes and forgets it, until the value that is returned is stopped.
    pub fn read_on(&self) -> Reader {
        let streams: Vec<TcpStream> = self
            .0
            .iter()
            .map(|connection| {
                let stream = connection.stream().try_clone();
                let stream = stream.expect("a socket can be cloned");
                stream
                    .set_nonblocking(true)
                    .expect("a socket can be made non-blocking");
                stream
            })
            .collect();
        let seen = Arc::<ReaderSeen>::default();
        let reads = seen.clone();
        let thread = std::thread::spawn(move || read(streams, &reads));
        Reader { seen, thread }
    }
}

/// A crowd that reads.
pub struct Reader {
    seen: Arc<ReaderSeen>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct ReaderSeen {
    stop: AtomicBool,
    bytes: AtomicU64,
    ended: AtomicUsize,
}

impl Reader {
    /// Bytes that all of them have read.
    pub fn bytes(&self) -> u64 {
        self.seen.bytes.load(Ordering::Relaxed)
    }

    /// How many of them the server has ended.
    pub fn ended(&self) -> usize {
        self.seen.ended.load(Ordering::Relaxed)
    }

    /// The same, and nobody reads any more.
    pub fn stop(self) -> usize {
        self.seen.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a reader does not panic");
        self.seen.ended.load(Ordering::Relaxed)
    }
}

fn read(mut streams: Vec<TcpStream>, seen: &ReaderSeen) {
    let all = streams.len();
    let mut chunk = vec![0; 256 << 10];
    while !seen.stop.load(Ordering::Relaxed) {
        streams.retain_mut(|stream| match stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(read) => {
                seen.bytes.fetch_add(read as u64, Ordering::Relaxed);
                true
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        });
        let ended = all - streams.len();
        seen.ended.store(ended, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
    }
}
