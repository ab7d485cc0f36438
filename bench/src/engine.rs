//! The event loop: many connections on one thread, no task and no allocation per request, one read and one write per
//! connection and wake-up.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;

use crate::error::BenchError;
use crate::link::{Identity, Link, Phase, ReadOutcome};

/// Bytes read from one socket at once.
const SCRATCH_BYTES: usize = 256 << 10;
/// Time in which connections must be ready, and what each adds to it: some brokers take long to make a durable session.
const OPENING_LIMIT: Duration = Duration::from_secs(30);
const OPENING_LIMIT_EACH: Duration = Duration::from_millis(200);

/// What a run does with its connections once they are ready.
pub trait Workload {
    /// A connection is ready.
    fn ready(&mut self, link: usize, output: &mut Vec<u8>, now: Instant) -> Result<(), BenchError>;

    /// A packet arrived on a ready connection.
    fn packet(
        &mut self,
        link: usize,
        packet: Packet<'_>,
        output: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), BenchError>;

    /// Bytes arrived on a connection that speaks HTTP. Returns how many of them it is done with.
    fn bytes(
        &mut self,
        link: usize,
        bytes: &[u8],
        output: &mut Vec<u8>,
        now: Instant,
    ) -> Result<usize, BenchError> {
        let _ = (link, output, now);
        Ok(bytes.len())
    }

    /// A connection was lost or could not be made. An error ends the run; it is the default.
    fn lost(&mut self, link: usize, error: BenchError) -> Result<(), BenchError> {
        let _ = link;
        Err(error)
    }
}

/// A workload that does nothing once the connections are ready.
pub struct Idle;

impl Workload for Idle {
    fn ready(&mut self, _: usize, _: &mut Vec<u8>, _: Instant) -> Result<(), BenchError> {
        Ok(())
    }

    fn packet(
        &mut self,
        _: usize,
        packet: Packet<'_>,
        _: &mut Vec<u8>,
        _: Instant,
    ) -> Result<(), BenchError> {
        match packet {
            Packet::Disconnect(packet) => Err(BenchError::Refused(packet.reason)),
            _ => Ok(()),
        }
    }
}

/// All connections and their event loop.
pub struct Engine {
    poll: Poll,
    events: Events,
    links: Vec<Link>,
    scratch: Vec<u8>,
    dirty: Vec<usize>,
    ready: usize,
    opening: usize,
    max_opening: usize,
}

