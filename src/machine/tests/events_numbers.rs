//! The numbers of connections: they outlive sessions, and never go back.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;

use super::events::{opened_session, recording, set_events, told, transient};
use super::{Replica, close, open};
use crate::base::ids::{ASSIGNED_PREFIX, LogIndex};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::schema;
use crate::machine::schema::Table as _;
use crate::machine::tables::{Backing, Tables};

/// Clean start, expiry, an expiry interval of 0, restarts: numbers only rise.
#[test]
fn numbers_outlive_their_session() {
    let mut replica = recording();
    for connection in 1..=6 {
        let mut open = open("a", connection);
        open.clean_start = connection % 2 == 0;
        open.expiry_interval_s = if connection > 3 { 0 } else { 1 };
        replica.run(vec![Kind::OpenSession(open)]);
        replica.restart();
        if connection != 2 {
            replica.run(vec![close("a", connection)]);
        }
        replica.pass(5_000);
        replica.settle();
    }
    let all = told(&replica);
    let begun: Vec<&String> = all.iter().filter(|text| text.contains('+')).collect();
    assert_eq!(begun, ["a +1", "a +2", "a +3", "a +4", "a +5", "a +6"]);
    assert_eq!(all.len(), 12);
}

#[test]
fn numbers_go_when_their_time_is_over_and_never_go_back() {
    let mut replica = recording();
    for connection in 1..=3 {
        replica.run(vec![
            opened_session("a", connection),
            close("a", connection),
        ]);
    }
    replica.run(vec![
        opened_session("b", 4),
        close("b", 4),
        opened_session("c", 5),
    ]);
    assert_eq!(replica.machine.event_usage().sequences, 3);
    replica.pass(900_000);
    // It stays where it stands, and is found there in time.
    replica.run(vec![opened_session("b", 6), close("b", 6)]);
    replica.pass(200_000);
    replica.settle();
    assert_eq!(replica.machine.event_usage().sequences, 2, "a has gone");
    replica.pass(900_000);
    replica.settle();
    assert_eq!(replica.machine.event_usage().sequences, 1, "c is there");
    replica.restart();
    replica.run(vec![
        opened_session("a", 7),
        opened_session("b", 8),
        close("c", 5),
        opened_session("d", 9),
    ]);
    let all = told(&replica);
    assert_eq!(
        all[all.len() - 4..],
        ["a +4", "b +4", "c -1 ConnectionLost", "d +4"]
    );
    assert_eq!(
        super::queues::rows::<schema::EventSequence>(&replica) as u64,
        replica.machine.event_usage().sequences
    );
}

#[test]
fn beyond_the_bound_those_go_that_would_go_first() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1_000_000;
        settings.sequences_max = 3;
    })]);
    replica.run(vec![
        opened_session("away", 1),
        opened_session("away", 2),
        close("away", 2),
    ]);
    replica.pass(1_000);
    replica.run(vec![
        opened_session("later", 3),
        close("later", 3),
        opened_session("there", 4),
    ]);
    replica.run(vec![opened_session("new", 5)]);
    replica.pass(1);
    assert_eq!(replica.machine.event_usage().sequences, 3);
    replica.run(vec![opened_session("away", 6), opened_session("more", 7)]);
    replica.pass(1);
    assert_eq!(replica.machine.event_usage().sequences, 4, "all are there");
    let all = told(&replica);
    assert_eq!(all[all.len() - 2..], ["away +3", "more +3"]);
    replica.settle();
}

/// Clients choose how large the rows are: bytes have a bound as well.
#[test]
fn large_rows_are_fewer() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1_000_000;
        settings.sequences_max = 100;
    })]);
    for number in 0..10 {
        let client_id = format!("{number}{}", "x".repeat(5_000));
        replica.run(vec![opened_session(&client_id, 1), close(&client_id, 1)]);
        replica.settle();
        replica.restart();
    }
    // Each has its name four times.
    assert_eq!(replica.machine.event_usage().sequences, 2);
    for number in 0..50 {
        let client_id = number.to_string();
        replica.run(vec![opened_session(&client_id, 1), close(&client_id, 1)]);
    }
    replica.settle();
    assert_eq!(replica.machine.event_usage().sequences, 52);
    replica.pass(2_000_000);
    replica.settle();
    let meta = (&replica.stored as &dyn Backing).row::<schema::Meta>(());
    assert_eq!(meta.expect("a row").event_sequence_bytes, 0);
}

/// A client id as the server makes it.
fn made(number: u32) -> String {
    format!("{ASSIGNED_PREFIX}{number:032x}")
}

/// The Connected of a client, by their numbers.
fn begun(replica: &Replica, client_id: &str) -> Vec<u64> {
    let of = |text: &String| {
        let (client, number) = text.split_once(" +")?;
        (client == client_id).then(|| number.parse().expect("a number"))
    };
    told(replica).iter().filter_map(of).collect()
}

