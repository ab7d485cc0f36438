//! Commands of the state store: exact replies and error texts (docs/spec/state-store.md, Commands and Errors).

use cluster_tests::cluster::Cluster;
use cluster_tests::rules;
use cluster_tests::store::{Hlc, Request, StoreClient, blob, resp};
use cluster_tests::wait;
use std::time::{Duration, Instant};

#[test]
fn commands_and_replies() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            set_and_get_any_bytes,
            set_nx_refuses_a_key_that_is_there,
            set_nex_compares_with_the_value_being_set,
            del_and_vdel_replies,
            verbs_and_options_are_upper_case,
            options_come_in_any_order_and_once,
            px_is_a_positive_decimal,
            argument_counts,
            a_key_has_at_least_one_byte,
            what_is_no_resp3_array_of_blobs_is_a_syntax_error,
            px_expires_never_early_and_soon,
            a_plain_set_clears_an_expiry,
            nex_renews_an_expiry,
            an_expired_key_is_absent_for_every_command,
            time_stamps_are_required_and_checked_for_set,
            syntax_is_checked_before_time_stamps,
        ],
    );
}

const OK: &str = "+OK\r\n";
const NO: &str = ":-1\r\n";
const ONE: &str = ":1\r\n";
const ZERO: &str = ":0\r\n";
const ABSENT: &str = "$-1\r\n";

fn client(cluster: &Cluster, name: &str) -> StoreClient {
    let node = name.len() % cluster.nodes.len();
    StoreClient::connected(name, cluster.mqtt(node))
}

fn set_and_get_any_bytes(cluster: &Cluster) {
    let mut client = client(cluster, "any-bytes");
    let every: Vec<u8> = (0..=255).collect();
    let large = vec![b'x'; 60_000];
    let values: [&[u8]; 6] = [b"v", b"", b"\r\n", b"$3\r\nabc\r\n", &every, &large];
    for value in values {
        client.expect(&Request::set("any-bytes", value), OK);
        client.expect(&Request::get("any-bytes"), blob(value));
    }
    let keys: [&[u8]; 5] = [b"\0", b"\r\n", &every, b"a/b/c", "ключ".as_bytes()];
    for key in keys {
        client.expect(&Request::set(key, b"of key"), OK);
        client.expect(&Request::get(key), blob(b"of key"));
        client.expect(&Request::del(key), ONE);
        client.expect(&Request::get(key), ABSENT);
    }
}

fn set_nx_refuses_a_key_that_is_there(cluster: &Cluster) {
    let mut client = client(cluster, "nx");
    let first = client.expect(&Request::of(["SET", "nx", "a", "NX"]), OK);
    let refused = client.expect(&Request::of(["SET", "nx", "a", "NX"]), NO);
    assert_eq!(
        refused.version, first.version,
        "the stored version of the existing key"
    );
    let refused = client.expect(&Request::of(["SET", "nx", "b", "NX"]), NO);
    assert_eq!(refused.version, first.version);
    client.expect(&Request::get("nx"), blob(b"a"));
    client.expect(&Request::del("nx"), ONE);
    client.expect(&Request::of(["SET", "nx", "b", "NX"]), OK);
}

fn set_nex_compares_with_the_value_being_set(cluster: &Cluster) {
    let mut client = client(cluster, "nex");
    let first = client.expect(&Request::of(["SET", "nex", "a", "NEX"]), OK);
    let again = client.expect(&Request::of(["SET", "nex", "a", "NEX"]), OK);
    assert!(again.version > first.version);
    let refused = client.expect(&Request::of(["SET", "nex", "b", "NEX"]), NO);
    assert_eq!(refused.version, again.version);
    client.expect(&Request::get("nex"), blob(b"a"));
    // NEX has no argument of its own.
    client.expect_error(
        &Request::of(["SET", "nex", "b", "NEX", "a"]),
        "syntax error",
    );
}

