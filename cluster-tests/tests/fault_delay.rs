//! P1, P5, W2: delay between nodes. On one machine a node hears of a commit before a client can do anything else;
//! between real ones a client may reach the next node first. What a client was told, by an acknowledgement or by the
//! server's close after its DISCONNECT, holds on every node all the same.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, V311, Value, Will, id};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

/// Tries of each rule, because a race is lost only now and then.
const TRIES: usize = 60;

/// Tries at once.
const AT_ONCE: usize = 6;

/// What must not come is waited for that long.
const QUIET: Duration = Duration::from_millis(200);

/// From an acknowledgement to the take-over that must know of it: some round trips of the longest delay.
const WELL_BEFORE: Duration = Duration::from_millis(300);

/// From an acknowledgement to a take-over that finds it unproposed: less than acknowledgements wait for each other.
const JUST_BEFORE: Duration = Duration::from_millis(2);

fn delayed(delay_ms: u64) -> Cluster {
    Cluster::start_with(Plan {
        delay: Duration::from_millis(delay_ms),
        ..Plan::default()
    })
}

/// Where a try connects first, where it connects next, and its number.
struct Try {
    first: SocketAddr,
    next: SocketAddr,
    number: usize,
}

/// Runs a rule `TRIES` times, some of them at once; says in which it was broken, and how.
fn broken(cluster: &Cluster, rule: impl Fn(&Try) -> Result<(), String> + Sync) -> Vec<String> {
    let addresses = cluster.addresses();
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..AT_ONCE {
            let (rule, broken, addresses) = (&rule, &broken, &addresses);
            scope.spawn(move || {
                for number in (thread..TRIES).step_by(AT_ONCE) {
                    let one = Try {
                        first: addresses[number % 3],
                        next: addresses[(number + 1 + number / 3 % 2) % 3],
                        number,
                    };
                    if let Err(why) = rule(&one) {
                        let mut broken = broken.lock().expect("no holder of the lock panics");
                        broken.push(format!("try {number}: {why}"));
                    }
                }
            });
        }
    });
    broken.into_inner().expect("no holder of the lock panics")
}

#[track_caller]
fn assert_never(broken: &[String], what: &str) {
    let (some, count) = (&broken[..broken.len().min(3)], broken.len());
    assert!(broken.is_empty(), "{what} in {count} of {TRIES}: {some:?}");
}

/// DISCONNECT, then waits for the server's close.
fn leave(mut connection: Connection, properties: &Properties) {
    connection.send(&wire::disconnect(connection.level(), 0, properties));
    let closed = connection.read_to_end(Duration::from_secs(10));
    assert!(
        closed.is_ok(),
        "no close after DISCONNECT [MQTT-3.14.4-1]: {closed:?}"
    );
}

/// Nothing comes to a client that has just connected.
fn hears_nothing(mut connection: Connection) -> Result<(), String> {
    match connection.receive(QUIET) {
        Err(Fault::Timeout) => Ok(()),
        Ok(Packet::Publish(publish)) => Err(format!(
            "{:?} came again, DUP {}",
            publish.topic, publish.duplicate
        )),
        other => Err(format!("{other:?}")),
    }
}

fn a_durable(client_id: &str, level: u8) -> Connect {
    Connect::at(client_id, level).durable(600)
}

/// A durable subscriber that has received and acknowledged `count` messages.
fn with_acknowledged(one: &Try, name: &str, level: u8, count: usize) -> (Connection, String) {
    let client_id = format!("{name}-{}", one.number);
    let topic = format!("{name}/{}", one.number);
    let (mut subscriber, _) = Connection::connect(one.first, &a_durable(&client_id, level));
    subscriber.subscribe(&[(&topic, 1)]);
    let mut publisher = Connection::v5(one.first, &format!("{client_id}-publisher"));
    for number in 0..count {
        let payload = number.to_string();
        publisher.publish(Message::new(&topic, payload).qos(1, 0));
        subscriber.publish_received();
    }
    (subscriber, client_id)
}

/// [MQTT-3.14.4-3], [MQTT-3.1.2-10]: the will is gone once the server has closed.
fn a_clean_end_takes_the_will_along(delay_ms: u64) {
    let cluster = delayed(delay_ms);
    for level in [V311, V5] {
        let mut watcher = Connection::v5(cluster.mqtt(0), &format!("watcher-{level}"));
        watcher.subscribe(&[(&format!("wills/{level}/#"), 1)]);
        let broken = broken(&cluster, |one| {
            let mut connect = Connect::at(&format!("with-will-{level}-{}", one.number), level);
            connect.will = Some(Will {
                topic: format!("wills/{level}/{}", one.number),
                payload: b"gone".to_vec(),
                ..Will::default()
            });
            let (client, _) = Connection::connect(one.first, &connect);
            leave(client, &Properties::new());
            connect.will = None;
            let (next, _) = Connection::connect(one.next, &connect);
            leave(next, &Properties::new());
            Ok(())
        });
        assert_never(&broken, "an error");
        let mut published = Vec::new();
        while let Ok(publish) = watcher.next_publish(Duration::from_secs(2)) {
            published.push(publish.topic);
        }
        eprintln!(
            "level {level}, {delay_ms} ms: {} wills of {TRIES}",
            published.len()
        );
        assert_never(&published, "the will of a clean end was published");
    }
}

