//! What a client may do: rules on three nodes, changed while clients are connected and while the leader dies.
//!
//! Clients log in with nothing; rules tell them apart by their client identifiers.

use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::rules;
use cluster_tests::store::{Request, StoreClient, scan_all};
use cluster_tests::wire::{Connect, Message, Publish, V311};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const NOT_AUTHORIZED: u8 = 0x87;
const NO_SUBSCRIBERS: u8 = 0x10;

/// Runs `quorumq acl` against a node.
fn acl(cluster: &Cluster, node: usize, arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(binary())
        .args(["acl", "--http", &cluster.nodes[node].http().to_string()])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    // A command that reads nothing may have ended already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    process.wait_with_output().expect("it was started")
}

#[track_caller]
fn set(cluster: &Cluster, node: usize, rules: &Value) -> u64 {
    let output = acl(cluster, node, &["set", "-"], &rules.to_string());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|version| version.parse().ok());
    version.unwrap_or_else(|| panic!("no version in {text:?}"))
}

/// Everybody may connect, and do what `resources` say.
fn document(resources: &Value) -> Value {
    json!({ "rules": [
        { "broker_resources": [{ "method": "connect" }] },
        { "broker_resources": resources },
    ]})
}

fn open() -> Value {
    json!({ "default": "allow" })
}

fn qos_1(topic: &str, payload: &str) -> Message {
    Message {
        qos: 1,
        ..Message::new(topic, payload)
    }
}

/// What arrives until nothing more is waiting, by topic.
fn topics(connection: &mut Connection, last: &str) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let Publish { topic, .. } = connection.publish_received();
        let is_last = topic == last;
        found.push(topic);
        if is_last {
            return found;
        }
    }
}

#[test]
fn rules_hold() {
    let audit = Audit::new();
    let cluster = Cluster::start_with(Plan {
        extra: audit.toml(),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            a_message_is_refused_in_its_acknowledgement,
            a_wide_subscription_gets_what_it_may_on_every_node,
            a_queue_is_judged_when_it_is_delivered,
            a_group_is_joined_by_who_may_have_all_of_it,
            who_may_not_connect_is_refused_or_leaves,
            a_change_is_in_force_on_every_node_when_it_is_answered,
            a_change_is_made_only_to_the_version_that_was_read,
            the_state_store_is_judged_by_its_keys,
            long_keys_are_listed_to_who_may_read_some,
            mosquittos_clients_are_told,
            the_command_line_tests_and_imports,
        ],
    );
    the_audit_log_says_what_was_refused(&audit);
    cluster.assert_states_agree();
}

/// Changes with whoever made them; denials with the client, which has no name here.
fn the_audit_log_says_what_was_refused(audit: &Audit) {
    let rules = |result: &str, version: &Value, reason: &Value| json!({"event": "rules", "result": result, "principal": "anonymous", "version": version, "reason": reason});
    let denial = |client_id: &str, action: &str, topic: &Value| {
        json!({"event": "denial", "result": "refused", "client_id": client_id, "listener": "default",
               "method": "anonymous", "action": action, "topic": topic, "count": "*"})
    };
    audit.expect_all(&[
        rules("accepted", &"*".into(), &Value::Null),
        rules(
            "failed",
            &"*".into(),
            &"another version was expected".into(),
        ),
        denial("ack-0", "publish", &"a/other/x".into()),
        denial("listens", "subscribe", &"clients/#".into()),
        denial("keys", "read", &Value::Null),
        denial("leaves-0", "connect", &Value::Null),
        denial("leaves-old", "connect", &Value::Null),
    ]);
}

