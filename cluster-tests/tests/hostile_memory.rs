//! P12: the memory of a node for its clients (`runtime.client_memory_bytes`). Whoever makes it hold much ends when it is
//! used up, the largest first; whoever has little stays, and is answered; new clients are told that there is no room,
//! and come again when there is.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::hostile::{Crowd, Terms, beside_on, reason_of_end};
use cluster_tests::store::{Request, StoreClient};
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Message, V5, V311, Value, id};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::time::Duration;

/// `runtime.client_memory_bytes`; a quarter of it is for handshakes.
const MEMORY: usize = 32 << 20;

/// What open connections may have together.
const SHARE: usize = MEMORY / 4 * 3;

/// What no connection ends for.
const SMALL: usize = 64 << 10;

/// Resident memory may grow by what clients may have, by as much again for the allocator, and by what the bystanders'
/// writes take until they are flushed.
const GROWTH: u64 = 2 * MEMORY as u64 + (16 << 20);

/// How long anything here may take.
const WITHIN: Duration = Duration::from_secs(30);

#[test]
fn memory_of_three_nodes() {
    fill_and_empty(3, "");
}

#[test]
fn memory_of_one_worker() {
    fill_and_empty(1, "worker_threads = 1\n");
}

/// `mqtt.outbox_max_bytes` of a client to which tiny packets are sent.
const OUTBOX: usize = 4 << 20;

/// Publishers of tiny packets.
const PUBLISHERS: usize = 8;

/// A client that does not read makes its node keep as much of tiny packets as of large ones. Publishers wait for it.
#[test]
fn tiny_packets_for_a_client_that_does_not_read() {
    let mut cluster = Cluster::start_with(Plan {
        size: 1,
        mqtt: format!(
            "outbox_max_bytes = {OUTBOX}\noutbox_stall_s = 600\nreceive_maximum = 65535\n"
        ),
        ..Plan::default()
    });
    const RESIDENT: &str = "process_resident_memory_bytes ";
    let before = metric(&cluster, RESIDENT);
    let mut slow = connect_small(&cluster, "slow");
    slow.subscribe(&[("t", 1)]);
    std::thread::scope(|scope| {
        for number in 0..PUBLISHERS {
            let publisher = connect(&cluster, &format!("tiny-{number}"));
            let expires = number % 2 == 1;
            scope.spawn(move || publish_until_held_back(publisher, expires));
        }
    });
    let kept = metric(&cluster, "quorumq_client_memory_bytes ");
    let grown = metric(&cluster, RESIDENT).saturating_sub(before);
    eprintln!("{kept} bytes are counted, {grown} more are resident");
    assert!(kept > OUTBOX / 2, "nothing waits");
    // Beside it, the node remembers what its publishers wait for.
    assert!(kept < 3 * OUTBOX, "as for large packets");
    // What the publishers had is not given back at once.
    assert!(grown < 3 * OUTBOX + PUBLISHERS * (1 << 20), "{grown}");
    // It is waited for, and gets everything when it reads.
    for _ in 0..1_000 {
        let publish = slow.publish_received();
        assert_eq!(publish.topic, "t");
    }
    assert!(cluster.nodes[0].is_running());
}

/// Publishes the smallest packets with QoS 1, or the smallest that expire, as fast as they are acknowledged, until they
/// are not for a while.
fn publish_until_held_back(mut publisher: Connection, expires: bool) {
    const WINDOW: usize = 60_000;
    let mut under_way = 0;
    loop {
        let free = WINDOW - under_way;
        let packets = (0..free.min(1_000)).flat_map(|_| {
            let packet_id = publisher.packet_id();
            let message = Message::new("t", "").qos(1, packet_id);
            match expires {
                true => message.with(id::MESSAGE_EXPIRY, Value::FourBytes(3_600)),
                false => message,
            }
            .bytes(V5)
        });
        let packets: Vec<u8> = packets.collect();
        under_way += free.min(1_000);
        if publisher.try_send(&packets) == Err(Fault::Timeout) {
            return;
        }
        loop {
            let within = match under_way < WINDOW {
                true => Duration::from_millis(1),
                false => Duration::from_secs(2),
            };
            match publisher.receive(within) {
                Ok(wire::Packet::Puback(ack)) => {
                    assert!(ack.code < 0x80, "{ack:?}");
                    under_way -= 1;
                }
                Err(Fault::Timeout) if under_way < WINDOW => break,
                Err(Fault::Timeout) => return,
                other => panic!("a publisher that waits: {other:?}"),
            }
            if under_way + 1_000 < WINDOW {
                break;
            }
        }
    }
}

