//! Whatever a batch is asked to do, it does no more than a fixed number of row operations; what is left follows in
//! later batches. Each command and timer at its worst.

use super::queues::{assert_empty, durable, message, publish, rows, rows_of, subscribe};
use super::{INCARNATION, NODE, Replica, close, directory, open, proposal, set, with_will};
use crate::base::directory::Kind as DirectoryKind;
use crate::base::ids::{CLUSTER, Incarnation, NodeId};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{Output, Reply};
use crate::machine::schema::{self, Table as _};
use crate::store::Condition;

/// The budget, what the commands of these tests do in any case, and what the last item of a batch does beyond it.
const BOUND: u64 = 4 * limits::ROW_OPERATIONS_AT_ONCE as u64;

/// Commands that one batch of a test holds at most.
pub(super) const TOGETHER: usize = 500;

/// So many that each costs far more than one batch may, if it is done at once.
pub(super) const MANY: usize = 20_000;

impl Replica {
    pub(super) fn check_cost(&self) {
        assert!(
            self.operations <= BOUND,
            "{} row operations",
            self.operations
        );
    }

    /// Commands in batches that hold some of them each.
    pub(super) fn run_all(&mut self, kinds: impl IntoIterator<Item = Kind>) {
        let mut kinds = kinds.into_iter().peekable();
        while kinds.peek().is_some() {
            let some = kinds.by_ref().take(TOGETHER).collect();
            self.run(some);
        }
    }

    /// Everything that is due happens, in batches that are all bounded; what they ask of the outside, and their number.
    pub(super) fn settle_cheaply(&mut self) -> (Vec<Output>, usize) {
        let mut outputs = Vec::new();
        let mut batches = 0;
        while self.machine.next_due().0 <= self.now + 1 {
            outputs.extend(self.pass(1));
            self.check_cost();
            batches += 1;
            if batches % 3 == 0 {
                self.restart();
            }
        }
        (outputs, batches)
    }
}

fn shared_filters() -> Vec<command::Subscription> {
    let filter = |number| command::Subscription {
        filter: format!("$share/{number}/t"),
        qos: 1,
        ..Default::default()
    };
    (0..MANY).map(filter).collect()
}

/// A session that subscribes to a filter in many groups, as its connection does it: what was not made comes again.
fn with_many_groups(open: command::OpenSession) -> Replica {
    let mut replica = Replica::new();
    let client_id = open.client_id.clone();
    replica.present(open);
    let mut subscriptions = shared_filters();
    while !subscriptions.is_empty() {
        let subscribe = command::Subscribe {
            client_id: client_id.clone(),
            connection: 1,
            subscriptions: subscriptions.clone(),
            ..Default::default()
        };
        let Reply::Subscribed { new, .. } = replica.reply(Kind::Subscribe(subscribe)) else {
            panic!("it is the owner");
        };
        assert!(!new.is_empty() && new.iter().all(|new| *new));
        replica.check_cost();
        subscriptions.drain(..new.len());
    }
    assert_eq!(rows::<schema::Group>(&replica), MANY);
    replica
}

#[test]
fn subscribing_to_many_groups_and_the_end_of_that_session() {
    let transient = command::OpenSession {
        expiry_interval_s: 0,
        ..open("a", 1)
    };
    let mut replica = with_many_groups(transient);
    replica.run(vec![close("a", 1)]);
    replica.check_cost();
    assert!(rows::<schema::Group>(&replica) > 0, "the rest follows");
    assert!(!replica.present(open("a", 2)), "the session has ended");
    replica.check_cost();
    replica.settle_cheaply();
    for table in [
        schema::Group::ORDINAL,
        schema::Subscription::ORDINAL,
        schema::EndedSession::ORDINAL,
    ] {
        assert_eq!(rows_of(&replica, table), 0, "table {table:#x}");
    }
    assert!(replica.present(open("a", 3)), "the new one goes on");
}

#[test]
fn unsubscribing_from_many_groups() {
    let mut replica = with_many_groups(open("a", 1));
    let mut filters: Vec<String> = shared_filters()
        .into_iter()
        .map(|subscription| subscription.filter)
        .collect();
    while !filters.is_empty() {
        let unsubscribe = command::Unsubscribe {
            client_id: "a".to_owned(),
            connection: 1,
            filters: filters.clone(),
        };
        let Reply::Unsubscribed(removed) = replica.reply(Kind::Unsubscribe(unsubscribe)) else {
            panic!("it is the owner");
        };
        assert!(!removed.is_empty() && removed.iter().all(|removed| *removed));
        replica.check_cost();
        filters.drain(..removed.len());
    }
    assert_eq!(rows::<schema::Group>(&replica), 0);
}

