//! KEYNOTIFY: P7, K9, K10 (docs/spec/state-store.md, Notifications).

use cluster_tests::check::kv;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::history::{Command, History, Operation, Outcome};
use cluster_tests::rules;
use cluster_tests::store::{Hlc, Notification, Request, StoreClient, hex, resp};
use cluster_tests::wait::{can_exceed, with_slack};
use cluster_tests::wire::{Connect, Packet, V5, Value, id};
use std::time::{Duration, Instant};

#[test]
fn notifications() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            a_notification_has_its_exact_form,
            a_watcher_needs_no_subscription_and_hears_every_node,
            the_writer_hears_of_its_own_writes,
            watching_twice_notifies_once,
            a_subscriber_to_the_topic_is_not_notified_twice,
            a_watcher_that_acknowledges_late_is_answered,
            stop_ends_it_and_says_whether_it_was_watched,
            nothing_is_notified_where_nothing_changed,
            expiry_is_a_deletion,
            a_registration_ends_with_the_connection,
            every_change_once_and_in_order_for_watchers_on_every_node,
        ],
    );
}

const OK: &str = "+OK\r\n";

/// The notifications up to and including that many.
#[track_caller]
fn heard(client: &mut StoreClient, count: usize) -> Vec<Notification> {
    if let Err(fault) = client.listen(TIMEOUT, |heard| heard.len() >= count) {
        panic!(
            "{count} notifications wanted, {fault:?}: {:?}",
            client.notifications
        );
    }
    std::mem::take(&mut client.notifications)
}

/// Nothing more is on the way: a change of another watched key is notified next.
#[track_caller]
fn heard_nothing_before(client: &mut StoreClient, marker: &str) {
    client.expect(&Request::keynotify(marker), OK);
    client.expect(&Request::set(marker, "m"), OK);
    let heard = heard(client, 1);
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_eq!(heard[0].key, marker.as_bytes(), "{heard:?}");
}

fn a_notification_has_its_exact_form(cluster: &Cluster) {
    let mut client = StoreClient::connected("form-Ü/1", cluster.mqtt(0));
    let key: &[u8] = b"form/\x00\xFF\r\n";
    client.expect(&Request::keynotify(key), OK);
    let mut writer = StoreClient::connected("form-writer", cluster.mqtt(1));
    let set = writer.expect(&Request::set(key, b"a\r\nb"), OK);
    writer.expect(&Request::set(key, b""), OK);
    let last = writer.expect(&Request::set(key, b"x"), OK);
    writer.expect(&Request::vdel(key, b"x"), ":1\r\n");
    let topic = format!(
        "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/{}/command/notify/{}",
        hex("form-Ü/1".as_bytes()),
        hex(key)
    );
    let payloads = [
        resp([b"NOTIFY".as_slice(), b"SET", b"VALUE", b"a\r\nb"]),
        resp([b"NOTIFY".as_slice(), b"SET", b"VALUE", b""]),
        resp([b"NOTIFY".as_slice(), b"SET", b"VALUE", b"x"]),
        b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n".to_vec(),
    ];
    let mut versions = Vec::new();
    for payload in payloads {
        let publish = client.connection().publish_received();
        assert_eq!(publish.topic, topic);
        assert_eq!(
            (publish.qos, publish.retain, publish.duplicate),
            (1, false, false)
        );
        assert_eq!(
            String::from_utf8_lossy(&publish.payload),
            String::from_utf8_lossy(&payload)
        );
        assert_eq!(
            publish.properties.text(id::CONTENT_TYPE),
            Some("application/octet-stream")
        );
        assert_eq!(publish.properties.user_values("__protVer"), ["1.0"]);
        assert!(publish.properties.user_values("__stat").is_empty());
        assert!(!publish.properties.has(id::CORRELATION_DATA));
        assert!(!publish.properties.has(id::RESPONSE_TOPIC));
        let text = publish.properties.user_values("__ts");
        assert_eq!(text.len(), 1, "{publish:?}");
        versions.push(Hlc::parse(text[0]).expect("__ts is well formed"));
    }
    assert_eq!(
        Some(&versions[0]),
        set.version.as_ref(),
        "SET: the new version"
    );
    assert!(
        Some(&versions[3]) > last.version.as_ref(),
        "DELETE: higher than the deleted value's"
    );
    assert!(versions.is_sorted());
}

