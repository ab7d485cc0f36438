//! P12: SUBSCRIBEs that cost the server as much as they can, beside clients that behave.

use cluster_tests::attacks;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::hostile::{Crowd, Fate, Terms, beside, beside_on, flood};
use cluster_tests::random::Random;
use cluster_tests::wait::{self, allowed};
use cluster_tests::wire::{self, Connect, Message, Packet, Properties, V5, Value, Will, id};
use std::time::{Duration, Instant};

attacks![
    sixty_thousand_shared_filters,
    sixty_thousand_filters,
    sixty_five_thousand_subscription_identifiers,
    filters_that_begin_alike,
    filters_of_hundreds_of_levels,
    subscribing_and_unsubscribing_without_reading,
    subscribing_to_everything_again_and_again,
    filters_over_retained_messages_that_have_gone,
    filters_of_durable_sessions_that_no_retained_message_matches,
];

/// The announced packet size, and some room for the fields around the filters.
const PACKET: usize = (1 << 20) - 64;

/// How long the server may take for a SUBSCRIBE of a mebibyte.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A durable client, so that what it leaves behind is replicated work, too.
fn hostile(cluster: &Cluster) -> Connection {
    hostile_named(cluster, "hostile")
}

fn hostile_named(cluster: &Cluster, client_id: &str) -> Connection {
    let connect = Connect::v5(client_id).durable(1);
    Connection::connect(cluster.mqtt(0), &connect).0
}

/// One SUBSCRIBE of as many filters as fit a packet. How many are granted.
fn subscribe_at_once(client: &mut Connection, filter: impl Fn(usize) -> String) -> usize {
    let mut filters = Vec::new();
    let mut bytes = 0;
    loop {
        let filter = filter(filters.len());
        bytes += filter.len() + 3;
        if bytes > PACKET {
            break;
        }
        filters.push(filter);
    }
    let with_options: Vec<(&str, u8)> = filters.iter().map(|f| (f.as_str(), 1)).collect();
    let packet_id = client.packet_id();
    let packet = wire::subscribe(V5, packet_id, &Properties::new(), &with_options);
    client.send(&packet);
    judge_answer(client, filters.len())
}

/// Either all filters are answered for, granted or not, or the client is told why it is ended. Returns how many are
/// granted.
fn judge_answer(client: &mut Connection, filters: usize) -> usize {
    loop {
        match client.receive(ANSWER_WITHIN) {
            Ok(Packet::Suback(suback)) => {
                let granted = suback.codes.iter().filter(|code| **code < 0x80).count();
                eprintln!("{granted} of {filters} filters granted");
                assert_eq!(suback.codes.len(), filters, "[MQTT-3.8.4-5]");
                return granted;
            }
            Ok(Packet::Disconnect(disconnect)) => {
                eprintln!("ended with {:#04x}", disconnect.code);
                assert!(disconnect.code >= 0x80, "{disconnect:?}");
                return 0;
            }
            Ok(Packet::Publish(_)) => {}
            other => panic!("instead of SUBACK: {other:?}"),
        }
    }
}

/// The session ends, by itself: its expiry interval is a second.
fn end(client: Connection) {
    client.hang_up();
    std::thread::sleep(Duration::from_secs(2));
}

/// Members of 60,000 groups, all with the same filter.
fn sixty_thousand_shared_filters(cluster: &mut Cluster) {
    beside(cluster, |cluster| {
        let mut client = hostile(cluster);
        let name = |number: usize| format!("$share/{number:x}/t");
        subscribe_at_once(&mut client, name);
        let _ = client.try_send(&Message::new("t", "to all groups").bytes(V5));
        end(client);
        // One group, named again and again.
        let mut client = hostile(cluster);
        subscribe_at_once(&mut client, |_| "$share/x/t".into());
        end(client);
    });
}

fn sixty_thousand_filters(cluster: &mut Cluster) {
    beside(cluster, |cluster| {
        let mut client = hostile(cluster);
        subscribe_at_once(&mut client, |number| format!("plain/{number:x}"));
        end(client);
        let mut client = hostile(cluster);
        subscribe_at_once(&mut client, |_| "plain/x".into());
        end(client);
    });
}