/// Sessions with a subscription, a will and a message each, all owned by this node.
fn with_many_sessions() -> Replica {
    let mut replica = Replica::new();
    replica.watch_wills();
    for number in 0..MANY / 4 {
        let client_id = number.to_string();
        let connection = number as u64 + 1;
        let opened = durable(&client_id, connection, 10);
        replica.run(vec![
            Kind::OpenSession(with_will(opened, 0)),
            subscribe(&client_id, connection, &format!("t/{number}"), 1),
            publish(&format!("t/{number}"), 1, "x"),
        ]);
    }
    replica
}

fn sessions_of(replica: &Replica, owned: bool) -> usize {
    use prost::Message as _;
    let range = replica.stored.range(vec![0x10]..vec![0x11]);
    let rows = range.map(|(_, row)| crate::base::proto::state::Session::decode(&row[..]));
    let rows = rows.map(|row| row.expect("a row"));
    rows.filter(|row| (row.owner_node == NODE.0) == owned)
        .count()
}

#[test]
fn the_end_of_an_incarnation_with_many_connections() {
    let mut replica = with_many_sessions();
    let down = Kind::NodeDown(command::NodeDown {
        node: NODE.0,
        incarnation: INCARNATION.0,
    });
    let down = proposal(CLUSTER, Incarnation(0), 0, vec![down]);
    let outputs = replica.apply(vec![down]);
    replica.check_cost();
    assert!(matches!(
        outputs.last(),
        Some(Output::NodeEnded { node: NODE, .. })
    ));
    let left = sessions_of(&replica, true);
    assert!(left > 0, "the rest follows");
    assert!(replica.machine.has_work_due(), "and is waited for");
    // Nobody owns anything any more: what is published goes to nobody of that incarnation, which begins anew under the
    // same numbers.
    let last = (MANY / 4 - 1).to_string();
    let next = Incarnation(INCARNATION.0 + 1);
    let outputs = replica.apply(vec![proposal(
        NODE,
        next,
        1,
        vec![
            Kind::OpenSession(open("new", MANY as u64 / 4)),
            publish(&format!("t/{last}"), 1, "y"),
        ],
    )]);
    let sends = |output: &&Output| matches!(output, Output::Deliver(_));
    assert_eq!(outputs.iter().filter(sends).count(), 0);
    // A connection that takes such a session over finds it as if it had been released.
    let resumed = Kind::OpenSession(durable(&last, 1, 10));
    let outputs = replica.apply(vec![proposal(NODE, next, 2, vec![resumed])]);
    replica.check_cost();
    let wills = |outputs: &[Output]| super::wills(outputs);
    assert!(wills(&outputs) > 0, "its will went out: {outputs:?}");
    assert_eq!(outputs.iter().filter(sends).count(), 2, "both messages");
    let (rest, batches) = replica.settle_cheaply();
    assert!(batches > 1);
    assert!(wills(&rest) < MANY / 4);
    assert_eq!(sessions_of(&replica, true), 2);
    assert_eq!(rows::<schema::EndedIncarnation>(&replica), 0);
}

#[test]
fn many_sessions_that_expire_in_one_millisecond() {
    let mut replica = with_many_sessions();
    let closes = (0..MANY / 4).map(|number| close(&number.to_string(), number as u64 + 1));
    replica.now += 1;
    replica.run_all(closes.collect::<Vec<_>>());
    replica.now += 100_000;
    replica.settle_cheaply();
    assert_eq!(rows::<schema::Session>(&replica), 1, "the watcher's");
    assert_empty(&replica);
}

