//! A model: one session with its rows, connections that come and go, and a client that acknowledges. Whatever happens,
//! every message is delivered as its QoS promises.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::super::window::{Acknowledged, Received, Window};
use super::tests::{UNBOUNDED, entry, maximum};
use super::*;

/// One session: its rows, its connection, its client.
#[derive(Default)]
struct World {
    queue: Queue,
    rows: BTreeMap<Sequence, Entry>,
    connection: Option<Connection>,
    /// Message number of every sequence, and its QoS.
    published: BTreeMap<Sequence, QoS>,
    dropped: BTreeSet<Sequence>,
    granted_ever: BTreeSet<Sequence>,
    written_ever: BTreeSet<Sequence>,
    open_ids: BTreeMap<NonZeroU16, Sequence>,
    delivered: Vec<Sequence>,
    pubrec_order: Vec<Sequence>,
}

struct Connection {
    receive_maximum: NonZeroU16,
    window: Window,
    granted: VecDeque<Packet>,
    to_client: VecDeque<Packet>,
    to_server: VecDeque<Answer>,
    proposals: VecDeque<Proposal>,
    written_through: Sequence,
}

#[derive(Clone, Copy, Debug)]
enum Packet {
    Publish(Sequence, bool),
    Pubrel(Sequence),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Puback(NonZeroU16),
    Pubrec(NonZeroU16),
    Pubcomp(NonZeroU16),
}

#[derive(Clone, Copy, Debug)]
enum Proposal {
    Finish(Sequence),
    Receive(Sequence),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Publish(QoS),
    Connect(u16),
    Disconnect { exact: bool, commit: bool },
    Write,
    ClientReads,
    ServerReads(u8),
    Commit,
}

const SIZE: u64 = 7;

impl World {
    fn step(&mut self, event: Event, bounds: &Bounds) {
        match event {
            Event::Publish(qos) => self.publish(qos, bounds),
            Event::Connect(receive_maximum) => self.connect(receive_maximum),
            Event::Disconnect { exact, commit } => {
                while commit && self.commit() {}
                if let Some(connection) = self.connection.take() {
                    self.queue
                        .end_connection(exact.then_some(connection.written_through));
                }
            }
            Event::Write => self.write(),
            Event::ClientReads => self.client_reads(),
            Event::ServerReads(at) => self.server_reads(at),
            Event::Commit => {
                self.commit();
            }
        }
        self.check();
    }

    fn publish(&mut self, qos: QoS, bounds: &Bounds) {
        loop {
            match self.queue.admit(SIZE, bounds) {
                Admission::Accepted => break,
                Admission::DropFirstAfter(after) => {
                    let Some((&victim, _)) = self.rows.range(after.next()..).next() else {
                        return;
                    };
                    let entry = self.rows.remove(&victim).expect("just found");
                    self.queue.finish(victim, &entry, SIZE);
                    assert!(
                        !self.granted_ever.contains(&victim)
                            || !self.written_ever.contains(&victim)
                    );
                    self.dropped.insert(victim);
                }
                other => panic!("{other:?}"),
            }
        }
        let sequence = self.queue.push(SIZE);
        self.rows.insert(sequence, entry(sequence.0, qos));
        self.published.insert(sequence, qos);
        self.grant_ready();
    }

    fn connect(&mut self, receive_maximum: u16) {
        if self.connection.is_some() {
            return;
        }
        let mut connection = Connection {
            receive_maximum: maximum(receive_maximum),
            window: Window::default(),
            granted: VecDeque::new(),
            to_client: VecDeque::new(),
            to_server: VecDeque::new(),
            proposals: VecDeque::new(),
            written_through: Sequence::NONE,
        };
        let mut owed: Vec<_> = self
            .rows
            .iter()
            .filter_map(|(sequence, entry)| match entry {
                Entry::Released { order } => Some((*order, *sequence)),
                Entry::Queued(_) => None,
            })
            .collect();
        owed.sort_unstable();
        // `[MQTT-4.6.0-4]` the other way round: PUBRELs in the order of the PUBRECs.
        let in_order = self
            .pubrec_order
            .iter()
            .filter(|received| owed.iter().any(|(_, sequence)| sequence == *received));
        assert!(owed.iter().map(|(_, sequence)| sequence).eq(in_order));
        for (_, sequence) in owed {
            connection.window.release(sequence);
            connection.granted.push_back(Packet::Pubrel(sequence));
        }
        self.connection = Some(connection);
        self.grant_ready();
    }