/// Filters that all match one topic, each with an identifier of its own.
fn sixty_five_thousand_subscription_identifiers(cluster: &mut Cluster) {
    const LEVELS: usize = 16;
    beside(cluster, |cluster| {
        let mut client = hostile(cluster);
        let mut bytes = Vec::new();
        for number in 0..1_u32 << LEVELS {
            let level = |bit| if number >> bit & 1 == 0 { "a" } else { "+" };
            let filter = (0..LEVELS).map(level).collect::<Vec<_>>().join("/");
            let identifier = Value::Varint(number + 1);
            let list = Properties::new().with(id::SUBSCRIPTION_IDENTIFIER, identifier);
            let packet_id = (number % 65_535 + 1) as u16;
            bytes.extend(wire::subscribe(V5, packet_id, &list, &[(&filter, 0)]));
        }
        let sent = client.try_send(&bytes);
        let mut answers = 0;
        let ended = loop {
            match client.receive(Duration::from_secs(20)) {
                Ok(Packet::Suback(_)) => answers += 1,
                other => break other,
            }
            if answers == 1 << LEVELS {
                break Err(Fault::Timeout);
            }
        };
        eprintln!("{answers} SUBACKs, sending {sent:?}, at the end {ended:?}");
        let topic = ["a"; LEVELS].join("/");
        let mut publisher = Connection::v5(cluster.mqtt(0), "publisher");
        for _ in 0..20 {
            publisher.publish(Message::new(&topic, "x").qos(1, 0));
        }
        publisher.disconnect();
        end(client);
    });
}

/// Where nothing bounds how many filters of a session match one topic: what a look-up costs counts.
#[test]
fn filters_of_many_clients_that_match_one_topic() {
    let mqtt = "max_wildcard_patterns = 1000000\ndeep_wildcard_patterns_max = 1000000\n";
    let plan = Plan {
        mqtt: mqtt.to_owned(),
        ..Plan::default()
    };
    match_one_topic(&mut Cluster::start_with(plan));
}

/// Thousands of filters of each of many clients match whatever is published, and each message has a topic of its own,
/// so each is looked up anew.
fn match_one_topic(cluster: &mut Cluster) {
    const LEVELS: usize = 13;
    const MESSAGES: u16 = 100;
    beside(cluster, |cluster| {
        let level = |number: usize, bit: usize| match number >> bit & 1 {
            0 => "a/",
            _ => "+/",
        };
        let filter = |number| {
            (0..LEVELS)
                .map(|bit| level(number, bit))
                .collect::<String>()
                + "#"
        };
        let nodes = cluster.nodes.len();
        let subscribers: Vec<Connection> = (0..20)
            .map(|client| {
                let name = format!("subscriber-{client}");
                let mut subscriber = Connection::v5(cluster.mqtt(client % nodes), &name);
                let filters: Vec<String> = (0..1 << LEVELS).map(filter).collect();
                let filters: Vec<(&str, u8)> = filters.iter().map(|f| (f.as_str(), 0)).collect();
                subscriber.send(&wire::subscribe(V5, 1, &Properties::new(), &filters));
                judge_answer(&mut subscriber, filters.len());
                subscriber
            })
            .collect();
        let mut publishers: Vec<Connection> = (0..nodes)
            .map(|node| Connection::v5(cluster.mqtt(node), &format!("publisher-{node}")))
            .collect();
        publish_to_new_topics(&mut publishers, LEVELS, MESSAGES);
        for client in subscribers.into_iter().chain(publishers) {
            client.disconnect();
        }
    });
}

/// Each message has so many levels `a`, and two of its own.
fn publish_to_new_topics(publishers: &mut [Connection], levels: usize, messages: u16) {
    for (node, publisher) in publishers.iter_mut().enumerate() {
        let message = |number| {
            let topic = format!("{}{node}/{number}", "a/".repeat(levels));
            Message::new(&topic, "x").qos(1, number).bytes(V5)
        };
        publisher.send(&(1..=messages).flat_map(message).collect::<Vec<u8>>());
    }
    for publisher in publishers {
        for _ in 0..messages {
            let answer = publisher.receive(ANSWER_WITHIN);
            assert!(
                matches!(&answer, Ok(Packet::Puback(ack)) if ack.code < 0x80),
                "{answer:?}"
            );
        }
    }
}

