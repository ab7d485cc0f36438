//! Clients that others wrote: paho-mqtt, MQTT.js, mosquitto_pub and mosquitto_sub, every day and while nodes die.
//!
//! Their programs are in `clients/`; `scripts/setup test` installs what they need. What the Mosquitto programs are
//! asked to do is written here.

mod mosquitto;

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::Cluster;
use cluster_tests::script;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

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
        let mosquitto = scope.spawn(|| mosquitto::every_day(&cluster));
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
