//! The random commands of the history that [`super::golden`] applies.

use prost::Message as _;

use super::golden::{History, NODES};
use super::proposal;
use crate::base::ids::{Incarnation, NodeId, SessionId};
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::state;
use crate::machine::schema::{self, Table as _};
use crate::session::Sequence;

const CLIENTS: u64 = 7;

const FILTERS: [&str; 9] = [
    "t/0",
    "t/+",
    "#",
    "t/#",
    "+/1",
    "$share/g/t/+",
    "$share/h/#",
    "$share/g/t/0",
    "u",
];
const TOPICS: [&str; 8] = ["t/0", "t/1", "t/2", "t/3", "u", "v", "a/1", "t"];

/// SplitMix64: its numbers never change, unlike those of a library.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

impl History {
    fn client(&mut self) -> String {
        format!("client-{}", self.random.below(CLIENTS))
    }

    /// A client with its connection; the node is where that is, or was.
    fn connected(&mut self) -> (String, u64, u64) {
        let client = self.client();
        let (node, connection) = self.connections.get(&client).copied().unwrap_or((1, 999));
        (client, node, connection)
    }

    pub(super) fn proposal(&mut self, node: u64, kinds: Vec<Kind>) -> command::Proposal {
        let (incarnation, sequence) = self.nodes.get_mut(&node).expect("a node");
        *sequence += 1;
        proposal(NodeId(node), Incarnation(*incarnation), *sequence, kinds)
    }

    fn message(&mut self) -> command::PublishedMessage {
        let length = self.random.of(&[0, 3, 20, 200]);
        let payload: Vec<u8> = (0..length).map(|_| self.random.next() as u8).collect();
        command::PublishedMessage {
            topic: self.random.of(&TOPICS).to_owned(),
            qos: self.random.below(3) as u32,
            retain: self.random.percent(30),
            payload: payload.into(),
            properties: self.random.of(&[&b""[..], b"\x01\x01"]).into(),
            expiry_interval_s: self.random.percent(30).then(|| self.random.below(6) as u32),
        }
    }

    fn open(&mut self) -> (u64, Kind) {
        let client_id = self.client();
        let node = 1 + self.random.below(NODES);
        self.next_connection += 1;
        let connection = self.next_connection;
        self.connections
            .insert(client_id.clone(), (node, connection));
        let will = self.random.percent(40).then(|| command::Will {
            message: Some(self.message()),
            delay_s: self.random.of(&[0, 2, 8]),
            ..Default::default()
        });
        let bounds = command::QueueBounds {
            max_messages: self.random.of(&[3, 8, 50]),
            max_bytes: self.random.of(&[150, 1_000, 100_000]),
            policy: self.random.of(&[0, 0, 1, 2]),
            qos_0: self.random.percent(30),
        };
        let open = command::OpenSession {
            client_id,
            connection,
            clean_start: self.random.percent(15),
            expiry_interval_s: self.random.of(&[0, 5, 20, u32::MAX]),
            protocol_level: self.random.of(&[4, 5]),
            will,
            receive_maximum: self.random.of(&[0, 1, 3, 10]),
            bounds: Some(bounds),
            max_sessions: 0,
            principal: None,
            max_sessions_of_principal: 0,
            assigned_client_id: false,
            generation: 0,
            fingerprint: Default::default(),
            model_id: None,
        };
        (node, Kind::OpenSession(open))
    }

    fn store_write(&mut self) -> (u64, Kind) {
        let (client_id, node, _) = self.connected();
        let hlc = |node: &str, wall_ms, counter| command::Hlc {
            wall_ms,
            counter,
            node: node.to_owned(),
        };
        let (now, counter) = (self.now, self.random.below(3) as u32);
        let write = command::StoreWrite {
            client_id,
            correlation_data: vec![self.random.below(6) as u8].into(),
            remember_s: self.random.of(&[1, 10, 60]),
            legacy_fingerprint: self.random.below(3),
            verb: self.random.of(&[0, 0, 0, 1, 2, 7]),
            key: vec![b'k', self.random.below(5) as u8].into(),
            value: vec![b'v'; self.random.below(5) as usize].into(),
            condition: self.random.of(&[0, 0, 1, 2]),
            expire_ms: self.random.of(&[0, 0, 700, 5_000]),
            timestamp: self.random.percent(80).then(|| hlc("client", now, counter)),
            fencing_token: self.random.percent(20).then(|| hlc("fence", now, counter)),
            max_keys: self.random.of(&[0, 4]),
            max_bytes: 0,
            ..Default::default()
        };
        (node, Kind::StoreWrite(write))
    }