#[test]
fn many_keys_that_expire_in_one_millisecond_while_commands_come() {
    let mut replica = Replica::new();
    for number in 0..MANY / TOGETHER {
        let write = |key: usize| {
            let key = (number * TOGETHER + key).to_be_bytes();
            Kind::StoreWrite(set(&key, b"v", Condition::None, Some(50_000), &key))
        };
        replica.run((0..TOGETHER).map(write).collect());
    }
    replica.now += 50_000;
    let mut batches = 0;
    while replica.machine.usage().keys > 1 {
        replica.now += 1;
        let correlation = replica.now.to_be_bytes();
        let write = set(b"k", b"v", Condition::None, None, &correlation);
        let reply = replica.reply(Kind::StoreWrite(write));
        assert!(matches!(reply, Reply::Store(_)), "commands go on");
        replica.check_cost();
        batches += 1;
    }
    assert!(batches > 1 && batches < MANY);
}

#[test]
fn messages_on_their_way_do_not_wait_for_many_keys_that_expire() {
    let mut replica = Replica::new();
    for number in 0..MANY / 10 {
        let client_id = number.to_string();
        let connection = number as u64 + 1;
        replica.run(vec![
            Kind::OpenSession(durable(&client_id, connection, 10)),
            subscribe(&client_id, connection, "t", 1),
        ]);
    }
    for number in 0..MANY / TOGETHER {
        let write = |key: usize| {
            let key = (number * TOGETHER + key).to_be_bytes();
            Kind::StoreWrite(set(&key, b"v", Condition::None, Some(50_000), &key))
        };
        replica.run((0..TOGETHER).map(write).collect());
    }
    replica.now += 50_000;
    replica.run(vec![publish("t", 1, "x")]);
    assert_eq!(rows::<schema::FanOut>(&replica), 1);
    while rows::<schema::FanOut>(&replica) > 0 {
        replica.pass(1);
        replica.check_cost();
        replica.restart();
    }
    assert!(replica.machine.usage().keys > MANY as u64 / 4);
}

#[test]
fn the_end_of_a_session_with_much_of_everything() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        max_messages: u64::MAX,
        max_bytes: u64::MAX,
        ..super::queues::BOUNDS
    };
    let opened = command::OpenSession {
        bounds: Some(bounds),
        ..durable("a", 1, 65_535)
    };
    replica.present(opened);
    replica.present(durable("b", 2, 1));
    let filters = (0..MANY).map(|number| subscribe("a", 1, &format!("f/{number}"), 1));
    replica.run_all(filters.collect::<Vec<_>>());
    replica.run(vec![
        subscribe("a", 1, "t", 1),
        subscribe("a", 1, "$share/g/t", 1),
        subscribe("b", 2, "$share/g/t", 1),
    ]);
    let watches = (0..MANY).map(|number| {
        Kind::KeyNotify(command::KeyNotify {
            client_id: "a".to_owned(),
            connection: 1,
            key: number.to_be_bytes().to_vec().into(),
            ..Default::default()
        })
    });
    replica.run_all(watches.collect::<Vec<_>>());
    let received = (1..=MANY as u32).map(|packet_id| {
        Kind::Publish(command::Publish {
            connection: 1,
            packet_id,
            message: Some(message("nobody", 2, "x")),
            ..Default::default()
        })
    });
    replica.run_all(received.collect::<Vec<_>>());
    replica.run_all(vec![publish("t", 1, "x"); MANY]);
    let delete = Kind::DeleteSession(command::DeleteSession {
        client_id: "a".to_owned(),
    });
    replica.run(vec![delete]);
    replica.check_cost();
    assert!(!replica.present(open("a", 3)), "a new one at once");
    assert_eq!(
        replica.machine.parts.messaging.index().counts().0,
        3,
        "the ended one is still there"
    );
    replica.settle_cheaply();
    for table in [
        schema::EndedSession::ORDINAL,
        schema::Received::ORDINAL,
        schema::Watch::ORDINAL,
    ] {
        assert_eq!(rows_of(&replica, table), 0, "table {table:#x}");
    }
    assert_eq!(replica.machine.watched_keys(), 0);
    assert_eq!(rows::<schema::Subscription>(&replica), 1);
    let left = rows::<schema::Entry>(&replica) + rows::<schema::Waiting>(&replica);
    assert_eq!(left as u64, replica.machine.queue_usage().messages);
    replica.run(vec![Kind::DeleteSession(command::DeleteSession {
        client_id: "b".to_owned(),
    })]);
    replica.check_cost();
    replica.settle_cheaply();
    assert_empty(&replica);
    assert_eq!(rows::<schema::Group>(&replica), 0);
}