impl Engine {
    /// An engine without connections. It opens at most `max_opening` of them at the same time.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new(max_opening: usize) -> Result<Engine, Failure> {
        Ok(Engine {
            poll: Poll::new()?,
            events: Events::with_capacity(4096),
            links: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES],
            dirty: Vec::new(),
            ready: 0,
            opening: 0,
            max_opening,
        })
    }

    /// Adds a connection that is not opened yet and returns its number.
    pub fn add(&mut self, identity: Identity) -> usize {
        self.links.push(Link::new(identity));
        self.links.len() - 1
    }

    /// A connection, to send on; call [`Engine::mark_dirty`] afterwards.
    pub fn link(&mut self, link: usize) -> &mut Link {
        &mut self.links[link]
    }

    /// Gives a closed connection another identity.
    pub fn rename(&mut self, link: usize, identity: Identity) {
        self.links[link].identity = identity;
    }

    /// Lets a closed connection come back without subscribing again: its session has kept its subscriptions.
    pub fn forget_filters(&mut self, link: usize) {
        self.links[link].identity.filters.clear();
    }

    /// Marks a connection as having output to flush.
    pub fn mark_dirty(&mut self, link: usize) {
        if !self.links[link].dirty {
            self.links[link].dirty = true;
            self.dirty.push(link);
        }
    }

    /// Starts to connect, giving up an earlier socket.
    ///
    /// # Errors
    /// When the system has no more descriptors or ports.
    pub fn open(&mut self, link: usize, server: SocketAddr) -> Result<(), BenchError> {
        self.open_from(link, server, link)
    }

    /// As [`Engine::open`], with the number of a source address when the server is on loopback.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_from(
        &mut self,
        link: usize,
        server: SocketAddr,
        source: usize,
    ) -> Result<(), BenchError> {
        self.close(link);
        let stream = self.links[link].open(server, source)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(stream, Token(link), interest)?;
        self.opening += 1;
        Ok(())
    }

    /// Closes a connection after sending what can be sent at once.
    pub fn close(&mut self, link: usize) {
        // What a closing connection cannot send is of no interest to anybody.
        let _ = self.links[link].flush();
        match self.links[link].phase {
            Phase::Closed => {}
            Phase::Ready => self.ready -= 1,
            _ => self.opening -= 1,
        }
        self.links[link].close();
    }

    /// Opens the connections `from` up to the last, some at a time, over the servers in turn.
    ///
    /// # Errors
    /// Exit code 69 when one cannot be opened in time.
    pub fn open_all<W: Workload>(
        &mut self,
        from: usize,
        servers: &[SocketAddr],
        workload: &mut W,
    ) -> Result<(), Failure> {
        self.open_range(from..self.links.len(), servers, workload)
    }

    /// As [`Engine::open_all`], of these connections.
    ///
    /// # Errors
    /// As [`Engine::open_all`].
    pub fn open_range<W: Workload>(
        &mut self,
        range: Range<usize>,
        servers: &[SocketAddr],
        workload: &mut W,
    ) -> Result<(), Failure> {
        let unreachable = |error: BenchError| Failure::new(Exit::Unreachable, error);
        let count = range.len();
        let limit = OPENING_LIMIT + OPENING_LIMIT_EACH * u32::try_from(count).unwrap_or(u32::MAX);
        let deadline = Instant::now() + limit;
        let target = self.ready + count;
        let mut next = range.start;
        while self.ready < target {
            while next < range.end && self.opening < self.max_opening {
                self.open(next, servers[next % servers.len()])
                    .map_err(unreachable)?;
                next += 1;
            }
            self.turn(workload, Duration::from_millis(10))
                .map_err(unreachable)?;
            if Instant::now() > deadline {
                let message = format!(
                    "only {} of {target} connections were ready within {} s",
                    self.ready,
                    limit.as_secs()
                );
                return Err(Failure::new(Exit::Unreachable, message));
            }
        }
        Ok(())
    }

    /// Waits for events at most `limit`, lets the workload handle them, and sends what it wrote.
    ///
    /// # Errors
    /// What [`Workload::lost`] makes of a lost connection.
    pub fn turn<W: Workload>(
        &mut self,
        workload: &mut W,
        limit: Duration,
    ) -> Result<(), BenchError> {
        self.flush(workload)?;
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let polled = match self.poll.poll(&mut events, Some(limit)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            _ => events.iter().try_for_each(|event| {
                let link = event.token().0;
                match self.event(
                    link,
                    event.is_readable() || event.is_read_closed(),
                    workload,
                ) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        self.close(link);
                        workload.lost(link, error)
                    }
                }
            }),
        };
        self.events = events;
        polled?;
        self.flush(workload)
    }

    fn event<W: Workload>(
        &mut self,
        index: usize,
        readable: bool,
        workload: &mut W,
    ) -> Result<(), BenchError> {
        let link = &mut self.links[index];
        if link.phase == Phase::Connecting {
            link.connected()?;
            if link.phase == Phase::Ready {
                self.ready += 1;
                self.opening -= 1;
                workload.ready(index, link.output(), Instant::now())?;
            }
        }
        if readable && link.is_http() {
            let outcome = link.read_bytes(&mut self.scratch, |_, _, output, bytes, now| {
                workload.bytes(index, bytes, output, now)
            });
            if let ReadOutcome::Closed(why) = outcome? {
                return Err(BenchError::Protocol(why));
            }
        } else if readable {
            let (mut became_ready, opened) = (false, link.phase);
            let outcome = link.read(&mut self.scratch, |identity, phase, output, packet, now| {
                if *phase == Phase::Ready {
                    return workload.packet(index, packet, output, now);
                }
                Link::handshake(identity, phase, output, &packet)?;
                if *phase == Phase::Ready {
                    became_ready = true;
                    workload.ready(index, output, now)?;
                }
                Ok(())
            });
            if link.has_shaken_hands() {
                link.phase = Phase::Ready;
                became_ready = true;
                workload.ready(index, link.output(), Instant::now())?;
            }
            if became_ready && opened != Phase::Ready {
                self.ready += 1;
                self.opening -= 1;
            }
            if let ReadOutcome::Closed(why) = outcome? {
                return Err(BenchError::Protocol(why));
            }
        }
        self.mark_dirty(index);
        Ok(())
    }

    fn flush<W: Workload>(&mut self, workload: &mut W) -> Result<(), BenchError> {
        while let Some(link) = self.dirty.pop() {
            if let Err(error) = self.links[link].flush() {
                self.close(link);
                workload.lost(link, error.into())?;
            }
        }
        Ok(())
    }
}
