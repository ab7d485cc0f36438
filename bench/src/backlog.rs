//! Backlogs of durable sessions: filled while their clients are away, then drained, each by one connection.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;
use quorumq::codec::{Ack, PeerLimits, PublishHeader, QoS, Version, encode, encode_publish};

use crate::arguments::BacklogArgs;
use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::link::{Identity, Speech};

/// Publishers that fill the queues.
const PUBLISHERS: usize = 8;
/// Packet ids that a publisher uses in turn: more than any window.
const PACKET_IDS: u64 = 60_000;
/// Time without a packet after which the run ends with an error.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// The sessions with their backlog. The servers must allow queues of that length (`mqtt.queue_max_messages`).
pub struct Backlog {
    engine: Engine,
    servers: Vec<SocketAddr>,
    traffic: Traffic,
    /// Sessions are the first links, publishers follow.
    sessions: usize,
    messages: u64,
    window: u64,
    topic: String,
    payload: Vec<u8>,
    noise: Noise,
}

impl Backlog {
    /// Makes the sessions, each with one QoS 1 subscription to the same topic, and sends their clients away.
    ///
    /// # Errors
    /// Exit code 69 when a connection cannot be made.
    pub fn new(
        servers: &[SocketAddr],
        opening: usize,
        run: &str,
        arguments: &BacklogArgs,
    ) -> Result<Backlog, Failure> {
        let mut engine = Engine::new(opening)?;
        let topic = format!("bench/{run}");
        let sessions = arguments.sessions as usize;
        let version = arguments.protocol.version();
        for index in 0..sessions {
            engine.add(Identity {
                speech: Speech::Mqtt,
                client_id: format!("bench-{run}-s{index}"),
                version,
                durable: true,
                filters: vec![(topic.clone(), QoS::AtLeastOnce)],
            });
        }
        let mut traffic = Traffic {
            version,
            sessions,
            published: 0,
            sent: [0; PUBLISHERS],
            acknowledged: [0; PUBLISHERS],
            arrived: 0,
            last: Instant::now(),
        };
        engine.open_all(0, servers, &mut traffic)?;
        for session in 0..sessions {
            engine.close(session);
        }
        for index in 0..PUBLISHERS {
            engine.add(Identity {
                speech: Speech::Mqtt,
                client_id: format!("bench-{run}-p{index}"),
                version,
                durable: false,
                filters: Vec::new(),
            });
        }
        engine.open_all(sessions, servers, &mut traffic)?;
        Ok(Backlog {
            engine,
            servers: servers.to_vec(),
            traffic,
            sessions,
            messages: arguments.messages,
            window: arguments.window,
            topic,
            payload: vec![0; arguments.payload_bytes],
            noise: Noise(1),
        })
    }

    /// Publishes all messages. Returns the time from the first PUBLISH to the last PUBACK.
    ///
    /// # Errors
    /// Exit code 69 when a connection is lost, 1 when acknowledgements do not come.
    pub fn fill(&mut self) -> Result<Duration, Failure> {
        let begin = Instant::now();
        self.traffic.last = begin;
        while self.traffic.acknowledged.iter().sum::<u64>() < self.messages {
            self.publish().map_err(Failure::failed)?;
            self.turn()?;
        }
        Ok(begin.elapsed())
    }

    /// Reconnects every session and takes its messages. Returns the time from the first CONNECT to the last message.
    ///
    /// # Errors
    /// Exit code 69 when a connection is lost, 1 when messages do not arrive.
    pub fn drain(&mut self) -> Result<Duration, Failure> {
        let begin = Instant::now();
        self.traffic.arrived = 0;
        self.traffic.last = begin;
        for session in 0..self.sessions {
            // The session is there: nothing is subscribed to again.
            self.engine.forget_filters(session);
            let server = self.servers[session % self.servers.len()];
            self.engine.open(session, server).map_err(Failure::failed)?;
        }
        let expected = self.messages * self.sessions as u64;
        while self.traffic.arrived < expected {
            self.turn()?;
        }
        Ok(begin.elapsed())
    }

    /// Sends what the windows allow.
    fn publish(&mut self) -> Result<(), BenchError> {
        for index in 0..PUBLISHERS {
            let (sent, acknowledged) = (self.traffic.sent[index], self.traffic.acknowledged[index]);
            let credit = self.window.saturating_sub(sent - acknowledged);
            let count = credit.min(self.messages - self.traffic.published);
            if count == 0 {
                continue;
            }
            let link = self.sessions + index;
            for number in sent..sent + count {
                self.noise.fill(&mut self.payload);
                let delivery = PublishHeader {
                    qos: QoS::AtLeastOnce,
                    packet_id: NonZeroU16::new((number % PACKET_IDS) as u16 + 1),
                    ..PublishHeader::plain(self.traffic.version)
                };
                let output = self.engine.link(link).output();
                encode_publish(output, &self.topic, &[], &self.payload, &delivery)?;
            }
            self.engine.mark_dirty(link);
            self.traffic.sent[index] += count;
            self.traffic.published += count;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Failure> {
        self.engine
            .turn(&mut self.traffic, Duration::from_millis(5))
            .map_err(|error| {
                Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"))
            })?;
        if self.traffic.last.elapsed() > SILENCE_TIMEOUT {
            let message = format!(
                "nothing came for {} s; {} of {} messages are acknowledged, {} have arrived",
                SILENCE_TIMEOUT.as_secs(),
                self.traffic.acknowledged.iter().sum::<u64>(),
                self.messages,
                self.traffic.arrived
            );
            return Err(Failure::failed(message));
        }
        Ok(())
    }
}

/// What went over the connections.
struct Traffic {
    version: Version,
    sessions: usize,
    published: u64,
    sent: [u64; PUBLISHERS],
    acknowledged: [u64; PUBLISHERS],
    arrived: u64,
    last: Instant,
}

impl Workload for Traffic {
    fn ready(&mut self, _: usize, _: &mut Vec<u8>, _: Instant) -> Result<(), BenchError> {
        Ok(())
    }

    fn packet(
        &mut self,
        link: usize,
        packet: Packet<'_>,
        output: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), BenchError> {
        self.last = now;
        match packet {
            Packet::Publish(publish) => {
                if let Some(id) = publish.packet_id {
                    encode::puback(output, self.version, &Ack::success(id), PeerLimits::NONE)?;
                }
                self.arrived += 1;
            }
            Packet::PubAck(_) => {
                let publisher = link.wrapping_sub(self.sessions);
                if let Some(acknowledged) = self.acknowledged.get_mut(publisher) {
                    *acknowledged += 1;
                }
            }
            Packet::Disconnect(packet) => return Err(BenchError::Refused(packet.reason)),
            _ => {}
        }
        Ok(())
    }
}

/// Bytes that do not compress, the same in every run: splitmix64.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut word = self.0;
            word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            word ^= word >> 31;
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}
