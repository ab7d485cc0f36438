//! P12: hostile clients and wrong starts lead to a clear message or a closed connection, never to a crash.

use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::random::Random;
use cluster_tests::rules;
use cluster_tests::skip::skip;
use cluster_tests::store::{Request, StoreClient, blob};
use cluster_tests::wire::{self, Connect, Message, Packet, V5};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

#[test]
fn hostile_clients() {
    let mut cluster = Cluster::start_with(Plan {
        size: 1,
        extra: "[store]\nmax_keys = 300\nmax_bytes = 100000\n".into(),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            random_bytes_do_no_harm,
            mutated_packets_do_no_harm,
            a_packet_that_never_ends_costs_nothing,
            the_quota_is_enforced_and_said,
        ],
    );
    assert!(cluster.nodes[0].is_running());
    let log = cluster.nodes[0].log_text();
    assert!(!log.contains("panicked"), "P12: no input panics");
}

#[track_caller]
fn serves(cluster: &Cluster) {
    let mut client = StoreClient::connected("serves", cluster.mqtt(0));
    client.expect(&Request::set("serves", "1"), "+OK\r\n");
    client.expect(&Request::get("serves"), blob(b"1"));
}

fn random_bytes_do_no_harm(cluster: &Cluster) {
    let mut random = Random::new(7);
    for round in 0..400 {
        let mut stream = TcpStream::connect(cluster.mqtt(0)).expect("the port is open");
        let length = random.below(600) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.draw() as u8).collect();
        if round % 2 == 0 {
            // Past the CONNECT, so that more of the server is reached.
            let mut start = Connect::v5("random").bytes();
            start.append(&mut bytes);
            bytes = start;
        }
        let _ = stream.write_all(&bytes);
    }
    serves(cluster);
}

fn mutated_packets_do_no_harm(cluster: &Cluster) {
    let mut random = Random::new(11);
    let client = StoreClient::new("mutant", &[cluster.mqtt(0)], 0);
    let request = client
        .message(&Request::set("mutant", "1"), &[1; 16], 9)
        .bytes(V5);
    let seeds = [
        Connect::v5("mutant").durable(10).bytes(),
        wire::subscribe(V5, 7, &wire::Properties::new(), &[("a/+", 1), ("#", 0)]),
        wire::unsubscribe(V5, 8, &["a/+", "b"]),
        Message::new("a/b", "payload")
            .qos(1, 3)
            .user("a", "b")
            .bytes(V5),
        request,
        wire::acknowledgement(wire::PUBACK, 1),
        wire::disconnect(V5, 4, &wire::Properties::new().user("a", "b")),
    ];
    for _ in 0..1500 {
        let mut stream = TcpStream::connect(cluster.mqtt(0)).expect("the port is open");
        let mut bytes = Connect::v5("mutant").bytes();
        for _ in 0..=random.below(3) {
            let mut packet = seeds[random.below(seeds.len() as u64) as usize].clone();
            for _ in 0..=random.below(3) {
                let at = random.below(packet.len() as u64) as usize;
                match random.below(3) {
                    0 => packet[at] = random.draw() as u8,
                    1 => packet.truncate(at + 1),
                    _ => packet.insert(at, random.draw() as u8),
                }
            }
            bytes.extend(packet);
        }
        let _ = stream.write_all(&bytes);
    }
    serves(cluster);
}

fn a_packet_that_never_ends_costs_nothing(cluster: &Cluster) {
    let memory = || {
        cluster.nodes[0]
            .metric("process_resident_memory_bytes")
            .expect("it is measured")
    };
    let before = memory();
    let clients: Vec<Connection> = (0..100)
        .map(|number| {
            let mut client = Connection::v5(cluster.mqtt(0), &format!("endless-{number}"));
            // A megabyte is announced, and ten bytes come.
            client.send(&[&[0x30][..], &wire::varint(1 << 20), &[0; 10]].concat());
            client
        })
        .collect();
    serves(cluster);
    let grown = memory() - before;
    assert!(
        grown < 32.0 * 1024.0 * 1024.0,
        "{grown} bytes for 100 announced megabytes"
    );
    drop(clients);
}

