//! The HTTPS API of the hub on three nodes: whoever has seen an answer finds it everywhere, of several writers with one
//! etag one is right, nothing is lost or done twice when nodes die, and a minority answers nobody.

mod back_end;
mod events;
mod table;

use back_end::{Answer, Hub};
use cluster_tests::audit::Audit;
use cluster_tests::cluster::Plan;
use cluster_tests::wait;
use serde_json::{Value as Json, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time within which a cluster of three goes on after a death.
const WITHIN: Duration = Duration::from_secs(30);

#[test]
fn back_ends() {
    let audit = Audit::new();
    let mut hub = Hub::start(Plan {
        extra: audit.toml(),
        ..Plan::default()
    });
    an_answer_is_found_on_every_node(&hub);
    one_of_several_writers_with_an_etag_is_right(&hub);
    loops_over_all_nodes_count_exactly(&hub);
    pages_list_each_twin_once_while_others_come_and_go(&hub);
    a_device_goes_with_its_modules_on_every_node(&hub);
    changes_of_identities_are_in_the_audit_log(&hub, &audit);
    table::a_back_end_may_what_its_policy_permits(&hub);
    what_was_answered_survives_the_leader(&mut hub);
    events::several_changes_are_one_event_though_the_leader_dies(&mut hub);
    a_minority_answers_nobody(&mut hub);
    a_write_that_has_not_come_is_refused_by_a_node_that_stops(&mut hub);
    hub.cluster.assert_states_agree();
}

/// T3: reads, lists and queries of every node, right after each answer.
fn an_answer_is_found_on_every_node(hub: &Hub) {
    for round in 0..20 {
        let (writer, id) = (round % 3, format!("seen-{round}"));
        let body = json!({ "deviceId": id });
        let made = hub.ask(writer, "PUT", &format!("/devices/{id}"), "", &body);
        assert_eq!(made.status, 200, "{made:?}");
        let path = format!("/twins/{id}");
        let body = json!({ "tags": { "round": round } });
        let written = hub.ask(writer, "PATCH", &path, "", &body);
        assert_eq!(written.status, 200, "{written:?}");
        for node in 0..3 {
            let found = hub.ask(node, "GET", &path, "", &Json::Null);
            assert_eq!(found.body, written.body, "T3: node {node} after {writer}");
            let query = format!("SELECT * FROM devices WHERE tags.round = {round}");
            assert_eq!(
                hub.query(node, &query),
                json!([written.json()]),
                "T3: a query"
            );
            let identity = hub.ask(node, "GET", &format!("/devices/{id}"), "", &Json::Null);
            assert_eq!(identity.body, made.body, "T3: node {node}");
        }
    }
}

/// T2: all nodes at once.
fn one_of_several_writers_with_an_etag_is_right(hub: &Hub) {
    let path = "/twins/seen-0";
    for round in 0..20 {
        let etag = hub.ask(0, "GET", path, "", &Json::Null).json()["etag"].clone();
        let etag = etag.as_str().expect("an etag");
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let writers = (0..6).map(|writer| {
                let body = json!({ "tags": { "writer": format!("{round}-{writer}") } });
                scope.spawn(move || hub.ask(writer % 3, "PATCH", path, etag, &body))
            });
            let writers: Vec<_> = writers.collect();
            let answers = writers.into_iter().map(|writer| writer.join());
            answers
                .map(|answer| answer.expect("no writer panics"))
                .collect()
        });
        let right: Vec<&Answer> = answers.iter().filter(|one| one.status == 200).collect();
        assert_eq!(right.len(), 1, "T2: {answers:?}");
        let wrong = answers.iter().filter(|one| one.status == 412).count();
        assert_eq!(wrong, 5, "T2: {answers:?}");
        let found = hub.ask(1, "GET", path, "", &Json::Null);
        assert_eq!(
            found.body, right[0].body,
            "T4: a refused write changes nothing"
        );
    }
}

