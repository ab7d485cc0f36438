//! One durable subscriber: subscribes once in its life, acknowledges late and in order, and writes down every packet.

use super::hopper::Hopper;
use super::label::Label;
use super::load::Flags;
use super::record::{Arrival, Event, Interest, SubscriberRecord};
use crate::connection::{Connection, Fault};
use crate::random::Random;
use crate::wire::{self, Connect, Packet, Properties, Publish, V5, Value, id};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Silence after which the node is pinged.
const PING_AFTER: Duration = Duration::from_millis(500);

/// Silence after which the node is given up.
const PATIENCE: Duration = Duration::from_millis(2500);

/// What is owed to the broker.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Puback(u16),
    Pubrec(u16),
    Pubcomp(u16),
}

/// What the load tells one subscriber, and asks of it.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Its subscription is acknowledged.
    pub subscribed: AtomicBool,
    /// One that is away comes back.
    pub wake: AtomicBool,
    /// Everything is acknowledged; it leaves.
    pub end: AtomicBool,
    pub ended: AtomicBool,
    /// Index of the node that it is connected to.
    pub node: AtomicUsize,
}

pub(super) struct Subscriber {
    pub hopper: Hopper,
    /// Of all topics.
    pub prefix: String,
    /// Cuts its connection that often, of a thousand messages.
    pub cuts: u64,
    pub random: Random,
    pub record: Arc<Mutex<SubscriberRecord>>,
    pub line: Arc<Line>,
    pub flags: Arc<Flags>,
    pub owed: VecDeque<Answer>,
}

enum Left {
    Finished,
    Away,
    Failed,
    Cut,
}

impl Subscriber {
    pub fn run(mut self) {
        let (connect, away) = self.with(|record| {
            let shape = &record.shape;
            let mut connect = Connect::at(&shape.client_id, shape.level).durable(3600);
            if shape.level == V5 {
                let maximum = Value::TwoBytes(shape.receive_maximum);
                connect = connect.with(id::RECEIVE_MAXIMUM, maximum);
            }
            (connect, shape.away)
        });
        let flags = self.flags.clone();
        let mut away = away;
        while let Some((mut connection, connack)) =
            self.hopper.connect(&connect, &flags.subscribers_abandon)
        {
            let unanswered = self.hopper.unanswered;
            if !self.line.subscribed.load(Ordering::Relaxed) {
                self.with(|record| record.first_uncertain = unanswered);
            }
            self.log(Event::Connected {
                present: connack.session_present,
            });
            self.line.node.store(self.hopper.node(), Ordering::Relaxed);
            // What was owed on another connection is not sent on this one: the broker asks again.
            self.owed.clear();
            let left = self.serve(&mut connection, away);
            if matches!(left, Left::Finished) {
                connection.disconnect();
                self.line.ended.store(true, Ordering::Relaxed);
                return;
            }
            drop(connection);
            self.log(Event::Cut);
            match left {
                Left::Away => {
                    away = false;
                    self.wait_for_wake();
                }
                Left::Cut if self.random.chance(50) => {}
                _ => self.hopper.hop(),
            }
        }
    }

