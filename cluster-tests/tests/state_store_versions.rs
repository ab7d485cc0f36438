//! Versions, clocks, fencing: P8, K3, K4, K5 (docs/spec/state-store.md, Versions and Fencing).

use cluster_tests::cluster::Cluster;
use cluster_tests::rules;
use cluster_tests::store::{Hlc, Request, StoreClient, blob};
use std::time::Duration;

#[test]
fn versions_and_fencing() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            versions_have_the_padded_form,
            a_version_is_above_request_and_predecessor,
            a_read_returns_its_writes_version,
            the_counter_follows_the_request,
            a_client_ahead_drags_its_own_key_only,
            versions_rise_across_delete_and_expiry,
            an_unfenced_key_takes_no_token_or_stores_one,
            a_fenced_key_needs_a_token_that_is_not_lower,
            a_higher_token_raises_the_bar,
            tokens_compare_by_wall_counter_and_node,
            deletes_check_the_token_and_remove_it,
            reads_and_watches_need_no_token,
            fencing_is_checked_before_conditions,
        ],
    );
}

const OK: &str = "+OK\r\n";
const NEEDED: &str = "a fencing token is required for this request";
const LOWER: &str =
    "the request fencing token is a lower version than the fencing token protecting the resource";

fn client(cluster: &Cluster, name: &str) -> StoreClient {
    StoreClient::connected(name, cluster.mqtt(name.len() % cluster.nodes.len()))
}

/// A token some milliseconds from now; the same `counter` and node.
fn token(ahead_ms: i64) -> String {
    Hlc::ahead("holder", ahead_ms).to_string()
}

fn versions_have_the_padded_form(cluster: &Cluster) {
    let mut client = client(cluster, "form");
    let reply = client.expect(&Request::set("form", "v"), OK);
    let texts = reply.publish.properties.user_values("__ts");
    let text = texts[0];
    let parts: Vec<&str> = text.split(':').collect();
    assert_eq!(parts.len(), 3, "{text}");
    assert!(
        parts[0].len() == 15 && parts[0].bytes().all(|c| c.is_ascii_digit()),
        "{text}"
    );
    assert!(
        parts[1].len() == 5 && parts[1].bytes().all(|c| c.is_ascii_digit()),
        "{text}"
    );
    assert_eq!(parts[2], "StateStore");
}

fn a_version_is_above_request_and_predecessor(cluster: &Cluster) {
    let mut clients: Vec<StoreClient> = (0..3)
        .map(|node| StoreClient::connected(&format!("above-{node}"), cluster.mqtt(node)))
        .collect();
    let mut previous: Option<Hlc> = None;
    for (round, ahead) in [0, 20_000, -50_000, 0, 50_000, 49_999, 0, -1]
        .into_iter()
        .enumerate()
    {
        let stamp = Hlc::ahead("client", ahead);
        let request = Request::set("above", round.to_string()).at(&stamp.to_string());
        let version = clients[round % 3].expect(&request, OK).version;
        assert!(version.as_ref() > Some(&stamp), "{version:?} for {stamp}");
        assert!(version > previous, "{version:?} after {previous:?}");
        previous = version;
    }
}

fn a_read_returns_its_writes_version(cluster: &Cluster) {
    let mut writer = client(cluster, "returns");
    let set = writer.expect(&Request::set("returns", "v"), OK);
    for node in 0..3 {
        let mut reader = StoreClient::connected("returns-reader", cluster.mqtt(node));
        let read = reader.expect(&Request::get("returns"), blob(b"v"));
        assert_eq!(
            read.publish.properties.user_values("__ts"),
            set.publish.properties.user_values("__ts")
        );
    }
}

fn the_counter_follows_the_request(cluster: &Cluster) {
    let mut client = client(cluster, "counter");
    // The store's wall clock wins: counter of the request + 1.
    let behind = Hlc {
        counter: 7,
        ..Hlc::ahead("client", -10_000)
    };
    let version = client
        .expect(&Request::set("counter/1", "v").at(&behind.to_string()), OK)
        .version;
    let version = version.expect("it has one");
    assert!(version.wall_ms > behind.wall_ms);
    assert_eq!(version.counter, 8);
    // The request's wall clock wins: the same wall, the next counter.
    let ahead = Hlc {
        counter: 41,
        ..Hlc::ahead("client", 30_000)
    };
    let version = client
        .expect(&Request::set("counter/2", "v").at(&ahead.to_string()), OK)
        .version;
    let version = version.expect("it has one");
    assert_eq!((version.wall_ms, version.counter), (ahead.wall_ms, 42));
    // The key's own version wins: its wall, its counter + 1 at least.
    let later = client
        .expect(&Request::set("counter/2", "w"), OK)
        .version
        .expect("it has one");
    assert_eq!(later.wall_ms, version.wall_ms);
    assert!(later.counter > version.counter && later.counter < 1 << 31);
}

fn a_client_ahead_drags_its_own_key_only(cluster: &Cluster) {
    let mut client = client(cluster, "drags");
    let ahead = Hlc::ahead("client", 55_000);
    client.expect(&Request::set("drags/mine", "v").at(&ahead.to_string()), OK);
    let other = client
        .expect(&Request::set("drags/other", "v"), OK)
        .version
        .expect("it has one");
    assert!(
        other.wall_ms + 30_000 < ahead.wall_ms,
        "{other} was dragged by {ahead}"
    );
}

