//! What the Mosquitto programs are asked to do, and whether they see what they should.

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::TIMEOUT;
use cluster_tests::rules;
use cluster_tests::rules::Rule;
use cluster_tests::script::{self, Guarded};
use cluster_tests::wait;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

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
        let deadline = Instant::now() + TIMEOUT;
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
        assert_eq!(self.next(TIMEOUT).as_deref(), Some(message));
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
    let status = wait::until("mosquitto_pub to end", TIMEOUT * 3, || {
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
    let status = wait::until("mosquitto_sub to end", TIMEOUT, || {
        process.try_wait().expect("it was started")
    });
    assert!(status.success(), "mosquitto_sub: {status}");
}

/// Every rule; the names of those that are broken.
pub fn every_day(cluster: &Cluster) -> Vec<String> {
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
    wait::until("all messages", TIMEOUT, || {
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
