//! Which events are recorded, in which order and with which numbers: each race of connections, nodes and commands.

use bytes::Bytes;
use prost::Message as _;

use super::queues::{BOUNDS, durable, publish, subscribe};
use super::{INCARNATION, NODE, Replica, close, open, proposal, with_will};
use crate::base::ids::{CLUSTER, Incarnation, NodeId};
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::state;
use crate::events::{DisconnectionReason, Kind as EventKind};
use crate::machine::effect::{Output, Reply};
use crate::machine::schema::{self, Table as _};

const SECOND: NodeId = NodeId(2);

pub(super) fn set_events(change: impl FnOnce(&mut command::SetEvents)) -> Kind {
    let mut settings = command::SetEvents {
        namespace: "quorumq".to_owned(),
        source: "/namespaces/quorumq".to_owned(),
        coalesce_ms: 6_000,
        outbox_max_events: 1_000_000,
        outbox_max_bytes: 256 << 20,
        dead_letters_max: 100_000,
        sequence_keep_s: 1_000,
        sequences_max: 10_000_000,
        cluster_id: Bytes::from_static(&[7; 16]),
        ..Default::default()
    };
    change(&mut settings);
    Kind::SetEvents(settings)
}

/// A replica that keeps events.
pub(super) fn recording() -> Replica {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.keep_s = 1_000_000)]);
    replica
}

/// The outbox.
pub(super) fn outbox(replica: &Replica) -> Vec<(u64, state::Event)> {
    let rows = replica.stored.iter();
    rows.filter(|(key, _)| key[0] == schema::Event::ORDINAL)
        .map(|(key, row)| {
            let number = schema::Event::decode(key).expect("a key");
            (number, state::Event::decode(&row[..]).expect("a row"))
        })
        .collect()
}

/// An event in few words.
pub(super) fn words(event: &state::Event) -> String {
    let state::Event { name, session, .. } = event;
    let of = match name == session {
        true => name.clone(),
        false => format!("{name}/{session}"),
    };
    let sequence = event.sequence;
    match EventKind::of(event) {
        Some(EventKind::Connected) => format!("{of} +{sequence}"),
        Some(EventKind::Disconnected) => {
            let reason = DisconnectionReason::of_number(event.reason);
            format!("{of} -{sequence} {}", reason.as_str())
        }
        Some(kind) => format!("{name} {kind:?}"),
        None => panic!("{event:?}"),
    }
}

pub(super) fn told(replica: &Replica) -> Vec<String> {
    outbox(replica)
        .iter()
        .map(|(_, event)| words(event))
        .collect()
}

pub(super) fn close_for(client_id: &str, connection: u64, reason: DisconnectionReason) -> Kind {
    Kind::CloseSession(command::CloseSession {
        client_id: client_id.to_owned(),
        connection,
        reason: reason as u32,
        ..Default::default()
    })
}

pub(super) fn opened_session(client_id: &str, connection: u64) -> Kind {
    Kind::OpenSession(open(client_id, connection))
}

/// A session that ends with its connection.
pub(super) fn transient(client_id: &str, connection: u64) -> command::OpenSession {
    command::OpenSession {
        expiry_interval_s: 0,
        ..open(client_id, connection)
    }
}

impl Replica {
    /// Commands of another node.
    fn run_on(&mut self, node: NodeId, incarnation: u64, sequence: u64, kinds: Vec<Kind>) {
        let incarnation = Incarnation(incarnation);
        self.apply(vec![proposal(node, incarnation, sequence, kinds)]);
    }

    fn declare_down(&mut self, node: NodeId, incarnation: u64) {
        let down = Kind::NodeDown(command::NodeDown {
            node: node.0,
            incarnation,
        });
        self.apply(vec![proposal(CLUSTER, Incarnation(0), 0, vec![down])]);
        self.settle();
    }
}