fn versions_rise_across_delete_and_expiry(cluster: &Cluster) {
    let mut client = client(cluster, "rise");
    // Far ahead, so that the store's clock alone would give the next holder a lower version.
    let ahead = Hlc::ahead("client", 50_000).to_string();
    let first = client
        .expect(&Request::set("rise/deleted", "v").at(&ahead), OK)
        .version;
    client.expect(&Request::del("rise/deleted"), ":1\r\n");
    let second = client
        .expect(&Request::set("rise/deleted", "w"), OK)
        .version;
    assert!(second > first, "{second:?} after {first:?}");
    let first = client
        .expect(
            &Request::of(["SET", "rise/expired", "v", "PX", "50"]).at(&ahead),
            OK,
        )
        .version;
    cluster_tests::wait::until("the key to expire", Duration::from_secs(10), || {
        (client.call(&Request::get("rise/expired")).payload == b"$-1\r\n").then_some(())
    });
    let second = client
        .expect(&Request::of(["SET", "rise/expired", "w", "NX"]), OK)
        .version;
    assert!(second > first, "{second:?} after {first:?}");
}

fn an_unfenced_key_takes_no_token_or_stores_one(cluster: &Cluster) {
    let mut client = client(cluster, "unfenced");
    client.expect(&Request::set("unfenced", "v"), OK);
    client.expect(&Request::set("unfenced", "w"), OK);
    client.expect(&Request::set("unfenced", "x").fenced(&token(0)), OK);
    client.expect_error(&Request::set("unfenced", "y"), NEEDED);
    client.expect(&Request::get("unfenced"), blob(b"x"));
}

fn a_fenced_key_needs_a_token_that_is_not_lower(cluster: &Cluster) {
    let mut client = client(cluster, "fenced");
    let (low, high) = (token(-5_000), token(0));
    client.expect(&Request::set("fenced", "v").fenced(&high), OK);
    client.expect_error(&Request::set("fenced", "w").fenced(&low), LOWER);
    client.expect_error(&Request::set("fenced", "w"), NEEDED);
    client.expect(&Request::get("fenced"), blob(b"v"));
    client.expect(&Request::set("fenced", "w").fenced(&high), OK);
    client.expect(&Request::get("fenced"), blob(b"w"));
}

fn a_higher_token_raises_the_bar(cluster: &Cluster) {
    let mut client = client(cluster, "raises");
    let (first, second) = (token(0), token(1_000));
    client.expect(&Request::set("raises", "v").fenced(&first), OK);
    client.expect(&Request::set("raises", "w").fenced(&second), OK);
    client.expect_error(&Request::set("raises", "x").fenced(&first), LOWER);
    client.expect(&Request::set("raises", "x").fenced(&second), OK);
}

fn tokens_compare_by_wall_counter_and_node(cluster: &Cluster) {
    let mut client = client(cluster, "compare");
    let wall = Hlc::now("x").wall_ms;
    let order = [
        format!("{wall}:9:b"),
        format!("{wall}:10:a"),
        format!("{wall:015}:{:05}:b", 10),
        format!("{}:0:a", wall + 1),
    ];
    client.expect(&Request::set("compare", "v").fenced(&order[0]), OK);
    for pair in order.windows(2) {
        client.expect(&Request::set("compare", "v").fenced(&pair[1]), OK);
        client.expect_error(&Request::set("compare", "v").fenced(&pair[0]), LOWER);
    }
}

fn deletes_check_the_token_and_remove_it(cluster: &Cluster) {
    let mut client = client(cluster, "deletes");
    let (low, high) = (token(-5_000), token(0));
    for verb in ["DEL", "VDEL"] {
        let delete = || match verb {
            "DEL" => Request::del("deletes"),
            _ => Request::vdel("deletes", "v"),
        };
        client.expect(&Request::set("deletes", "v").fenced(&high), OK);
        client.expect_error(&delete(), NEEDED);
        client.expect_error(&delete().fenced(&low), LOWER);
        client.expect(&Request::get("deletes"), blob(b"v"));
        client.expect(&delete().fenced(&high), ":1\r\n");
        // Removed with the key.
        client.expect(&Request::set("deletes", "w"), OK);
        client.expect(&Request::del("deletes"), ":1\r\n");
    }
}

fn reads_and_watches_need_no_token(cluster: &Cluster) {
    let mut client = client(cluster, "reads");
    client.expect(&Request::set("reads", "v").fenced(&token(0)), OK);
    client.expect(&Request::get("reads"), blob(b"v"));
    client.expect(&Request::keynotify("reads"), OK);
    client.expect(&Request::of(["KEYNOTIFY", "reads", "STOP"]), OK);
}

fn fencing_is_checked_before_conditions(cluster: &Cluster) {
    let mut client = client(cluster, "before");
    client.expect(&Request::set("before", "v").fenced(&token(0)), OK);
    client.expect_error(&Request::of(["SET", "before", "w", "NX"]), NEEDED);
    client.expect_error(&Request::of(["SET", "before", "w", "NEX"]), NEEDED);
    client.expect_error(&Request::vdel("before", "other"), NEEDED);
    client.expect_error(
        &Request::of(["SET", "before", "w", "NX"]).fenced(&token(-5_000)),
        LOWER,
    );
    client.expect(
        &Request::of(["SET", "before", "w", "NX"]).fenced(&token(0)),
        ":-1\r\n",
    );
}
