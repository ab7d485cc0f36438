//! Devices and modules over MQTT on three nodes: who is let in, what they hear of, and what outlives their connection and
//! its node. What one connection sends, and what it is answered, byte by byte, stands in `corpus/hub/`.

mod back_end;
mod certificates;
mod device;
mod faults;
mod table;

use back_end::{HOST, Hub, KEYS, path_of, policy_token, token};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wait;
use cluster_tests::wire::{Connect, Message, Packet, V5, V311, Will};
use device::{
    ANSWERS, DESIRED, ask, ask_as, code, connect, get, notification, open, own_token, patch, report,
};
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A rule: its name, and the function that panics when it is broken.
type Rule = (&'static str, fn(&Hub));

#[test]
fn twins_over_mqtt() {
    let hub = Hub::start();
    let rules: &[Rule] = &[
        (
            "desired_changes_are_heard_in_order",
            desired_changes_are_heard_in_order,
        ),
        (
            "nothing_stale_is_heard_after_a_reconnect",
            nothing_stale_is_heard_after_a_reconnect,
        ),
        ("refusals_have_one_answer", refusals_have_one_answer),
        (
            "messages_and_wills_are_ordinary_messages",
            messages_and_wills_are_ordinary_messages,
        ),
        (
            "a_device_retains_no_more_than_its_share",
            a_device_retains_no_more_than_its_share,
        ),
        (
            "a_removed_credential_ends_its_connection",
            a_removed_credential_ends_its_connection,
        ),
        (
            "an_identity_that_is_made_again_is_another",
            an_identity_that_is_made_again_is_another,
        ),
        (
            "a_connection_ends_with_its_token",
            a_connection_ends_with_its_token,
        ),
        (
            "a_new_connection_takes_the_session_over",
            a_new_connection_takes_the_session_over,
        ),
    ];
    let picked = std::env::var("RULE").unwrap_or_default();
    let mut broken = Vec::new();
    for (name, rule) in rules.iter().filter(|(name, _)| name.contains(&picked)) {
        let held = catch_unwind(AssertUnwindSafe(|| rule(&hub))).is_ok();
        eprintln!("rule {name}: {}", if held { "holds" } else { "BROKEN" });
        if !held {
            broken.push(*name);
        }
    }
    assert!(broken.is_empty(), "broken: {broken:?}");
    hub.cluster.assert_states_agree();
}

fn desired_changes_are_heard_in_order(hub: &Hub) {
    for identity in ["heard", "heard/mod", "heard/other"] {
        hub.create(identity);
    }
    let [mut device, mut module, mut other] = [(0, "heard"), (1, "heard/mod"), (2, "heard/other")]
        .map(|(node, identity)| {
            let mut connection = open(hub.cluster.mqtt(node), V311, identity).0;
            connection.subscribe(&[(DESIRED, 0)]);
            connection
        });
    for version in 2..10 {
        let twin = hub.patch_desired("heard/mod", &json!({"n": version, "gone": null}));
        assert_eq!(twin["properties"]["desired"]["$version"], json!(version));
    }
    for version in 2..10 {
        let body = json!({"n": version, "gone": null, "$version": version});
        assert_eq!(notification(&mut module), (version, body));
    }
    module.expect_nothing();
    device.expect_nothing();
    other.expect_nothing();
}

fn nothing_stale_is_heard_after_a_reconnect(hub: &Hub) {
    hub.create("stale");
    let mut device = open(hub.cluster.mqtt(0), V311, "stale").0;
    device.subscribe(&[(DESIRED, 1)]);
    hub.patch_desired("stale", &json!({"n": 1}));
    assert_eq!(notification(&mut device).0, 2);
    device.disconnect();
    hub.patch_desired("stale", &json!({"n": 2}));
    let (mut device, present) = open(hub.cluster.mqtt(1), V311, "stale");
    assert!(present);
    device.expect_nothing();
    let seen = get(&mut device, "1");
    assert_eq!(seen["desired"], json!({"n": 2, "$version": 3}));
    hub.patch_desired("stale", &json!({"n": 3}));
    assert_eq!(notification(&mut device).0, 4, "without subscribing again");
}

fn refusals_have_one_answer(hub: &Hub) {
    hub.create("refused");
    hub.create("refused/mod");
    // A device's key does not open its modules.
    let others: [&[u8]; 2] = [b"a key of the module alone, of many bytes", KEYS[1]];
    hub.update("refused/mod", others, "enabled");
    let own = own_token("refused");
    let with = |user_name: &str, client_id: &str, level, password: &str| Connect {
        user_name: Some(user_name.into()),
        client_id: client_id.into(),
        ..connect(level, client_id, password)
    };
    for (level, not_authorized, bad_name) in [(V311, 5, 4), (V5, 0x87, 0x86)] {
        let node = hub.cluster.mqtt(2);
        let user = |identity: &str| format!("{HOST}/{identity}/?api-version=2021-04-12");
        let path = path_of("refused");
        let back = token(
            "",
            b"the policy's key, which is long enough",
            Some("back"),
            60,
        );
        for (user_name, client_id, password) in [
            (user("unknown"), "unknown", &*policy_token()),
            (user("unknown"), "unknown", &own),
            (user("refused"), "refused", ""),
            (user("refused"), "refused", "secret"),
            (
                user("refused"),
                "refused",
                &token(&path, b"another key than the identity's", None, 60),
            ),
            (user("refused"), "refused", &token(&path, KEYS[0], None, 0)),
            (
                user("refused"),
                "refused",
                &token("/devices/other", KEYS[0], None, 60),
            ),
            (user("refused"), "other", &own),
            (user("refused/mod"), "refused/mod", &own),
            (user("refused"), "refused", &own_token("refused/mod")),
            (user("refused"), "refused", &back),
        ] {
            let connect = with(&user_name, client_id, level, password);
            assert_eq!(
                code(node, &connect),
                not_authorized,
                "{user_name} {password}"
            );
        }
        for user_name in [
            format!("{HOST}/"),
            format!("{HOST}/refused/"),
            format!("{HOST}/refused/?api-version="),
        ] {
            let connect = with(&user_name, "refused", level, &own);
            assert_eq!(code(node, &connect), bad_name, "{user_name}");
        }
        for password in [&*own, &token(&path, KEYS[1], None, 60), &policy_token()] {
            assert_eq!(code(node, &connect(level, "refused", password)), 0);
        }
        let port = format!("{}:8883/refused/api-version=1", HOST.to_uppercase());
        assert_eq!(code(node, &with(&port, "refused", level, &own)), 0);
    }
}

fn messages_and_wills_are_ordinary_messages(hub: &Hub) {
    hub.create("speaks");
    let mut back_end = Connection::v5(hub.cluster.mqtt(1), "messages");
    back_end.subscribe(&[("devices/speaks/messages/events/#", 1)]);
    let topic = "devices/speaks/messages/events/%24.ct=application%2Fjson&k=v";
    let will = |topic: &str| Connect {
        will: Some(Will {
            topic: topic.into(),
            payload: b"gone".to_vec(),
            qos: 1,
            ..Will::default()
        }),
        ..connect(V311, "speaks", &own_token("speaks"))
    };
    let elsewhere = will("devices/other/messages/events/");
    assert_eq!(
        code(hub.cluster.mqtt(0), &elsewhere),
        5,
        "a will for somebody else"
    );
    let (mut device, _) = Connection::connect(hub.cluster.mqtt(0), &will(topic));
    assert_eq!(device.publish(Message::new(topic, "hello").qos(1, 0)), 0);
    let heard = back_end.publish_received();
    assert_eq!((&*heard.topic, &*heard.payload), (topic, &b"hello"[..]));
    assert!(heard.properties.user_properties().is_empty());
    device.hang_up();
    let heard = back_end.publish_received();
    assert_eq!((&*heard.topic, &*heard.payload), (topic, &b"gone"[..]));
    assert_eq!(heard.properties.user_values("iothub-MessageType"), ["Will"]);
    // What ordinary clients publish there reaches the device.
    let mut device = open(hub.cluster.mqtt(2), V311, "speaks").0;
    device.subscribe(&[("devices/speaks/messages/devicebound/#", 1)]);
    back_end.publish(Message::new("devices/speaks/messages/devicebound/x", "to you").qos(1, 0));
    assert_eq!(device.publish_received().payload, b"to you");
}

/// `hub.max_retained` is 16, on whichever nodes and by whatever it retains.
fn a_device_retains_no_more_than_its_share(hub: &Hub) {
    for identity in ["keeps", "keeps/mod"] {
        hub.create(identity);
    }
    let topic = |number: usize| format!("devices/keeps/messages/events/n={number}");
    let retained = |topic: &str, payload: &str| Message {
        retain: true,
        ..Message::new(topic, payload).qos(1, 0)
    };
    let mut nodes = [0, 1, 2].map(|node| {
        let mut device = open(hub.cluster.mqtt(node), V5, "keeps").0;
        for number in node * 5..node * 5 + 5 {
            assert_eq!(device.publish(retained(&topic(number), "kept")), 0);
        }
        device
    });
    let [.., device] = &mut nodes;
    assert_eq!(device.publish(retained(&topic(15), "kept")), 0);
    // A client of 3.1.1 could not be told otherwise, and would send it for ever.
    assert_eq!(device.publish(retained(&topic(16), "passes")), 0);
    assert_eq!(device.publish(retained(&topic(3), "anew")), 0, "its place");
    // What it leaves as its will is one more, too, and is heard by those who are there.
    let will = Will {
        topic: topic(17),
        payload: b"gone".to_vec(),
        qos: 1,
        retain: true,
        ..Will::default()
    };
    let mut back_end = Connection::v5(hub.cluster.mqtt(0), "keeper");
    back_end.subscribe(&[("devices/keeps/messages/events/+", 1)]);
    let heard: Vec<_> = (0..16).map(|_| back_end.publish_received()).collect();
    assert!(heard.iter().all(|publish| publish.retain));
    let leaves = Connect {
        will: Some(will),
        ..connect(V5, "keeps", &own_token("keeps"))
    };
    let (leaving, _) = Connection::connect(hub.cluster.mqtt(1), &leaves);
    leaving.hang_up();
    assert_eq!(back_end.publish_received().topic, topic(17));
    back_end.disconnect();
    let mut module = open(hub.cluster.mqtt(2), V5, "keeps/mod").0;
    let own = "devices/keeps/modules/mod/messages/events/";
    assert_eq!(module.publish(retained(own, "kept")), 0, "it has its own");
    let mut late = Connection::v5(hub.cluster.mqtt(0), "keeper-late");
    late.subscribe(&[("devices/keeps/messages/events/+", 1)]);
    let kept: Vec<_> = (0..16).map(|_| late.publish_received().topic).collect();
    assert!(
        !kept.contains(&topic(16)) && !kept.contains(&topic(17)),
        "{kept:?}"
    );
    late.expect_nothing();
    late.disconnect();
    // It goes with the device, and nothing of it is a new one's.
    hub.delete("keeps");
    let kept = || {
        let path = "/v1/retained?filter=devices/keeps/%23";
        let listed = hub.cluster.nodes[1].get(path).expect("it answers").body;
        listed.contains("devices/keeps").then_some(listed)
    };
    wait::until_ok("the retained messages to go", TIMEOUT, || {
        kept().map_or(Ok(()), Err)
    });
    hub.create("keeps");
    let mut anew = open(hub.cluster.mqtt(2), V5, "keeps").0;
    assert_eq!(anew.publish(retained(&topic(0), "new")), 0);
    assert!(kept().is_some_and(|listed| listed.contains("n=0")));
}

/// The connection is closed by the cluster, and its client is told so in MQTT 5.
#[track_caller]
fn expect_revoked(mut connection: Connection) {
    match connection.receive(TIMEOUT) {
        Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x87),
        other => panic!("instead of DISCONNECT: {other:?}"),
    }
    connection.expect_closed();
}