fn del_and_vdel_replies(cluster: &Cluster) {
    let mut client = client(cluster, "del");
    client.expect(&Request::del("del"), ZERO);
    client.expect(&Request::vdel("del", "v"), ZERO);
    let set = client.expect(&Request::set("del", "v"), OK);
    let deleted = client.expect(&Request::del("del"), ONE);
    assert_eq!(deleted.version, set.version, "version of the deleted value");
    client.expect(&Request::del("del"), ZERO);
    let set = client.expect(&Request::set("del", "v"), OK);
    client.expect(&Request::vdel("del", "w"), NO);
    client.expect(&Request::vdel("del", ""), NO);
    client.expect(&Request::get("del"), blob(b"v"));
    let deleted = client.expect(&Request::vdel("del", "v"), ONE);
    assert_eq!(deleted.version, set.version);
    client.expect(&Request::vdel("del", "v"), ZERO);
}

fn verbs_and_options_are_upper_case(cluster: &Cluster) {
    let mut client = client(cluster, "case");
    let unknown: [&[&str]; 7] = [
        &["set", "case", "v"],
        &["get", "case"],
        &["Del", "case"],
        &["vdel", "case", "v"],
        &["INCR", "case"],
        &["", "case"],
        &["SET ", "case", "v"],
    ];
    for items in unknown {
        client.expect_error(&Request::of(items), "unknown command");
    }
    for option in ["nx", "Nex", "px", "XX", ""] {
        client.expect_error(&Request::of(["SET", "case", "v", option]), "syntax error");
    }
    client.expect_error(&Request::of(["KEYNOTIFY", "case", "stop"]), "syntax error");
    client.expect(&Request::get("case"), ABSENT);
}

fn options_come_in_any_order_and_once(cluster: &Cluster) {
    let mut client = client(cluster, "options");
    client.expect(
        &Request::of(["SET", "options", "v", "PX", "60000", "NX"]),
        OK,
    );
    client.expect(
        &Request::of(["SET", "options", "v", "NEX", "PX", "60000"]),
        OK,
    );
    let wrong: [&[&str]; 6] = [
        &["NX", "NX"],
        &["NEX", "NEX"],
        &["NX", "NEX"],
        &["PX", "1000", "PX", "1000"],
        &["NEX", "PX", "1000", "NX"],
        &["PX", "1000", "1000"],
    ];
    for options in wrong {
        let items = [&["SET", "options/wrong", "v"], options].concat();
        client.expect_error(&Request::of(items), "syntax error");
    }
    client.expect(&Request::get("options/wrong"), ABSENT);
}

fn px_is_a_positive_decimal(cluster: &Cluster) {
    let mut client = client(cluster, "px");
    let wrong = [
        "0",
        "-1",
        "+1",
        "",
        "1.5",
        "1e3",
        "0x10",
        " 1",
        "1 ",
        "abc",
        "99999999999999999999999",
    ];
    for px in wrong {
        client.expect_error(&Request::of(["SET", "px", "v", "PX", px]), "syntax error");
    }
    client.expect_error(&Request::of(["SET", "px", "v", "PX"]), "syntax error");
    client.expect_error(&Request::of(["SET", "px", "v", "PX", "NX"]), "syntax error");
    client.expect(&Request::get("px"), ABSENT);
    client.expect(&Request::of(["SET", "px", "v", "PX", "86400000"]), OK);
}

fn argument_counts(cluster: &Cluster) {
    let mut client = client(cluster, "counts");
    let wrong: [&[&str]; 13] = [
        &["SET"],
        &["SET", "k"],
        &["GET"],
        &["GET", "k", "x"],
        &["DEL"],
        &["DEL", "k", "x"],
        &["VDEL"],
        &["VDEL", "k"],
        &["VDEL", "k", "v", "x"],
        &["KEYNOTIFY"],
        &["KEYNOTIFY", "k", "STOP", "x"],
        &["SCAN"],
        &["SCAN", "p", "t", "x"],
    ];
    for items in wrong {
        client.expect_error(&Request::of(items), "wrong number of arguments");
    }
}