fn a_message_is_refused_in_its_acknowledgement(cluster: &Cluster) {
    set(
        cluster,
        0,
        &document(&json!([
            { "method": "publish", "topics": ["a/{principal.client_id}/#"], "max_qos": 1, "retain": false },
        ])),
    );
    for node in 0..3 {
        let name = format!("ack-{node}");
        let mut client = Connection::v5(cluster.mqtt(node), &name);
        let own = format!("a/{name}/x");
        assert_eq!(client.publish(qos_1(&own, "1")), NO_SUBSCRIBERS);
        assert_eq!(client.publish(qos_1("a/other/x", "1")), NOT_AUTHORIZED);
        let retained = Message {
            retain: true,
            ..qos_1(&own, "1")
        };
        assert_eq!(client.publish(retained), NOT_AUTHORIZED);
        let (mut old, _) = Connection::connect(cluster.mqtt(node), &Connect::at("ack-old", V311));
        assert_eq!(old.publish(qos_1("a/other/x", "1")), 0, "dropped behind it");
    }
    set(cluster, 0, &open());
}

fn wide() -> Value {
    json!({ "rules": [
        { "broker_resources": [{ "method": "connect" }, { "method": "publish" }] },
        { "effect": "deny", "broker_resources": [{ "method": "subscribe", "topics": ["+/secret/#"] }] },
        { "broker_resources": [{ "method": "subscribe", "topics": ["w/#", "end"] }] },
    ]})
}

fn a_wide_subscription_gets_what_it_may_on_every_node(cluster: &Cluster) {
    set(cluster, 1, &wide());
    let mut publisher = Connection::v5(cluster.mqtt(0), "wide-publisher");
    for topic in ["w/kept", "w/secret/kept", "x/kept"] {
        let message = Message {
            retain: true,
            ..qos_1(topic, "1")
        };
        publisher.publish(message);
    }
    for node in 0..3 {
        let mut client = Connection::v5(cluster.mqtt(node), &format!("wide-{node}"));
        let answer = client.subscribe_for(&[("x/+", 1), ("w/secret/a", 1)]);
        assert_eq!(answer.codes, [NOT_AUTHORIZED, NOT_AUTHORIZED]);
        client.subscribe(&[("#", 1)]);
        assert_eq!(client.publish_received().topic, "w/kept");
        for topic in ["x/1", "w/1", "w/secret/1", "end"] {
            publisher.publish(qos_1(topic, "1"));
        }
        assert_eq!(topics(&mut client, "end"), ["w/1", "end"], "node {node}");
        client.expect_nothing();
    }
    for topic in ["w/kept", "w/secret/kept", "x/kept"] {
        let message = Message {
            retain: true,
            ..qos_1(topic, "")
        };
        publisher.publish(message);
    }
    set(cluster, 1, &open());
}

fn a_queue_is_judged_when_it_is_delivered(cluster: &Cluster) {
    let connect = Connect::v5("queue").durable(600);
    let (mut client, _) = Connection::connect(cluster.mqtt(0), &connect);
    client.subscribe(&[("#", 1)]);
    client.disconnect();
    let mut publisher = Connection::v5(cluster.mqtt(1), "queue-publisher");
    for topic in ["w/1", "w/secret/1", "x/1", "end"] {
        assert_eq!(publisher.publish(qos_1(topic, "1")), 0);
    }
    set(cluster, 2, &wide());
    let (mut client, connack) = Connection::connect(cluster.mqtt(2), &connect);
    assert!(connack.session_present);
    assert_eq!(topics(&mut client, "end"), ["w/1", "end"]);
    client.expect_nothing();
    client.disconnect();
    set(cluster, 2, &open());
    let (mut client, _) = Connection::connect(cluster.mqtt(0), &connect);
    assert_eq!(publisher.publish(qos_1("x/2", "1")), 0);
    assert_eq!(
        client.publish_received().topic,
        "x/2",
        "what was refused counts as delivered"
    );
    client.disconnect();
    Connection::v5(cluster.mqtt(0), "queue").disconnect();
}

fn a_group_is_joined_by_who_may_have_all_of_it(cluster: &Cluster) {
    set(cluster, 0, &wide());
    let mut client = Connection::v5(cluster.mqtt(1), "group");
    let answer = client.subscribe_for(&[("$share/g/w/#", 1), ("$share/g/w/1", 1)]);
    assert_eq!(answer.codes, [NOT_AUTHORIZED, 1]);
    // It leaves the group when it may not have all of it any more.
    set(cluster, 2, &document(&json!([{ "method": "publish" }])));
    let mut publisher = Connection::v5(cluster.mqtt(0), "group-publisher");
    cluster_tests::wait::until("the group is left", TIMEOUT, || {
        (publisher.publish(qos_1("w/1", "1")) == NO_SUBSCRIBERS).then_some(())
    });
    client.expect_nothing();
    set(cluster, 0, &open());
}

