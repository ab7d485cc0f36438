//! State store load: every client has one request under way and sends the next when the answer is there.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use quorumq::base::time::wall_now;
use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;
use quorumq::codec::{
    Ack, PeerLimits, Property, PublishHeader, PublishPropertiesBuf, QoS, Version, encode,
    encode_publish,
};
use quorumq::store::topics::INVOKE;

use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::values::{Values, next_random};

/// Pause before a lost client tries the next server.
const RECONNECT: Duration = Duration::from_millis(20);
/// Shortest gap between acknowledged writes that is reported.
const NOTEWORTHY_GAP: Duration = Duration::from_millis(100);

/// Which commands are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SET only.
    Set,
    /// GET only, of keys that exist.
    Get,
    /// SET and GET in turn.
    Mixed,
}

/// What the clients do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which commands.
    pub kind: Kind,
    /// Number of clients.
    pub clients: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Keys of each client.
    pub keys: usize,
    /// QoS at which answers are subscribed to.
    pub response_qos: QoS,
    /// Whether a lost client tries another server instead of ending the run, and after which silence.
    pub survive: Option<Duration>,
}

struct Client {
    id: String,
    response_topic: String,
    packet_id: NonZeroU16,
    sequence: u64,
    pending: bool,
    /// Whether the request under way changes a key.
    writes: bool,
    sent_at: Instant,
    /// The request under way, to send it again over another server.
    payload: Vec<u8>,
    /// Keys that are still to be created before the run.
    populate: usize,
    server: usize,
}

/// The workload.
pub struct KvLoad {
    plan: Plan,
    servers: Vec<SocketAddr>,
    clients: Vec<Client>,
    values: Values,
    properties: PublishPropertiesBuf,
    stamp: Vec<u8>,
    running: bool,
    random: u64,
    waiting: VecDeque<(Instant, usize)>,
    /// Latencies since the last reset.
    pub latency: Latencies,
    /// Answers that were errors since the last reset.
    pub errors: u64,
    /// Connections lost since the last reset.
    pub lost: u64,
    /// The first error, for people.
    pub first_error: Option<String>,
    last_ack: Instant,
    /// Gaps of acknowledged writes since the last reset: when, and how long.
    pub gaps: Vec<(Instant, Duration)>,
    /// The longest of them, however short.
    pub longest_gap: Duration,
}

impl KvLoad {
    /// Adds the clients to the engine; they are opened by [`Engine::open_all`].
    pub fn new(engine: &mut Engine, plan: Plan, servers: Vec<SocketAddr>, run: &str) -> KvLoad {
        let populate = if plan.kind == Kind::Set { 0 } else { plan.keys };
        let clients = (0..plan.clients).map(|index| {
            let id = format!("bench-{run}-{index}");
            let response_topic = format!("clients/{id}/services/{INVOKE}/response");
            let link = engine.add(Identity {
                speech: Speech::Mqtt,
                client_id: id.clone(),
                version: Version::V5,
                durable: false,
                filters: vec![(response_topic.clone(), plan.response_qos)],
            });
            Client {
                id,
                response_topic,
                packet_id: NonZeroU16::MIN,
                sequence: 0,
                pending: false,
                writes: false,
                sent_at: Instant::now(),
                payload: Vec::new(),
                populate,
                server: link % servers.len(),
            }
        });
        KvLoad {
            clients: clients.collect(),
            values: Values::new(plan.value_bytes),
            plan,
            servers,
            properties: PublishPropertiesBuf::new(),
            stamp: Vec::new(),
            running: false,
            random: 0x9E37_79B9_7F4A_7C15,
            waiting: VecDeque::new(),
            latency: Latencies::default(),
            errors: 0,
            lost: 0,
            first_error: None,
            last_ack: Instant::now(),
            gaps: Vec::new(),
            longest_gap: Duration::ZERO,
        }
    }