#[test]
fn nothing_is_recorded_until_somebody_asks() {
    let (mut replica, mut without) = (Replica::new(), Replica::new());
    for replica in [&mut replica, &mut without] {
        replica.run(vec![
            opened_session("a", 1),
            opened_session("b", 2),
            close("a", 1),
        ]);
    }
    assert_eq!(replica.stored, without.stored);
    assert!(
        !replica
            .stored
            .keys()
            .any(|key| (0x50..0x60).contains(&key[0]))
    );
    replica.run(vec![set_events(|settings| settings.keep_s = 100)]);
    replica.run(vec![close("b", 2), opened_session("a", 3), close("a", 3)]);
    assert_eq!(
        told(&replica),
        ["a +1", "a -1 ConnectionLost"],
        "b began while nothing was recorded"
    );
    replica.run(vec![opened_session("a", 4), set_events(|_| {})]);
    replica.run(vec![close("a", 4)]);
    replica.run(vec![set_events(|settings| settings.keep_s = 100)]);
    replica.run(vec![opened_session("a", 5)]);
    assert_eq!(told(&replica).last().expect("one"), "a +3");
}

/// The example of the specification: one session on three nodes.
#[test]
fn one_session_on_three_nodes() {
    use DisconnectionReason as Reason;
    let mut replica = recording();
    replica.run(vec![opened_session("a", 1)]);
    replica.run(vec![close_for("a", 1, Reason::ConnectionLost)]);
    replica.run(vec![opened_session("a", 2)]);
    replica.run_on(SECOND, 1, 1, vec![opened_session("a", 1)]);
    // The lease of the first node ends; the leader dies; a DISCONNECT.
    replica.declare_down(NODE, INCARNATION.0);
    replica.restart();
    let disconnect = close_for("a", 1, Reason::ClientInitiatedDisconnect);
    replica.run_on(SECOND, 1, 2, vec![disconnect]);
    let clean = command::OpenSession {
        clean_start: true,
        ..transient("a", 2)
    };
    replica.run_on(SECOND, 1, 3, vec![Kind::OpenSession(clean)]);
    // All nodes lose power and return.
    replica.restart();
    replica.run_on(SECOND, 2, 1, Vec::new());
    replica.settle();
    assert_eq!(
        told(&replica),
        [
            "a +1",
            "a -1 ConnectionLost",
            "a +2",
            "a -2 SessionTakenOver",
            "a +3",
            "a -3 ClientInitiatedDisconnect",
            "a +4",
            "a -4 ConnectionLost",
        ]
    );
}

#[test]
fn the_end_of_a_connection_that_was_taken_over_is_nothing() {
    let mut replica = recording();
    replica.run(vec![opened_session("a", 1)]);
    replica.run_on(SECOND, 1, 1, vec![opened_session("a", 1)]);
    assert!(matches!(replica.reply(close("a", 1)), Reply::NotOwner));
    assert_eq!(told(&replica), ["a +1", "a -1 SessionTakenOver", "a +2"]);
    let times: Vec<u64> = outbox(&replica).iter().map(|(_, e)| e.time_ms).collect();
    assert_eq!(times[1], times[2], "one command");
}

#[test]
fn an_end_before_the_take_over_has_its_own_reason() {
    let mut replica = recording();
    replica.run(vec![opened_session("a", 1)]);
    let end = close_for("a", 1, DisconnectionReason::ClientError);
    replica.run(vec![end]);
    replica.run_on(SECOND, 1, 1, vec![opened_session("a", 1)]);
    assert_eq!(told(&replica), ["a +1", "a -1 ClientError", "a +2"]);
}

#[test]
fn of_two_connects_at_once_the_second_in_the_log_wins() {
    let mut replica = recording();
    replica.sequence += 1;
    let sequence = replica.sequence;
    replica.apply(vec![
        proposal(NODE, INCARNATION, sequence, vec![opened_session("a", 1)]),
        proposal(SECOND, INCARNATION, 1, vec![opened_session("a", 1)]),
    ]);
    assert_eq!(told(&replica), ["a +1", "a -1 SessionTakenOver", "a +2"]);
}