#[test]
fn a_clean_end_takes_the_will_along_with_2_ms_between_nodes() {
    a_clean_end_takes_the_will_along(2);
}

#[test]
fn a_clean_end_takes_the_will_along_with_20_ms_between_nodes() {
    a_clean_end_takes_the_will_along(20);
}

/// A session that its client ended is gone once the server has closed, and so is what was acknowledged before.
fn a_close_is_known_everywhere(delay_ms: u64) {
    let cluster = delayed(delay_ms);
    let mut figures = Vec::new();
    let ended = broken(&cluster, |one| {
        let client_id = format!("ended-{}", one.number);
        let (client, _) = Connection::connect(one.first, &a_durable(&client_id, V5));
        let none = Properties::new().with(id::SESSION_EXPIRY, Value::FourBytes(0));
        leave(client, &none);
        let (next, connack) = Connection::connect(one.next, &a_durable(&client_id, V5));
        leave(next, &none);
        match connack.session_present {
            true => Err("session present 1".into()),
            false => Ok(()),
        }
    });
    figures.push(("a session with expiry 0 was present", ended));
    for (level, what) in [
        (V311, "3.1.1: acknowledged, and sent again after the close"),
        (V5, "5: acknowledged, and sent again after the close"),
    ] {
        let name = format!("left-{level}");
        let again = broken(&cluster, |one| {
            let (subscriber, client_id) = with_acknowledged(one, &name, level, 1);
            leave(subscriber, &Properties::new());
            let (next, connack) = Connection::connect(one.next, &a_durable(&client_id, level));
            assert!(connack.session_present, "P3");
            hears_nothing(next)
        });
        figures.push((what, again));
    }
    for (what, broken) in &figures {
        eprintln!("{what}, {delay_ms} ms: {} of {TRIES}", broken.len());
    }
    for (what, broken) in &figures {
        assert_never(broken, what);
    }
}

#[test]
fn a_close_is_known_everywhere_with_2_ms_between_nodes() {
    a_close_is_known_everywhere(2);
}

#[test]
fn a_close_is_known_everywhere_with_20_ms_between_nodes() {
    a_close_is_known_everywhere(20);
}

/// A take-over without DISCONNECT, `after` a client has acknowledged what it was sent: that does not come again.
fn a_take_over_knows_what_was_acknowledged(delay_ms: u64, after: Duration, counts: &[usize]) {
    let cluster = delayed(delay_ms);
    let mut figures = Vec::new();
    for level in [V311, V5] {
        for &count in counts {
            let name = format!("taken-{level}-{count}");
            let again = broken(&cluster, |one| {
                let (old, client_id) = with_acknowledged(one, &name, level, count);
                std::thread::sleep(after);
                let (next, connack) = Connection::connect(one.next, &a_durable(&client_id, level));
                assert!(connack.session_present, "P3");
                let heard = hears_nothing(next);
                drop(old);
                heard
            });
            let times = again.len();
            eprintln!(
                "level {level}, {count} messages, {delay_ms} ms, after {after:?}: {times} of {TRIES}"
            );
            figures.push(again);
        }
    }
    for again in &figures {
        assert_never(again, "acknowledged, and sent again after a take-over");
    }
}

#[test]
fn a_take_over_knows_what_was_acknowledged_with_2_ms_between_nodes() {
    a_take_over_knows_what_was_acknowledged(2, WELL_BEFORE, &[5]);
}

#[test]
fn a_take_over_knows_what_was_acknowledged_with_20_ms_between_nodes() {
    a_take_over_knows_what_was_acknowledged(20, WELL_BEFORE, &[5]);
}

/// Before the acknowledgement is even proposed: it waits to share a proposal with others.
#[test]
fn a_take_over_knows_what_was_acknowledged_just_before_with_2_ms_between_nodes() {
    a_take_over_knows_what_was_acknowledged(2, JUST_BEFORE, &[1, 5]);
}

/// Nodes by what they do in the tests of order.
struct Roles {
    leader: usize,
    /// Of the publisher.
    near: usize,
    /// Of the subscriber.
    far: usize,
}