    /// Grants what may be granted, as the machine does after every change.
    fn grant_ready(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while self.queue.has_ungranted() {
            let from = self.queue.granted_through.next();
            let Some((&sequence, row)) = self.rows.range(from..).next() else {
                return;
            };
            let row = row.clone();
            let oldest = || *self.rows.keys().next().expect("there is a row");
            match self
                .queue
                .grant(sequence, &row, connection.receive_maximum, oldest)
            {
                Grant::Wait => return,
                Grant::Passed => {}
                Grant::Publish { packet_id, dup } => {
                    let Entry::Queued(queued) = &row else {
                        panic!("a released entry was granted");
                    };
                    assert!(!dup || self.granted_ever.contains(&sequence));
                    self.granted_ever.insert(sequence);
                    connection.window.publish(sequence, queued.qos);
                    connection.granted.push_back(Packet::Publish(sequence, dup));
                    assert_eq!(packet_id.is_none(), queued.qos == QoS::AtMostOnce);
                    if packet_id.is_none() {
                        self.rows.remove(&sequence);
                        self.queue.finish(sequence, &row, SIZE);
                    }
                }
            }
        }
    }

    fn write(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if let Some(packet) = connection.granted.pop_front() {
            if let Packet::Publish(sequence, dup) = packet {
                // `[MQTT-3.3.1-1]`, `[MQTT-3.3.1-2]`
                let again = !self.written_ever.insert(sequence);
                assert!(dup || !again, "{sequence} is sent again without DUP");
                connection.written_through = sequence;
            }
            connection.to_client.push_back(packet);
        }
    }

    fn client_reads(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let Some(packet) = connection.to_client.pop_front() else {
            return;
        };
        let answer = match packet {
            Packet::Publish(sequence, _) => {
                let id = sequence.packet_id();
                match self.published[&sequence] {
                    QoS::AtMostOnce => {
                        self.delivered.push(sequence);
                        return;
                    }
                    QoS::AtLeastOnce => {
                        self.delivered.push(sequence);
                        Answer::Puback(id)
                    }
                    QoS::ExactlyOnce => {
                        match self.open_ids.insert(id, sequence) {
                            None => self.delivered.push(sequence),
                            // The id means the message it meant: never another one.
                            Some(open) => assert_eq!(open, sequence),
                        }
                        Answer::Pubrec(id)
                    }
                }
            }
            Packet::Pubrel(sequence) => {
                if let Some(open) = self.open_ids.remove(&sequence.packet_id()) {
                    assert_eq!(open, sequence);
                }
                Answer::Pubcomp(sequence.packet_id())
            }
        };
        connection.to_server.push_back(answer);
    }

