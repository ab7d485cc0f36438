//! One publisher. Its session outlives its connections, and several messages are in flight at once.
//!
//! Invariant: after a reconnect it sends again whatever is not acknowledged, as the standard asks [MQTT-4.4.0-1].

use super::failover_client::FailoverClient;
use super::signals::Signals;
use crate::connection::{Connection, Fault};
use crate::random::Random;
use crate::record::Label;
use crate::record::{At, PublisherRecord, Sent};
use crate::wire::{self, Ack, Connect, Message, Packet, V5};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a node may leave everything unanswered before the publisher moves on.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// How a publisher behaves.
#[derive(Debug, Clone)]
pub struct PublisherShape {
    pub client_id: String,
    /// Its number in labels.
    pub number: usize,
    /// Topics are `{prefix}/t{topic}`.
    pub prefix: String,
    pub topics: usize,
    /// Messages in flight at most.
    pub window: usize,
    /// Between two messages.
    pub pause: Duration,
    /// How often it leaves its connection, per thousand messages.
    pub cuts: u64,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// PUBLISH sent.
    Published,
    /// PUBREC received; PUBREL not sent on this connection.
    Received,
    /// PUBREL sent.
    Released,
}

struct InFlight {
    packet_id: u16,
    /// Index in the record.
    message: usize,
    stage: Stage,
}

/// Why a connection ends.
enum End {
    /// Nothing is in flight and nothing more is wanted.
    Finished,
    /// The node does not serve.
    Failed,
    /// The publisher leaves it, because a random number said so.
    Cut,
}

pub(super) struct Publisher {
    pub shape: PublisherShape,
    pub nodes: FailoverClient,
    pub record: Arc<Mutex<PublisherRecord>>,
    pub signals: Arc<Signals>,
    random: Random,
    in_flight: VecDeque<InFlight>,
    next_packet_id: u16,
    sequences: BTreeMap<(usize, u8), u32>,
    next: Instant,
}

impl Publisher {
    pub fn new(
        shape: PublisherShape,
        nodes: FailoverClient,
        record: Arc<Mutex<PublisherRecord>>,
        signals: Arc<Signals>,
    ) -> Self {
        Self {
            random: Random::new(shape.seed),
            shape,
            nodes,
            record,
            signals,
            in_flight: VecDeque::new(),
            next_packet_id: 0,
            sequences: BTreeMap::new(),
            next: Instant::now(),
        }
    }

    /// Publishes until it is told to end, then until nothing is in flight.
    pub fn run(mut self) {
        let connect = Connect::v5(&self.shape.client_id).durable(3600);
        let signals = self.signals.clone();
        while let Some((mut connection, connack)) =
            self.nodes.connect(&connect, &signals.publishers_abandon)
        {
            let resumed = self.connected(connack.session_present);
            match self.serve(&mut connection, resumed) {
                End::Finished => {
                    connection.disconnect();
                    return;
                }
                End::Failed => self.nodes.fail_over(),
                End::Cut => {
                    self.nodes.cut(connection, &mut self.random);
                    if self.random.chance(50) {
                        self.nodes.fail_over();
                    }
                }
            }
        }
        for flight in &self.in_flight {
            let label = self.record(|record| record.messages[flight.message].label);
            let (stage, packet_id) = (flight.stage, flight.packet_id);
            self.protocol_error(format!(
                "{label}, packet id {packet_id}, got no answer: {stage:?}"
            ));
        }
    }

    fn record<T>(&self, write: impl FnOnce(&mut PublisherRecord) -> T) -> T {
        write(&mut self.record.lock().expect("no holder of the lock panics"))
    }

    fn now(&self) -> At {
        self.signals.now()
    }

    fn connected(&self, present: bool) -> bool {
        let unanswered = self.nodes.unanswered;
        self.record(|record| {
            if record.present.is_empty() {
                record.first_uncertain = unanswered;
            }
            record.present.push(present);
        });
        present
    }

    fn serve(&mut self, connection: &mut Connection, resumed: bool) -> End {
        match self.talk(connection, resumed) {
            Ok(end) => end,
            Err(Fault::Wrong(why)) => {
                self.record(|record| record.protocol_errors.push(why));
                End::Failed
            }
            Err(_) => End::Failed,
        }
    }

