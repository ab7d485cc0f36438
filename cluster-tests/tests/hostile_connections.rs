//! P12: connections that cost the server something, by their number, their silence, or their common end.

use cluster_tests::attacks;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::hostile::{Crowd, Terms, beside, beside_on};
use cluster_tests::wait;
use cluster_tests::wire::{self, Connect, Packet, Properties, V5, V311, Value, id};
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

attacks![half_a_connect_each, sessions_that_expire_together];

/// Clients that announce a CONNECT of a mebibyte, send a part of it, and stay.
fn half_a_connect_each(cluster: &mut Cluster) {
    const CLIENTS: usize = 2_000;
    const SENT: usize = 200_000;
    Crowd::raise_limits();
    let terms = Terms {
        // A CONNECT of 64 KiB each, which is more than clients need before they have proved who they are.
        memory_growth: (CLIENTS as u64) * (64 << 10) + (64 << 20),
        ..Terms::default()
    };
    // A mebibyte of user properties: nothing shows that it is wrong before all of it is there.
    let property = [
        vec![id::USER_PROPERTY],
        wire::field(b"k"),
        wire::field(&[b'v'; 1000]),
    ]
    .concat();
    let properties = property.repeat(1_000_000 / property.len());
    let length = u32::try_from(properties.len()).expect("it is a mebibyte");
    let body = [
        &wire::field(b"MQTT")[..],
        &[V5, 2, 0, 0],
        &wire::varint(length),
        &properties,
        &wire::field(b"half"),
    ]
    .concat();
    let packet = &wire::packet(0x10, &body)[..SENT];
    beside_on(cluster, &terms, |cluster| {
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client = Connection::open(cluster.mqtt(0), V5)
                .unwrap_or_else(|error| panic!("connection {number}: {error}"));
            let mut stream = client.stream();
            let short = Some(Duration::from_millis(20));
            let set = stream.set_write_timeout(short);
            set.expect("a socket option can be set");
            // What does not fit is not sent: the server may have had enough.
            let _ = stream.write_all(packet);
            clients.push(client);
        }
        // Not to the end of `mqtt.connect_timeout_s`: half of it.
        std::thread::sleep(Duration::from_secs(5));
        drop(clients);
    });
}

/// 30,000 durable sessions that expire within the same moment. They are closed in waves, each with the expiry interval
/// that is left until then.
fn sessions_that_expire_together(cluster: &mut Cluster) {
    expire_together(cluster, 3);
}

/// The same with 200,000 sessions.
#[test]
#[ignore = "long; `make chaos` runs it"]
fn two_hundred_thousand_sessions_that_expire_together() {
    expire_together(&mut Cluster::start(), 20);
}

fn expire_together(cluster: &mut Cluster, waves: u32) {
    const WAVE: usize = 10_000;
    Crowd::raise_limits();
    let name = |wave: u32, number: usize| format!("expires-{wave}-{number}");
    // A wave takes one to three seconds to connect.
    let together = Instant::now() + Duration::from_secs(4) * (waves + 1);
    for wave in 0..waves {
        let crowd = Crowd::connect(
            &cluster.addresses(),
            WAVE,
            // Its own interval is told at the end.
            |number| Connect::v5(&name(wave, number)).durable(600),
            |number| Some(format!("expires/{wave}/{number}/+")),
        );
        // A whole number of seconds before.
        let left = together.saturating_duration_since(Instant::now());
        std::thread::sleep(Duration::from_nanos(u64::from(left.subsec_nanos())));
        let seconds = Value::FourBytes(u32::try_from(left.as_secs()).expect("it is soon").max(1));
        let interval = Properties::new().with(id::SESSION_EXPIRY, seconds);
        let bytes = wire::disconnect(V5, 4, &interval);
        for mut client in crowd.0 {
            let _ = client.try_send(&bytes);
        }
        eprintln!("wave {wave} expires in {left:.1?}");
    }
    let terms = Terms {
        memory_growth: 256 << 20,
        ..Terms::default()
    };
    beside_on(cluster, &terms, |cluster| {
        std::thread::sleep(together.saturating_duration_since(Instant::now()));
        wait::until("the sessions to be gone", Duration::from_secs(60), || {
            let last = name(waves - 1, WAVE - 1);
            (!cluster.nodes[0].has_session(&last)).then_some(())
        });
    });
}

/// A node whose 10,000 durable clients are lost with it: the others' clients hardly notice, nor when its lease ends and
/// all those connections end at once.
#[test]
fn a_node_with_ten_thousand_idle_connections_is_killed() {
    Crowd::raise_limits();
    lose_a_node(Cluster::start(), 10_000, 192 << 20);
}