    fn server_reads(&mut self, at: u8) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if connection.to_server.is_empty() {
            return;
        }
        // Clients acknowledge in any order.
        let at = usize::from(at) % connection.to_server.len();
        let answer = connection
            .to_server
            .remove(at)
            .expect("at is below the length");
        let finished = match answer {
            Answer::Puback(id) => connection.window.handle_puback(id),
            Answer::Pubcomp(id) => connection.window.handle_pubcomp(id),
            Answer::Pubrec(id) => {
                match connection.window.handle_pubrec(id, false) {
                    Received::Propose(sequence) => {
                        connection.proposals.push_back(Proposal::Receive(sequence));
                    }
                    other => panic!("{other:?}"),
                }
                return;
            }
        };
        match finished {
            Acknowledged::Finished(sequence) => {
                connection.proposals.push_back(Proposal::Finish(sequence));
            }
            other => panic!("{answer:?}: {other:?}"),
        }
    }

    fn commit(&mut self) -> bool {
        let Some(connection) = &mut self.connection else {
            return false;
        };
        match connection.proposals.pop_front() {
            None => return false,
            Some(Proposal::Finish(sequence)) => {
                let entry = self.rows.remove(&sequence).expect("it is unfinished");
                self.queue.finish(sequence, &entry, SIZE);
            }
            Some(Proposal::Receive(sequence)) => {
                let released = self.queue.receive(sequence, SIZE);
                self.rows.insert(sequence, released);
                self.pubrec_order.push(sequence);
                connection.window.release(sequence);
                connection.granted.push_back(Packet::Pubrel(sequence));
            }
        }
        self.grant_ready();
        true
    }

    fn check(&self) {
        let queued: Vec<_> = self
            .rows
            .iter()
            .filter_map(|(sequence, entry)| match entry {
                Entry::Queued(queued) => Some((*sequence, queued.qos)),
                Entry::Released { .. } => None,
            })
            .collect();
        let queue = &self.queue;
        let released = self.rows.len() - queued.len();
        assert_eq!(queue.messages, queued.len() as u64);
        assert_eq!(queue.bytes, queued.len() as u64 * SIZE);
        assert_eq!(queue.released as usize, released);
        assert!(
            self.rows
                .keys()
                .next()
                .is_none_or(|first| queue.oldest <= *first)
        );
        let granted: Vec<_> = queued
            .iter()
            .filter(|(sequence, qos)| *sequence <= queue.granted_through && *qos != QoS::AtMostOnce)
            .collect();
        assert_eq!(queue.in_flight as usize, granted.len() + released);
        if let Some(connection) = &self.connection {
            let maximum = usize::from(connection.receive_maximum.get());
            assert!(granted.is_empty() || granted.len() + released <= maximum.max(released));
            let mut ids: Vec<_> = self
                .rows
                .keys()
                .filter(|sequence| !queue.is_unsent(**sequence))
                .map(|sequence| sequence.packet_id())
                .collect();
            ids.sort_unstable();
            assert!(
                ids.windows(2).all(|pair| pair[0] != pair[1]),
                "an id is used twice"
            );
        }
    }

    /// Lets everything come to rest, then looks at what the client got.
    fn finish(mut self) {
        self.step(
            Event::Disconnect {
                exact: false,
                commit: false,
            },
            &UNBOUNDED,
        );
        self.step(Event::Connect(3), &UNBOUNDED);
        for _ in 0..20 * (self.published.len() + 5) {
            for event in [
                Event::Write,
                Event::ClientReads,
                Event::ServerReads(0),
                Event::Commit,
            ] {
                self.step(event, &UNBOUNDED);
            }
        }
        assert!(self.rows.is_empty() && self.queue.is_empty() && self.open_ids.is_empty());
        assert_eq!(self.queue.in_flight, 0);
        for (sequence, qos) in &self.published {
            let times = self.delivered.iter().filter(|d| *d == sequence).count();
            if self.dropped.contains(sequence) {
                assert_eq!(times, 0, "{sequence} was dropped and delivered");
                continue;
            }
            match qos {
                QoS::AtMostOnce => assert!(times <= 1),
                QoS::AtLeastOnce => assert!(times >= 1, "{sequence} is lost"),
                QoS::ExactlyOnce => assert_eq!(times, 1, "{sequence}"),
            }
        }
        // `[MQTT-4.6.0-5]`: first deliveries are in order.
        for wanted in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut seen = BTreeSet::new();
            let first: Vec<_> = self
                .delivered
                .iter()
                .filter(|sequence| self.published[*sequence] == wanted && seen.insert(**sequence))
                .collect();
            assert!(first.is_sorted());
        }
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let qos = prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
    prop_oneof![
        6 => qos.prop_map(Event::Publish),
        2 => (1u16..5).prop_map(Event::Connect),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(exact, commit)| Event::Disconnect { exact, commit }),
        8 => Just(Event::Write),
        8 => Just(Event::ClientReads),
        8 => any::<u8>().prop_map(Event::ServerReads),
        6 => Just(Event::Commit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn deliveries_survive_lost_connections(
        events in prop::collection::vec(any_event(), 1..150),
        start in prop_oneof![Just(0u64), 32_755..32_775u64],
        max_messages in prop_oneof![Just(u64::MAX), 1u64..6],
    ) {
        let mut world = World::default();
        world.queue.last = Sequence(start);
        world.queue.oldest = Sequence(start + 1);
        let bounds = Bounds { max_messages, ..UNBOUNDED };
        for event in events {
            world.step(event, &bounds);
        }
        world.finish();
    }
}
