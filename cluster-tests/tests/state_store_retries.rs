//! A request that is sent again is applied once and answered as the first time, on any node: K11
//! (docs/spec/state-store.md, Retries).

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::TIMEOUT;
use cluster_tests::rules;
use cluster_tests::store::{CallOutcome, Reply, Request, StoreClient, blob};

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