fn who_may_not_connect_is_refused_or_leaves(cluster: &Cluster) {
    let mut clients: Vec<Connection> = (0..3)
        .map(|node| Connection::v5(cluster.mqtt(node), &format!("leaves-{node}")))
        .collect();
    let resources = json!([{ "method": "connect", "client_ids": ["stays*"] }]);
    let rules = json!({ "rules": [{ "broker_resources": resources }] });
    set(cluster, 0, &rules);
    for client in &mut clients {
        client.expect_disconnect(NOT_AUTHORIZED);
    }
    for node in 0..3 {
        let connect = Connect::v5(&format!("leaves-{node}"));
        let (_, connack) =
            Connection::try_connect(cluster.mqtt(node), &connect).expect("it is answered");
        assert_eq!(connack.code, NOT_AUTHORIZED);
        let connect = Connect::at("leaves-old", V311);
        let (_, connack) =
            Connection::try_connect(cluster.mqtt(node), &connect).expect("it is answered");
        assert_eq!(connack.code, 5);
        Connection::v5(cluster.mqtt(node), "stays");
    }
    set(cluster, 0, &open());
}

fn a_change_is_in_force_on_every_node_when_it_is_answered(cluster: &Cluster) {
    let mut clients: Vec<Connection> = (0..3)
        .map(|node| Connection::v5(cluster.mqtt(node), &format!("change-{node}")))
        .collect();
    for round in 0..20 {
        let (allowed, refused) = match round % 2 {
            0 => ("even", "odd"),
            _ => ("odd", "even"),
        };
        let resources = json!([{ "method": "publish", "topics": [allowed] }]);
        set(cluster, round % 3, &document(&resources));
        for client in &mut clients {
            assert_eq!(
                client.publish(qos_1(allowed, "1")),
                NO_SUBSCRIBERS,
                "round {round}"
            );
            assert_eq!(
                client.publish(qos_1(refused, "1")),
                NOT_AUTHORIZED,
                "round {round}"
            );
        }
    }
    set(cluster, 0, &open());
}

fn a_change_is_made_only_to_the_version_that_was_read(cluster: &Cluster) {
    let version = set(cluster, 0, &open());
    let expect = |version: u64, node| {
        let version = version.to_string();
        let arguments = ["set", "-", "--expect-version", &version];
        acl(cluster, node, &arguments, &open().to_string())
    };
    let output = expect(version - 1, 1);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(&format!("version {version}")), "{text}");
    assert!(expect(version, 2).status.success());
    assert!(
        !expect(version, 0).status.success(),
        "it has another version now"
    );
    let wrong = acl(cluster, 0, &["set", "-"], r#"{"rules": [{}]}"#);
    assert_eq!(wrong.status.code(), Some(78), "{wrong:?}");
}

fn the_state_store_is_judged_by_its_keys(cluster: &Cluster) {
    let mut client = StoreClient::connected("keys", cluster.mqtt(1));
    client.expect(&Request::set("other", "1"), "+OK\r\n");
    client.expect(&Request::set("own/keys/1", "1"), "+OK\r\n");
    let keys = json!([
        { "method": "read_write", "key_type": "prefix", "keys": ["own/{principal.client_id}/"] },
        { "method": "read", "keys": ["shared/*"] },
    ]);
    let rules = json!({ "rules": [
        { "broker_resources": [{ "method": "connect" }], "state_store_resources": keys },
    ]});
    set(cluster, 0, &rules);
    client.expect(&Request::set("own/keys/2", "1"), "+OK\r\n");
    client.expect(&Request::get("own/keys/2"), "$1\r\n1\r\n");
    client.expect(&Request::get("shared/x"), "$-1\r\n");
    for request in [
        Request::get("other"),
        Request::keynotify("other"),
        Request::set("other", "2"),
        Request::set("shared/x", "2"),
        Request::del("other"),
        Request::vdel("other", "1"),
    ] {
        client.expect_error(&request, "not authorized");
    }
    let listed = client.call(&Request::of(["SCAN", "*"]));
    let text = String::from_utf8_lossy(&listed.payload).into_owned();
    assert!(
        text.contains("own/keys/2") && !text.contains("other"),
        "{text}"
    );
    // Answers come to the client itself, although no rule says so, and to nobody else.
    let mut other = Connection::v5(cluster.mqtt(2), "listens");
    let answer = other.subscribe_for(&[("clients/#", 1), (&client.response_topic, 1)]);
    assert_eq!(answer.codes, [NOT_AUTHORIZED, NOT_AUTHORIZED]);
    set(cluster, 0, &open());
    client.expect(&Request::get("other"), "$1\r\n1\r\n");
}