fn the_quota_is_enforced_and_said(cluster: &Cluster) {
    let mut client = StoreClient::connected("quota", cluster.mqtt(0));
    let why = "the quota has been exceeded";
    client.expect(&Request::set("quota/large", vec![b'x'; 60_000]), "+OK\r\n");
    client.expect_error(&Request::set("quota/larger", vec![b'x'; 60_000]), why);
    // What is there can still be changed and removed.
    client.expect(&Request::set("quota/large", vec![b'y'; 60_000]), "+OK\r\n");
    client.expect(&Request::del("quota/large"), ":1\r\n");
    let mut accepted = 0;
    loop {
        let reply = client.call(&Request::set(format!("quota/{accepted}"), "v"));
        if reply.payload != b"+OK\r\n" {
            assert_eq!(
                String::from_utf8_lossy(&reply.payload),
                format!("-ERR {why}\r\n")
            );
            assert_eq!(reply.version, None);
            break;
        }
        accepted += 1;
        assert!(accepted <= 300, "more keys than the quota allows");
    }
    assert!(accepted > 250, "{accepted}");
    client.expect(&Request::del("quota/0"), ":1\r\n");
    client.expect(&Request::set("quota/again", "v"), "+OK\r\n");
}

#[test]
fn half_open_connections_are_closed() {
    let cluster = Cluster::start_with(Plan {
        size: 1,
        mqtt: "connect_timeout_s = 1".into(),
        ..Plan::default()
    });
    let connect = Connect::v5("half").bytes();
    for sent in [0, 1, connect.len() - 1] {
        let began = Instant::now();
        let mut connection = Connection::open(cluster.mqtt(0), V5).expect("the port is open");
        connection.send(&connect[..sent]);
        match connection.receive(TIMEOUT) {
            Err(Fault::Closed) | Ok(Packet::Connack(_) | Packet::Disconnect(_)) => {}
            other => panic!("after {sent} bytes: {other:?}"),
        }
        let after = began.elapsed();
        assert!(
            after >= Duration::from_millis(900),
            "closed after {after:?}"
        );
    }
    serves(&cluster);
}

#[test]
fn ten_thousand_connections_at_once() {
    // This process and the node, which inherits the limit, need a descriptor per connection each.
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: Some(hard),
            maximum: limit.maximum,
        },
    )
    .expect("the soft limit may be raised to the hard one");
    let count = usize::try_from(hard.saturating_sub(1000).min(10_000)).expect("it is small");
    if count < 10_000 {
        skip(&format!(
            "{hard} file descriptors are enough for {count} connections only (ulimit -Hn)"
        ));
    }
    let cluster = Cluster::single();
    let memory = || {
        cluster.nodes[0]
            .metric("process_resident_memory_bytes")
            .expect("it is measured")
    };
    let before = memory();
    let began = Instant::now();
    let mut connections: Vec<Connection> = Vec::with_capacity(count);
    for number in 0..count {
        let mut connection = Connection::open(cluster.mqtt(0), V5)
            .unwrap_or_else(|error| panic!("connection {number}: {error}"));
        connection.send(&Connect::v5(&format!("many-{number}")).bytes());
        connections.push(connection);
    }
    for (number, connection) in connections.iter_mut().enumerate() {
        match connection.receive(Duration::from_secs(30)) {
            Ok(Packet::Connack(connack)) if connack.code == 0 => {}
            other => panic!("connection {number} of {count}: {other:?}"),
        }
    }
    let took = began.elapsed();
    let each = (memory() - before) / count as f64;
    eprintln!("{count} connections in {took:?}, {each:.0} bytes each");
    serves(&cluster);
    for connection in connections.iter_mut().step_by(97) {
        connection.expect_nothing();
    }
    // All cut at once.
    drop(connections);
    serves(&cluster);
    cluster_tests::wait::until(
        "the connections to be gone",
        Duration::from_secs(20),
        || {
            let open = cluster.nodes[0]
                .metric("quorumq_connections")
                .expect("it is measured");
            (open < 10.0).then_some(())
        },
    );
}