    fn acknowledge(&mut self) -> (u64, Kind) {
        let (client, node, connection) = self.connected();
        // Those at the front of its queue, as a client would know them.
        let session = schema::Session::encode(&client);
        let front = self.stored.get(&session).map_or(0, |row| {
            let row = state::Session::decode(&row[..]).expect("a row");
            let range = schema::Entry::from(SessionId(row.session_id), Sequence::NONE);
            let first = self.stored.range(range.from..range.to).next();
            first.map_or(0, |(key, _)| {
                u64::from_be_bytes(key[9..].try_into().expect("eight bytes"))
            })
        });
        let from = front + self.random.below(3);
        let sequences: Vec<u64> = (from..from + self.random.below(6)).collect();
        let (completed, received) = match self.random.percent(70) {
            true => (sequences, Vec::new()),
            false => (Vec::new(), sequences),
        };
        let acknowledge = command::Acknowledge {
            connection,
            completed,
            received,
            released: vec![self.random.below(4) as u32],
        };
        (node, Kind::Acknowledge(acknowledge))
    }

    fn subscribe(&mut self) -> (u64, Kind) {
        let (client_id, node, connection) = self.connected();
        let count = 1 + self.random.below(2);
        let subscriptions = (0..count).map(|_| command::Subscription {
            filter: self.random.of(&FILTERS).to_owned(),
            qos: self.random.below(3) as u32,
            no_local: self.random.percent(10),
            retain_as_published: self.random.percent(50),
            retain_handling: self.random.of(&[0, 0, 0, 1, 2]),
            identifier: self.random.of(&[0, 3, 200]),
        });
        let subscribe = command::Subscribe {
            subscriptions: subscriptions.collect(),
            client_id,
            connection,
            ..Default::default()
        };
        (node, Kind::Subscribe(subscribe))
    }

    pub(super) fn command(&mut self) -> (u64, Kind) {
        match self.random.below(100) {
            0..12 => self.open(),
            12..18 => {
                let (client_id, node, connection) = self.connected();
                let close = command::CloseSession {
                    client_id,
                    connection,
                    expiry_interval_s: self.random.percent(20).then_some(3),
                    discard_will: self.random.percent(30),
                    sent_through: self.random.below(40),
                    reason: 0,
                };
                (node, Kind::CloseSession(close))
            }
            18..28 => self.subscribe(),
            28..32 => {
                let (client_id, node, connection) = self.connected();
                let unsubscribe = command::Unsubscribe {
                    client_id,
                    connection,
                    filters: vec![self.random.of(&FILTERS).to_owned()],
                };
                (node, Kind::Unsubscribe(unsubscribe))
            }
            32..60 => {
                let (_, node, connection) = self.connected();
                let publish = command::Publish {
                    connection: self.random.of(&[0, connection, connection]),
                    packet_id: self.random.below(4) as u32,
                    message: Some(self.message()),
                    max_retained: self.random.of(&[0, 6]),
                    ..Default::default()
                };
                (node, Kind::Publish(publish))
            }
            60..80 => self.acknowledge(),
            80..93 => self.store_write(),
            93..97 => {
                let (client_id, node, connection) = self.connected();
                let notify = command::KeyNotify {
                    client_id,
                    connection,
                    key: vec![b'k', self.random.below(5) as u8].into(),
                    stop: self.random.percent(30),
                    ..Default::default()
                };
                (node, Kind::KeyNotify(notify))
            }
            97 => (
                1,
                Kind::DeleteSession(command::DeleteSession {
                    client_id: self.client(),
                }),
            ),
            98 => (
                2,
                Kind::Disconnect(command::Disconnect {
                    client_id: self.client(),
                }),
            ),
            _ => (1, Kind::Nothing(command::Nothing {})),
        }
    }
}