    /// Sends the first request of every client.
    ///
    /// # Errors
    /// When a request fits no packet.
    pub fn start(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        self.running = true;
        for link in 0..self.clients.len() {
            self.next(link, engine.link(link).output(), Instant::now())
                .map_err(Failure::failed)?;
            engine.mark_dirty(link);
        }
        Ok(())
    }

    /// Whether every key that is to be read exists.
    pub fn is_populated(&self) -> bool {
        self.clients.iter().all(|client| client.populate == 0)
    }

    /// Starts to measure anew.
    pub fn reset(&mut self) {
        self.latency.clear();
        self.errors = 0;
        self.lost = 0;
        self.gaps.clear();
        self.longest_gap = Duration::ZERO;
        self.last_ack = Instant::now();
    }

    /// Connects lost clients again whose pause is over, and closes connections that have been silent too long. To be
    /// called often.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn reconnect_lost(&mut self, engine: &mut Engine, now: Instant) -> Result<(), Failure> {
        while let Some((due, link)) = self.waiting.front().copied()
            && due <= now
        {
            self.waiting.pop_front();
            let server = self.servers[self.clients[link].server % self.servers.len()];
            self.clients[link].sent_at = now;
            if let Err(error) = engine.open(link, server) {
                self.lost(link, error).map_err(Failure::failed)?;
            }
        }
        let Some(limit) = self.plan.survive else {
            return Ok(());
        };
        for link in 0..self.clients.len() {
            let silent = now.saturating_duration_since(self.clients[link].sent_at) > limit;
            if silent && !self.waiting.iter().any(|(_, waiting)| *waiting == link) {
                engine.close(link);
                self.lost(link, BenchError::Protocol("no answer".into()))
                    .map_err(Failure::failed)?;
            }
        }
        Ok(())
    }

    /// Counts the gap up to now, at the end of a run.
    pub fn finish(&mut self, now: Instant) {
        self.acknowledged(now);
    }

    fn acknowledged(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last_ack);
        self.last_ack = now;
        self.longest_gap = self.longest_gap.max(gap);
        if gap >= NOTEWORTHY_GAP {
            self.gaps.push((now, gap));
        }
    }

    /// Chooses, encodes and sends the next request of a client.
    fn next(&mut self, link: usize, output: &mut Vec<u8>, now: Instant) -> Result<(), BenchError> {
        let random = next_random(&mut self.random);
        let client = &mut self.clients[link];
        let key = match client.populate {
            0 => random as usize % self.plan.keys,
            left => {
                client.populate -= 1;
                left - 1
            }
        };
        client.sequence += 1;
        client.writes = match self.plan.kind {
            Kind::Set => true,
            Kind::Get => client.sequence <= self.plan.keys as u64,
            Kind::Mixed => {
                client.sequence <= self.plan.keys as u64 || client.sequence.is_multiple_of(2)
            }
        };
        client.pending = true;
        client.sent_at = now;
        let name = format!("{}/{key}", client.id);
        client.payload.clear();
        if client.writes {
            write!(
                client.payload,
                "*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n",
                name.len(),
                self.values.size()
            )?;
            self.values.append(&mut client.payload, random);
            client.payload.extend_from_slice(b"\r\n");
        } else {
            write!(
                client.payload,
                "*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n",
                name.len()
            )?;
        }
        self.send(link, output)
    }

    /// Encodes the request under way.
    fn send(&mut self, link: usize, output: &mut Vec<u8>) -> Result<(), BenchError> {
        let client = &mut self.clients[link];
        client.packet_id = client.packet_id.checked_add(1).unwrap_or(NonZeroU16::MIN);
        self.stamp.clear();
        write!(self.stamp, "{:015}:00000:{}", wall_now().0, client.id)?;
        let stamp = std::str::from_utf8(&self.stamp).unwrap_or_default();
        let mut correlation = [0; 16];
        correlation[..8].copy_from_slice(&(link as u64).to_be_bytes());
        correlation[8..].copy_from_slice(&client.sequence.to_be_bytes());
        self.properties.clear();
        self.properties
            .push(Property::ResponseTopic(&client.response_topic))?
            .push(Property::CorrelationData(&correlation))?
            .push_user("__ts", stamp)?
            .push_user("__protVer", "1.0")?;
        let delivery = PublishHeader {
            qos: QoS::AtLeastOnce,
            packet_id: Some(client.packet_id),
            remaining_expiry: Some(60),
            ..PublishHeader::plain(Version::V5)
        };
        encode_publish(
            output,
            INVOKE,
            self.properties.raw(),
            &client.payload,
            &delivery,
        )?;
        Ok(())
    }

    fn count_error(&mut self, text: String) {
        self.errors += 1;
        self.first_error.get_or_insert(text);
    }
}