#[test]
fn full_queues_whose_sessions_end_and_publish_wills_that_fill_others() {
    let mut replica = Replica::new();
    let bounds = command::QueueBounds {
        max_messages: 1,
        policy: 2,
        ..super::queues::BOUNDS
    };
    let count = MANY / 20;
    for number in 0..count {
        let client_id = number.to_string();
        let mut opened = with_will(
            command::OpenSession {
                bounds: Some(bounds),
                ..durable(&client_id, number as u64 + 1, 1)
            },
            0,
        );
        // Each will fills the queue of the next.
        if let Some(message) = opened.will.as_mut().and_then(|will| will.message.as_mut()) {
            message.topic = format!("t/{}", number + 1);
            message.qos = 1;
        }
        let connection = number as u64 + 1;
        let filter = format!("t/{number}");
        replica.run(vec![
            Kind::OpenSession(opened),
            subscribe(&client_id, connection, &filter, 1),
            publish(&filter, 1, "x"),
        ]);
    }
    replica.run(vec![publish("t/0", 1, "y")]);
    replica.check_cost();
    replica.settle_cheaply();
    assert_eq!(rows::<schema::Session>(&replica), 0, "one after the other");
    assert_empty(&replica);
}

#[test]
fn a_message_for_many_sessions_and_a_will_for_them() {
    let mut replica = Replica::new();
    let many = MANY / 2;
    for number in 0..many {
        let client_id = number.to_string();
        let connection = number as u64 + 1;
        replica.run(vec![
            Kind::OpenSession(durable(&client_id, connection, 1)),
            subscribe(&client_id, connection, "will", 1),
        ]);
    }
    let outputs = replica.run(vec![publish("will", 1, "x"); 2]);
    replica.check_cost();
    let replies = |output: &&Output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::Published { matched: true },
                ..
            }
        )
    };
    assert_eq!(outputs.iter().filter(replies).count(), 2);
    let mut opened = with_will(open("w", 1), 0);
    if let Some(message) = opened.will.as_mut().and_then(|will| will.message.as_mut()) {
        message.qos = 1;
    }
    replica.run(vec![Kind::OpenSession(opened), close("w", 1)]);
    replica.check_cost();
    assert_eq!(rows::<schema::FanOut>(&replica), 3);
    let (_, batches) = replica.settle_cheaply();
    assert!(batches > 10, "{batches} batches");
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
    assert_eq!(rows::<schema::Entry>(&replica), 3 * many);
    assert_eq!(rows::<schema::Message>(&replica), 3);
}

#[test]
fn a_message_for_many_groups() {
    let mut replica = with_many_groups(durable("a", 1, 10));
    replica.run(vec![publish("t", 1, "x")]);
    replica.check_cost();
    replica.settle_cheaply();
    assert_eq!(rows::<schema::FanOut>(&replica), 0);
    let got = rows::<schema::Entry>(&replica) + rows::<schema::Waiting>(&replica);
    assert_eq!(got, MANY);
}

#[test]
fn nodes_that_own_nothing_are_left_alone() {
    let mut replica = Replica::new();
    replica.apply(vec![proposal(NodeId(2), INCARNATION, 1, Vec::new())]);
    replica.apply(vec![proposal(NodeId(2), Incarnation(9), 1, Vec::new())]);
    assert_eq!(rows::<schema::EndedIncarnation>(&replica), 0);
    assert_eq!(replica.settle_cheaply().1, 0);
}

#[test]
fn the_largest_changes_of_the_directory_and_their_expiry() {
    let mut replica = Replica::new();
    let expires_at_ms = replica.now + 50_000;
    let most = limits::DIRECTORY_CHANGES;
    let changes = |batch: usize| {
        let change = move |number: usize| command::DirectoryChange {
            expires_at_ms,
            ..directory::put(DirectoryKind::Ban, &format!("{batch}/{number}"), "v")
        };
        (0..most).map(change).collect::<Vec<_>>()
    };
    for batch in 0..MANY / most {
        for _ in 0..2 {
            replica.run(vec![directory::write(changes(batch))]);
            replica.check_cost();
        }
    }
    assert_eq!(rows::<schema::DirectoryEntry>(&replica), MANY / most * most);
    replica.now = expires_at_ms;
    let (_, batches) = replica.settle_cheaply();
    assert!(batches > 1, "the rest follows");
    assert_eq!(rows::<schema::DirectoryEntry>(&replica), 0);
}