fn a_watcher_needs_no_subscription_and_hears_every_node(cluster: &Cluster) {
    for watched in 0..3 {
        let mut watcher =
            StoreClient::connected(&format!("hears-{watched}"), cluster.mqtt(watched));
        watcher.expect(&Request::keynotify("hears"), OK);
        for writing in 0..3 {
            let mut writer =
                StoreClient::connected(&format!("hears-writer-{writing}"), cluster.mqtt(writing));
            writer.expect(&Request::set("hears", writing.to_string()), OK);
        }
        let values: Vec<_> = heard(&mut watcher, 3)
            .into_iter()
            .map(|heard| heard.value)
            .collect();
        assert_eq!(values, [b"0", b"1", b"2"].map(|value| Some(value.to_vec())));
    }
}

fn the_writer_hears_of_its_own_writes(cluster: &Cluster) {
    let mut client = StoreClient::connected("own", cluster.mqtt(2));
    client.expect(&Request::keynotify("own"), OK);
    let set = client.expect(&Request::set("own", "v"), OK);
    let heard = heard(&mut client, 1);
    assert_eq!(Some(&heard[0].version), set.version.as_ref());
}

fn watching_twice_notifies_once(cluster: &Cluster) {
    let mut client = StoreClient::connected("twice", cluster.mqtt(0));
    client.expect(&Request::keynotify("twice"), OK);
    client.expect(&Request::keynotify("twice"), OK);
    client.expect(&Request::set("twice", "v"), OK);
    assert_eq!(heard(&mut client, 1).len(), 1);
    heard_nothing_before(&mut client, "twice/marker");
    client.expect(&Request::of(["KEYNOTIFY", "twice", "STOP"]), OK);
    client.expect(&Request::of(["KEYNOTIFY", "twice", "STOP"]), ":0\r\n");
}

fn a_subscriber_to_the_topic_is_not_notified_twice(cluster: &Cluster) {
    let mut client = StoreClient::connected("subscribed", cluster.mqtt(1));
    let topic = format!(
        "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/{}/command/notify/{}",
        hex(b"subscribed"),
        hex(b"subscribed")
    );
    client
        .connection()
        .subscribe(&[(&topic, 1), ("clients/statestore/#", 1)]);
    client.expect(&Request::keynotify("subscribed"), OK);
    client.expect(&Request::set("subscribed", "v"), OK);
    assert_eq!(heard(&mut client, 1).len(), 1);
    heard_nothing_before(&mut client, "subscribed/marker");
}

/// Notifications that wait for acknowledgements hold up no answer: what is done about one may need what is asked for.
fn a_watcher_that_acknowledges_late_is_answered(cluster: &Cluster) {
    const ANSWERS: &str = "late-watcher/answers";
    let connect = Connect::v5("late-watcher").with(id::RECEIVE_MAXIMUM, Value::TwoBytes(2));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    client.subscribe(&[(ANSWERS, 0)]);
    let mut asks = StoreClient::new("late-watcher", &[], 0);
    asks.response_topic = ANSWERS.into();
    let mut id = 0_u16;
    let mut ask = |client: &mut Connection, request: &Request, times: usize| {
        let messages = (0..times).flat_map(|_| {
            id += 1;
            asks.message(request, &id.to_be_bytes(), id).bytes(V5)
        });
        client.send(&messages.collect::<Vec<_>>());
    };
    ask(&mut client, &Request::keynotify("late-watched"), 1);
    let mut writer = StoreClient::connected("late-watched-writer", cluster.mqtt(0));
    let (mut notified, mut answered) = (0, 0);
    while answered < 4 {
        match client.expect() {
            Packet::Publish(answer) if answer.topic == ANSWERS => {
                answered += 1;
                if answered == 1 {
                    for number in 0..5 {
                        let set = Request::set("late-watched", number.to_string());
                        writer.expect(&set, OK);
                    }
                }
            }
            Packet::Publish(_) => {
                notified += 1;
                if notified == 2 {
                    ask(&mut client, &Request::of(["SCAN", "late-watched*"]), 3);
                }
            }
            Packet::Puback(ack) => assert_eq!(ack.code, 0),
            other => panic!("{notified} notifications, {answered} answers: {other:?}"),
        }
    }
    assert_eq!(notified, 2, "none is acknowledged");
}