fn a_key_has_at_least_one_byte(cluster: &Cluster) {
    let mut client = client(cluster, "empty-key");
    let wrong: [&[&str]; 6] = [
        &["SET", "", "v"],
        &["SET", "", "v", "NX"],
        &["GET", ""],
        &["DEL", ""],
        &["VDEL", "", "v"],
        &["KEYNOTIFY", ""],
    ];
    for items in wrong {
        client.expect_error(&Request::of(items), "the key length is zero");
    }
}

fn what_is_no_resp3_array_of_blobs_is_a_syntax_error(cluster: &Cluster) {
    let mut client = client(cluster, "rubbish");
    let whole = resp(["SET", "rubbish", "v"]);
    // Every proper beginning of a request, and every request with something behind it.
    for end in 0..whole.len() {
        client.expect_error(&Request::raw(&whole[..end]), "syntax error");
    }
    for tail in ["\r\n", "x", "$1\r\nx\r\n", "\0"] {
        let longer = [&whole, tail.as_bytes()].concat();
        client.expect_error(&Request::raw(longer), "syntax error");
    }
    let wrong = [
        "GET rubbish\r\n",
        "$3\r\nGET\r\n",
        "*2\n$3\nGET\n$1\nk\n",
        "*2\r\n$3\r\nGET\r\n:1\r\n",
        "*2\r\n$3\r\nGET\r\n+k\r\n",
        "*2\r\n$3\r\nGET\r\n$-1\r\n",
        "*2\r\n$3\r\nGET\r\n$2\r\nk\r\n",
        "*2\r\n$3\r\nGET\r\n$0\r\nk\r\n",
        "*-1\r\n",
        "*-2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*\r\n",
        "*x\r\n",
        "* 2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*2\r\n$ 3\r\nGET\r\n$1\r\nk\r\n",
        "*99999999999999999999\r\n$3\r\nGET\r\n",
        "*2\r\n$99999999999999999999\r\nGET\r\n$1\r\nk\r\n",
        "*18446744073709551618\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*4294967295\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        "*2\r\n$4294967295\r\nGET\r\n$1\r\nk\r\n",
        "*2\r\n$3\r\nGET\r\n$1\r\nk\n\r",
    ];
    for payload in wrong {
        client.expect_error(&Request::raw(payload), "syntax error");
    }
    client.expect(&Request::get("rubbish"), ABSENT);
}

fn px_expires_never_early_and_soon(cluster: &Cluster) {
    let mut client = client(cluster, "expires");
    let lifetime = Duration::from_millis(700);
    for round in 0..3 {
        let key = format!("expires/{round}");
        let sent = Instant::now();
        client.expect(&Request::of(["SET", &key, "v", "PX", "700"]), OK);
        let answered = Instant::now();
        loop {
            let reply = client.call(&Request::get(&key));
            let now = Instant::now();
            if reply.payload == ABSENT.as_bytes() {
                assert!(
                    now - sent >= lifetime,
                    "gone {:?} after its SET was sent",
                    now - sent
                );
                break;
            }
            assert_eq!(reply.payload, blob(b"v"));
            // The request was sent after `answered`; a margin for a busy machine.
            assert!(
                now - answered < lifetime + Duration::from_secs(2),
                "still there {:?} later",
                now - answered
            );
        }
    }
}

fn a_plain_set_clears_an_expiry(cluster: &Cluster) {
    let mut client = client(cluster, "clears");
    client.expect(&Request::of(["SET", "clears", "v", "PX", "300"]), OK);
    client.expect(&Request::set("clears", "w"), OK);
    client.expect(&Request::of(["SET", "clears/other", "v", "PX", "500"]), OK);
    // When the other, later one is gone, the first would be too.
    wait::until("the other key to expire", Duration::from_secs(10), || {
        (client.call(&Request::get("clears/other")).payload == ABSENT.as_bytes()).then_some(())
    });
    client.expect(&Request::get("clears"), blob(b"w"));
}