/// Runs the binary to its end.
#[track_caller]
fn run(command: &mut Command) -> Output {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be started");
    let began = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if began.elapsed() > Duration::from_secs(15) {
            let _ = child.kill();
            let output = child.wait_with_output();
            panic!("still running after 15 s: {output:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child
        .wait_with_output()
        .expect("a child that ended can be read")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn serve(config: &std::path::Path) -> Command {
    let mut command = Command::new(binary());
    command.arg("serve").arg("--config").arg(config);
    command
}

#[test]
fn a_second_process_on_the_same_data_directory_is_refused() {
    let cluster = Cluster::single();
    let node = &cluster.nodes[0];
    let own = std::fs::read_to_string(&node.config).expect("it was written");
    // The same directory, other ports.
    let other = cluster.directory().join("second.toml");
    let moved = [
        node.addresses.cluster,
        node.addresses.mqtt,
        node.addresses.http,
    ]
    .iter()
    .fold(own, |text, address| {
        let free = TcpListener::bind("127.0.0.1:0")
            .expect("a port")
            .local_addr()
            .expect("it has one");
        text.replace(&address.to_string(), &free.to_string())
    });
    std::fs::write(&other, moved).expect("it can be written");
    let output = run(&mut serve(&other));
    assert!(!output.status.success());
    let said = text(&output);
    let directory = node.data.to_string_lossy().into_owned();
    assert!(said.contains(&directory), "it names the directory: {said}");
    assert!(
        said.contains("use") || said.contains("lock"),
        "it says why: {said}"
    );
    serves(&cluster);
}

#[test]
fn a_port_in_use_is_named() {
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let node = &mut cluster.nodes[0];
    for address in [
        node.addresses.mqtt,
        node.addresses.http,
        node.addresses.cluster,
    ] {
        let taken = TcpListener::bind(address).expect("it is free");
        let output = run(&mut serve(&node.config));
        assert!(!output.status.success(), "{address}");
        let said = text(&output);
        assert!(
            said.contains(&address.to_string()),
            "it names {address}: {said}"
        );
        drop(taken);
    }
    node.start();
    node.wait_ready(Duration::from_secs(20));
}

#[test]
fn a_malformed_configuration_is_refused_with_line_and_hint() {
    let cluster = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let good = std::fs::read_to_string(&cluster.nodes[0].config).expect("it was written");
    let line_of_id = good
        .lines()
        .position(|line| line.starts_with("id = "))
        .expect("it is there")
        + 1;
    let file = cluster.directory().join("bad.toml");
    let cases = [
        (
            good.replace("id = 1\n", "idd = 1\n"),
            vec!["idd".to_owned(), "id".into(), format!("{line_of_id}")],
        ),
        (
            good.replace("id = 1\n", "id = \"one\"\n"),
            vec!["node.id".into(), format!("{line_of_id}")],
        ),
        (
            good.replace("id = 1\n", "id = 0\n"),
            vec!["node.id".into(), format!("{line_of_id}")],
        ),
        (good.replace("[node]", "[node"), vec!["1".into()]),
        (
            good.replace("[http]", "[htpt]"),
            vec!["htpt".into(), "http".into()],
        ),
    ];
    for (content, wanted) in cases {
        std::fs::write(&file, &content).expect("it can be written");
        for verb in ["serve", "check"] {
            let output = run(Command::new(binary()).arg(verb).arg("--config").arg(&file));
            let said = text(&output);
            assert_eq!(output.status.code(), Some(78), "{verb}: {said}");
            for part in &wanted {
                assert!(said.contains(part.as_str()), "{verb} says {part}: {said}");
            }
        }
    }
    // `check` tells all problems, not the first.
    let many = good
        .replace("id = 1\n", "idd = 1\n")
        .replace("level = \"info\"", "level = \"loud\"");
    std::fs::write(&file, many).expect("it can be written");
    let said = text(&run(Command::new(binary())
        .arg("check")
        .arg("--config")
        .arg(&file)));
    assert!(said.contains("idd") && said.contains("loud"), "{said}");
    std::fs::write(&file, &good).expect("it can be written");
    let output = run(Command::new(binary())
        .arg("check")
        .arg("--config")
        .arg(&file));
    assert!(output.status.success(), "{}", text(&output));
    let missing = run(&mut serve(&cluster.directory().join("missing.toml")));
    assert_eq!(missing.status.code(), Some(78), "{}", text(&missing));
}

#[test]
fn check_names_a_key_that_every_user_can_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a temporary directory");
    for arguments in [
        &["ca"][..],
        &["node", "--id", "1", "--host", "localhost"][..],
    ] {
        let made = run(Command::new(binary())
            .current_dir(&dir)
            .arg("certificates")
            .args(arguments));
        assert!(made.status.success(), "{}", text(&made));
    }
    let listener = "[[listeners]]\nname = \"a\"\ntransport = \"tls\"\nauthentication = [\"password\"]\n\
                    certificates = [{ certificate = \"node-1.pem\", key = \"node-1.key\" }]\n";
    std::fs::write(dir.path().join("quorumq.toml"), listener).expect("it can be written");
    for (mode, is_named) in [(0o600, false), (0o644, true)] {
        let key = dir.path().join("node-1.key");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&key, mode).expect("it is ours");
        for format in ["table", "json"] {
            let checked = run(Command::new(binary()).current_dir(&dir).args([
                "check",
                "--config",
                "quorumq.toml",
                "-o",
                format,
            ]));
            let said = text(&checked);
            assert!(checked.status.success(), "{said}");
            let says = said.contains("node-1.key: every user of this machine can read this key");
            assert_eq!(says, is_named, "{said}");
        }
    }
}
