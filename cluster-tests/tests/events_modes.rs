//! Events in each mode of CloudEvents over HTTP: read by the SDK of CloudEvents for Python, and held against the JSON
//! schema of CloudEvents by the one for JavaScript, both unmodified.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::Cluster;
use cluster_tests::connection::Connection;
use cluster_tests::http::ask;
use cluster_tests::receiver::Receiver;
use cluster_tests::script;
use cluster_tests::wait;
use serde_json::json;
use std::time::Duration;

const MODES: [&str; 3] = ["batch", "structured", "binary"];

/// Names whose characters mean something in JSON, in headers and in URIs.
const NAMES: [&str; 3] = ["plain", "gr\u{fc}\u{df}e \u{2603}", "a\"b%41/c"];

#[test]
fn every_mode_is_what_the_sdks_of_cloud_events_read_and_their_schema_allows() {
    let cluster = Cluster::start();
    let receiver = Receiver::start();
    for mode in MODES {
        let body = json!({
            "url": receiver.url(),
            "mode": mode,
            "subject_begins_with": format!("clients/record-{mode}-"),
            "rate_per_min": 60_000,
        });
        let target = format!("/v1/events/subscriptions/{mode}");
        let answer = ask(
            cluster.nodes[0].http(),
            "PUT",
            &target,
            &[],
            &body.to_string(),
        );
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.body);
        for (node, name) in NAMES.iter().enumerate() {
            let client_id = format!("record-{mode}-{name}");
            Connection::v5(cluster.mqtt(node), &client_id).disconnect();
        }
    }
    wait::until("all modes to be delivered", Duration::from_secs(30), || {
        let is_done = |mode| {
            let target = format!("/v1/events/subscriptions/{mode}");
            let shown = cluster.nodes[1].get(&target);
            shown.is_some_and(|shown| shown.body.contains("\"delivered\":6"))
        };
        MODES.into_iter().all(is_done).then_some(())
    });
    let lines = receiver.taken().into_iter().map(|request| {
        let line = json!({ "headers": request.headers, "body": request.body });
        format!("{line}\n")
    });
    let file = cluster.directory().join("requests");
    std::fs::write(&file, lines.collect::<String>()).expect("a file can be written");
    for (mut sdk, rules) in [
        (script::python("cloud_events.py"), MODES.len()),
        (script::node_js("cloud_events.js"), MODES.len() + 1),
    ] {
        sdk.arg(&file);
        let report = script::run(sdk, &[], |what, _| panic!("it asks for {what}"));
        assert_eq!(report.len(), rules, "{report:#?}");
        let broken = report.iter().filter(|rule| rule["holds"] != true);
        assert_none(&broken.map(ToString::to_string).collect::<Vec<_>>());
    }
}
