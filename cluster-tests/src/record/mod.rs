//! What the clients of a load of messages record: [`crate::delivery`] writes it, [`crate::check`] judges it.

mod label;

pub use label::Label;

use std::collections::BTreeSet;

/// Milliseconds since the load began.
pub type At = u64;

/// What one publisher sent, and how it was answered.
#[derive(Debug, Clone, Default)]
pub struct PublisherRecord {
    pub client_id: String,
    pub messages: Vec<Sent>,
    /// `session present` of every connection, in order.
    pub present: Vec<bool>,
    /// A CONNECT went unanswered before the first CONNACK came, so that the session may have existed already.
    pub first_uncertain: bool,
    /// Acknowledgements that the standard does not allow, in words.
    pub protocol_errors: Vec<String>,
}

/// One message.
#[derive(Debug, Clone)]
pub struct Sent {
    pub label: Label,
    pub sent: At,
    /// How often its PUBLISH was sent.
    pub attempts: u32,
    /// When its PUBACK or PUBREC came.
    pub accepted: Option<At>,
    /// The code of 0x80 or more that refused it.
    pub refused: Option<u8>,
}

/// What a subscriber subscribes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Everything,
    Topic(usize),
}

impl Interest {
    pub fn covers(self, topic: usize) -> bool {
        match self {
            Self::Everything => true,
            Self::Topic(wanted) => wanted == topic,
        }
    }
}

/// What a subscriber is like.
#[derive(Debug, Clone)]
pub struct SubscriberShape {
    pub client_id: String,
    /// Protocol level.
    pub level: u8,
    pub interest: Interest,
    /// The QoS of its subscription.
    pub qos: u8,
    /// The shared subscription's name.
    pub group: Option<String>,
    /// Announced by MQTT 5 clients only.
    pub receive_maximum: u16,
    /// Subscribes, leaves, and comes back when the publishers have ended.
    pub away: bool,
}

impl SubscriberShape {
    /// MQTT 5, everything, QoS 2, receive maximum 16.
    pub fn new(client_id: impl Into<String>) -> Self {
        Self {
            client_id: client_id.into(),
            level: crate::wire::V5,
            interest: Interest::Everything,
            qos: 2,
            group: None,
            receive_maximum: 16,
            away: false,
        }
    }

    /// How many messages may be unacknowledged at once.
    pub fn window(&self) -> usize {
        if self.level == crate::wire::V5 {
            usize::from(self.receive_maximum)
        } else {
            usize::from(u16::MAX)
        }
    }
}

/// What happened at a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A CONNACK with code 0.
    Connected {
        present: bool,
    },
    Publish(Arrival),
    Pubrel {
        packet_id: u16,
    },
    SentPuback {
        packet_id: u16,
    },
    SentPubrec {
        packet_id: u16,
    },
    SentPubcomp {
        packet_id: u16,
    },
    /// The connection ended; either side may have ended it.
    Cut,
    /// Something the standard does not allow, in words.
    ProtocolError(String),
}

/// A PUBLISH at a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    pub packet_id: u16,
    pub duplicate: bool,
    pub qos: u8,
    pub retain: bool,
    /// The name after the load's own prefix; the whole name where that is missing.
    pub topic: String,
    /// `None` for a payload that no publisher makes.
    pub label: Option<Label>,
    pub identifiers: Vec<u32>,
}

/// What one subscriber saw.
#[derive(Debug, Clone)]
pub struct SubscriberRecord {
    pub shape: SubscriberShape,
    /// The identifier of its subscription; MQTT 5 only.
    pub identifier: Option<u32>,
    /// A CONNECT went unanswered before the first CONNACK came.
    pub first_uncertain: bool,
    pub events: Vec<(At, Event)>,
}

/// An application message, after de-duplication.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    pub at: At,
    /// Index of its PUBLISH in the events.
    pub event: usize,
    pub label: Label,
    /// The QoS of the PUBLISH that came.
    pub qos: u8,
}

impl SubscriberRecord {
    /// What the application was given, in order. QoS 2 is de-duplicated by open packet id only: an id is open from its
    /// PUBLISH to its PUBREL [MQTT-4.3.3-10] [MQTT-4.3.3-12].
    pub fn deliveries(&self) -> Vec<Delivery> {
        let mut open = BTreeSet::new();
        let mut found = Vec::new();
        for (index, (at, event)) in self.events.iter().enumerate() {
            match event {
                Event::Publish(arrival) => {
                    let is_new = arrival.qos < 2 || open.insert(arrival.packet_id);
                    if let Some(label) = arrival.label.filter(|_| is_new) {
                        found.push(Delivery {
                            at: *at,
                            event: index,
                            label,
                            qos: arrival.qos,
                        });
                    }
                }
                Event::Pubrel { packet_id } => {
                    open.remove(packet_id);
                }
                // The broker has no session, so the client discards its own state [MQTT-3.2.2-5].
                Event::Connected { present: false } => open.clear(),
                _ => {}
            }
        }
        found
    }

    /// Every label that arrived.
    pub fn labels(&self) -> BTreeSet<Label> {
        self.events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Publish(arrival) => arrival.label,
                _ => None,
            })
            .collect()
    }
}

/// What all clients of a load recorded.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub publishers: Vec<PublisherRecord>,
    pub subscribers: Vec<SubscriberRecord>,
}

impl Record {
    /// The acknowledged messages of all publishers.
    pub fn accepted(&self) -> impl Iterator<Item = &Sent> {
        self.publishers
            .iter()
            .flat_map(|publisher| &publisher.messages)
            .filter(|message| message.accepted.is_some())
    }

    /// The longest time between two acknowledgements that follow each other, in milliseconds.
    pub fn longest_gap_ms(&self) -> u64 {
        let mut times: Vec<At> = self.accepted().filter_map(|sent| sent.accepted).collect();
        times.sort_unstable();
        times
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or(0)
    }
}