/// As many as a large node has (`QUORUMQ_IDLE_CLIENTS`); it takes a descriptor for each, here and in the node.
#[test]
#[ignore = "200,000 connections: part of `make chaos`"]
fn a_node_with_two_hundred_thousand_idle_connections_is_killed() {
    let asked = std::env::var("QUORUMQ_IDLE_CLIENTS").ok();
    let clients = asked.map_or(200_000, |text| text.parse().expect("a number"));
    Crowd::raise_limits();
    let cluster = Cluster::start_with(Plan {
        mqtt: format!(
            "max_connections = {}\nmax_sessions = {}\n",
            2 * clients,
            2 * clients
        ),
        // Each address of a host has some 28,000 connections from another one.
        extra: "[[listeners]]\nname = \"idle\"\naddress = \"0.0.0.0:{mqtt_port}\"\n".to_owned(),
        deadline: Duration::from_secs(600),
        ..Plan::default()
    });
    lose_a_node(cluster, clients, 2 << 30);
}

/// Kills the node that holds so many clients. The lease after which its connections have ended is 5 s.
fn lose_a_node(mut cluster: Cluster, clients: usize, memory_growth: u64) {
    const CLIENTS_PER_ADDRESS: usize = 20_000;
    let victim = cluster.a_follower();
    let port = cluster.mqtt(victim).port();
    let addresses: Vec<_> = (1..=clients.div_ceil(CLIENTS_PER_ADDRESS))
        .map(|last| u8::try_from(last).expect("a network has 254 addresses"))
        .map(|last| SocketAddr::from(([127, 0, 0, last], port)))
        .collect();
    let crowd = Crowd::connect(
        &addresses,
        clients,
        |number| Connect::v5(&format!("idle-{number}")).durable(600),
        |number| Some(format!("idle/{number}")),
    );
    let terms = Terms {
        nodes: (0..3).filter(|node| *node != victim).collect(),
        memory_growth,
        ..Terms::default()
    };
    beside_on(&mut cluster, &terms, |cluster| {
        std::thread::sleep(Duration::from_secs(1));
        cluster.nodes[victim].kill();
        // Past the end of its lease.
        std::thread::sleep(Duration::from_secs(8));
    });
    drop(crowd);
}

/// One more than `mqtt.max_connections` is told so, and nobody else is touched.
#[test]
fn a_connection_too_many_is_refused_with_its_reason() {
    const ALLOWED: usize = 40;
    let mut cluster = Cluster::start_with(Plan {
        size: 1,
        mqtt: format!("max_connections = {ALLOWED}\n"),
        ..Plan::default()
    });
    beside(&mut cluster, |cluster| {
        let address = cluster.mqtt(0);
        let mut crowd = Vec::new();
        let mut refused = Vec::new();
        for number in 0..ALLOWED + 20 {
            let level = if number % 2 == 0 { V5 } else { V311 };
            let connect = Connect::at(&format!("many-{number}"), level);
            match Connection::try_connect(address, &connect) {
                Ok((connection, connack)) if connack.code == 0 => crowd.push(connection),
                Ok((_, connack)) => refused.push((level, Ok(connack.code))),
                Err(fault) => refused.push((level, Err(fault))),
            }
        }
        eprintln!("{} accepted, {} refused", crowd.len(), refused.len());
        assert!(crowd.len() <= ALLOWED, "{}", crowd.len());
        assert!(refused.len() >= 20, "{}", refused.len());
        let wrong: Vec<_> = refused
            .iter()
            .filter(|(level, told)| *told != Ok(if *level == V5 { 0x97 } else { 3 }))
            .collect();
        assert!(
            wrong.is_empty(),
            "{} of {} were not told why: {:?}",
            wrong.len(),
            refused.len(),
            wrong[0]
        );
        // When some have left, others may come.
        drop(crowd);
        wait::until("room for another one", Duration::from_secs(10), || {
            let connected = Connection::try_connect(address, &Connect::v5("later"));
            connected.ok().filter(|(_, connack)| connack.code == 0)
        });
    });
}

/// The latest end of a connection with a keep-alive of 2 s.
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(6);

const _: () = assert!(wait::can_exceed(KEEP_ALIVE_WITHIN, TIMEOUT));

/// [MQTT-3.1.2-22]: it is packets that keep a connection alive, not bytes.
#[test]
fn a_byte_per_second_keeps_no_connection_alive() {
    let cluster = Cluster::single();
    for level in [V311, V5] {
        let connect = Connect::at(&format!("slow-{level}"), level).keep_alive(2);
        let (mut client, _) = Connection::connect(cluster.mqtt(0), &connect);
        // One PUBLISH of 100 bytes, which would take 100 s.
        client.send(&[0x30, 100]);
        let began = Instant::now();
        let end = loop {
            let _ = client.try_send(&[0]);
            match client.receive(Duration::from_secs(1)) {
                Err(Fault::Timeout) if began.elapsed() < TIMEOUT => {}
                end => break end,
            }
        };
        let after = began.elapsed();
        eprintln!("level {level}: {end:?} after {after:.1?}");
        match end {
            Ok(Packet::Disconnect(disconnect)) if level == V5 => {
                assert_eq!(disconnect.code, 0x8D, "keep alive timeout");
            }
            Err(Fault::Closed) if level == V311 => {}
            other => panic!("level {level}, after {after:.1?}: {other:?}"),
        }
        // One and a half times the keep-alive, and some seconds for slow machines.
        assert!(after < wait::with_slack(KEEP_ALIVE_WITHIN), "{after:?}");
    }
}