/// Pages are put together for such a client, and kept meanwhile.
fn long_keys_are_listed_to_who_may_read_some(cluster: &Cluster) {
    let mut client = StoreClient::connected("long-keys", cluster.mqtt(1));
    let end = "k".repeat(1_000_000);
    let keys: Vec<String> = (0..8)
        .map(|number| format!("long/{number}/{end}"))
        .collect();
    for key in &keys {
        client.expect(&Request::set(key, "v"), "+OK\r\n");
    }
    let rules = json!({ "rules": [{
        "broker_resources": [{ "method": "connect" }],
        "state_store_resources": [{ "method": "read", "keys": ["long/*"] }],
    }]});
    set(cluster, 0, &rules);
    let (listed, pages) = scan_all(&mut client, "*");
    assert!(listed == keys, "{} keys", listed.len());
    assert_eq!(pages, keys.len());
    set(cluster, 0, &open());
}

fn mosquittos_clients_are_told(cluster: &Cluster) {
    set(
        cluster,
        0,
        &document(&json!([
            { "method": "publish", "topics": ["m/allowed"] },
            { "method": "subscribe", "topics": ["m/#"] },
        ])),
    );
    let run = |program: &str, node: usize, arguments: &[&str]| {
        let address = cluster.mqtt(node);
        let mut command = Command::new(program);
        command
            .args([
                "-h",
                &address.ip().to_string(),
                "-p",
                &address.port().to_string(),
            ])
            .args(["-V", "mqttv5", "-q", "1"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("scripts/setup test installs it")
    };
    let said = |output: &Output| {
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    let refused = run("mosquitto_pub", 1, &["-t", "m/refused", "-m", "1"]);
    let refused = refused.wait_with_output().expect("it was started");
    assert!(said(&refused).contains("uthorized"), "{refused:?}");
    let refused = run("mosquitto_sub", 2, &["-t", "n/#", "-W", "5"]);
    let refused = refused.wait_with_output().expect("it was started");
    assert!(said(&refused).contains("denied"), "{refused:?}");
    let subscriber = run("mosquitto_sub", 0, &["-t", "#", "-C", "1", "-W", "20"]);
    // Until it has one: it may not have subscribed before the first.
    let (done, ended) = std::sync::mpsc::channel();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            let output = subscriber.wait_with_output().expect("it was started");
            let _ = done.send(output);
        });
        loop {
            let sent = run("mosquitto_pub", 1, &["-t", "m/allowed", "-m", "hello"]);
            let _ = sent.wait_with_output();
            if let Ok(output) = ended.recv_timeout(Duration::from_millis(50)) {
                return output;
            }
        }
    });
    assert!(
        output.status.success() && said(&output).contains("hello"),
        "{output:?}"
    );
    set(cluster, 0, &open());
}