    fn talk(&mut self, connection: &mut Connection, resumed: bool) -> Result<End, Fault> {
        self.send_again(connection, resumed)?;
        let mut heard = Instant::now();
        loop {
            let ending = self.signals.publishers_end.load(Ordering::Relaxed);
            if self.signals.publishers_abandon.load(Ordering::Relaxed) {
                return Ok(End::Failed);
            }
            if ending && self.in_flight.is_empty() {
                return Ok(End::Finished);
            }
            let may_send = !ending && self.in_flight.len() < self.shape.window;
            if may_send && Instant::now() >= self.next {
                self.send_next(connection)?;
                self.next = Instant::now() + self.shape.pause;
                if self.random.below(1000) < self.shape.cuts {
                    return Ok(End::Cut);
                }
            }
            if self.in_flight.is_empty() {
                heard = Instant::now();
            }
            // PUBRELs are sometimes delayed, so that a fault meets every state.
            let delays_pubrel = self.random.chance(20);
            if !delays_pubrel {
                self.release(connection)?;
            }
            let wait = self
                .next
                .saturating_duration_since(Instant::now())
                .clamp(Duration::from_millis(1), Duration::from_millis(5));
            match connection.receive(wait) {
                Ok(packet) => {
                    heard = Instant::now();
                    if !self.hear(packet) {
                        return Ok(End::Failed);
                    }
                }
                Err(Fault::Timeout) if heard.elapsed() < TIMEOUT => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// All that is in flight, in its order, with its packet ids.
    fn send_again(&mut self, connection: &mut Connection, resumed: bool) -> Result<(), Fault> {
        if !resumed {
            // A lost session is a violation that is found elsewhere. The publisher goes on as a client would.
            self.in_flight
                .retain(|flight| flight.stage == Stage::Published);
        }
        for index in 0..self.in_flight.len() {
            let flight = &mut self.in_flight[index];
            if flight.stage == Stage::Published {
                let (packet_id, message) = (flight.packet_id, flight.message);
                self.send_publish(connection, message, packet_id, resumed)?;
            } else {
                flight.stage = Stage::Released;
                let bytes = wire::acknowledgement(wire::PUBREL, flight.packet_id);
                connection.try_send(&bytes)?;
            }
        }
        Ok(())
    }

    /// Publishes a new message; topic and QoS are random.
    fn send_next(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        let topic = self.random.below(self.shape.topics as u64) as usize;
        let qos = if self.random.chance(50) { 2 } else { 1 };
        let sequence = self.sequences.entry((topic, qos)).or_insert(0);
        let label = Label {
            publisher: self.shape.number,
            topic,
            qos,
            sequence: *sequence,
        };
        *sequence += 1;
        let sent = self.now();
        let message = self.record(|record| {
            record.messages.push(Sent {
                label,
                sent,
                attempts: 0,
                accepted: None,
                refused: None,
            });
            record.messages.len() - 1
        });
        let packet_id = self.free_packet_id();
        self.in_flight.push_back(InFlight {
            packet_id,
            message,
            stage: Stage::Published,
        });
        self.send_publish(connection, message, packet_id, false)
    }

    fn free_packet_id(&mut self) -> u16 {
        loop {
            self.next_packet_id = self.next_packet_id.checked_add(1).unwrap_or(1);
            let used = |flight: &InFlight| flight.packet_id == self.next_packet_id;
            if !self.in_flight.iter().any(used) {
                return self.next_packet_id;
            }
        }
    }

    fn send_publish(
        &mut self,
        connection: &mut Connection,
        message: usize,
        packet_id: u16,
        duplicate: bool,
    ) -> Result<(), Fault> {
        let label = self.record(|record| {
            record.messages[message].attempts += 1;
            record.messages[message].label
        });
        let topic = format!("{}/t{}", self.shape.prefix, label.topic);
        let mut publish = Message::new(&topic, label.payload()).qos(label.qos, packet_id);
        publish.duplicate = duplicate;
        connection.try_send(&publish.bytes(V5))
    }

    /// PUBRELs of what was received, in that order [MQTT-4.6.0-4].
    fn release(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        for flight in &mut self.in_flight {
            if flight.stage == Stage::Received {
                flight.stage = Stage::Released;
                connection.try_send(&wire::acknowledgement(wire::PUBREL, flight.packet_id))?;
            }
        }
        Ok(())
    }

    /// Takes a packet. False for a DISCONNECT.
    fn hear(&mut self, packet: Packet) -> bool {
        match packet {
            Packet::Puback(ack) => self.acknowledged(&ack, 1),
            Packet::Pubrec(ack) => self.acknowledged(&ack, 2),
            Packet::Pubcomp(ack) => self.completed(&ack),
            Packet::Disconnect(_) => return false,
            other => self.protocol_error(format!("a publisher was sent {other:?}")),
        }
        true
    }

    fn protocol_error(&self, what: String) {
        self.record(|record| record.protocol_errors.push(what));
    }

    fn position(&self, packet_id: u16) -> Option<usize> {
        self.in_flight
            .iter()
            .position(|flight| flight.packet_id == packet_id)
    }

    /// PUBACK (`qos` 1) or PUBREC (2).
    fn acknowledged(&mut self, ack: &Ack, qos: u8) {
        let Some(position) = self.position(ack.packet_id) else {
            return self.protocol_error(format!(
                "packet id {} is acknowledged and not in use",
                ack.packet_id
            ));
        };
        let flight = &mut self.in_flight[position];
        let (message, again) = (flight.message, flight.stage != Stage::Published);
        let now = self.signals.now();
        let label = self.record(|record| record.messages[message].label);
        if label.qos != qos || again {
            return self.protocol_error(format!(
                "{label} got {ack:?} for QoS {qos}, in answer to {}",
                if again { "a PUBREL" } else { "its PUBLISH" }
            ));
        }
        if ack.code >= 0x80 {
            self.record(|record| record.messages[message].refused = Some(ack.code));
            self.in_flight.remove(position);
            return;
        }
        self.record(|record| record.messages[message].accepted = Some(now));
        self.signals.accepted.fetch_add(1, Ordering::Relaxed);
        if qos == 1 {
            self.in_flight.remove(position);
        } else {
            self.in_flight[position].stage = Stage::Received;
        }
    }

    fn completed(&mut self, ack: &Ack) {
        match self.position(ack.packet_id) {
            Some(position) if self.in_flight[position].stage == Stage::Released => {
                self.in_flight.remove(position);
            }
            _ => self.protocol_error(format!("{ack:?} is a PUBCOMP without a PUBREL")),
        }
    }
}