fn stop_ends_it_and_says_whether_it_was_watched(cluster: &Cluster) {
    let mut client = StoreClient::connected("stop", cluster.mqtt(0));
    let stop = Request::of(["KEYNOTIFY", "stop", "STOP"]);
    client.expect(&stop, ":0\r\n");
    client.expect(&Request::keynotify("stop"), OK);
    client.expect(&stop, OK);
    client.expect(&Request::set("stop", "v"), OK);
    heard_nothing_before(&mut client, "stop/marker");
    // Another client's registration is its own.
    let mut other = StoreClient::connected("stop-other", cluster.mqtt(1));
    other.expect(&Request::keynotify("stop"), OK);
    client.expect(&stop, ":0\r\n");
    client.expect(&Request::set("stop", "w"), OK);
    assert_eq!(heard(&mut other, 1).len(), 1);
}

fn nothing_is_notified_where_nothing_changed(cluster: &Cluster) {
    let mut client = StoreClient::connected("nothing", cluster.mqtt(2));
    client.expect(
        &Request::set("nothing", "v").fenced(&Hlc::now("holder").to_string()),
        OK,
    );
    client.expect(&Request::keynotify("nothing"), OK);
    let token = Hlc::now("holder").to_string();
    client.expect(
        &Request::of(["SET", "nothing", "w", "NX"]).fenced(&token),
        ":-1\r\n",
    );
    client.expect(
        &Request::of(["SET", "nothing", "w", "NEX"]).fenced(&token),
        ":-1\r\n",
    );
    client.expect(&Request::vdel("nothing", "w").fenced(&token), ":-1\r\n");
    client.expect_error(
        &Request::set("nothing", "w"),
        "a fencing token is required for this request",
    );
    client.expect(&Request::get("nothing"), "$1\r\nv\r\n");
    client.expect(&Request::keynotify("nothing/absent"), OK);
    client.expect(&Request::del("nothing/absent"), ":0\r\n");
    client.expect(&Request::vdel("nothing/absent", "v"), ":0\r\n");
    heard_nothing_before(&mut client, "nothing/marker");
    // The same value again is a change: it has a new version.
    client.expect(
        &Request::of(["SET", "nothing", "v", "NEX"]).fenced(&token),
        OK,
    );
    assert_eq!(heard(&mut client, 1).len(), 1);
}

/// The latest notification of the end of a key that expires after 300 ms.
const EXPIRY_WITHIN: Duration = Duration::from_secs(3);

const _: () = assert!(can_exceed(EXPIRY_WITHIN, TIMEOUT));

fn expiry_is_a_deletion(cluster: &Cluster) {
    let mut client = StoreClient::connected("expiry", cluster.mqtt(0));
    client.expect(&Request::keynotify("expiry"), OK);
    let sent = Instant::now();
    let set = client.expect(&Request::of(["SET", "expiry", "v", "PX", "300"]), OK);
    // Nobody asks for the key: it is the cluster that must notice.
    let heard = heard(&mut client, 2);
    assert_eq!(heard[0].value.as_deref(), Some(b"v".as_slice()));
    assert_eq!(heard[1].value, None);
    let after = heard[1].received - sent;
    assert!(
        after >= Duration::from_millis(300),
        "expired early, after {after:?}"
    );
    assert!(
        after < with_slack(EXPIRY_WITHIN),
        "expired late, after {after:?}"
    );
    assert!(Some(&heard[1].version) > set.version.as_ref());
    heard_nothing_before(&mut client, "expiry/marker");
}

