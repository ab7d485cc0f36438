//! SCAN: patterns, pages, tokens (docs/spec/state-store.md, Scan).

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::rules;
use cluster_tests::store::{Request, StoreClient, page, parse_page, scan_all};
use cluster_tests::wire::{self, Connect, Packet, V5, Value, id};
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn scan() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            a_last_page_has_its_exact_bytes,
            patterns_match_the_whole_key,
            sets_of_characters,
            pages_lead_through_all_keys_within_64,
            deleted_and_expired_and_binary_keys_are_not_listed,
            a_scan_works_while_keys_change,
            a_token_is_not_taken_from_nowhere,
            keys_as_long_as_a_packet_are_listed,
            a_page_is_no_larger_than_its_client_takes,
        ],
    );
}

#[track_caller]
fn put(client: &mut StoreClient, keys: &[&str]) {
    for key in keys {
        client.expect(&Request::set(key, "v"), "+OK\r\n");
    }
}

#[track_caller]
fn assert_lists(client: &mut StoreClient, pattern: &str, wanted: &[&str]) {
    let (mut keys, _) = scan_all(client, pattern);
    keys.sort();
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    assert_eq!(keys, wanted, "SCAN {pattern}");
}

fn a_last_page_has_its_exact_bytes(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-exact", cluster.mqtt(0));
    client.expect(&Request::of(["SCAN", "exact/*"]), "*1\r\n*0\r\n");
    put(&mut client, &["exact/1"]);
    client.expect(
        &Request::of(["SCAN", "exact/*"]),
        "*1\r\n*1\r\n$7\r\nexact/1\r\n",
    );
    let reply = client.expect(
        &Request::of(["SCAN", "exact/1"]),
        "*1\r\n*1\r\n$7\r\nexact/1\r\n",
    );
    assert_eq!(reply.version, None);
}

fn patterns_match_the_whole_key(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-whole", cluster.mqtt(1));
    put(
        &mut client,
        &[
            "whole/a",
            "whole/ab",
            "whole/a/b",
            "whole/é",
            "whole/",
            "whole",
        ],
    );
    assert_lists(
        &mut client,
        "whole/*",
        &["whole/a", "whole/ab", "whole/a/b", "whole/é", "whole/"],
    );
    assert_lists(
        &mut client,
        "whole*",
        &[
            "whole/a",
            "whole/ab",
            "whole/a/b",
            "whole/é",
            "whole/",
            "whole",
        ],
    );
    assert_lists(&mut client, "whole/?", &["whole/a", "whole/é"]);
    assert_lists(&mut client, "whole/??", &["whole/ab"]);
    assert_lists(&mut client, "whole?a", &["whole/a"]);
    assert_lists(
        &mut client,
        "*ole/a*",
        &["whole/a", "whole/ab", "whole/a/b"],
    );
    assert_lists(&mut client, "*hole/*b", &["whole/ab", "whole/a/b"]);
    assert_lists(&mut client, "hole/a", &[]);
    assert_lists(&mut client, "whole/a", &["whole/a"]);
}

fn sets_of_characters(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-sets", cluster.mqtt(2));
    put(
        &mut client,
        &[
            "sets-a", "sets-b", "sets-c", "sets-^", "sets-*", "sets-!", "sets-]", "sets-?",
        ],
    );
    assert_lists(&mut client, "sets-[ab]", &["sets-a", "sets-b"]);
    assert_lists(&mut client, "sets-[a-c]", &["sets-a", "sets-b", "sets-c"]);
    assert_lists(
        &mut client,
        "sets-[!a-c]",
        &["sets-^", "sets-*", "sets-!", "sets-]", "sets-?"],
    );
    assert_lists(&mut client, "sets-[^a]", &["sets-^", "sets-a"]);
    assert_lists(&mut client, "sets-[*]", &["sets-*"]);
    assert_lists(&mut client, "sets-[?]", &["sets-?"]);
}

fn pages_lead_through_all_keys_within_64(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-pages", cluster.mqtt(0));
    let wanted: BTreeSet<String> = (0..200)
        .map(|number| format!("pages/{number:03}"))
        .collect();
    for key in &wanted {
        client.expect(&Request::set(key, "v"), "+OK\r\n");
    }
    let (keys, pages) = scan_all(&mut client, "pages/*");
    assert_eq!(keys.len(), 200, "each once");
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), wanted);
    assert!(pages <= 64, "{pages} pages for 200 keys");
    // A page may be asked of another node.
    let mut other = StoreClient::connected("scan-pages-2", cluster.mqtt(1));
    let (mut keys, mut token) = page(&mut client, "pages/*", None);
    while let Some(next) = token {
        let (found, after) = page(&mut other, "pages/*", Some(&next));
        keys.extend(found);
        token = after;
    }
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), wanted);
}