/// T1, T2: read, add one, write what was read.
fn loops_over_all_nodes_count_exactly(hub: &Hub) {
    let path = "/twins/seen-1";
    let before = hub.ask(0, "GET", path, "", &Json::Null).json();
    let added = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for node in 0..3 {
            let added = &added;
            scope.spawn(move || {
                for _ in 0..25 {
                    let twin = hub.ask(node, "GET", path, "", &Json::Null).json();
                    let count = twin["properties"]["desired"]["count"].as_u64().unwrap_or(0);
                    let body = json!({ "properties": { "desired": { "count": count + 1 } } });
                    let etag = twin["etag"].as_str().expect("an etag").to_owned();
                    if hub.ask(node, "PATCH", path, &etag, &body).status == 200 {
                        added.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let after = hub.ask(2, "GET", path, "", &Json::Null).json();
    let added = added.load(Ordering::Relaxed);
    let number = |twin: &Json, name: &str| twin[name].as_u64().expect("a number");
    assert!(added > 0, "somebody gets through");
    assert_eq!(after["properties"]["desired"]["count"], added, "T2");
    assert_eq!(
        number(&after, "version"),
        number(&before, "version") + added,
        "T1"
    );
    let desired = |twin: &Json| number(&twin["properties"]["desired"], "$version");
    assert_eq!(desired(&after), desired(&before) + added, "T1");
}

/// Pages of one query from one node after another.
fn pages_list_each_twin_once_while_others_come_and_go(hub: &Hub) {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !ends.load(Ordering::Relaxed) {
                let path = format!("/devices/seen-{}-guest", number % 20);
                let body = json!({ "deviceId": path.trim_start_matches("/devices/") });
                hub.ask(number % 3, "PUT", &path, "", &body);
                hub.ask(number % 3, "DELETE", &path, "*", &Json::Null);
                number += 1;
            }
        });
        for page in [1, 2, 3, 7] {
            let query = "SELECT deviceId FROM devices WHERE is_defined(tags.round)";
            let rows = hub.pages(query, page);
            let mut listed: Vec<&str> = rows
                .iter()
                .filter_map(|row| row["deviceId"].as_str())
                .collect();
            assert!(listed.is_sorted(), "in byte order: {listed:?}");
            listed.dedup();
            assert_eq!(listed.len(), 20, "each of them once: {listed:?}");
            assert_eq!(rows.len(), 20, "no row twice");
        }
        ends.store(true, Ordering::Relaxed);
    });
}

fn a_device_goes_with_its_modules_on_every_node(hub: &Hub) {
    hub.ask(
        0,
        "PUT",
        "/devices/family",
        "",
        &json!({ "deviceId": "family" }),
    );
    for module in ["a", "b"] {
        let body = json!({ "deviceId": "family", "moduleId": module });
        let made = hub.ask(
            1,
            "PUT",
            &format!("/devices/family/modules/{module}"),
            "",
            &body,
        );
        assert_eq!(made.status, 200, "{made:?}");
    }
    let query = "SELECT moduleId FROM devices.modules WHERE deviceId = 'family'";
    assert_eq!(
        hub.query(2, query),
        json!([{ "moduleId": "a" }, { "moduleId": "b" }])
    );
    let deleted = hub.ask(2, "DELETE", "/devices/family", "*", &Json::Null);
    assert_eq!(deleted.status, 204);
    for node in 0..3 {
        assert_eq!(hub.query(node, query), json!([]));
        let found = hub.ask(node, "GET", "/twins/family/modules/a", "", &Json::Null);
        assert_eq!((found.status, found.code()), (404, "DeviceNotFound"));
    }
}

/// Who asked for what, of which node, and why it was not done.
fn changes_of_identities_are_in_the_audit_log(hub: &Hub, audit: &Audit) {
    let body = json!({ "deviceId": "noted" });
    for (status, code) in [(200, ""), (409, "DeviceAlreadyExists")] {
        let put = hub.ask(1, "PUT", "/devices/noted", "", &body);
        assert_eq!((put.status, put.code()), (status, code), "{put:?}");
    }
    let deleted = hub.ask(2, "DELETE", "/devices/noted", "*", &Json::Null);
    assert_eq!(deleted.status, 204, "{deleted:?}");
    let line = |node: u64, route: &str, result: &str, reason: Option<&str>| {
        json!({
            "event": "hub_request", "result": result, "node": node, "principal": "all", "method": "sas",
            "route": route, "reason": reason,
        })
    };
    let refused = Some("DeviceAlreadyExists");
    audit.expect_all(&[
        line(2, "PUT /devices/noted", "accepted", None),
        line(2, "PUT /devices/noted", "failed", refused),
        line(3, "DELETE /devices/noted", "accepted", None),
        line(2, "PUT /devices/family/modules/a", "accepted", None),
    ]);
}

/// T1: while a back end writes on and on, the leader dies, twice.
fn what_was_answered_survives_the_leader(hub: &mut Hub) {
    for round in 0..2 {
        let leader = hub.cluster.wait_leader();
        let survivor = (leader + 1) % 3;
        let path = "/twins/seen-2";
        let body = |number: u64| json!({ "properties": { "desired": { "number": number } } });
        let mut answered = Vec::new();
        for number in 0..30 {
            if number == 10 {
                hub.cluster.nodes[leader].kill();
            }
            let sent = wait::until_ok("a write after the death of the leader", WITHIN, || {
                let answer = hub.try_ask(survivor, "PATCH", path, "", &body(number));
                let answer = answer.ok_or("no answer")?;
                match answer.status {
                    200 => Ok(answer),
                    503 => Err("503".to_owned()),
                    other => panic!("{other}: {answer:?}"),
                }
            });
            answered.push(sent.json());
        }
        let versions = answered.iter().map(|twin| {
            twin["properties"]["desired"]["$version"]
                .as_u64()
                .expect("a number")
        });
        let versions: Vec<u64> = versions.collect();
        let is_dense = versions.windows(2).all(|two| two[0] + 1 == two[1]);
        assert!(
            is_dense,
            "T1: no version without an answer, none twice: {versions:?}"
        );
        hub.cluster.start_node(leader);
        hub.cluster.wait_ready();
        let last = answered.last().expect("thirty writes");
        let found = hub.ask(leader, "GET", path, "", &Json::Null).json();
        assert_eq!(
            &found, last,
            "round {round}: the node that was dead answers, too"
        );
    }
}

/// T8: one node of three.
fn a_minority_answers_nobody(hub: &mut Hub) {
    let (left, others) = (0, [1, 2]);
    for node in others {
        hub.cluster.nodes[node].kill();
    }
    wait::until_ok("a refusal by the minority", WITHIN, || {
        let answer = hub.try_ask(left, "GET", "/twins/seen-0", "", &Json::Null);
        let answer = answer.ok_or("no answer")?;
        match (answer.status, answer.code()) {
            (503, "ServiceUnavailable") => Ok(()),
            other => Err(format!("T8: {other:?}")),
        }
    });
    // A write that is proposed before the node gives up may still be committed: nobody can say.
    hub.cluster.nodes[left].wait_not_ready(WITHIN);
    let written = hub.try_ask(
        left,
        "PATCH",
        "/twins/seen-0",
        "",
        &json!({ "tags": { "x": 1 } }),
    );
    let written = written.expect("a refusal is an answer");
    assert_eq!(
        (written.status, written.code()),
        (503, "ServiceUnavailable"),
        "T8"
    );
    for node in others {
        hub.cluster.start_node(node);
    }
    hub.cluster.wait_ready();
    let found = hub
        .ask(left, "GET", "/twins/seen-0", "", &Json::Null)
        .json();
    assert!(
        found["tags"].get("x").is_none(),
        "T4: what was refused is not done later"
    );
}

/// Back ends that finish what they ask one after the other would have the node wait for the commit of each.
fn a_write_that_has_not_come_is_refused_by_a_node_that_stops(hub: &mut Hub) {
    let node = 0;
    let late = json!({ "tags": { "late": true } });
    let begun = (0..20).map(|_| hub.begin(node, "PATCH", "/twins/seen-0", &late));
    let begun: Vec<_> = begun.collect();
    hub.cluster.nodes[node].ask_to_stop();
    hub.wait_closed(node);
    let begun = begun.into_iter();
    let finishing = begun.map(|begun| std::thread::spawn(|| begun.finish()));
    let finishing: Vec<_> = finishing.collect();
    for answer in finishing {
        let answer = answer.join().expect("it does not panic");
        let answer = answer.expect("the node says that it stops");
        let is_refused = answer.status == 503 && answer.body.contains("stops");
        assert!(is_refused, "{answer:?}");
    }
    let status = hub.cluster.nodes[node].wait_exit(WITHIN);
    assert!(status.success(), "{status}");
    let log = hub.cluster.nodes[node].log_text();
    assert!(!log.contains("not everything was drained"), "{log}");
    hub.cluster.start_node(node);
    hub.cluster.wait_ready();
    let found = hub.ask(node, "GET", "/twins/seen-0", "", &Json::Null);
    assert!(found.json()["tags"].get("late").is_none(), "{found:?}");
}