/// Filters of many clients fit a topic but for their last levels, in as many ways as there are; whatever is published
/// is looked up along all of them, wills of clients that are lost together as well.
fn filters_that_begin_alike(cluster: &mut Cluster) {
    const LEVELS: usize = 18;
    const WILLS: usize = 1_000;
    beside(cluster, |cluster| {
        let nodes = cluster.nodes.len();
        let mut random = Random::new(1);
        let subscribers: Vec<Connection> = (0..60)
            .map(|client| {
                let name = format!("subscriber-{client}");
                let mut subscriber = Connection::v5(cluster.mqtt(client % nodes), &name);
                let mut filter = || {
                    let levels = (0..LEVELS).map(|_| ["a", "+"][usize::from(random.chance(50))]);
                    levels.collect::<Vec<_>>().join("/") + "/x"
                };
                let filters: Vec<String> = (0..4_000).map(|_| filter()).collect();
                let filters: Vec<(&str, u8)> = filters.iter().map(|f| (f.as_str(), 0)).collect();
                subscriber.send(&wire::subscribe(V5, 1, &Properties::new(), &filters));
                let granted = judge_answer(&mut subscriber, filters.len());
                assert!(
                    (1..128 / 8).contains(&granted),
                    "each has patterns of its own"
                );
                subscriber
            })
            .collect();
        let mut publishers: Vec<Connection> = (0..nodes)
            .map(|node| Connection::v5(cluster.mqtt(node), &format!("publisher-{node}")))
            .collect();
        publish_to_new_topics(&mut publishers, LEVELS, 300);
        let mut watcher = Connection::v5(cluster.mqtt(0), "watcher");
        watcher.subscribe(&[(&("a/".repeat(LEVELS) + "+"), 0)]);
        let with_wills: Vec<Connection> = (0..WILLS)
            .map(|number| {
                let topic = format!("{}{number}", "a/".repeat(LEVELS));
                let mut connect = Connect::v5(&format!("with-will-{number}"));
                connect.will = Some(Will {
                    topic,
                    qos: 1,
                    ..Will::default()
                });
                Connection::connect(cluster.mqtt(number % nodes), &connect).0
            })
            .collect();
        for client in with_wills {
            client.hang_up();
        }
        for _ in 0..WILLS {
            watcher.publish_received();
        }
        for client in subscribers.into_iter().chain(publishers).chain([watcher]) {
            client.disconnect();
        }
    });
}

/// Wildcards in any of the levels of a topic that is published to; with 400 levels, and with as many as the server may
/// take.
fn filters_of_hundreds_of_levels(cluster: &mut Cluster) {
    beside(cluster, |cluster| {
        for levels in [400, 200] {
            let mut client = hostile(cluster);
            subscribe_at_once(&mut client, |number| {
                let mut random = Random::new(number as u64);
                let levels = (0..levels).map(|_| if random.chance(50) { "a" } else { "+" });
                levels.collect::<Vec<_>>().join("/")
            });
            let topic = vec!["a"; levels].join("/");
            let mut publisher = Connection::v5(cluster.mqtt(0), "publisher");
            for _ in 0..50 {
                // A refusal of so many levels ends the publisher.
                let _ = publisher.try_send(&Message::new(&topic, "x").bytes(V5));
            }
            let _ = publisher.try_send(&wire::PINGREQ);
            let _ = publisher.receive(ANSWER_WITHIN);
            end(client);
        }
    });
}

/// SUBACKs and UNSUBACKs pile up in the server, or it stops reading, or it ends the client.
fn subscribing_and_unsubscribing_without_reading(cluster: &mut Cluster) {
    let chunk: Vec<u8> = (0..200_u16)
        .flat_map(|number| {
            let filter = format!("again/{number}");
            let list = Properties::new();
            let subscribe = wire::subscribe(V5, number + 1, &list, &[(&filter, 1)]);
            [subscribe, wire::unsubscribe(V5, number + 1001, &[&filter])].concat()
        })
        .collect();
    let fate = beside(cluster, |cluster| {
        let client = hostile(cluster);
        let flood = flood(&client, &chunk, 64 << 20, Duration::from_secs(6));
        eprintln!("{flood:?}");
        end(client);
        flood.fate
    });
    assert_ne!(fate, Fate::Taken);
}

/// Topics whose messages are retained in a test.
const RETAINED: usize = 100_000;

/// Publishes a retained message to each of so many topics; an empty one takes away what is retained there.
fn retain(cluster: &Cluster, topics: usize, payload: &[u8]) {
    let mut seeder = Connection::v5(cluster.mqtt(0), "seeder");
    for first in (0..topics).step_by(500) {
        for number in first..first + 500 {
            let message = Message {
                retain: true,
                ..Message::new(&format!("seeded/{number}"), payload)
            };
            let packet_id = (number - first + 1) as u16;
            seeder.send(&message.qos(1, packet_id).bytes(V5));
        }
        for _ in 0..500 {
            assert!(matches!(seeder.expect(), Packet::Puback(ack) if ack.code < 0x80));
        }
    }
    seeder.disconnect();
}

/// Each of the filters has to look for what is retained among topics of which nothing is left.
fn filters_over_retained_messages_that_have_gone(cluster: &mut Cluster) {
    retain(cluster, RETAINED, &[b'r'; 200]);
    retain(cluster, RETAINED, b"");
    beside(cluster, |cluster| {
        let mut client = hostile(cluster);
        subscribe_at_once(&mut client, |number| format!("seeded/+/{number:x}"));
        end(client);
    });
}

