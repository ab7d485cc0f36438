//! Publish/subscribe load. Publishers keep a window of unacknowledged messages, and the number of messages that their
//! subscribers have not got is bounded: so nothing has to be dropped, and latencies are those of a steady flow.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;
use quorumq::codec::{Ack, PeerLimits, PublishHeader, QoS, Version, encode, encode_publish};

use crate::arguments::Topology;
use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::wildcards;

/// Bytes of one publisher that may wait for its socket.
const MAX_UNSENT_BYTES: usize = 64 << 10;
/// Messages that one publisher encodes before the next one has its turn.
const BATCH_MESSAGES: u64 = 256;
/// Time without a delivery after which the outstanding messages count as lost.
const LOST_AFTER: Duration = Duration::from_millis(1000);
/// The same for durable sessions: no message is lost, but some brokers deliver only after seconds.
const DURABLE_LOST_AFTER: Duration = Duration::from_secs(20);
/// Publisher number and time stamp at the start of each payload.
pub const SMALLEST_PAYLOAD: usize = 16;

/// What the clients do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who publishes to whom.
    pub topology: Topology,
    /// Number of publishers.
    pub publishers: usize,
    /// Number of subscribers.
    pub subscribers: usize,
    /// Filters of all subscribers together, for [`Topology::Wildcards`].
    pub filters: usize,
    /// Quality of service of messages and subscriptions.
    pub qos: QoS,
    /// Unacknowledged messages of one publisher.
    pub window: u64,
    /// Messages of one publisher that its subscribers have not got yet.
    pub lag: u64,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Protocol version.
    pub version: Version,
    /// Whether the subscribers have durable sessions.
    pub durable: bool,
}

struct Publisher {
    link: usize,
    /// Published to in turn, from `next`; at least one.
    topics: Vec<String>,
    next: usize,
    packet_id: NonZeroU16,
    published: u64,
    acknowledged: u64,
    delivered: u64,
    last_delivery: Instant,
}

/// The workload. Subscribers are the first links, publishers follow.
pub struct Flow {
    plan: Plan,
    publishers: Vec<Publisher>,
    /// Deliveries of one message.
    copies: u64,
    payload: Vec<u8>,
    epoch: Instant,
    /// Publish to delivery, since the last reset.
    pub latency: Latencies,
    /// Deliveries since the last reset.
    pub delivered: u64,
    /// Messages published since the last reset.
    pub published: u64,
    /// Deliveries that never came since the last reset.
    pub missing: u64,
}

impl Flow {
    /// Adds the subscribers to the engine.
    pub fn new(engine: &mut Engine, plan: Plan, run: &str) -> Flow {
        for index in 0..plan.subscribers {
            let filters = match plan.topology {
                Topology::OneToOne => vec![format!("bench/{run}/{index}")],
                Topology::FanOut => vec![format!("bench/{run}")],
                Topology::FanIn => vec![format!("bench/{run}/#")],
                Topology::Wildcards => (index..plan.filters)
                    .step_by(plan.subscribers)
                    .map(|number| wildcards::filter(run, number))
                    .collect(),
            };
            let with_qos = |filter| (filter, plan.qos);
            engine.add(Identity {
                speech: Speech::Mqtt,
                client_id: format!("bench-{run}-s{index}"),
                version: plan.version,
                durable: plan.durable,
                filters: filters.into_iter().map(with_qos).collect(),
            });
        }
        let copies = match plan.topology {
            Topology::OneToOne | Topology::Wildcards => 1,
            Topology::FanOut | Topology::FanIn => plan.subscribers as u64,
        };
        Flow {
            payload: vec![b'p'; plan.payload_bytes],
            plan,
            publishers: Vec::new(),
            copies,
            epoch: Instant::now(),
            latency: Latencies::default(),
            delivered: 0,
            published: 0,
            missing: 0,
        }
    }

    /// Adds the publishers, once the subscribers are ready.
    pub fn add_publishers(&mut self, engine: &mut Engine, run: &str) {
        for index in 0..self.plan.publishers {
            let topics = match self.plan.topology {
                Topology::OneToOne => {
                    vec![format!("bench/{run}/{}", index % self.plan.subscribers)]
                }
                Topology::FanOut => vec![format!("bench/{run}")],
                Topology::FanIn => vec![format!("bench/{run}/{index}")],
                Topology::Wildcards => (0..self.plan.filters)
                    .cycle()
                    .skip(index)
                    .step_by(self.plan.publishers)
                    .take(self.plan.filters.div_ceil(self.plan.publishers))
                    .map(|number| wildcards::topic(run, number))
                    .collect(),
            };
            let link = engine.add(Identity {
                speech: Speech::Mqtt,
                client_id: format!("bench-{run}-p{index}"),
                version: self.plan.version,
                durable: false,
                filters: Vec::new(),
            });
            self.publishers.push(Publisher {
                link,
                topics,
                next: 0,
                packet_id: NonZeroU16::MIN,
                published: 0,
                acknowledged: 0,
                delivered: 0,
                last_delivery: Instant::now(),
            });
        }
    }

    /// Starts to measure anew.
    pub fn reset(&mut self) {
        self.latency.clear();
        self.delivered = 0;
        self.published = 0;
        self.missing = 0;
    }