impl Workload for KvLoad {
    fn ready(&mut self, link: usize, output: &mut Vec<u8>, now: Instant) -> Result<(), BenchError> {
        if !self.running {
            return Ok(());
        }
        if self.clients[link].pending {
            self.clients[link].sent_at = now;
            return self.send(link, output);
        }
        self.next(link, output, now)
    }

    fn packet(
        &mut self,
        link: usize,
        packet: Packet<'_>,
        output: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), BenchError> {
        let publish = match packet {
            Packet::Publish(publish) => publish,
            Packet::PubAck(ack) if (ack.reason as u8) < 0x80 => return Ok(()),
            Packet::PubAck(ack) => {
                let reason = ack.reason_string.unwrap_or(ack.reason.name());
                self.count_error(format!("request refused: {reason}"));
                return self.next(link, output, now);
            }
            Packet::Disconnect(packet) => return Err(BenchError::Refused(packet.reason)),
            _ => return Ok(()),
        };
        if let (QoS::AtLeastOnce, Some(id)) = (publish.qos, publish.packet_id) {
            encode::puback(output, Version::V5, &Ack::success(id), PeerLimits::NONE)?;
        }
        let client = &mut self.clients[link];
        let correlation = publish.properties.correlation_data().unwrap_or_default();
        if !client.pending || correlation.get(8..) != Some(client.sequence.to_be_bytes().as_slice())
        {
            // An answer to a request that was sent again and answered already.
            return Ok(());
        }
        let good = match (client.writes, publish.payload) {
            (true, payload) => payload == b"+OK\r\n",
            (false, payload) => payload.first() == Some(&b'$') && payload != b"$-1\r\n",
        };
        client.pending = false;
        let (took, writes) = (now.saturating_duration_since(client.sent_at), client.writes);
        if good {
            self.latency.record(took);
            if writes {
                self.acknowledged(now);
            }
        } else {
            self.count_error(publish.payload.escape_ascii().to_string());
        }
        self.next(link, output, now)
    }

    fn lost(&mut self, link: usize, error: BenchError) -> Result<(), BenchError> {
        self.lost += 1;
        if self.plan.survive.is_none() {
            return Err(error);
        }
        self.clients[link].server += 1;
        self.waiting.push_back((Instant::now() + RECONNECT, link));
        Ok(())
    }
}

/// Runs the engine until `until` says so; lost clients are connected again on the way.
///
/// # Errors
/// Exit code 69 when a connection is lost that must not be.
pub fn drive(
    engine: &mut Engine,
    load: &mut KvLoad,
    until: impl Fn(&KvLoad, Instant) -> bool,
) -> Result<(), Failure> {
    let tick = Duration::from_millis(10);
    let mut looked = Instant::now();
    loop {
        let now = Instant::now();
        if until(load, now) {
            return Ok(());
        }
        engine.turn(load, tick).map_err(|error| {
            Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"))
        })?;
        if now.duration_since(looked) >= tick {
            looked = now;
            load.reconnect_lost(engine, now)?;
        }
    }
}