/// Each of 30,000 filters asks for what is retained, batch after batch, and finds nothing. A message to thousands of
/// durable sessions takes several batches as well, and does not wait for them.
fn filters_of_durable_sessions_that_no_retained_message_matches(cluster: &mut Cluster) {
    const SUBSCRIBERS: usize = 3_000;
    /// `mqtt.max_subscriptions` as it is by default.
    const GRANTED: usize = 10_000;
    const FAN_OUT_WITHIN: Duration = Duration::from_secs(1);
    retain(cluster, 1_000, &[b'r'; 200]);
    Crowd::raise_limits();
    let subscribers = Crowd::connect(
        &[cluster.mqtt(0)],
        SUBSCRIBERS,
        |number| Connect::v5(&format!("member-{number}")).durable(600),
        |_| Some("to/all".into()),
    );
    let reader = subscribers.read_on();
    // The last filter matches: as long as its message has not come, others are looked for.
    let filter = |number: usize| match number + 1 == GRANTED {
        true => "seeded/7".to_owned(),
        false => format!("seeded/+/{number:x}"),
    };
    let terms = Terms {
        // What the subscribers have not acknowledged.
        memory_growth: 256 << 20,
        ..Terms::default()
    };
    let (rounds, longest) = beside_on(cluster, &terms, |cluster| {
        let mut clients: Vec<Connection> = (0..3)
            .map(|number| {
                let mut client = hostile_named(cluster, &format!("hostile-{number}"));
                assert_eq!(subscribe_at_once(&mut client, filter), GRANTED);
                client
            })
            .collect();
        let mut last = clients.pop().expect("there are three");
        let mut publisher = Connection::v5(cluster.mqtt(cluster.nodes.len() - 1), "publisher");
        let message = Message::new("to/all", [b'm'; 100]).qos(1, 1);
        let to_all = (SUBSCRIBERS * message.bytes(V5).len()) as u64;
        let (began, mut rounds, mut longest) = (Instant::now(), 0, Duration::ZERO);
        let mut found = Err(Fault::Timeout);
        // Nobody acknowledges, so a session is sent no more than `mqtt.max_inflight` messages.
        while rounds < 200 && began.elapsed() < Duration::from_secs(4) {
            found = last.receive(Duration::from_millis(5));
            if !matches!(found, Err(Fault::Timeout)) {
                break;
            }
            let (before, published) = (reader.bytes(), Instant::now());
            assert!(publisher.publish(message.clone()) < 0x80);
            wait::until("all to have the message", ANSWER_WITHIN, || {
                (reader.bytes() >= before + to_all).then_some(())
            });
            longest = longest.max(published.elapsed());
            rounds += 1;
        }
        publisher.disconnect();
        if matches!(found, Err(Fault::Timeout)) {
            // Other work goes first, so on a busy machine they take long.
            found = last.receive(4 * ANSWER_WITHIN);
        }
        let is_found = matches!(&found, Ok(Packet::Publish(found)) if found.topic == "seeded/7");
        assert!(
            is_found,
            "instead of what the last filter matches: {found:?}"
        );
        // Their sessions expire while clients are looked at afterwards.
        for client in clients.into_iter().chain([last]) {
            client.hang_up();
        }
        (rounds, longest)
    });
    eprintln!("of {rounds} messages the last subscriber had one after {longest:.3?} at most");
    assert_eq!(reader.stop(), 0, "subscribers were ended");
    assert!(
        rounds > 1,
        "{rounds} messages, the slowest within {longest:.1?}: the replays had ended before the second"
    );
    assert!(longest < allowed(FAN_OUT_WITHIN), "{longest:?}");
}

/// Each of the SUBSCRIBEs asks for 100,000 retained messages, or for one that is found nowhere among them.
fn subscribing_to_everything_again_and_again(cluster: &mut Cluster) {
    retain(cluster, RETAINED, &[b'r'; 200]);
    let terms = Terms {
        // Nobody could write for 1.7 s once. The longest SET takes a thirtieth of its bound.
        times: 1,
        ..Terms::default()
    };
    beside_on(cluster, &terms, |cluster| {
        let mut client = Connection::v5(cluster.mqtt(0), "hostile");
        let none = Properties::new();
        // As many as the server takes, and then as many as fit its buffers: each asks for some 25 MB.
        let chunk: Vec<u8> = (1..=100)
            .flat_map(|number| wire::subscribe(V5, number, &none, &[("#", 0)]))
            .collect();
        let flood = flood(&client, &chunk, 2_000 * 10, Duration::from_secs(5));
        // It does not read, and then as fast as it can.
        std::thread::sleep(Duration::from_secs(2));
        let (mut subacks, mut retained) = (0, 0);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) || retained < RETAINED {
            match client.receive(ANSWER_WITHIN) {
                Ok(Packet::Suback(_)) => subacks += 1,
                Ok(Packet::Publish(publish)) => retained += usize::from(publish.retain),
                other => panic!("after {subacks} SUBACKs, {retained} retained messages: {other:?}"),
            }
        }
        eprintln!("{flood:?}, {subacks} SUBACKs, {retained} retained messages");
        assert_eq!(flood.fate, Fate::Taken);
        assert!(subacks > 0, "{retained} retained messages without SUBACK");
    });
}