fn a_registration_ends_with_the_connection(cluster: &Cluster) {
    let mut client = StoreClient::connected("ends", cluster.mqtt(1));
    client.expect(&Request::keynotify("ends"), OK);
    client.disconnect();
    // The session lives on, the registration does not.
    let mut client = StoreClient::connected("ends", cluster.mqtt(2));
    client.expect(&Request::set("ends", "v"), OK);
    heard_nothing_before(&mut client, "ends/marker");
    client.expect(&Request::of(["KEYNOTIFY", "ends", "STOP"]), ":0\r\n");
    // Nor does it outlive a connection that is cut, or taken over.
    client.expect(&Request::keynotify("ends"), OK);
    let mut taken = StoreClient::connected("ends", cluster.mqtt(0));
    taken.expect(&Request::set("ends", "w"), OK);
    heard_nothing_before(&mut taken, "ends/marker");
    loop {
        match client.connection().receive(TIMEOUT) {
            Ok(Packet::Publish(publish)) => {
                assert_ne!(publish.topic, client.response_topic, "{publish:?}");
            }
            Ok(Packet::Disconnect(disconnect)) => {
                assert_eq!(disconnect.code, 0x8E);
                break;
            }
            other => panic!("instead of DISCONNECT 0x8E: {other:?}"),
        }
    }
}

fn every_change_once_and_in_order_for_watchers_on_every_node(cluster: &Cluster) {
    const ROUNDS: u32 = 60;
    let history = History::new();
    let mut watchers: Vec<(StoreClient, u64)> = (0..3)
        .map(|node| {
            let mut client = StoreClient::connected(&format!("order-{node}"), cluster.mqtt(node));
            client.expect(&Request::keynotify("order"), OK);
            (client, history.now())
        })
        .collect();
    std::thread::scope(|scope| {
        for writer in 0..3_u32 {
            let history = &history;
            let address = cluster.mqtt(writer as usize);
            scope.spawn(move || {
                let mut client = StoreClient::connected(&format!("order-writer-{writer}"), address);
                for round in 0..ROUNDS {
                    let value = writer * ROUNDS + round;
                    let command = if round % 5 == 4 {
                        Command::Del
                    } else {
                        Command::Set(value)
                    };
                    let request = match command {
                        Command::Del => Request::del("order"),
                        _ => Request::set("order", value.to_string()),
                    };
                    let invoked = history.now();
                    let reply = client.call(&request);
                    let outcome = match reply.payload.as_slice() {
                        b"+OK\r\n" => Outcome::Ok,
                        b":1\r\n" => Outcome::Deleted(true),
                        b":0\r\n" => Outcome::Deleted(false),
                        other => panic!("{other:?}"),
                    };
                    history.add(Operation {
                        client: writer as usize,
                        key: 0,
                        command,
                        outcome,
                        version: reply.version,
                        requested: None,
                        invoked,
                        returned: history.now(),
                    });
                }
            });
        }
    });
    let operations = history.operations();
    let end = history.now();
    let changes = operations
        .iter()
        .filter(|operation| matches!(operation.outcome, Outcome::Ok | Outcome::Deleted(true)))
        .count();
    for (watcher, from) in &mut watchers {
        let heard = heard(watcher, changes);
        let watched = kv::WatchedKey {
            key: 0,
            from: *from,
            to: end,
            cut: false,
            received: heard,
        };
        kv::assert_none(&kv::notification_violations(&watched, &operations));
        heard_nothing_before(watcher, &format!("order/marker/{}", watcher.client_id));
    }
}
