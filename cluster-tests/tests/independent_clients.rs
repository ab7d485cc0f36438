//! Clients that others wrote: paho-mqtt, MQTT.js, mosquitto_pub and mosquitto_sub, every day and while nodes die.
//!
//! Their programs are in `clients/`; `scripts/setup test` installs what they need. What the Mosquitto programs are asked
//! to do is written here.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::PATIENCE;
use cluster_tests::rules;
use cluster_tests::rules::Rule;
use cluster_tests::script::{self, Guarded};
use cluster_tests::wait;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

fn addresses(cluster: &Cluster) -> Vec<String> {
    let texts = cluster.addresses().into_iter();
    texts.map(|address| address.to_string()).collect()
}

/// The rules that a program has found broken; panics when it has shown fewer than it should.
#[track_caller]
fn broken(name: &str, report: &[Value], rules: usize) -> Vec<String> {
    let shown: Vec<&Value> = report
        .iter()
        .filter(|said| said["rule"].is_string())
        .collect();
    assert_eq!(shown.len(), rules, "{name} shows its rules: {report:#?}");
    let mut found = Vec::new();
    for rule in shown.iter().filter(|rule| rule["holds"] != true) {
        let why = rule["why"].as_str().unwrap_or("no reason given");
        found.push(format!("{name}: {}: {why}", rule["rule"]));
    }
    found
}

#[test]
fn every_day() {
    let cluster = Cluster::start();
    let nodes = addresses(&cluster);
    let never = |what: &str, _| panic!("nothing is to be done to nodes, {what} was asked");
    let broken = std::thread::scope(|scope| {
        let paho = scope.spawn(|| {
            let report = script::run(script::python("everyday.py"), &nodes, never);
            broken("paho-mqtt", &report, 9)
        });
        let js = scope.spawn(|| {
            let report = script::run(script::node_js("everyday.js"), &nodes, never);
            broken("MQTT.js", &report, 7)
        });
        let mosquitto = scope.spawn(|| mosquitto_every_day(&cluster));
        [paho.join(), js.join(), mosquitto.join()]
            .into_iter()
            .flat_map(|found| found.expect("no client's thread panics"))
            .collect::<Vec<String>>()
    });
    assert_none(&broken);
}

/// What a program that lived through kills has reported: nothing acknowledged is lost (D1), QoS 2 came once (D2), in
/// order (D4), on its topic (D5), and every session was there after the first connection (S1).
fn failover_violations(report: &[Value], topic: &str) -> Vec<String> {
    let mut found = Vec::new();
    let text = |said: &Value, field: &str| said[field].as_str().map(str::to_owned);
    let acknowledged: BTreeSet<String> = report
        .iter()
        .filter_map(|said| text(said, "acknowledged"))
        .collect();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for said in report {
        let Some(payload) = text(said, "received") else {
            continue;
        };
        let count = times.entry(payload.clone()).or_default();
        *count += 1;
        if *count > 1 {
            continue;
        }
        let (qos, number) = payload.split_once('-').unwrap_or(("?", "?"));
        let right = said["qos"].as_u64() == qos.parse().ok() && said["topic"] == topic;
        if !right {
            found.push(format!("D5: {payload} came as {said}"));
        }
        let number = number.parse().unwrap_or(0);
        let before = last.insert(qos.to_owned(), number);
        if before.is_some_and(|before| before > number) {
            found.push(format!("D4: {payload} came after {before:?}"));
        }
    }
    found.extend(
        acknowledged
            .iter()
            .filter(|payload| !times.contains_key(*payload))
            .map(|payload| format!("D1: {payload} was acknowledged and did not come")),
    );
    found.extend(
        times
            .iter()
            .filter(|(payload, count)| payload.starts_with("2-") && **count > 1)
            .map(|(payload, count)| format!("D2: {payload} came {count} times")),
    );
    found.extend(report.iter().filter_map(|said| {
        let failed = text(said, "failed")?;
        Some(format!("{failed} failed: {}", said["why"]))
    }));
    let mut connected: BTreeMap<String, usize> = BTreeMap::new();
    for said in report {
        let Some(client) = text(said, "client") else {
            continue;
        };
        let count = connected.entry(client.clone()).or_default();
        *count += 1;
        if (said["present"] == true) != (*count > 1) {
            found.push(format!("S1 or S2: connection {count} of {client}: {said}"));
        }
    }
    found
}