/// An MQTT client keeps the id that it was given, and has it the next time, also when its session has ended.
#[test]
fn who_comes_again_under_an_id_that_it_was_given_goes_on() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1_000_000;
        settings.sequence_keep_s = 100_000;
    })]);
    let given = |client_id: &str, connection| {
        Kind::OpenSession(command::OpenSession {
            assigned_client_id: true,
            ..transient(client_id, connection)
        })
    };
    let again = |client_id: &str, connection| Kind::OpenSession(transient(client_id, connection));
    let [a, b, c, d] = [1, 2, 3, 4].map(made);
    replica.run(vec![given(&a, 1), close(&a, 1)]);
    replica.restart();
    assert_eq!(replica.machine.event_usage().sequences, 0, "it is known");
    replica.pass(limits::ASSIGNED_SEQUENCE_KEEP_MS + 2_000);
    replica.run(vec![again(&a, 2), close(&a, 2)]);
    replica.pass(limits::ASSIGNED_SEQUENCE_KEEP_MS + 2_000);
    replica.settle();
    assert_eq!(replica.machine.event_usage().sequences, 1, "it is its own");
    replica.pass(100_000_000);
    replica.settle();
    replica.restart();
    assert_eq!(replica.machine.event_usage().sequences, 0);
    // From now on who comes back soon goes on, and who comes late does not begin with a number that was there.
    replica.run(vec![given(&b, 3), close(&b, 3), given(&c, 4), close(&c, 4)]);
    assert_eq!(replica.machine.event_usage().sequences, 2);
    replica.run(vec![again(&b, 5)]);
    replica.pass(limits::ASSIGNED_SEQUENCE_KEEP_MS + 2_000);
    replica.settle();
    assert_eq!(replica.machine.event_usage().sequences, 1, "one has gone");
    replica.restart();
    replica.run(vec![again(&a, 6), again(&c, 7)]);
    // Nobody else is concerned.
    replica.run(vec![given(&d, 8), opened_session("own", 9)]);
    assert_eq!(begun(&replica, &a), [1, 2, 3]);
    assert_eq!(begun(&replica, &b), [1, 2]);
    assert_eq!(begun(&replica, &c), [1, 3]);
    let first = (begun(&replica, &d), begun(&replica, "own"));
    assert_eq!(first, (vec![1], vec![1]));
}

#[test]
fn numbers_of_made_up_client_ids_raise_nothing() {
    let mut replica = recording();
    let given = |client_id: &str, connection| command::OpenSession {
        assigned_client_id: true,
        ..transient(client_id, connection)
    };
    let (first, second) = (made(1), made(2));
    replica.run(vec![
        Kind::OpenSession(given(&first, 1)),
        close(&first, 1),
        opened_session("a", 2),
    ]);
    assert_eq!(begun(&replica, "a"), [1]);
    // A client that knows its id and comes again goes on.
    let kept = command::OpenSession {
        expiry_interval_s: 100,
        ..given(&second, 3)
    };
    let again = command::OpenSession {
        clean_start: true,
        ..transient(&second, 4)
    };
    replica.run(vec![
        Kind::OpenSession(kept),
        Kind::OpenSession(again),
        close(&second, 4),
    ]);
    let all = told(&replica);
    let told = ["+1", "-1 SessionTakenOver", "+2", "-2 ConnectionLost"];
    let told = told.map(|text| format!("{second} {text}"));
    assert_eq!(all[all.len() - 4..], told);
    assert_eq!(replica.machine.event_usage().sequences, 2);
    replica.pass(2_000_000);
    replica.settle();
    assert_eq!(replica.machine.event_usage().sequences, 1);
    replica.run(vec![opened_session("b", 5)]);
    assert_eq!(begun(&replica, "b"), [1]);
}

/// The stored rows, and where scans of places begin.
struct Noted<'a> {
    stored: &'a Stored,
    begins: Mutex<Vec<Vec<u8>>>,
}

type Stored = BTreeMap<Vec<u8>, Vec<u8>>;

impl Backing for Noted<'_> {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        Backing::get(self.stored, key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        if from.first() == Some(&schema::EventSequenceEnd::ORDINAL) {
            self.begins.lock().push(from.to_vec());
        }
        Backing::scan(self.stored, from, to, visit);
    }
}

/// A database steps over every place that has gone, as long as it keeps their tombstones.
#[test]
fn where_all_places_have_gone_they_are_not_looked_for_from_the_first_key() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.keep_s = 1_000_000;
        settings.sequences_max = 1;
    })]);
    for connection in 1..=3 {
        let client_id = format!("living-{connection}");
        replica.run(vec![opened_session(&client_id, connection)]);
    }
    for connection in 10..20 {
        let client_id = format!("gone-{connection}");
        replica.run(vec![opened_session(&client_id, connection)]);
        replica.run(vec![close(&client_id, connection)]);
        replica.pass(1_000);
        replica.settle();
    }
    assert_eq!(super::queues::rows::<schema::EventSequenceEnd>(&replica), 0);
    replica.run(vec![opened_session("another", 30)]);
    let noted = Noted {
        stored: &replica.stored,
        begins: Mutex::default(),
    };
    let entry = command::Batch {
        stamp_ms: replica.now + 1_000,
        proposals: Vec::new(),
        term: 1,
    };
    let mut tables = Tables::new(&noted);
    let index = LogIndex(replica.index + 1);
    let applied = replica
        .machine
        .apply(index, entry.encode_to_vec().into(), &mut tables);
    applied.expect("a batch");
    drop(tables);
    let begins = noted.begins.into_inner();
    assert!(!begins.is_empty(), "it was looked for places");
    assert!(begins.iter().all(|from| from.len() > 9), "{begins:?}");
}