/// Whichever is first gives the reason; the other one finds nothing to end.
#[test]
fn the_end_of_a_node_and_a_connect_elsewhere() {
    let mut first = recording();
    first.run_on(SECOND, 1, 1, vec![opened_session("a", 1)]);
    first.declare_down(SECOND, 1);
    first.run(vec![opened_session("a", 1)]);
    assert_eq!(told(&first), ["a +1", "a -1 ConnectionLost", "a +2"]);
    let mut second = recording();
    second.run_on(SECOND, 1, 1, vec![opened_session("a", 1)]);
    second.run(vec![opened_session("a", 1)]);
    second.declare_down(SECOND, 1);
    assert_eq!(told(&second), ["a +1", "a -1 SessionTakenOver", "a +2"]);
    // The connection of the dead node has not had its turn when the client is back.
    let mut late = recording();
    late.set_budget(super::Budget {
        row_operations: 0,
        items_at_least: 1,
        overdraft: 0,
        queues_at_least: 1,
        looked_up_anew: 1_000,
    });
    late.run_on(
        SECOND,
        1,
        1,
        vec![
            opened_session("a", 1),
            opened_session("b", 2),
            opened_session("c", 3),
        ],
    );
    let down = Kind::NodeDown(command::NodeDown {
        node: 2,
        incarnation: 1,
    });
    late.apply(vec![proposal(CLUSTER, Incarnation(0), 0, vec![down])]);
    late.run(vec![opened_session("c", 1)]);
    late.settle();
    let all = told(&late);
    assert_eq!(&all[..4], ["a +1", "b +1", "c +1", "a -1 ConnectionLost"]);
    let at = |text: &str| all.iter().position(|found| found == text);
    assert!(at("c -1 ConnectionLost") < at("c +2"), "{all:?}");
    assert_eq!(all.len(), 7, "{all:?}");
}

#[test]
fn a_proposal_that_comes_again_is_nothing() {
    let mut replica = recording();
    let again = proposal(SECOND, Incarnation(1), 1, vec![opened_session("a", 1)]);
    replica.apply(vec![again.clone(), again.clone()]);
    replica.apply(vec![again]);
    assert_eq!(told(&replica), ["a +1"]);
}

#[test]
fn a_node_that_starts_again_ends_what_it_had_in_the_order_of_its_connections() {
    let mut replica = recording();
    replica.run_on(
        SECOND,
        1,
        1,
        vec![opened_session("b", 1), opened_session("a", 2)],
    );
    replica.now += 70;
    replica.run_on(SECOND, 2, 1, Vec::new());
    replica.settle();
    let expected = ["b +1", "a +1", "b -1 ConnectionLost", "a -1 ConnectionLost"];
    assert_eq!(told(&replica), expected);
    let (_, last) = outbox(&replica).pop().expect("four");
    assert_eq!(last.time_ms, replica.now, "when it was found");
}

#[test]
fn who_wakes_after_it_was_declared_down_has_nothing_to_say() {
    let mut replica = recording();
    replica.run_on(SECOND, 1, 1, vec![opened_session("a", 1)]);
    replica.declare_down(SECOND, 1);
    replica.run_on(SECOND, 1, 2, vec![close("a", 1), opened_session("b", 2)]);
    assert_eq!(told(&replica), ["a +1", "a -1 ConnectionLost"]);
}

#[test]
fn each_command_has_its_reason() {
    let mut replica = recording();
    let delete = |client_id: &str| {
        let client_id = client_id.to_owned();
        Kind::DeleteSession(command::DeleteSession { client_id })
    };
    let kick = |client_id: &str| {
        let client_id = client_id.to_owned();
        Kind::Disconnect(command::Disconnect { client_id })
    };
    replica.run(vec![opened_session("a", 1), delete("a"), delete("a")]);
    replica.run(vec![
        opened_session("b", 2),
        kick("b"),
        kick("b"),
        delete("b"),
    ]);
    let full = command::OpenSession {
        bounds: Some(command::QueueBounds {
            max_messages: 1,
            policy: 2,
            ..BOUNDS
        }),
        ..durable("c", 3, 1)
    };
    replica.run(vec![Kind::OpenSession(full), subscribe("c", 3, "t", 1)]);
    replica.run(vec![publish("t", 1, "x"), publish("t", 1, "y")]);
    replica.settle();
    replica.run(vec![
        opened_session("d", 4),
        close_for("d", 4, DisconnectionReason::IpForbidden),
    ]);
    assert_eq!(
        told(&replica),
        [
            "a +1",
            "a -1 ServerInitiatedDisconnect",
            "b +1",
            "b -1 ServerInitiatedDisconnect",
            "c +1",
            "c -1 SessionOverflow",
            "d +1",
            "d -1 IpForbidden",
        ]
    );
}

