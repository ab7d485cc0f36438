//! What is told of devices: one event for what has become of each, whoever leads meanwhile.

use super::WITHIN;
use super::back_end::Hub;
use cluster_tests::http::ask;
use cluster_tests::receiver::Receiver;
use cluster_tests::wait;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

const UPDATED: &str = "Microsoft.EventGrid.MQTTClientCreatedOrUpdated";
const DELETED: &str = "Microsoft.EventGrid.MQTTClientDeleted";

/// The events of each client, once each: its type and its data.
fn told(receiver: &Receiver) -> BTreeMap<String, Vec<(String, Json)>> {
    let mut by_id = BTreeMap::new();
    let mut of_clients: BTreeMap<String, Vec<(String, Json)>> = BTreeMap::new();
    for event in receiver.events() {
        let id = event["id"].as_str().expect("an event has an id").to_owned();
        if let Some(former) = by_id.insert(id, event.clone()) {
            assert_eq!(former, event, "E2: a repetition is the same");
            continue;
        }
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let told = (text(&event["type"]), event["data"].clone());
        let client = text(&event["data"]["clientName"]);
        of_clients.entry(client).or_default().push(told);
    }
    of_clients
}

#[track_caller]
fn wait_told(receiver: &Receiver, client: &str) {
    wait::until("an event of a client", WITHIN, || {
        told(receiver).contains_key(client).then_some(())
    });
}

/// E4: made and updated twice, and made and deleted, within seconds, in which the leader dies.
pub fn several_changes_are_one_event_though_the_leader_dies(hub: &mut Hub) {
    let receiver = Receiver::start();
    let body = json!({
        "url": receiver.url(),
        "types": [UPDATED, DELETED],
        "subject_begins_with": "clients/changed-",
        "rate_per_min": 60_000,
        "timeout_s": 2,
    });
    let target = "/v1/events/subscriptions/changed";
    let http = hub.cluster.nodes[0].http();
    let answer = ask(http, "PUT", target, &[], &body.to_string());
    assert_eq!(answer.expect("an answer").status, 200);
    let leader = hub.cluster.wait_leader();
    let survivor = (leader + 1) % 3;
    let put = |id: &str, etag: &str, status: &str| {
        let body = json!({ "deviceId": id, "status": status });
        let made = hub.ask(survivor, "PUT", &format!("/devices/{id}"), etag, &body);
        assert_eq!(made.status, 200, "{made:?}");
    };
    put("changed-often", "", "enabled");
    put("changed-often", "*", "enabled");
    put("changed-often", "*", "disabled");
    put("changed-ghost", "", "enabled");
    let deleted = hub.ask(
        survivor,
        "DELETE",
        "/devices/changed-ghost",
        "*",
        &Json::Null,
    );
    assert_eq!(deleted.status, 204, "{deleted:?}");
    assert!(told(&receiver).is_empty(), "they are within the window");
    hub.cluster.nodes[leader].kill();
    hub.cluster.wait_leader_other_than(leader);
    wait_told(&receiver, "changed-often");
    wait_told(&receiver, "changed-ghost");
    hub.cluster.start_node(leader);
    hub.cluster.wait_ready();
    // What comes later shows that nothing is on its way.
    let body = json!({ "deviceId": "changed-last" });
    let made = hub.ask(leader, "PUT", "/devices/changed-last", "", &body);
    assert_eq!(made.status, 200, "{made:?}");
    wait_told(&receiver, "changed-last");
    let told = told(&receiver);
    let [(kind, data)] = &told["changed-often"][..] else {
        panic!("E4: {told:#?}");
    };
    assert_eq!(
        (kind.as_str(), &data["state"]),
        (UPDATED, &json!("Disabled"))
    );
    let [(kind, _)] = &told["changed-ghost"][..] else {
        panic!("E4: {told:#?}");
    };
    assert_eq!(kind, DELETED);
}