fn the_command_line_tests_and_imports(cluster: &Cluster) {
    let file = "user ann\ntopic read news/#\npattern write out/%c\n";
    let imported = acl(cluster, 0, &["import-mosquitto", "-"], file);
    assert!(imported.status.success(), "{imported:?}");
    let text = String::from_utf8_lossy(&imported.stdout).into_owned();
    let rules: Value = serde_json::from_str(&text).expect("rules are JSON");
    set(cluster, 1, &rules);
    let test = |arguments: &[&str]| {
        let output = acl(cluster, 2, &[&["test"], arguments].concat(), "");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    };
    let all = rules["rules"].as_array().expect("a list of rules");
    let place = |name: &str| all.iter().position(|rule| rule.to_string().contains(name));
    let allowed = |rule: &str| {
        (
            Some(0),
            format!("allow (rules[{}])", place(rule).expect("a rule")),
        )
    };
    let refused = (Some(1), "deny (no rule speaks)".to_owned());
    assert_eq!(test(&["ann", "receive", "news/today"]), allowed("news/#"));
    assert_eq!(test(&["bob", "receive", "news/today"]), refused);
    let publish = |client_id| test(&["bob", "publish", "out/c1", "--client-id", client_id]);
    assert_eq!(publish("c1"), allowed("out/{principal.client_id}"));
    assert_eq!(publish("c2"), refused);
    let shown = acl(cluster, 0, &["show"], "");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("rules are JSON");
    assert_eq!(shown["rules"], rules["rules"]);
    set(cluster, 1, &open());
}

/// A change that was answered just before the leader dies holds on the nodes that are left, and on the one that comes
/// back.
#[test]
fn rules_survive_the_leader() {
    let mut cluster = Cluster::start();
    for round in 0..2 {
        let leader = cluster.wait_leader();
        let allowed = format!("round/{round}");
        let resources = json!([{ "method": "publish", "topics": [allowed] }]);
        set(&cluster, leader, &document(&resources));
        cluster.nodes[leader].kill();
        cluster.wait_leader_other_than(leader);
        let check = |cluster: &Cluster, node: usize| {
            let mut client = Connection::v5(cluster.mqtt(node), &format!("survives-{node}"));
            assert_eq!(client.publish(qos_1(&allowed, "1")), NO_SUBSCRIBERS);
            assert_eq!(client.publish(qos_1("round/x", "1")), NOT_AUTHORIZED);
        };
        for node in (0..3).filter(|node| *node != leader) {
            cluster.nodes[node].wait_ready(TIMEOUT);
            check(&cluster, node);
        }
        cluster.start_node(leader);
        cluster.wait_ready();
        check(&cluster, leader);
    }
    cluster.assert_states_agree();
}

/// Limits of a principal: what its client is told, and what ends it.
#[test]
fn limits_hold() {
    let cluster = Cluster::start_with(Plan {
        size: 1,
        ..Plan::default()
    });
    let limits = json!({
        "packet_bytes": 2_000, "in_flight": 3, "max_qos": 1, "retain": false, "subscriptions": 1,
        "session_expiry_s": 60,
    });
    let rules = json!({ "default": "allow", "limits": [
        { "principals": { "client_ids": ["small*"] }, "limits": limits },
    ]});
    set(&cluster, 0, &rules);
    use cluster_tests::wire::{Value as Property, id};
    let connect = Connect::v5("small").durable(3_600);
    let (mut client, connack) = Connection::connect(cluster.mqtt(0), &connect);
    let properties = &connack.properties;
    for (id, value) in [
        (id::MAXIMUM_PACKET_SIZE, Property::FourBytes(2_000)),
        (id::RECEIVE_MAXIMUM, Property::TwoBytes(3)),
        (id::MAXIMUM_QOS, Property::Byte(1)),
        (id::RETAIN_AVAILABLE, Property::Byte(0)),
        (id::SESSION_EXPIRY, Property::FourBytes(60)),
    ] {
        assert_eq!(properties.get(id), Some(&value), "{connack:?}");
    }
    let answer = client.subscribe_for(&[("a", 1), ("b", 1)]);
    assert_eq!(answer.codes, [1, 0x97]);
    let message = Message {
        qos: 2,
        packet_id: 9,
        ..Message::new("a", "1")
    };
    client.send(&message.bytes(cluster_tests::wire::V5));
    client.expect_disconnect(0x9B);
    let (_, connack) = Connection::connect(cluster.mqtt(0), &Connect::v5("large"));
    assert!(!connack.properties.has(id::MAXIMUM_QOS), "{connack:?}");
}