fn fill_and_empty(size: usize, runtime: &str) {
    Crowd::raise_limits();
    let mut cluster = Cluster::start_with(Plan {
        size,
        extra: format!("[runtime]\nclient_memory_bytes = {MEMORY}\n{runtime}"),
        ..Plan::default()
    });
    let mut seeder = StoreClient::connected("seeder", cluster.mqtt(0));
    // What fits a packet together with its properties.
    seeder.expect(&Request::set("large", vec![b'v'; 1_000_000]), "+OK\r\n");
    seeder.disconnect();
    let terms = Terms {
        memory_growth: GROWTH,
        ..Terms::default()
    };
    beside_on(&mut cluster, &terms, |cluster| {
        the_largest_end_first(cluster);
        the_small_ones_stay_and_nobody_comes(cluster);
    });
}

/// Connects; while there is no room, it is told so, and comes again.
#[track_caller]
fn connect(cluster: &Cluster, name: &str) -> Connection {
    wait::until(
        "room for a client",
        WITHIN,
        || match Connection::try_connect(cluster.mqtt(0), &Connect::v5(name)) {
            Ok((client, connack)) if connack.code == 0 => Some(client),
            Ok((_, connack)) if connack.code == 0x97 => None,
            Ok((_, connack)) => panic!("{name}: {connack:?}"),
            Err(fault) => panic!("{name}: {fault:?}"),
        },
    )
}

/// The same with a socket that buffers little of what is not read.
#[track_caller]
fn connect_small(cluster: &Cluster, name: &str) -> Connection {
    let client = connect(cluster, name);
    let set = set_socket_recv_buffer_size(client.stream(), 64 << 10);
    set.expect("a socket's buffer can be set");
    client
}

/// A client that has sent that much of a PUBLISH, and no more.
fn half_a_packet(cluster: &Cluster, name: &str, bytes: usize) -> Connection {
    let mut client = connect(cluster, name);
    let packet = Message::new("half", vec![b'h'; bytes]).bytes(V5);
    client.send(&packet[..packet.len() - 1]);
    client
}

/// A client that has asked for some megabytes, and reads nothing of them.
fn unread_answers(cluster: &Cluster, name: &str) -> Connection {
    let mut client = connect_small(cluster, name);
    let asks = StoreClient::new(name, &[cluster.mqtt(0)], 0);
    client.subscribe(&[(&asks.response_topic, 0)]);
    let requests = (1..=20_u16).flat_map(|number| {
        let correlation = u128::from(number).to_be_bytes();
        let message = asks.message(&Request::get("large"), &correlation, number);
        message.bytes(V5)
    });
    client.send(&requests.collect::<Vec<_>>());
    client
}

/// A client that is sent some megabytes, and reads nothing of them.
fn unread_deliveries(cluster: &Cluster, name: &str) -> Connection {
    let mut client = connect_small(cluster, name);
    client.subscribe(&[(name, 0)]);
    let mut publisher = connect(cluster, &format!("{name}-publisher"));
    for _ in 0..8 {
        publisher.send(&Message::new(name, vec![b'd'; 500_000]).bytes(V5));
    }
    // Behind them: they are where they are to be.
    publisher.expect_nothing();
    publisher.disconnect();
    client
}

/// A metric of node 0, by the whole of its name.
fn metric(cluster: &Cluster, name: &str) -> usize {
    let metrics = cluster.nodes[0].get("/metrics").map(|answer| answer.body);
    let metrics = metrics.unwrap_or_default();
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.map_or(0, |value| value.trim().parse().expect("a whole number"))
}

/// How many connections were refused or ended for the memory of node 0.
fn told_of_memory(cluster: &Cluster) -> usize {
    metric(cluster, "quorumq_disconnects_total{reason=\"node_memory\"}")
}

/// How many connections node 0 says that it has ended for its memory.
fn ended_for_memory(cluster: &Cluster) -> usize {
    let log = cluster.nodes[0].log_text();
    let of_guard = log
        .lines()
        .filter(|line| line.contains("the memory for clients is used up"));
    of_guard
        .map(|line| {
            let after = line.split_once("ended=").map(|(_, after)| after);
            let number = after.and_then(|after| after.split_whitespace().next());
            let number = number.and_then(|number| number.parse::<usize>().ok());
            number.unwrap_or_else(|| panic!("how many? {line}"))
        })
        .sum()
}