fn a_removed_credential_ends_its_connection(hub: &Hub) {
    hub.create("revoked");
    hub.create("revoked/mod");
    let by = |node, key| {
        let password = token("/devices/revoked", key, None, 3_600);
        Connection::connect(hub.cluster.mqtt(node), &connect(V5, "revoked", &password)).0
    };
    let mut device = by(1, KEYS[0]);
    hub.update("revoked", KEYS, "enabled");
    hub.update("revoked", [KEYS[1], KEYS[0]], "enabled");
    hub.update(
        "revoked",
        [KEYS[0], b"another key than it had before"],
        "enabled",
    );
    assert_eq!(
        get(&mut device, "1")["reported"]["$version"],
        json!(1),
        "its own key is still there"
    );
    hub.update(
        "revoked",
        [b"the first one is another, too...", KEYS[1]],
        "enabled",
    );
    expect_revoked(device);
    let old = connect(V5, "revoked", &own_token("revoked"));
    assert_eq!(code(hub.cluster.mqtt(2), &old), 0x87);
    let device = by(2, KEYS[1]);
    let module = open(hub.cluster.mqtt(0), V5, "revoked/mod").0;
    hub.update("revoked", [KEYS[0], KEYS[1]], "disabled");
    expect_revoked(device);
    expect_revoked(module);
    for (node, identity) in [(0, "revoked"), (1, "revoked/mod")] {
        let connect = connect(V5, identity, &own_token(identity));
        assert_eq!(code(hub.cluster.mqtt(node), &connect), 0x87);
    }
    hub.update("revoked", KEYS, "enabled");
    let (device, present) = open(hub.cluster.mqtt(1), V5, "revoked");
    assert!(present, "the session stays");
    hub.delete("revoked");
    expect_revoked(device);
}