    /// Lets every publisher send what its window and its lag allow. Returns whether one of them could send more.
    fn publish(&mut self, engine: &mut Engine) -> Result<bool, BenchError> {
        let mut more = false;
        let at_most_once = self.plan.qos == QoS::AtMostOnce;
        for (index, publisher) in self.publishers.iter_mut().enumerate() {
            let ahead = publisher.published * self.copies - publisher.delivered;
            let by_lag = self.plan.lag.saturating_sub(ahead.div_ceil(self.copies));
            let unacknowledged = publisher.published - publisher.acknowledged;
            let by_window = match at_most_once {
                true => u64::MAX,
                false => self.plan.window.saturating_sub(unacknowledged),
            };
            let credit = by_lag.min(by_window);
            let link = engine.link(publisher.link);
            if credit == 0 || link.unsent_bytes() >= MAX_UNSENT_BYTES {
                continue;
            }
            let now = Instant::now();
            if ahead == 0 {
                publisher.last_delivery = now;
            }
            let sent_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
            self.payload[..8].copy_from_slice(&sent_ns.to_be_bytes());
            self.payload[8..16].copy_from_slice(&(index as u64).to_be_bytes());
            let output = link.output();
            let mut sent = 0;
            while sent < credit.min(BATCH_MESSAGES) && output.len() < MAX_UNSENT_BYTES {
                let delivery = PublishHeader {
                    qos: self.plan.qos,
                    packet_id: (!at_most_once).then_some(publisher.packet_id),
                    ..PublishHeader::plain(self.plan.version)
                };
                let topic = &publisher.topics[publisher.next];
                encode_publish(output, topic, &[], &self.payload, &delivery)?;
                publisher.next = (publisher.next + 1) % publisher.topics.len();
                publisher.packet_id = publisher
                    .packet_id
                    .checked_add(1)
                    .unwrap_or(NonZeroU16::MIN);
                sent += 1;
            }
            publisher.published += sent;
            self.published += sent;
            more |= sent < credit;
            engine.mark_dirty(publisher.link);
        }
        Ok(more)
    }

    /// Writes off what did not arrive for a while, so that a lossy server does not stop a publisher for good.
    fn write_off(&mut self, now: Instant) {
        let lost_after = if self.plan.durable && self.plan.qos != QoS::AtMostOnce {
            DURABLE_LOST_AFTER
        } else {
            LOST_AFTER
        };
        for publisher in &mut self.publishers {
            let expected = publisher.published * self.copies;
            let silent = now.saturating_duration_since(publisher.last_delivery) >= lost_after;
            if silent && publisher.delivered < expected {
                self.missing += expected - publisher.delivered;
                publisher.delivered = expected;
                publisher.acknowledged = publisher.published;
                publisher.last_delivery = now;
            }
        }
    }

    fn acknowledge(&mut self, link: usize) {
        let first = self.plan.subscribers;
        if let Some(publisher) = link
            .checked_sub(first)
            .and_then(|index| self.publishers.get_mut(index))
        {
            publisher.acknowledged = (publisher.acknowledged + 1).min(publisher.published);
        }
    }

    fn arrived(&mut self, payload: &[u8], now: Instant) {
        let number = |range: std::ops::Range<usize>| {
            let bytes = payload.get(range)?.try_into().ok()?;
            Some(u64::from_be_bytes(bytes))
        };
        let (Some(sent_ns), Some(index)) = (number(0..8), number(8..16)) else {
            return;
        };
        let Some(publisher) = usize::try_from(index)
            .ok()
            .and_then(|index| self.publishers.get_mut(index))
        else {
            return;
        };
        publisher.delivered = (publisher.delivered + 1).min(publisher.published * self.copies);
        self.delivered += 1;
        publisher.last_delivery = now;
        let at = now.saturating_duration_since(self.epoch);
        self.latency
            .record(at.saturating_sub(Duration::from_nanos(sent_ns)));
    }
}

impl Workload for Flow {
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
        let (version, limits) = (self.plan.version, PeerLimits::NONE);
        match packet {
            Packet::Publish(publish) => {
                match (publish.qos, publish.packet_id) {
                    (QoS::AtLeastOnce, Some(id)) => {
                        encode::puback(output, version, &Ack::success(id), limits)?;
                    }
                    (QoS::ExactlyOnce, Some(id)) => {
                        encode::pubrec(output, version, &Ack::success(id), limits)?;
                    }
                    _ => {}
                }
                self.arrived(publish.payload, now);
            }
            Packet::PubAck(_) | Packet::PubComp(_) => self.acknowledge(link),
            Packet::PubRec(ack) => {
                encode::pubrel(output, version, &Ack::success(ack.packet_id), limits)?;
            }
            Packet::PubRel(ack) => {
                encode::pubcomp(output, version, &Ack::success(ack.packet_id), limits)?;
            }
            Packet::Disconnect(packet) => return Err(BenchError::Refused(packet.reason)),
            _ => {}
        }
        Ok(())
    }
}

/// Runs the engine until a time.
///
/// # Errors
/// Exit code 69 when a connection is lost.
pub fn drive(engine: &mut Engine, flow: &mut Flow, until: Instant) -> Result<(), Failure> {
    let lost = |error| Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"));
    loop {
        let now = Instant::now();
        if now >= until {
            return Ok(());
        }
        let more = flow.publish(engine).map_err(Failure::failed)?;
        let limit = if more {
            Duration::ZERO
        } else {
            Duration::from_millis(5)
        };
        engine.turn(flow, limit).map_err(lost)?;
        flow.write_off(now);
    }
}
