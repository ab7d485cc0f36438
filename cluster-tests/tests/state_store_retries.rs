//! A request that is sent again is applied once and answered as the first time, on any node: K11
//! (docs/spec/state-store.md, Retries).

use std::collections::HashSet;

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::store::{CallOutcome, Reply, Request, StoreClient, blob};
use cluster_tests::wire::{Connect, Packet, V5, id};
use cluster_tests::{flow, rules, wait};

#[test]
fn retries() {
    let cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            a_resent_nx_is_answered_ok_again,
            a_resent_delete_is_answered_one_again_and_deletes_nothing_new,
            a_resent_refusal_stays_a_refusal,
            a_resent_set_does_not_overwrite_what_came_after,
            correlation_data_of_another_client_is_another_request,
            correlation_data_used_for_another_request_is_another_request,
            what_is_acknowledged_is_answered_also_when_the_session_is_taken_over,
        ],
    );
}

#[track_caller]
fn again(
    client: &mut StoreClient,
    request: &Request,
    correlation: &[u8],
    duplicate: bool,
) -> Reply {
    match client.try_call_as(request, correlation, duplicate, TIMEOUT) {
        CallOutcome::Answered(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// Sends a request, then again on the same connection, then again from every node; every answer must be the first one.
#[track_caller]
fn same_everywhere(
    cluster: &Cluster,
    name: &str,
    request: &Request,
    between: impl Fn(&mut StoreClient),
) -> Reply {
    let mut other = StoreClient::connected(&format!("{name}-other"), cluster.mqtt(1));
    let mut client = StoreClient::connected(name, cluster.mqtt(0));
    let correlation = client.correlation();
    let first = again(&mut client, request, &correlation, false);
    between(&mut other);
    for duplicate in [true, false] {
        let second = again(&mut client, request, &correlation, duplicate);
        assert_eq!(
            (&second.payload, &second.version),
            (&first.payload, &first.version)
        );
    }
    for node in 0..3 {
        // The old connection is cut, not closed properly.
        drop(client);
        client = StoreClient::connected(name, cluster.mqtt(node));
        let second = again(&mut client, request, &correlation, true);
        assert_eq!(
            (&second.payload, &second.version),
            (&first.payload, &first.version),
            "node {node}"
        );
    }
    first
}

fn a_resent_nx_is_answered_ok_again(cluster: &Cluster) {
    let request = Request::of(["SET", "retry-nx", "mine", "NX"]);
    let first = same_everywhere(cluster, "retry-nx", &request, |_| {});
    assert_eq!(first.payload, b"+OK\r\n");
    let mut reader = StoreClient::connected("retry-reader", cluster.mqtt(2));
    let read = reader.expect(&Request::get("retry-nx"), blob(b"mine"));
    assert_eq!(read.version, first.version, "applied once");
}

fn a_resent_delete_is_answered_one_again_and_deletes_nothing_new(cluster: &Cluster) {
    for (name, delete) in [
        ("retry-del", Request::del("retry-del")),
        ("retry-vdel", Request::vdel("retry-vdel", "v")),
    ] {
        let mut writer = StoreClient::connected("retry-writer", cluster.mqtt(0));
        writer.expect(&Request::set(name, "v"), "+OK\r\n");
        let first = same_everywhere(cluster, name, &delete, |other| {
            other.expect(&Request::set(name, "v"), "+OK\r\n");
        });
        assert_eq!(first.payload, b":1\r\n");
        writer.expect(&Request::get(name), blob(b"v"));
    }
}

fn a_resent_refusal_stays_a_refusal(cluster: &Cluster) {
    let mut writer = StoreClient::connected("retry-writer", cluster.mqtt(0));
    writer.expect(&Request::set("retry-refused", "theirs"), "+OK\r\n");
    let request = Request::of(["SET", "retry-refused", "mine", "NX"]);
    let first = same_everywhere(cluster, "retry-refused", &request, |other| {
        other.expect(&Request::del("retry-refused"), ":1\r\n");
    });
    assert_eq!(first.payload, b":-1\r\n");
    writer.expect(&Request::get("retry-refused"), "$-1\r\n");
}

fn a_resent_set_does_not_overwrite_what_came_after(cluster: &Cluster) {
    let request = Request::set("retry-set", "old");
    same_everywhere(cluster, "retry-set", &request, |other| {
        other.expect(&Request::set("retry-set", "new"), "+OK\r\n");
    });
    let mut reader = StoreClient::connected("retry-reader", cluster.mqtt(2));
    reader.expect(&Request::get("retry-set"), blob(b"new"));
}

fn correlation_data_of_another_client_is_another_request(cluster: &Cluster) {
    let mut one = StoreClient::connected("retry-one", cluster.mqtt(0));
    let mut two = StoreClient::connected("retry-two", cluster.mqtt(1));
    let request = Request::of(["SET", "retry-two-clients", "v", "NX"]);
    assert_eq!(
        again(&mut one, &request, &[5; 16], false).payload,
        b"+OK\r\n"
    );
    assert_eq!(
        again(&mut two, &request, &[5; 16], false).payload,
        b":-1\r\n"
    );
}

fn correlation_data_used_for_another_request_is_another_request(cluster: &Cluster) {
    let mut client = StoreClient::connected("retry-other", cluster.mqtt(2));
    let set = Request::set("retry-other", "1");
    assert_eq!(
        again(&mut client, &set, &[6; 16], false).payload,
        b"+OK\r\n"
    );
    let get = Request::get("retry-other");
    assert_eq!(
        again(&mut client, &get, &[6; 16], false).payload,
        blob(b"1")
    );
    let del = Request::del("retry-other");
    assert_eq!(again(&mut client, &del, &[6; 16], false).payload, b":1\r\n");
}

/// A client that has the PUBACK has the answer, whatever ends its connection: whoever takes the session over does not
/// ask again (docs/adr/0003-answers-before-acknowledgements.md).
fn what_is_acknowledged_is_answered_also_when_the_session_is_taken_over(cluster: &Cluster) {
    const COUNT: u16 = 1_000;
    const NAME: &str = "taken-over";
    let address = cluster.mqtt(1);
    let subscribed = |mut client: Connection| {
        client.subscribe(&[("taken-over/answers", 0)]);
        client
    };
    // More work for each answer, so that there is more than one turn of it.
    let others = (0..9).map(|number| format!("taken-over-{number}"));
    let _others: Vec<_> = others
        .map(|name| subscribed(Connection::v5(address, &name)))
        .collect();
    let mut client = subscribed(flow::with_small_buffer(address, &Connect::v5(NAME)));
    let requests = (1..=COUNT).flat_map(|number| {
        let mut correlation = vec![b'c'; 4_000];
        correlation[..2].copy_from_slice(&number.to_be_bytes());
        let request = Request::set("taken-over", number.to_string());
        let mut asks = StoreClient::new(NAME, &[address], 1);
        asks.response_topic = "taken-over/answers".into();
        asks.message(&request, &correlation, number).bytes(V5)
    });
    client.send(&requests.collect::<Vec<_>>());
    let mut reader = StoreClient::connected("taken-over-reader", address);
    // The client is not read any more, because it does not read.
    let (mut former, mut same) = (Vec::new(), 0);
    wait::until("no more of it", TIMEOUT, || {
        let value = reader.call(&Request::get("taken-over")).payload;
        let is_same = value.len() > blob(b"99").len() && value == former;
        same = if is_same { same + 1 } else { 0 };
        former = value;
        (same == 20).then_some(())
    });
    let _next = Connection::v5(address, NAME);
    let (mut answered, mut acknowledged) = (HashSet::new(), 0);
    loop {
        match client.receive(TIMEOUT) {
            Ok(Packet::Publish(answer)) => {
                let correlation = answer.properties.binary(id::CORRELATION_DATA);
                answered.insert(correlation.map(|data| u16::from_be_bytes([data[0], data[1]])));
            }
            Ok(Packet::Puback(ack)) => {
                acknowledged += 1;
                let (id, count) = (ack.packet_id, answered.len());
                assert!(answered.contains(&Some(id)), "{id} after {count} answers");
            }
            Ok(Packet::Disconnect(_)) | Err(_) => break,
            Ok(other) => panic!("{other:?}"),
        }
    }
    eprintln!("{acknowledged} acknowledged, {} answered", answered.len());
    assert!(acknowledged < COUNT, "it was behind");
}