fn an_identity_that_is_made_again_is_another(hub: &Hub) {
    hub.create("again-made");
    let mut device = open(hub.cluster.mqtt(0), V5, "again-made").0;
    device.subscribe(&[(DESIRED, 0)]);
    report(&mut device, "1", &json!({"a": 1}));
    hub.delete("again-made");
    expect_revoked(device);
    hub.create("again-made");
    let (mut device, present) = open(hub.cluster.mqtt(1), V5, "again-made");
    assert!(!present);
    let fresh = json!({"desired": {"$version": 1}, "reported": {"$version": 1}});
    assert_eq!(get(&mut device, "1"), fresh);
    // Making an identity ends an ordinary client's session of its name.
    let connect = Connect::v5("made-later").durable(60);
    let ordinary = Connection::connect(hub.cluster.mqtt(2), &connect).0;
    hub.create("made-later");
    expect_revoked(ordinary);
    assert!(!open(hub.cluster.mqtt(2), V5, "made-later").1);
}

fn a_connection_ends_with_its_token(hub: &Hub) {
    hub.create("short");
    let short = token("/devices/short", KEYS[0], None, 3);
    let (device, _) = Connection::connect(hub.cluster.mqtt(0), &connect(V5, "short", &short));
    expect_revoked(device);
    assert_eq!(
        code(hub.cluster.mqtt(1), &connect(V5, "short", &short)),
        0x87
    );
}