fn deleted_and_expired_and_binary_keys_are_not_listed(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-gone", cluster.mqtt(1));
    put(&mut client, &["gone/kept", "gone/deleted"]);
    client.expect(&Request::del("gone/deleted"), ":1\r\n");
    client.expect(
        &Request::of(["SET", "gone/expired", "v", "PX", "50"]),
        "+OK\r\n",
    );
    client.expect(&Request::set(b"gone/\xFF\xFE", "v"), "+OK\r\n");
    cluster_tests::wait::until("the key to expire", Duration::from_secs(10), || {
        (client.call(&Request::get("gone/expired")).payload == b"$-1\r\n").then_some(())
    });
    assert_lists(&mut client, "gone/*", &["gone/kept"]);
}

fn a_scan_works_while_keys_change(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-change", cluster.mqtt(2));
    let kept: Vec<String> = (0..60)
        .map(|number| format!("change/{number:03}/kept"))
        .collect();
    for key in &kept {
        client.expect(&Request::set(key, "v"), "+OK\r\n");
    }
    let mut found = Vec::new();
    let mut token = None;
    for round in 0..200 {
        let (keys, next) = page(&mut client, "change/*", token.as_deref());
        found.extend(keys);
        let changing = format!("change/{:03}/passing", round % 60);
        client.expect(&Request::set(&changing, "v"), "+OK\r\n");
        client.expect(&Request::set(&kept[round % 60], "w"), "+OK\r\n");
        client.expect(&Request::del(&changing), ":1\r\n");
        token = next;
        if token.is_none() {
            break;
        }
    }
    assert!(token.is_none(), "a scan without an end");
    for key in &kept {
        assert_eq!(
            found.iter().filter(|other| *other == key).count(),
            1,
            "{key}"
        );
    }
}

fn a_token_is_not_taken_from_nowhere(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-token", cluster.mqtt(0));
    for token in ["", "x", "\0\0\0\0", "99999999999999999999"] {
        let reply = client.call(&Request::of(["SCAN", "token/*", token]));
        let answered =
            parse_page(&reply.payload).is_some() || reply.payload == b"-ERR syntax error\r\n";
        assert!(answered, "{:?}", String::from_utf8_lossy(&reply.payload));
    }
}

/// Their pages have one each: several would be more than may wait for a client, and nothing for it would get room.
fn keys_as_long_as_a_packet_are_listed(cluster: &Cluster) {
    let mut client = StoreClient::connected("scan-long", cluster.mqtt(2));
    let end = "k".repeat(500_000);
    let keys: Vec<String> = (0..8)
        .map(|number| format!("long/{number}/{end}"))
        .collect();
    for key in &keys {
        client.expect(&Request::set(key, "v"), "+OK\r\n");
    }
    let (listed, pages) = scan_all(&mut client, "long/*");
    assert!(listed == keys, "{} keys", listed.len());
    assert_eq!(pages, keys.len());
}

/// A page of as many keys as there may be is larger than the client's packets.
fn a_page_is_no_larger_than_its_client_takes(cluster: &Cluster) {
    const MOST: u32 = 1_000;
    let mut writer = StoreClient::connected("scan-small-writer", cluster.mqtt(0));
    let keys: Vec<String> = (0..60)
        .map(|number| format!("small/{number:02}/{}", "k".repeat(90)))
        .collect();
    for key in &keys {
        writer.expect(&Request::set(key, "v"), "+OK\r\n");
    }
    let connect = Connect::v5("scan-small").with(id::MAXIMUM_PACKET_SIZE, Value::FourBytes(MOST));
    let (mut client, _) = Connection::connect(cluster.mqtt(1), &connect);
    let asks = StoreClient::new("scan-small", &[], 0);
    client.subscribe(&[(&asks.response_topic, 1)]);
    let (mut listed, mut token) = (Vec::new(), None);
    for packet_id in 1..=60 {
        let mut items = vec![b"SCAN".to_vec(), b"small/*".to_vec()];
        items.extend(token);
        let message = asks.message(&Request::of(items), b"scan", packet_id);
        client.send(&message.bytes(V5));
        let (Packet::Publish(answer), Packet::Puback(_)) = (client.expect(), client.expect())
        else {
            panic!("page {packet_id}: no answer");
        };
        client.send(&wire::acknowledgement(wire::PUBACK, answer.packet_id));
        let Some((found, next)) = parse_page(&answer.payload) else {
            panic!("{:?}", String::from_utf8_lossy(&answer.payload));
        };
        assert!(found.len() > 1 || next.is_none(), "{found:?}");
        listed.extend(found);
        token = next;
        if token.is_none() {
            break;
        }
    }
    assert_eq!(listed, keys);
}