#[track_caller]
fn survives_failover(name: &str, program: Command, topic: &str) {
    let mut cluster = Cluster::start();
    let nodes = addresses(&cluster);
    let report = script::run(program, &nodes, |what, node| {
        eprintln!("{name} asks: {what} {node}");
        script::act(&mut cluster, what, node);
    });
    let count = |field: &str| report.iter().filter(|said| !said[field].is_null()).count();
    let (acknowledged, connections) = (count("acknowledged"), count("client"));
    eprintln!("{name}: {acknowledged} acknowledged, {connections} connections");
    assert!(
        report.iter().any(|said| said["done"] == true),
        "{name} came to its end"
    );
    assert_eq!(acknowledged, 600, "{name} had everything acknowledged");
    assert!(connections >= 4, "each client was cut off: {connections}");
    assert_none(&failover_violations(&report, topic));
}

#[test]
fn paho_survives_failover() {
    survives_failover("paho-mqtt", script::python("failover.py"), "py/failover");
}

#[test]
fn mqtt_js_survives_failover() {
    survives_failover("MQTT.js", script::node_js("failover.js"), "js/failover");
}

#[test]
fn violations_in_a_programs_report_are_found() {
    let lines = |text: &str| -> Vec<Value> {
        let line = |line: &str| serde_json::from_str(line).expect("a test's line is JSON");
        text.lines().map(line).collect()
    };
    let good = r#"{"client": "c", "present": false}
{"received": "2-0", "qos": 2, "topic": "t"}
{"acknowledged": "2-0", "qos": 2}
{"client": "c", "present": true}
{"received": "1-0", "qos": 1, "topic": "t"}
{"received": "1-0", "qos": 1, "topic": "t"}
{"acknowledged": "1-0", "qos": 1}"#;
    let judge = |more: &str| {
        let report = lines(&format!("{good}\n{more}"));
        let rules = failover_violations(&report, "t").into_iter();
        rules.map(|why| why[..2].to_owned()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(judge(""), none);
    assert_eq!(judge(r#"{"acknowledged": "1-1", "qos": 1}"#), ["D1"]);
    assert_eq!(
        judge(r#"{"received": "2-0", "qos": 2, "topic": "t"}"#),
        ["D2"]
    );
    let swapped = r#"{"received": "2-2", "qos": 2, "topic": "t"}
{"received": "2-1", "qos": 2, "topic": "t"}"#;
    assert_eq!(judge(swapped), ["D4"]);
    assert_eq!(
        judge(r#"{"received": "2-1", "qos": 2, "topic": "u"}"#),
        ["D5"]
    );
    assert_eq!(judge(r#"{"client": "c", "present": false}"#), ["S1"]);
    assert_eq!(judge(r#"{"client": "d", "present": true}"#), ["S1"]);
    assert_eq!(judge(r#"{"failed": "1-9", "why": "x"}"#), ["1-"]);
}

/// mosquitto_sub, and the lines that it prints.
struct Subscriber {
    process: Guarded,
    lines: Receiver<String>,
    /// Messages of a resumed session that came before the SUBACK.
    early: RefCell<VecDeque<String>>,
}

/// A line of [`Subscriber`] that is a message; others are what `-d` tells.
const MARK: char = '=';

impl Subscriber {
    /// Starts it; with `-d` it tells when it is subscribed, and that is waited for.
    #[track_caller]
    fn start(node: SocketAddr, arguments: &[&str]) -> Self {
        Self::start_with(node, "%t|%q|%r|%p", arguments)
    }

    #[track_caller]
    fn start_with(node: SocketAddr, format: &str, arguments: &[&str]) -> Self {
        let mut command = mosquitto("mosquitto_sub", node, arguments);
        command
            .args(["-d", "-F", &format!("{MARK}{format}")])
            .stdout(Stdio::piped());
        let mut process = Guarded(command.spawn().expect("mosquitto_sub can be started"));
        let stream = process.0.stdout.take().expect("it is piped");
        let subscriber = Self {
            process,
            lines: script::lines_of(stream),
            early: RefCell::default(),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match subscriber.lines.recv_timeout(left) {
                Ok(line) if line.starts_with("Subscribed ") => return subscriber,
                Ok(line) => {
                    let message = line.strip_prefix(MARK).map(str::to_owned);
                    subscriber.early.borrow_mut().extend(message);
                }
                Err(why) => panic!("mosquitto_sub {arguments:?} does not subscribe: {why}"),
            }
        }
    }

    /// The next message, in its format; none when none comes.
    fn next(&self, within: Duration) -> Option<String> {
        if let Some(message) = self.early.borrow_mut().pop_front() {
            return Some(message);
        }
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).ok()?;
            if let Some(message) = line.strip_prefix(MARK) {
                return Some(message.to_owned());
            }
        }
    }

    #[track_caller]
    fn expect(&self, message: &str) {
        assert_eq!(self.next(PATIENCE).as_deref(), Some(message));
    }

    #[track_caller]
    fn expect_nothing(&self) {
        assert_eq!(self.next(Duration::from_millis(300)), None);
    }
}

fn mosquitto(program: &str, node: SocketAddr, arguments: &[&str]) -> Command {
    // Line by line, although it goes into a pipe.
    let mut command = Command::new("stdbuf");
    command
        .args(["-oL", program])
        .args(["-h", &node.ip().to_string(), "-p", &node.port().to_string()])
        .args(arguments);
    command
}

/// mosquitto_pub, to its end; `lines` are its standard input.
#[track_caller]
fn publish(node: SocketAddr, arguments: &[&str], lines: &str) {
    let mut command = mosquitto("mosquitto_pub", node, arguments);
    command.stdin(Stdio::piped());
    let mut process = Guarded(command.spawn().expect("mosquitto_pub can be started"));
    let mut input = process.0.stdin.take().expect("it is piped");
    input
        .write_all(lines.as_bytes())
        .expect("mosquitto_pub reads its input");
    drop(input);
    let status = wait::until("mosquitto_pub to end", PATIENCE * 3, || {
        process.0.try_wait().expect("it was started")
    });
    assert!(status.success(), "mosquitto_pub {arguments:?}: {status}");
}

/// A durable session: `-c` and, for MQTT 5, an expiry. `-E` leaves when it is subscribed.
fn durable<'a>(version: &'a str, client_id: &'a str, topic: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["-V", version, "-c", "-i", client_id, "-q", "2", "-t", topic];
    if version == "5" {
        arguments.extend(["-x", "600"]);
    }
    arguments
}

/// mosquitto_sub ends by itself, without an error.
#[track_caller]
fn ended(mut subscriber: Subscriber) {
    let process = &mut subscriber.process.0;
    let status = wait::until("mosquitto_sub to end", PATIENCE, || {
        process.try_wait().expect("it was started")
    });
    assert!(status.success(), "mosquitto_sub: {status}");
}

fn mosquitto_every_day(cluster: &Cluster) -> Vec<String> {
    let rules: &[Rule] = rules![
        mosquitto_every_qos,
        mosquitto_retained,
        mosquitto_wills,
        mosquitto_shared,
        mosquitto_resumed,
        mosquitto_properties,
    ];
    let mut found = Vec::new();
    for (name, rule) in rules {
        if catch_unwind(AssertUnwindSafe(|| rule(cluster))).is_err() {
            found.push(format!("{name}: see above"));
        }
    }
    found
}

fn mosquitto_every_qos(cluster: &Cluster) {
    for (index, version) in ["5", "311", "31"].into_iter().enumerate() {
        for qos in ["0", "1", "2"] {
            let topic = format!("mo/qos/{version}/{qos}");
            let common = ["-V", version, "-q", qos, "-t", &topic];
            let subscriber = Subscriber::start(cluster.mqtt(index), &common);
            publish(cluster.mqtt(0), &[&common[..], &["-m", "one"]].concat(), "");
            publish(
                cluster.mqtt(1),
                &[&common[..], &["-l"]].concat(),
                "two\nthree\n",
            );
            for payload in ["one", "two", "three"] {
                subscriber.expect(&format!("{topic}|{qos}|0|{payload}"));
            }
            subscriber.expect_nothing();
        }
    }
}

fn mosquitto_retained(cluster: &Cluster) {
    let common = ["-V", "5", "-q", "1", "-t", "mo/retained"];
    for payload in ["1", "2"] {
        let arguments = [&common[..], &["-r", "-m", payload]].concat();
        publish(cluster.mqtt(0), &arguments, "");
    }
    for node in cluster.addresses() {
        let reader = Subscriber::start(node, &common);
        reader.expect("mo/retained|1|1|2");
        reader.expect_nothing();
    }
    publish(cluster.mqtt(1), &[&common[..], &["-r", "-n"]].concat(), "");
    Subscriber::start(cluster.mqtt(2), &common).expect_nothing();
}

fn mosquitto_wills(cluster: &Cluster) {
    for version in ["5", "311"] {
        let topic = format!("mo/will/{version}");
        let common = ["-V", version, "-q", "1", "-t", &topic];
        let observer = Subscriber::start(cluster.mqtt(1), &common);
        let will = [
            "--will-topic",
            &topic,
            "--will-payload",
            "gone",
            "--will-qos",
            "1",
        ];
        let idle = [&["-V", version, "-t", "mo/idle"][..], &will].concat();
        // Dropping it kills it.
        drop(Subscriber::start(cluster.mqtt(0), &idle));
        observer.expect(&format!("{topic}|1|0|gone"));
        // -E: it leaves with a DISCONNECT.
        ended(Subscriber::start(
            cluster.mqtt(0),
            &[&idle[..], &["-E"]].concat(),
        ));
        observer.expect_nothing();
    }
}

fn mosquitto_shared(cluster: &Cluster) {
    let common = ["-V", "5", "-q", "1", "-t", "$share/mo/mo/shared"];
    let members = cluster.addresses().into_iter();
    let members: Vec<Subscriber> = members
        .map(|node| Subscriber::start(node, &common))
        .collect();
    let lines: String = (0..60).map(|number| format!("{number}\n")).collect();
    publish(
        cluster.mqtt(1),
        &["-q", "1", "-t", "mo/shared", "-l"],
        &lines,
    );
    let mut got = Vec::new();
    wait::until("all messages", PATIENCE, || {
        for member in &members {
            while let Some(message) = member.next(Duration::from_millis(5)) {
                let number = message.rsplit('|').next().unwrap_or_default();
                got.push(number.parse::<u32>().expect("a number was published"));
            }
        }
        (got.len() >= 60).then_some(())
    });
    got.sort_unstable();
    assert_eq!(got, (0..60).collect::<Vec<u32>>());
    for member in &members {
        member.expect_nothing();
    }
}

fn mosquitto_resumed(cluster: &Cluster) {
    for version in ["5", "311"] {
        let (client_id, topic) = (
            format!("mo-resumed-{version}"),
            format!("mo/resumed/{version}"),
        );
        let session = durable(version, &client_id, &topic);
        ended(Subscriber::start(
            cluster.mqtt(0),
            &[&session[..], &["-E"]].concat(),
        ));
        let lines: String = (0..30).map(|number| format!("{number}\n")).collect();
        publish(cluster.mqtt(1), &["-q", "2", "-t", &topic, "-l"], &lines);
        let back = Subscriber::start(cluster.mqtt(2), &session);
        for number in 0..30 {
            back.expect(&format!("{topic}|2|0|{number}"));
        }
        back.expect_nothing();
    }
}

fn mosquitto_properties(cluster: &Cluster) {
    let common = ["-V", "5", "-q", "1", "-t", "mo/properties"];
    let subscription = ["-D", "subscribe", "subscription-identifier", "42"];
    let subscriber = Subscriber::start_with(
        cluster.mqtt(0),
        "%C|%R|%D|%P|%S|%p",
        &[&common[..], &subscription].concat(),
    );
    let mut arguments = [&common[..], &["-m", "x"]].concat();
    for property in [
        &["content-type", "text/plain"][..],
        &["response-topic", "mo/answer"],
        &["correlation-data", "id"],
        &["user-property", "a", "1"],
        &["message-expiry-interval", "60"],
    ] {
        arguments.extend(["-D", "publish"]);
        arguments.extend(property);
    }
    publish(cluster.mqtt(1), &arguments, "");
    subscriber.expect("text/plain|mo/answer|id|a:1|42|x");
}

/// What mosquitto_pub had acknowledged through one node waits for mosquitto_sub at another, whoever dies meanwhile.
#[test]
fn mosquittos_clients_survive_failover() {
    let mut cluster = Cluster::start();
    let topic = "mo/failover";
    let (away, moves) = (
        durable("5", "mo-failover-away", topic),
        durable("5", "mo-failover-moves", topic),
    );
    ended(Subscriber::start(
        cluster.mqtt(0),
        &[&away[..], &["-E"]].concat(),
    ));
    let lines = |from: u32| -> String { (from..from + 100).map(|n| format!("{n}\n")).collect() };
    let arguments = ["-V", "5", "-q", "2", "-t", topic, "-l"];
    let expect = |subscriber: &Subscriber, numbers: std::ops::Range<u32>| {
        for number in numbers {
            subscriber.expect(&format!("{topic}|2|0|{number}"));
        }
        subscriber.expect_nothing();
    };
    let leader = cluster.wait_leader();
    let follower = cluster.a_follower();
    let subscriber = Subscriber::start(cluster.mqtt(follower), &moves);
    publish(cluster.mqtt(leader), &arguments, &lines(0));
    expect(&subscriber, 0..100);
    cluster.nodes[follower].kill();
    drop(subscriber);
    publish(cluster.mqtt(leader), &arguments, &lines(100));
    let subscriber = Subscriber::start(cluster.mqtt(leader), &moves);
    expect(&subscriber, 100..200);
    cluster.start_node(follower);
    cluster.wait_ready();
    cluster.nodes[leader].kill();
    drop(subscriber);
    let leader_now = cluster.wait_leader_other_than(leader);
    publish(cluster.mqtt(leader_now), &arguments, &lines(200));
    expect(&Subscriber::start(cluster.mqtt(follower), &moves), 200..300);
    expect(&Subscriber::start(cluster.mqtt(follower), &away), 0..300);
}