fn a_new_connection_takes_the_session_over(hub: &Hub) {
    hub.create("twice");
    let mut first = open(hub.cluster.mqtt(0), V5, "twice").0;
    first.subscribe(&[(DESIRED, 0)]);
    let (mut second, present) = open(hub.cluster.mqtt(1), V5, "twice");
    assert!(present);
    first.expect_disconnect(0x8E);
    hub.patch_desired("twice", &json!({"a": 1}));
    assert_eq!(notification(&mut second).0, 2);
}

/// The libraries subscribe once in their life. What they have asked for goes on when their node dies, and a request
/// under way is carried out once.
#[test]
fn a_library_that_never_subscribes_again_keeps_working() {
    let mut hub = Hub::start();
    hub.create("once");
    let leader = hub.cluster.wait_leader();
    let mut device = open(hub.cluster.mqtt(leader), V311, "once").0;
    device.subscribe(&[(ANSWERS, 1), (DESIRED, 1)]);
    assert_eq!(report(&mut device, "1", &json!({"n": 1})), 2);
    // Under way while its node dies.
    let request = patch("2", &json!({"n": 2}));
    device.send(&request.clone().qos(1, 900).bytes(V311));
    hub.cluster.nodes[leader].kill();
    let other = hub.cluster.wait_leader_other_than(leader);
    let again = Message {
        duplicate: true,
        ..request
    };
    let mut device = wait::until("a session on another node", Duration::from_secs(20), || {
        let connect = connect(V311, "once", &own_token("once"));
        let (connection, connack) =
            Connection::try_connect(hub.cluster.mqtt(other), &connect).ok()?;
        match connack.code {
            0 => {
                assert!(connack.session_present);
                Some(connection)
            }
            3 => None,
            code => panic!("it would lead the client to give up: {code}"),
        }
    });
    let answer = ask_as(&mut device, again, 900);
    assert!(
        answer.topic.ends_with("$rid=2&$version=3"),
        "{}",
        answer.topic
    );
    let seen = get(&mut device, "3");
    assert_eq!(seen["reported"], json!({"n": 2, "$version": 3}));
    let (status, _) = hub.ask_node(
        other,
        "PATCH",
        "/twins/once",
        "",
        &json!({"properties": {"desired": {"on": true}}}),
    );
    assert_eq!(status, 200);
    assert_eq!(
        notification(&mut device),
        (2, json!({"on": true, "$version": 2}))
    );
    hub.cluster.start_node(leader);
    hub.cluster.wait_ready();
    hub.cluster.assert_states_agree();
}

