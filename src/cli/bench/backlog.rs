//! A durable session's backlog: filled while its client is away, then drained by one connection.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use super::engine::{BenchError, Engine, Workload};
use super::link::Identity;
use crate::cli::exit::{Exit, Failure};
use crate::mqtt::codec::client::Packet;
use crate::mqtt::codec::{Ack, Delivery, PeerLimits, QoS, Version, encode, encode_publish};

/// Publishers that fill the queue.
const PUBLISHERS: usize = 8;
/// Unacknowledged messages of each.
const WINDOW: u64 = 64;
/// Silence after which the run is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long filling and draining took.
pub struct Times {
    /// First PUBLISH to last PUBACK.
    pub filling: Duration,
    /// CONNECT to the last message.
    pub draining: Duration,
}

struct Backlog {
    published: u64,
    acknowledged: [u64; PUBLISHERS],
    sent: [u64; PUBLISHERS],
    arrived: u64,
    last: Instant,
}

impl Workload for Backlog {
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
                    encode::puback(output, Version::V5, &Ack::success(id), PeerLimits::NONE)?;
                }
                self.arrived += 1;
            }
            Packet::PubAck(_) => {
                if let Some(acknowledged) = self.acknowledged.get_mut(link.wrapping_sub(1)) {
                    *acknowledged += 1;
                }
            }
            Packet::Disconnect(packet) => return Err(BenchError::Refused(packet.reason)),
            _ => {}
        }
        Ok(())
    }
}

impl Backlog {
    fn fill(
        &mut self,
        engine: &mut Engine,
        topic: &str,
        payload: &[u8],
        messages: u64,
    ) -> Result<(), BenchError> {
        for index in 0..PUBLISHERS {
            while self.published < messages && self.sent[index] - self.acknowledged[index] < WINDOW
            {
                // Ids go round far above the window.
                let id = (self.sent[index] % 60_000) as u16 + 1;
                let delivery = Delivery {
                    qos: QoS::AtLeastOnce,
                    packet_id: NonZeroU16::new(id),
                    ..Delivery::plain(Version::V5)
                };
                let output = engine.link(index + 1).output();
                encode_publish(output, topic, &[], payload, &delivery)?;
                engine.touch(index + 1);
                self.sent[index] += 1;
                self.published += 1;
            }
        }
        Ok(())
    }

    fn turn(&mut self, engine: &mut Engine) -> Result<(), Failure> {
        let lost =
            |error| Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"));
        engine.turn(self, Duration::from_millis(5)).map_err(lost)?;
        if self.last.elapsed() > PATIENCE {
            let message = format!(
                "nothing came for {} s; {} messages have arrived",
                PATIENCE.as_secs(),
                self.arrived
            );
            return Err(Failure::failed(message));
        }
        Ok(())
    }
}

/// Fills the queue of a session that is away with `messages`, then drains it. The servers must allow queues of that length
/// (`mqtt.queue_max_messages`).
///
/// # Errors
/// Exit code 69 when a connection is lost, 1 when messages do not arrive.
pub fn run(
    servers: &[SocketAddr],
    messages: u64,
    payload_bytes: usize,
    id: &str,
) -> Result<Times, Failure> {
    let topic = format!("bench/{id}");
    let mut engine = Engine::new()?;
    let identity = |name: String, filters| Identity {
        client_id: format!("bench-{id}-{name}"),
        version: Version::V5,
        durable: true,
        filters,
    };
    let subscriber = engine.add(identity(
        "s".into(),
        vec![(topic.clone(), QoS::AtLeastOnce)],
    ));
    let mut backlog = Backlog {
        published: 0,
        acknowledged: [0; PUBLISHERS],
        sent: [0; PUBLISHERS],
        arrived: 0,
        last: Instant::now(),
    };
    let limit = Duration::from_secs(30);
    engine.open_all(0, servers, &mut backlog, limit)?;
    engine.close(subscriber);
    for index in 0..PUBLISHERS {
        engine.add(Identity {
            durable: false,
            ..identity(format!("p{index}"), Vec::new())
        });
    }
    engine.open_all(1, servers, &mut backlog, limit)?;
    let payload = vec![b'p'; payload_bytes];
    let begin = Instant::now();
    backlog.last = begin;
    while backlog.acknowledged.iter().sum::<u64>() < messages {
        backlog
            .fill(&mut engine, &topic, &payload, messages)
            .map_err(Failure::failed)?;
        backlog.turn(&mut engine)?;
    }
    let filling = begin.elapsed();
    backlog.arrived = 0;
    let begin = Instant::now();
    backlog.last = begin;
    // The session is there: nothing is subscribed to again.
    engine.rename(subscriber, identity("s".into(), Vec::new()));
    engine
        .open(subscriber, servers[0])
        .map_err(Failure::failed)?;
    while backlog.arrived < messages {
        backlog.turn(&mut engine)?;
    }
    Ok(Times {
        filling,
        draining: begin.elapsed(),
    })
}