    fn wait_for_wake(&self) {
        let woken = || {
            self.line.wake.load(Ordering::Relaxed)
                || self.flags.subscribers_abandon.load(Ordering::Relaxed)
        };
        while !woken() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut SubscriberRecord) -> T) -> T {
        look(&mut self.record.lock().expect("no holder of the lock panics"))
    }

    fn log(&self, event: Event) {
        let at = self.flags.now();
        self.with(|record| record.events.push((at, event)));
    }

    fn serve(&mut self, connection: &mut Connection, away: bool) -> Left {
        match self.talk(connection, away) {
            Ok(left) => left,
            Err(Fault::Wrong(why)) => {
                self.log(Event::Odd(why));
                Left::Failed
            }
            Err(_) => Left::Failed,
        }
    }

    fn talk(&mut self, connection: &mut Connection, away: bool) -> Result<Left, Fault> {
        if !self.line.subscribed.load(Ordering::Relaxed) {
            self.subscribe(connection)?;
        }
        if away {
            return Ok(Left::Away);
        }
        let mut heard = Instant::now();
        let mut pinged = false;
        loop {
            match connection.receive(Duration::from_millis(5)) {
                Ok(packet) => {
                    (heard, pinged) = (Instant::now(), false);
                    let is_publish = matches!(packet, Packet::Publish(_));
                    if !self.hear(packet) {
                        return Ok(Left::Failed);
                    }
                    if is_publish && self.random.below(1000) < self.cuts {
                        return Ok(Left::Cut);
                    }
                    // Answers pile up to a random number below the receive maximum.
                    while self.owed.len() as u64 > self.random.below(8) {
                        self.answer(connection)?;
                    }
                }
                Err(Fault::Timeout) => {
                    while !self.owed.is_empty() {
                        self.answer(connection)?;
                    }
                    let silence = heard.elapsed();
                    if silence > PATIENCE {
                        return Ok(Left::Failed);
                    }
                    if silence > PING_AFTER && !pinged {
                        connection.try_send(&wire::PINGREQ)?;
                        pinged = true;
                    }
                    if self.line.end.load(Ordering::Relaxed) {
                        return Ok(Left::Finished);
                    }
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    fn subscribe(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        let (level, filter, qos, list) = self.with(|record| {
            let shape = &record.shape;
            let topics = match shape.interest {
                Interest::Everything => "#".to_owned(),
                Interest::Topic(topic) => format!("t{topic}"),
            };
            let filter = match &shape.group {
                Some(group) => format!("$share/{group}/{}/{topics}", self.prefix),
                None => format!("{}/{topics}", self.prefix),
            };
            let mut list = Properties::new();
            if let Some(number) = record.identifier {
                list = list.with(id::SUBSCRIPTION_IDENTIFIER, Value::Varint(number));
            }
            (shape.level, filter, shape.qos, list)
        });
        connection.try_send(&wire::subscribe(level, 1, &list, &[(&filter, qos)]))?;
        match connection.receive(PATIENCE)? {
            Packet::Suback(suback) if suback.packet_id == 1 && suback.codes == [qos] => {
                self.line.subscribed.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => Err(Fault::Wrong(format!("SUBSCRIBE {filter}: {other:?}"))),
        }
    }

    /// False when the broker has said good-bye.
    fn hear(&mut self, packet: Packet) -> bool {
        match packet {
            Packet::Publish(publish) => {
                let (qos, packet_id) = (publish.qos, publish.packet_id);
                let arrival = self.arrival(publish);
                self.log(Event::Publish(arrival));
                match qos {
                    0 => {}
                    1 => self.owed.push_back(Answer::Puback(packet_id)),
                    _ => self.owed.push_back(Answer::Pubrec(packet_id)),
                }
            }
            Packet::Pubrel(ack) => {
                self.log(Event::Pubrel {
                    packet_id: ack.packet_id,
                });
                self.owed.push_back(Answer::Pubcomp(ack.packet_id));
            }
            Packet::Pingresp => {}
            Packet::Disconnect(_) => return false,
            other => self.log(Event::Odd(format!("a subscriber was sent {other:?}"))),
        }
        true
    }

    fn arrival(&self, publish: Publish) -> Arrival {
        let inside = publish
            .topic
            .strip_prefix(&self.prefix)
            .and_then(|rest| rest.strip_prefix('/'));
        Arrival {
            packet_id: publish.packet_id,
            duplicate: publish.duplicate,
            qos: publish.qos,
            retain: publish.retain,
            topic: inside.unwrap_or(&publish.topic).to_owned(),
            label: Label::parse(&publish.payload),
            identifiers: publish.properties.subscription_identifiers(),
        }
    }

    /// Sends the oldest answer that is owed. It is written down first: what follows it on the wire counts as after it.
    fn answer(&mut self, connection: &mut Connection) -> Result<(), Fault> {
        let Some(answer) = self.owed.pop_front() else {
            return Ok(());
        };
        let (header, packet_id, event) = match answer {
            Answer::Puback(packet_id) => (wire::PUBACK, packet_id, Event::SentPuback { packet_id }),
            Answer::Pubrec(packet_id) => (wire::PUBREC, packet_id, Event::SentPubrec { packet_id }),
            Answer::Pubcomp(packet_id) => {
                (wire::PUBCOMP, packet_id, Event::SentPubcomp { packet_id })
            }
        };
        self.log(event);
        connection.try_send(&wire::acknowledgement(header, packet_id))
    }
}