/// A minority answers nobody, and leads nobody to give up.
#[test]
fn without_a_majority_clients_are_told_to_come_again() {
    let mut hub = Hub::start();
    hub.create("alone");
    let mut device = open(hub.cluster.mqtt(0), V311, "alone").0;
    for node in [1, 2] {
        hub.cluster.nodes[node].pause();
    }
    device.send(&patch("1", &json!({"n": 1})).qos(1, 1).bytes(V311));
    let said = device.read_to_end(Duration::from_secs(20));
    assert_eq!(said, Ok(Vec::new()), "no answer at all, and then the end");
    for (level, unavailable) in [(V311, 3), (V5, 0x88)] {
        let connect = connect(level, "alone", &own_token("alone"));
        assert_eq!(code(hub.cluster.mqtt(0), &connect), unavailable);
    }
    for node in [1, 2] {
        hub.cluster.nodes[node].resume();
    }
    hub.cluster.wait_ready();
    let version = wait::until("the node serves again", Duration::from_secs(20), || {
        let connect = connect(V311, "alone", &own_token("alone"));
        let (mut device, connack) = Connection::try_connect(hub.cluster.mqtt(0), &connect).ok()?;
        let request = Message {
            duplicate: true,
            ..patch("1", &json!({"n": 1}))
        };
        (connack.code == 0).then(|| ask(&mut device, request).topic)
    });
    assert!(
        version.ends_with("$version=2"),
        "it was applied once: {version}"
    );
}
