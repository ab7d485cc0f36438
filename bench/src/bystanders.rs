//! Clients of a node that is going to die, and those of other nodes, which publish now and then and are not to notice.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;
use quorumq::codec::{Ack, PeerLimits, PublishHeader, QoS, Version, encode, encode_publish};

use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::report::Report;

/// Between two messages of one client, if the first one is acknowledged.
const PAUSE: Duration = Duration::from_millis(100);

/// The clients. Those of the node that dies are the first links, the others follow.
pub struct Bystanders {
    mortal: usize,
    topics: Vec<String>,
    traffic: Traffic,
}

/// What the others do.
struct Traffic {
    mortal: usize,
    /// For each of the others: when it has published, or is to publish next.
    sent: Vec<Option<Instant>>,
    next: Vec<Instant>,
    lost: u64,
    latency: Latencies,
}

impl Bystanders {
    /// Adds them to an engine.
    pub fn new(engine: &mut Engine, run: &str, mortal: usize, others: usize) -> Bystanders {
        let mut add = |name: &str, filters| {
            engine.add(Identity {
                speech: Speech::Mqtt,
                client_id: format!("bench-{run}-{name}"),
                version: Version::V5,
                durable: false,
                filters,
            });
        };
        for index in 0..mortal {
            add(&format!("m{index}"), Vec::new());
        }
        let topic = |index| format!("bench/{run}/{index}");
        for index in 0..others {
            // Each gets its own messages.
            add(&format!("o{index}"), vec![(topic(index), QoS::AtLeastOnce)]);
        }
        Bystanders {
            mortal,
            topics: (0..others).map(topic).collect(),
            traffic: Traffic {
                mortal,
                sent: vec![None; others],
                next: vec![Instant::now(); others],
                lost: 0,
                latency: Latencies::default(),
            },
        }
    }

    /// Connects the first ones to one node, and the others to the others.
    ///
    /// # Errors
    /// Exit code 69 when a connection cannot be made.
    pub fn open(
        &mut self,
        engine: &mut Engine,
        victim: &[SocketAddr],
        servers: &[SocketAddr],
    ) -> Result<(), Failure> {
        let servers: Vec<SocketAddr> = servers
            .iter()
            .filter(|server| !victim.contains(server))
            .copied()
            .collect();
        if servers.is_empty() {
            return Err(Failure::failed("there is no server but the one that dies"));
        }
        engine.open_range(0..self.mortal, victim, &mut self.traffic)?;
        let all = self.mortal..self.mortal + self.topics.len();
        engine.open_range(all, &servers, &mut self.traffic)
    }

    /// Publishes what is due, and waits for a moment.
    ///
    /// # Errors
    /// What is to be sent fits no packet.
    pub fn turn(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        let now = Instant::now();
        for (index, topic) in self.topics.iter().enumerate() {
            if self.traffic.sent[index].is_some() || self.traffic.next[index] > now {
                continue;
            }
            let link = self.mortal + index;
            let header = PublishHeader {
                qos: QoS::AtLeastOnce,
                packet_id: NonZeroU16::new(1),
                ..PublishHeader::plain(Version::V5)
            };
            let output = engine.link(link).output();
            encode_publish(output, topic, &[], b"now", &header)
                .map_err(|error| Failure::failed(BenchError::from(error)))?;
            engine.mark_dirty(link);
            self.traffic.sent[index] = Some(now);
        }
        engine
            .turn(&mut self.traffic, Duration::from_millis(2))
            .map_err(|error| Failure::new(Exit::Unreachable, error))
    }

    /// Forgets what was measured.
    pub fn reset(&mut self) {
        self.traffic.latency.clear();
        self.traffic.lost = 0;
    }

    /// What was measured since the last report: a PUBLISH until its PUBACK, those included that still wait for it. An
    /// error is a client of another node that has lost its connection.
    pub fn report(&mut self, mode: &str, elapsed: Duration) -> Report {
        let mut latency = std::mem::take(&mut self.traffic.latency);
        for sent in self.traffic.sent.iter().flatten() {
            latency.record(sent.elapsed());
        }
        Report {
            mode: mode.to_owned(),
            clients: self.topics.len(),
            elapsed,
            operations: latency.total(),
            latency,
            errors: std::mem::take(&mut self.traffic.lost),
            extra: Vec::new(),
        }
    }
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
        let index = link.wrapping_sub(self.mortal);
        match packet {
            Packet::PubAck(_) => {
                if let Some(sent) = self.sent.get_mut(index).and_then(Option::take) {
                    self.latency.record(now.saturating_duration_since(sent));
                    self.next[index] = sent + PAUSE;
                }
            }
            Packet::Publish(publish) => {
                if let Some(id) = publish.packet_id {
                    encode::puback(output, Version::V5, &Ack::success(id), PeerLimits::NONE)?;
                }
            }
            Packet::Disconnect(packet) => return Err(BenchError::Refused(packet.reason)),
            _ => {}
        }
        Ok(())
    }

    fn lost(&mut self, link: usize, _: BenchError) -> Result<(), BenchError> {
        if let Some(index) = link.checked_sub(self.mortal) {
            self.lost += 1;
            // It publishes no more.
            self.sent[index] = None;
            self.next[index] = Instant::now() + Duration::from_secs(3_600);
        }
        Ok(())
    }
}