fn roles(cluster: &Cluster) -> Roles {
    let leader = cluster.wait_leader();
    Roles {
        leader,
        near: (leader + 1) % 3,
        far: (leader + 2) % 3,
    }
}

/// Rounds of each test of order.
const ROUNDS: usize = 20;

/// A link that is slow beside the others: what takes it is overtaken by what does not.
const SLOW: Duration = Duration::from_millis(40);

/// In each round a publisher sends "1" and "2" with `send`; the subscriber must get them in that order.
fn assert_order(
    cluster: &Cluster,
    roles: &Roles,
    qos: u8,
    name: &str,
    mut send: impl FnMut(&mut Connection, &str),
) {
    let mut publisher = Connection::v5(cluster.mqtt(roles.near), &format!("{name}-publisher"));
    let mut subscriber = Connection::v5(cluster.mqtt(roles.far), &format!("{name}-subscriber"));
    // Not by a wildcard: retained messages of earlier rounds are of no interest.
    let mut wrong = Vec::new();
    for round in 0..ROUNDS {
        let topic = format!("{name}/{round}");
        subscriber.subscribe(&[(&topic, qos)]);
        send(&mut publisher, &topic);
        let heard = [(); 2].map(|()| String::from_utf8(subscriber.publish_received().payload));
        let expected = ["1", "2"].map(|text| Ok(text.to_owned()));
        if heard != expected {
            wrong.push(format!("round {round}: {heard:?}"));
        }
        std::thread::sleep(SLOW * 2);
    }
    let (some, count) = (&wrong[..wrong.len().min(3)], wrong.len());
    eprintln!("{name}: {count} of {ROUNDS} in another order");
    assert!(
        wrong.is_empty(),
        "P5: out of order in {count} of {ROUNDS}: {some:?}"
    );
}

fn with_network() -> Cluster {
    Cluster::start_with(Plan {
        network: true,
        ..Plan::default()
    })
}

fn retained(topic: &str, payload: &str, qos: u8) -> Message {
    Message {
        retain: true,
        ..Message::new(topic, payload).qos(qos, 0)
    }
}

/// The retained message takes the log, which is slow to reach the subscriber's node; the next one goes there at once.
#[test]
fn a_live_message_does_not_overtake_a_logged_one() {
    let cluster = with_network();
    let roles = roles(&cluster);
    cluster.network().delay(roles.leader, roles.far, SLOW);
    for qos in [1, 0] {
        let name = format!("retained-first-{qos}");
        assert_order(&cluster, &roles, qos, &name, |publisher, topic| {
            publisher.publish(retained(topic, "1", qos));
            publisher.publish(Message::new(topic, "2").qos(qos, 0));
        });
    }
}

/// The first message takes the log because a durable session wants it, too; that one leaves before the second.
#[test]
fn a_live_message_does_not_overtake_one_that_was_logged_for_a_session_that_left() {
    let cluster = with_network();
    let roles = roles(&cluster);
    let connect = a_durable("leaving", V5);
    let (mut durable, _) = Connection::connect(cluster.mqtt(roles.near), &connect);
    cluster.network().delay(roles.leader, roles.far, SLOW);
    assert_order(&cluster, &roles, 1, "left", |publisher, topic| {
        durable.subscribe(&[(topic, 1)]);
        publisher.publish(Message::new(topic, "1").qos(1, 0));
        durable.publish_received();
        let packet_id = durable.packet_id();
        durable.send(&wire::unsubscribe(V5, packet_id, &[topic]));
        assert!(matches!(durable.expect_answer(), Packet::Unsuback(_)));
        publisher.publish(Message::new(topic, "2").qos(1, 0));
    });
}

/// The other way round: the direct way is the slow one, and the log is quick.
#[test]
fn a_logged_message_does_not_overtake_a_live_one() {
    let cluster = with_network();
    let roles = roles(&cluster);
    cluster.network().delay(roles.near, roles.far, SLOW);
    for qos in [0, 1] {
        let name = format!("retained-last-{qos}");
        assert_order(&cluster, &roles, qos, &name, |publisher, topic| {
            // Both at once, so that no acknowledgement orders them.
            let packet_ids = [publisher.packet_id(), publisher.packet_id()];
            let mut first = Message::new(topic, "1").qos(qos, packet_ids[0]).bytes(V5);
            let mut second = retained(topic, "2", qos);
            second.packet_id = packet_ids[1];
            first.extend(second.bytes(V5));
            publisher.send(&first);
            for _ in 0..2 * qos {
                assert!(matches!(publisher.expect_answer(), Packet::Puback(_)));
            }
        });
    }
}
