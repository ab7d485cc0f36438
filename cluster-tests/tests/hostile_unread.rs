//! P12: clients that ask and do not read the answers, beside clients that behave. What a server cannot hold back it
//! must not keep: either it stops reading such a client, or it ends it.

use cluster_tests::attacks;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::flow::with_small_buffer;
use cluster_tests::hostile::{Fate, Terms, beside, beside_on, flood, reason_of_end};
use cluster_tests::store::{Request, StoreClient};
use cluster_tests::wire::{self, Connect, Message, Packet, V5};
use std::time::Duration;

attacks![
    pinging_without_reading,
    publishing_without_reading_the_acknowledgements,
    reading_large_values_without_reading_the_answers,
    watching_a_key_without_reading,
];

/// Far above what sockets and a connection's budget hold.
const MUCH: usize = 400 << 20;

/// How long a flood may go on.
const FLOOD: Duration = Duration::from_secs(6);

fn hostile(cluster: &Cluster) -> Connection {
    with_small_buffer(cluster.mqtt(0), &Connect::v5("hostile"))
}

fn pinging_without_reading(cluster: &mut Cluster) {
    let chunk = wire::PINGREQ.repeat(64 << 10);
    let fate = beside(cluster, |cluster| {
        let client = hostile(cluster);
        let flood = flood(&client, &chunk, MUCH, FLOOD);
        eprintln!("{flood:?}");
        flood.fate
    });
    assert!(matches!(fate, Fate::HeldBack | Fate::Ended), "{fate:?}");
}

/// PUBACKs are four bytes each; the topic has no subscriber.
fn publishing_without_reading_the_acknowledgements(cluster: &mut Cluster) {
    let messages = |qos: u8| {
        (1..=65_535).flat_map(move |number| Message::new("u", "").qos(qos, number).bytes(V5))
    };
    for qos in [1, 2] {
        let chunk: Vec<u8> = messages(qos).collect();
        beside(cluster, |cluster| {
            let client = hostile(cluster);
            let flood = flood(&client, &chunk, MUCH, FLOOD / 2);
            eprintln!("QoS {qos}: {flood:?}");
        });
    }
}

/// 400 MiB of answers.
fn reading_large_values_without_reading_the_answers(cluster: &mut Cluster) {
    let mut seeder = StoreClient::connected("seeder", cluster.mqtt(0));
    // What fits a packet together with its properties.
    let value = vec![b'v'; 1_000_000];
    seeder.expect(&Request::set("large", value), "+OK\r\n");
    seeder.disconnect();
    beside(cluster, |cluster| {
        // The same answers over one connection and over eight.
        for clients in [1, 8] {
            let floods: Vec<Connection> = (0..clients)
                .map(|number| {
                    let name = format!("hostile-{number}");
                    let mut client = with_small_buffer(cluster.mqtt(0), &Connect::v5(&name));
                    let asks = StoreClient::new(&name, &[cluster.mqtt(0)], 0);
                    client.subscribe(&[(&asks.response_topic, 1)]);
                    let chunk: Vec<u8> = (1..=400 / clients)
                        .flat_map(|number: u16| {
                            let correlation = u128::from(number).to_be_bytes();
                            let message =
                                asks.message(&Request::get("large"), &correlation, number);
                            message.bytes(V5)
                        })
                        .collect();
                    let flood = flood(&client, &chunk, chunk.len(), FLOOD);
                    eprintln!("{flood:?}");
                    client
                })
                .collect();
            std::thread::sleep(FLOOD / 2);
            drop(floods);
        }
    });
}

/// 200 MB of notifications. A watcher must not miss an event, so one that does not read is ended.
fn watching_a_key_without_reading(cluster: &mut Cluster) {
    const VALUE: usize = 500_000;
    const SETS: usize = 400;
    let write = |cluster: &Cluster, name: &str| {
        let node = cluster.mqtt(cluster.nodes.len() - 1);
        let mut writer = StoreClient::connected(name, node);
        for number in 0..SETS {
            let request = Request::set("watched", vec![number as u8; VALUE]);
            writer.expect(&request, "+OK\r\n");
        }
        writer.disconnect();
    };
    // Once without a watcher: what the log and the store keep of such values is no part of the attack.
    write(cluster, "before");
    let terms = Terms {
        memory_growth: 160 << 20,
        ..Terms::default()
    };
    let end = beside_on(cluster, &terms, |cluster| {
        let asks = StoreClient::new("hostile", &[cluster.mqtt(0)], 0);
        let mut client = hostile(cluster);
        client.subscribe(&[(&asks.response_topic, 1)]);
        let request = asks.message(&Request::keynotify("watched"), &[7; 16], 1);
        client.send(&request.bytes(V5));
        for _ in 0..2 {
            match client.expect() {
                Packet::Puback(ack) => assert!(ack.code < 0x80),
                Packet::Publish(publish) => {
                    assert_eq!(publish.payload, b"+OK\r\n");
                    client.send(&wire::acknowledgement(wire::PUBACK, publish.packet_id));
                }
                other => panic!("{other:?}"),
            }
        }
        write(cluster, "during");
        reason_of_end(&mut client, Duration::from_secs(5))
    });
    // The reason may be lost behind what was not read; the end may not.
    assert!(
        matches!(end, Some(None | Some(0x97))),
        "a watcher that does not read is still connected, or ended for another reason: {end:?}"
    );
}