/// Clients that hold a megabyte or more each come until many of them have ended. Those that hold less stay.
fn the_largest_end_first(cluster: &Cluster) {
    const LARGE: usize = 1_000_000;
    const ENDED: usize = 8;
    let mut medium: Vec<Connection> = (0..10)
        .map(|number| half_a_packet(cluster, &format!("medium-{number}"), LARGE / 5))
        .collect();
    let mut large = Vec::new();
    // Nobody has to end for less.
    let fewest = SHARE / LARGE / 4;
    while large.len() < fewest || ended_for_memory(cluster) < ENDED {
        let number = large.len();
        assert!(number < 200, "{} have ended", ended_for_memory(cluster));
        let name = format!("large-{number}");
        large.push(match number % 3 {
            0 => half_a_packet(cluster, &name, LARGE),
            1 => unread_answers(cluster, &name),
            _ => unread_deliveries(cluster, &name),
        });
    }
    let (all, mut told, mut ended) = (large.len(), 0, 0);
    for mut client in large {
        match reason_of_end(&mut client, Duration::from_millis(50)) {
            Some(Some(reason)) => {
                assert_eq!(reason, 0x97, "quota exceeded");
                told += 1;
                ended += 1;
            }
            // The reason is behind what it has not read.
            Some(None) => ended += 1,
            None => {}
        }
    }
    eprintln!("of {all} large clients {ended} have ended, {told} of them were told why");
    assert!(
        ended >= ENDED && told > 0,
        "{ended} have ended, {told} know why"
    );
    for client in &mut medium {
        let end = client.receive(Duration::from_millis(1));
        assert_eq!(end.err(), Some(Fault::Timeout), "a smaller one was ended");
    }
}

/// When it is many who have little each, nobody is ended, and nobody else may come.
fn the_small_ones_stay_and_nobody_comes(cluster: &Cluster) {
    let address = cluster.mqtt(0);
    wait::until("the large ones to be gone", WITHIN, || {
        (metric(cluster, "quorumq_client_memory_bytes ") < SHARE / 4).then_some(())
    });
    let told_before = told_of_memory(cluster);
    let packet = Message::new("half", vec![b'h'; SMALL - 8_000]).bytes(V5);
    let half = &packet[..packet.len() - 1];
    let mut small = Vec::new();
    let refused = loop {
        let most = 2 * SHARE / SMALL;
        assert!(small.len() < most, "{} have room", small.len());
        let connect = Connect::v5(&format!("small-{}", small.len()));
        match Connection::try_connect(address, &connect) {
            Ok((mut client, connack)) if connack.code == 0 => {
                client.send(half);
                small.push(client);
            }
            other => break other.map(|(_, connack)| connack.code),
        }
    };
    let count = small.len();
    eprintln!("{count} small clients, then {refused:?}");
    assert_eq!(refused, Ok(0x97), "the first that has no room");
    for (level, code) in [V5, V311].into_iter().zip([0x97, 3]).cycle().take(20) {
        let connected = Connection::try_connect(address, &Connect::at("one-more", level));
        let told = connected.map(|(_, connack)| connack.code);
        assert_eq!(told, Ok(code), "MQTT {level} beside {count} clients");
    }
    let used = wait::until("the metric to show it", WITHIN, || {
        let used = metric(cluster, "quorumq_client_memory_bytes ");
        (used >= SHARE).then_some(used)
    });
    assert!(used <= MEMORY, "{used} bytes");
    let told = told_of_memory(cluster) - told_before;
    assert!(told >= 21, "{told} refusals are counted");
    for client in &mut small {
        // It goes on where it was.
        client.send(&packet[packet.len() - 1..]);
        client.send(&wire::PINGREQ);
    }
    for client in &mut small {
        let answer = client.receive(WITHIN);
        assert_eq!(answer, Ok(wire::Packet::Pingresp), "a small one was ended");
    }
    wait::until("room for new clients", WITHIN, || {
        let connected = Connection::try_connect(address, &Connect::v5("later"));
        connected.ok().filter(|(_, connack)| connack.code == 0)
    });
}