fn nex_renews_an_expiry(cluster: &Cluster) {
    let mut client = client(cluster, "renews");
    let renew = Request::of(["SET", "renews", "me", "NEX", "PX", "1000"]);
    let began = Instant::now();
    let mut previous = client.expect(&renew, OK).version;
    let mut renewed = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        std::thread::sleep(Duration::from_millis(100));
        let sent = Instant::now();
        let reply = client.call(&renew);
        if reply.payload != OK.as_bytes() {
            panic!("lost the lock {:?} after its renewal", sent - renewed);
        }
        renewed = sent;
        assert!(
            reply.version > previous,
            "{:?} after {previous:?}",
            reply.version
        );
        previous = reply.version;
        client.expect(
            &Request::of(["SET", "renews", "you", "NEX", "PX", "1000"]),
            NO,
        );
    }
}

fn an_expired_key_is_absent_for_every_command(cluster: &Cluster) {
    let mut client = client(cluster, "expired");
    for (number, (request, wanted)) in [
        (vec!["GET", "K"], ABSENT),
        (vec!["DEL", "K"], ZERO),
        (vec!["VDEL", "K", "v"], ZERO),
        (vec!["SET", "K", "w", "NX"], OK),
        (vec!["SET", "K", "w", "NEX"], OK),
        (vec!["SCAN", "K"], "*1\r\n*0\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("expired/{number}");
        let sent = Instant::now();
        client.expect(&Request::of(["SET", &key, "v", "PX", "100"]), OK);
        // The condition here is the passing of time itself; nothing is proposed meanwhile.
        std::thread::sleep(Duration::from_millis(400).saturating_sub(sent.elapsed()));
        let items: Vec<&str> = request
            .iter()
            .map(|item| if *item == "K" { key.as_str() } else { item })
            .collect();
        client.expect(&Request::of(items), wanted);
    }
}

fn time_stamps_are_required_and_checked_for_set(cluster: &Cluster) {
    let mut client = client(cluster, "stamps");
    client.expect_error(
        &Request::set("stamps", "v").without_timestamp(),
        "missing timestamp",
    );
    let malformed = [
        "",
        "abc",
        "1",
        "1:2",
        "1:2:",
        ":0:n",
        "1::n",
        "x:0:n",
        "1:x:n",
        "-1:0:n",
        "1:-1:n",
        "1:0:n:m",
        "99999999999999999999999:0:n",
        "1:99999999999999999999999:n",
    ];
    for stamp in malformed {
        client.expect_error(
            &Request::set("stamps", "v").at(stamp),
            "malformed timestamp",
        );
        client.expect_error(
            &Request::set("stamps", "v").fenced(stamp),
            "malformed timestamp",
        );
    }
    let far = Hlc::ahead("client", 65_000).to_string();
    let why =
        "too far in the future; ensure that the client and broker system clocks are synchronized";
    client.expect_error(
        &Request::set("stamps", "v").at(&far),
        &format!("the request timestamp is {why}"),
    );
    client.expect_error(
        &Request::set("stamps", "v").fenced(&far),
        &format!("the request fencing token timestamp is {why}"),
    );
    client.expect(&Request::get("stamps"), ABSENT);
    // Behind is fine, 55 s ahead too, and so are the unpadded form and other requests without one.
    client.expect(
        &Request::set("stamps", "v").at("1696374425000:0:CLIENT"),
        OK,
    );
    client.expect(&Request::set("stamps", "v").at("0:0:CLIENT"), OK);
    let near = Hlc::ahead("client", 55_000);
    client.expect(&Request::set("stamps", "v").at(&near.to_string()), OK);
    client.expect(&Request::get("stamps").without_timestamp(), blob(b"v"));
    client.expect(&Request::vdel("stamps", "w").without_timestamp(), NO);
    client.expect(&Request::del("stamps").without_timestamp(), ONE);
}

fn syntax_is_checked_before_time_stamps(cluster: &Cluster) {
    let mut client = client(cluster, "order");
    let wrong = Request::of(["SET", "order", "v", "XX"]).without_timestamp();
    client.expect_error(&wrong, "syntax error");
    let wrong = Request::of(["set", "order", "v"]).at("abc");
    client.expect_error(&wrong, "unknown command");
    let wrong = Request::of(["SET", "order"]).without_timestamp();
    client.expect_error(&wrong, "wrong number of arguments");
}
