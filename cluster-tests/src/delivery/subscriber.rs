//! One durable subscriber. It subscribes once, acknowledges late and in order, and records every packet.

use super::failover_client::FailoverClient;
use super::signals::{Signals, SubscriberSignals};
use crate::connection::{Connection, Fault};
use crate::random::Random;
use crate::record::Label;
use crate::record::{Arrival, Event, Interest, SubscriberRecord};
use crate::wire::{self, Connect, Packet, Properties, Publish, V5, Value, id};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Silence after which the node is pinged.
const PING_AFTER: Duration = Duration::from_millis(500);

/// Silence after which the node is given up.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// An acknowledgement that is due.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Puback(u16),
    Pubrec(u16),
    Pubcomp(u16),
}

pub(super) struct Subscriber {
    pub nodes: FailoverClient,
    /// Prefix of all topics.
    pub prefix: String,
    /// How often it leaves its connection, per thousand messages.
    pub cuts: u64,
    pub random: Random,
    pub record: Arc<Mutex<SubscriberRecord>>,
    pub own_signals: Arc<SubscriberSignals>,
    pub signals: Arc<Signals>,
    pub owed: VecDeque<Answer>,
}

enum End {
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
        let signals = self.signals.clone();
        let mut away = away;
        while let Some((mut connection, connack)) =
            self.nodes.connect(&connect, &signals.subscribers_abandon)
        {
            let unanswered = self.nodes.unanswered;
            if !self.own_signals.subscribed.load(Ordering::Relaxed) {
                self.with(|record| record.first_uncertain = unanswered);
            }
            self.log(Event::Connected {
                present: connack.session_present,
            });
            self.own_signals
                .node
                .store(self.nodes.node(), Ordering::Relaxed);
            // Acknowledgements that were due on another connection are not sent on this one: the broker repeats its
            // packet.
            self.owed.clear();
            let end = self.serve(&mut connection, away);
            if matches!(end, End::Finished) {
                connection.disconnect();
                self.own_signals.ended.store(true, Ordering::Relaxed);
                return;
            }
            match end {
                End::Cut => self.nodes.cut(connection, &mut self.random),
                _ => drop(connection),
            }
            self.log(Event::Cut);
            match end {
                End::Away => {
                    away = false;
                    self.wait_for_wake();
                }
                End::Cut if self.random.chance(50) => {}
                _ => self.nodes.fail_over(),
            }
        }
    }

    fn wait_for_wake(&self) {
        let woken = || {
            self.own_signals.wake.load(Ordering::Relaxed)
                || self.signals.subscribers_abandon.load(Ordering::Relaxed)
        };
        while !woken() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn with<T>(&self, look: impl FnOnce(&mut SubscriberRecord) -> T) -> T {
        look(&mut self.record.lock().expect("no holder of the lock panics"))
    }

    fn log(&self, event: Event) {
        let at = self.signals.now();
        self.with(|record| record.events.push((at, event)));
    }

    fn serve(&mut self, connection: &mut Connection, away: bool) -> End {
        match self.talk(connection, away) {
            Ok(end) => end,
            Err(Fault::Wrong(why)) => {
                self.log(Event::ProtocolError(why));
                End::Failed
            }
            Err(_) => End::Failed,
        }
    }

    fn talk(&mut self, connection: &mut Connection, away: bool) -> Result<End, Fault> {
        if !self.own_signals.subscribed.load(Ordering::Relaxed) {
            self.subscribe(connection)?;
        }
        if away {
            return Ok(End::Away);
        }
        let mut heard = Instant::now();
        let mut pinged = false;
        loop {
            match connection.receive(Duration::from_millis(5)) {
                Ok(packet) => {
                    (heard, pinged) = (Instant::now(), false);
                    let is_publish = matches!(packet, Packet::Publish(_));
                    if !self.hear(packet) {
                        return Ok(End::Failed);
                    }
                    if is_publish && self.random.below(1000) < self.cuts {
                        return Ok(End::Cut);
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
                    if silence > TIMEOUT {
                        return Ok(End::Failed);
                    }
                    if silence > PING_AFTER && !pinged {
                        connection.try_send(&wire::PINGREQ)?;
                        pinged = true;
                    }
                    if self.own_signals.end.load(Ordering::Relaxed) {
                        return Ok(End::Finished);
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
        match connection.receive(TIMEOUT)? {
            Packet::Suback(suback) if suback.packet_id == 1 && suback.codes == [qos] => {
                self.own_signals.subscribed.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => Err(Fault::Wrong(format!("SUBSCRIBE {filter}: {other:?}"))),
        }
    }

    /// Takes a packet. False for a DISCONNECT.
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
            other => self.log(Event::ProtocolError(format!(
                "a subscriber was sent {other:?}"
            ))),
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

    /// Sends the oldest acknowledgement that is due. It is recorded first, because packets that the broker sends after
    /// it must be recorded after it.
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