#[test]
fn a_client_is_called_by_what_it_has_proved() {
    let mut replica = recording();
    let ann = command::OpenSession {
        principal: Some(command::Principal {
            name: "ann".to_owned(),
            proofs: Vec::new(),
        }),
        ..open("a", 2)
    };
    replica.run(vec![
        opened_session("a", 1),
        Kind::OpenSession(ann),
        close("a", 2),
    ]);
    assert_eq!(
        told(&replica),
        [
            "a +1",
            "a -1 SessionTakenOver",
            "ann/a +1",
            "ann/a -1 ConnectionLost"
        ]
    );
    let refused = command::OpenSession {
        principal: Some(command::Principal {
            name: "bob".to_owned(),
            proofs: Vec::new(),
        }),
        ..open("a", 3)
    };
    let reply = replica.reply(Kind::OpenSession(refused));
    assert!(matches!(reply, Reply::NotAuthorized));
    assert_eq!(told(&replica).len(), 4, "no connection, no event");
}

/// The event stands before everything that follows from it.
#[test]
fn over_mqtt_an_event_comes_as_any_message_and_before_its_effects() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.mqtt = true)]);
    replica.run(vec![
        Kind::OpenSession(durable("watcher", 1, 10)),
        subscribe("watcher", 1, "$events/v1/clients/+/sessions/+/+", 1),
        subscribe("watcher", 1, "will", 1),
        subscribe("watcher", 1, "#", 1),
    ]);
    let mut willing = with_will(open("a", 2), 0);
    if let Some(message) = willing.will.as_mut().and_then(|will| will.message.as_mut()) {
        message.qos = 1;
    }
    let outputs = replica.run(vec![Kind::OpenSession(willing), close("a", 2)]);
    let got: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Deliver(granted) => Some(granted.message.clone()),
            _ => None,
        })
        .collect();
    let topics: Vec<&str> = got.iter().map(|message| message.topic.as_str()).collect();
    assert_eq!(
        topics,
        [
            "$events/v1/clients/a/sessions/a/connected",
            "$events/v1/clients/a/sessions/a/disconnected",
            "will",
        ]
    );
    let event = &got[1];
    assert!(!event.retain);
    assert_eq!(event.properties, crate::events::topic::PROPERTIES);
    let json: serde_json::Value = serde_json::from_slice(&event.payload).expect("JSON");
    assert_eq!(json["data"]["disconnectionReason"], "ConnectionLost");
    assert_eq!(json["data"]["sequenceNumber"], 1);
    assert!(told(&replica).is_empty(), "nobody keeps it");
    let usage = replica.machine.event_usage();
    assert_eq!((usage.events, usage.bytes), (0, 0));
}

/// An event may fill the queue of a session, whose end is an event, which fills the next one.
#[test]
fn sessions_that_events_end_make_events_until_none_is_left() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| {
        settings.mqtt = true;
        settings.keep_s = 1_000_000;
    })]);
    let bounds = command::QueueBounds {
        max_messages: 2,
        policy: 2,
        ..BOUNDS
    };
    for number in 1..=20 {
        let client_id = number.to_string();
        let opened = command::OpenSession {
            bounds: Some(bounds),
            ..durable(&client_id, number, 1)
        };
        let all = subscribe(&client_id, number, "$events/#", 1);
        replica.run(vec![Kind::OpenSession(opened), all]);
        replica.settle();
    }
    replica.run(vec![opened_session("last", 99), close("last", 99)]);
    replica.settle();
    let all = told(&replica);
    let (begun, ended): (Vec<&String>, Vec<&String>) =
        all.iter().partition(|text| text.contains('+'));
    assert!(ended.len() > 10 && begun.len() == 21, "{all:?}");
    let mut unique = ended.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), ended.len(), "each ends once");
}

#[test]
fn events_are_counted_where_they_are_made() {
    let mut replica = recording();
    let counted = |outputs: &[Output]| {
        let counted = outputs
            .iter()
            .filter(|output| matches!(output, Output::EventRecorded { .. }));
        counted.count()
    };
    let outputs = replica.run(vec![opened_session("a", 1), close("a", 1)]);
    assert_eq!(counted(&outputs), 2);
    let changed = |output: &&Output| matches!(output, Output::EventsChanged);
    assert_eq!(outputs.iter().filter(changed).count(), 1, "once per batch");
    let of_second = vec![opened_session("b", 1), close("b", 1)];
    let outputs = replica.apply(vec![proposal(SECOND, INCARNATION, 1, of_second)]);
    assert_eq!(counted(&outputs), 0, "the second node counts");
}
