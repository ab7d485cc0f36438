//! Events reach an endpoint, whatever it answers and whoever leads: on three nodes, judged by what the endpoint has
//! got.

mod shapes;

use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::http::{Answer, ask};
use cluster_tests::receiver::{Receiver, Reply};
use cluster_tests::wait;
use cluster_tests::{rules, rules::show};
use serde_json::{Value, json};
use shapes::{
    readers_pull_from_any_node, the_schema_of_event_grid, what_makes_no_sense_is_refused,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long events may take to arrive, a change of the leader and back-offs included.
const ARRIVED_WITHIN: Duration = Duration::from_secs(30);

const CONNECTED: &str = "Microsoft.EventGrid.MQTTClientSessionConnected";
const DISCONNECTED: &str = "Microsoft.EventGrid.MQTTClientSessionDisconnected";

#[track_caller]
fn admin(cluster: &Cluster, node: usize, method: &str, path: &str, body: &Value) -> Answer {
    let target = format!("/v1/events/subscriptions{path}");
    let address = cluster.nodes[node].http();
    let answer = ask(address, method, &target, &[], &body.to_string());
    answer.unwrap_or_else(|| panic!("{method} {target}: no answer"))
}

/// What an event subscription is, as any node says.
#[track_caller]
fn subscription(cluster: &Cluster, node: usize, name: &str) -> Value {
    let answer = admin(cluster, node, "GET", &format!("/{name}"), &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("an answer is JSON")
}

/// Makes an event subscription that gets the events of sessions with this prefix, as fast as they can come.
#[track_caller]
fn subscribe(cluster: &Cluster, name: &str, receiver: &Receiver, more: &Value) {
    let mut body = json!({
        "url": receiver.url(),
        "subject_begins_with": format!("clients/{name}"),
        "rate_per_min": 60_000,
        "timeout_s": 2,
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    let answer = admin(cluster, 1, "PUT", &format!("/{name}"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[track_caller]
fn remove(cluster: &Cluster, name: &str) {
    let answer = admin(cluster, 2, "DELETE", &format!("/{name}"), &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// A client comes and goes: two events.
fn visit(cluster: &Cluster, node: usize, client_id: &str) {
    Connection::v5(cluster.mqtt(node), client_id).disconnect();
}

fn session(event: &Value) -> (&str, &str, u64) {
    let kind = event["type"].as_str().or(event["eventType"].as_str());
    (
        kind.expect("an event has a type"),
        event["data"]["clientSessionName"]
            .as_str()
            .unwrap_or_default(),
        event["data"]["sequenceNumber"].as_u64().unwrap_or_default(),
    )
}

/// Waits until the endpoint has taken events of so many visits, and returns all that it has taken.
#[track_caller]
fn taken(receiver: &Receiver, visits: &BTreeSet<(String, u64)>) -> Vec<Value> {
    wait::until_ok("all events", ARRIVED_WITHIN, || {
        let events = receiver.events();
        let mut missing = BTreeSet::new();
        for (name, number) in visits {
            for kind in [CONNECTED, DISCONNECTED] {
                let wanted = (kind, name.as_str(), *number);
                if !events.iter().any(|event| session(event) == wanted) {
                    missing.insert(format!("{wanted:?}"));
                }
            }
        }
        match missing.is_empty() {
            true => Ok(events),
            false => Err(format!("{} missing: {missing:?}", missing.len())),
        }
    })
}

/// Somebody else gets the same events: what has come there would have come to all who are sent something.
#[track_caller]
fn subscribe_witness(cluster: &Cluster, name: &str) -> Receiver {
    let witness = Receiver::start();
    let more = json!({ "subject_begins_with": format!("clients/{name}") });
    subscribe(cluster, &format!("{name}-witness"), &witness, &more);
    witness
}

fn visits_of(names: &[&str]) -> BTreeSet<(String, u64)> {
    names.iter().map(|name| ((*name).to_owned(), 1)).collect()
}

#[test]
fn events_are_delivered() {
    let audit = Audit::new();
    let cluster = Cluster::start_with(Plan {
        extra: audit.toml(),
        ..Plan::default()
    });
    show(
        &cluster,
        rules![
            a_consenting_endpoint_gets_events_in_order,
            without_consent_nothing_comes,
            every_failure_is_followed_by_the_same_events,
            a_poisonous_event_holds_up_nobody,
            what_is_never_taken_is_a_dead_letter_and_can_be_replayed,
            who_is_gone_is_resumed_by_an_operator,
            a_paused_one_waits,
            the_schema_of_event_grid,
            readers_pull_from_any_node,
            what_makes_no_sense_is_refused,
        ],
    );
    cluster.assert_states_agree();
    assert_audited(&audit);
}

/// What the tests before have asked of the nodes.
fn assert_audited(audit: &Audit) {
    for (node, action, name) in [
        (2, "put", "order"),
        (3, "delete", "order"),
        (3, "test", "refused"),
        (1, "replay", "dead"),
        (1, "resume", "gone"),
        (2, "pause", "paused"),
        (3, "resume", "paused"),
    ] {
        audit.expect(&json!({
            "event": "event_subscription", "result": "accepted", "node": node, "action": action, "name": name,
            "method": "anonymous", "reason": null,
        }));
    }
    audit.expect(&json!({
        "event": "event_subscription", "result": "failed", "node": 1, "action": "put", "name": "a_b", "reason": "*",
    }));
}

fn a_consenting_endpoint_gets_events_in_order(cluster: &Cluster) {
    let receiver = Receiver::start();
    subscribe(cluster, "order", &receiver, &json!({}));
    let names = ["order-a", "order-b", "order-c"];
    for (node, name) in names.iter().enumerate() {
        visit(cluster, node, name);
    }
    let events = taken(&receiver, &visits_of(&names));
    let received = receiver.received();
    assert_eq!(received[0].method, "OPTIONS", "it is asked first");
    assert!(received[0].headers.contains_key("webhook-request-origin"));
    for event in &events {
        assert_eq!(event["specversion"], "1.0");
        assert!(event["id"].as_str().is_some_and(|id| id.len() == 36));
        assert_eq!(event["source"], "/namespaces/test");
    }
    let first = events
        .iter()
        .position(|event| session(event).0 == DISCONNECTED);
    let connected = events
        .iter()
        .position(|event| session(event).0 == CONNECTED);
    assert!(connected < first);
    for node in 0..3 {
        // What is delivered is accounted for in the log, when the endpoint has answered.
        wait::until_ok("the account of the deliveries", ARRIVED_WITHIN, || {
            let shown = subscription(cluster, node, "order");
            let is_told = shown["state"] == "active" && shown["delivered"] == 6;
            is_told.then_some(()).ok_or(shown.to_string())
        });
    }
    remove(cluster, "order");
}

fn without_consent_nothing_comes(cluster: &Cluster) {
    let receiver = Receiver::with(|received| match received.method.as_str() {
        "OPTIONS" => Reply::status(405),
        _ => Reply::status(200),
    });
    subscribe(cluster, "refused", &receiver, &json!({}));
    visit(cluster, 0, "refused-a");
    wait::until("the refusal is shown", ARRIVED_WITHIN, || {
        let shown = subscription(cluster, 1, "refused");
        let is_refused = shown["state"] == "awaiting_consent" && shown["last_error"].is_string();
        is_refused.then_some(())
    });
    assert!(receiver.events().is_empty());
    receiver.answer(|_| Reply::status(200));
    taken(&receiver, &visits_of(&["refused-a"]));
    // What was given can be taken back; an operator's test finds out.
    receiver.answer(|received| match received.method.as_str() {
        "OPTIONS" => Reply::status(403),
        _ => Reply::status(200),
    });
    let tried = admin(cluster, 2, "POST", "/refused/test", &json!({}));
    assert!(tried.body.contains("\"accepted\":false"), "{}", tried.body);
    let before = receiver.events().len();
    visit(cluster, 0, "refused-b");
    wait::until("it is asked anew", ARRIVED_WITHIN, || {
        let shown = subscription(cluster, 0, "refused");
        (shown["state"] == "awaiting_consent" && shown["last_error"].is_string()).then_some(())
    });
    assert_eq!(receiver.events().len(), before);
    remove(cluster, "refused");
}

fn every_failure_is_followed_by_the_same_events(cluster: &Cluster) {
    for (number, reply) in [
        Reply::status(401),
        Reply::status(404),
        Reply::status(408),
        Reply::status(429),
        Reply::status(502),
        Reply::status(503),
        Reply::Status(302, vec!["Location: /other".to_owned()], String::new()),
        Reply::Slow(Duration::from_secs(4), 200),
        Reply::Close,
        Reply::Cut(200),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{reply:?}");
        let mut failures = vec![reply.clone(), reply];
        let receiver = Receiver::with(move |received| match received.method.as_str() {
            "POST" => failures.pop().unwrap_or(Reply::status(200)),
            _ => Reply::consent(),
        });
        let name = format!("fails{number}");
        subscribe(cluster, &name, &receiver, &json!({}));
        visit(cluster, number % 3, &name);
        taken(&receiver, &visits_of(&[&name]));
        let received = receiver.received();
        assert!(received.iter().all(|one| one.path == "/events"), "{what}");
        remove(cluster, &name);
    }
}

fn a_poisonous_event_holds_up_nobody(cluster: &Cluster) {
    let receiver = Receiver::with(|received| match received.body.contains("poison-bad") {
        true => Reply::status(500),
        false => Reply::status(200),
    });
    subscribe(cluster, "poison", &receiver, &json!({}));
    for name in ["poison-a", "poison-bad", "poison-b"] {
        visit(cluster, 0, name);
    }
    taken(&receiver, &visits_of(&["poison-a", "poison-b"]));
    wait::until("both events are parked", ARRIVED_WITHIN, || {
        (subscription(cluster, 0, "poison")["parked"] == 2).then_some(())
    });
    // They come once the endpoint takes them, each alone.
    receiver.answer(|_| Reply::status(200));
    taken(&receiver, &visits_of(&["poison-bad"]));
    let alone = receiver.taken();
    let alone = alone.iter().filter(|one| one.body.contains("poison-bad"));
    assert!(alone.clone().count() >= 2);
    assert!(alone.into_iter().all(|one| one.events().len() == 1));
    remove(cluster, "poison");
}

fn what_is_never_taken_is_a_dead_letter_and_can_be_replayed(cluster: &Cluster) {
    let receiver = Receiver::with(|received| match received.body.contains("dead-bad") {
        true => Reply::status(415),
        false => Reply::status(200),
    });
    subscribe(cluster, "dead", &receiver, &json!({}));
    for name in ["dead-bad", "dead-a"] {
        visit(cluster, 1, name);
    }
    taken(&receiver, &visits_of(&["dead-a"]));
    let letters = wait::until("two dead letters", ARRIVED_WITHIN, || {
        let answer = admin(cluster, 2, "GET", "/dead/dead-letters", &json!({}));
        let found: Value = serde_json::from_str(&answer.body).ok()?;
        let letters = found["entries"].as_array()?.clone();
        (letters.len() == 2).then_some(letters)
    });
    for letter in &letters {
        let letter = &letter["letter"];
        assert_eq!(letter["deadletterreason"], "NotRetried");
        assert_eq!(letter["lastdeliveryoutcome"], "BadRequest");
        assert_eq!(letter["deliveryattempts"], 1);
    }
    receiver.answer(|_| Reply::status(200));
    let replayed = admin(cluster, 0, "POST", "/dead/dead-letters/replay", &json!({}));
    assert_eq!(replayed.status, 200, "{}", replayed.body);
    let events = taken(&receiver, &visits_of(&["dead-bad"]));
    let ids = |id: &Value| events.iter().any(|event| event["id"] == *id);
    assert!(letters.iter().all(|letter| ids(&letter["letter"]["id"])));
    assert_eq!(subscription(cluster, 0, "dead")["dead"], 0);
    remove(cluster, "dead");
}

fn who_is_gone_is_resumed_by_an_operator(cluster: &Cluster) {
    let receiver = Receiver::with(|received| match received.method.as_str() {
        "POST" => Reply::status(410),
        _ => Reply::consent(),
    });
    subscribe(cluster, "gone", &receiver, &json!({}));
    visit(cluster, 0, "gone-a");
    wait::until("it is gone", ARRIVED_WITHIN, || {
        (subscription(cluster, 2, "gone")["state"] == "gone").then_some(())
    });
    let before = receiver.received().len();
    let witness = subscribe_witness(cluster, "gone");
    visit(cluster, 0, "gone-b");
    taken(&witness, &visits_of(&["gone-b"]));
    assert_eq!(receiver.received().len(), before, "nothing is sent");
    receiver.answer(|_| Reply::status(200));
    let resumed = admin(cluster, 0, "POST", "/gone/resume", &json!({}));
    assert_eq!(resumed.status, 200, "{}", resumed.body);
    taken(&receiver, &visits_of(&["gone-a", "gone-b"]));
    remove(cluster, "gone");
    remove(cluster, "gone-witness");
}

fn a_paused_one_waits(cluster: &Cluster) {
    let receiver = Receiver::start();
    subscribe(cluster, "paused", &receiver, &json!({}));
    let paused = admin(cluster, 1, "POST", "/paused/pause", &json!({}));
    assert_eq!(paused.status, 200, "{}", paused.body);
    let witness = subscribe_witness(cluster, "paused");
    visit(cluster, 0, "paused-a");
    taken(&witness, &visits_of(&["paused-a"]));
    assert!(receiver.received().is_empty());
    let shown = subscription(cluster, 0, "paused");
    assert_eq!(shown["state"], "paused");
    assert!(
        shown["waiting"]
            .as_u64()
            .is_some_and(|waiting| waiting >= 2)
    );
    admin(cluster, 2, "POST", "/paused/resume", &json!({}));
    taken(&receiver, &visits_of(&["paused-a"]));
    remove(cluster, "paused");
    remove(cluster, "paused-witness");
}

/// The last number and state of each session, as a reader keeps it who takes events in any order, with repetitions.
fn states(events: &[Value]) -> BTreeMap<String, (u64, bool)> {
    let mut states: BTreeMap<String, (u64, bool)> = BTreeMap::new();
    for event in events {
        let (kind, name, number) = session(event);
        let known = states.get(name).copied();
        let counts = match (kind, known) {
            (_, None) => true,
            (CONNECTED, Some((last, _))) => number > last,
            (_, Some((last, _))) => number >= last,
        };
        if counts {
            states.insert(name.to_owned(), (number, kind == CONNECTED));
        }
    }
    states
}

#[test]
fn the_next_leader_delivers_what_the_last_one_has_not() {
    let mut cluster = Cluster::start_with(Plan {
        extra: String::new(),
        ..Plan::default()
    });
    let receiver = Receiver::with(|received| match received.method.as_str() {
        // The leader dies while it waits for the answer.
        "POST" => Reply::Slow(Duration::from_millis(300), 200),
        _ => Reply::consent(),
    });
    subscribe(&cluster, "kill", &receiver, &json!({}));
    let mut visits = BTreeMap::new();
    let mut keepers = Vec::new();
    for round in 0..3 {
        let leader = cluster.wait_leader();
        let other = (0..3).find(|node| *node != leader).expect("three nodes");
        for number in 0..10 {
            let name = format!("kill-{number}");
            visit(&cluster, other, &name);
            *visits.entry(name).or_insert(0) += 1;
        }
        keepers.push(Connection::v5(
            cluster.mqtt(other),
            &format!("kill-keeper-{round}"),
        ));
        cluster.nodes[leader].kill();
        cluster.wait_leader_other_than(leader);
        cluster.start_node(leader);
        cluster.wait_ready();
    }
    let all: BTreeSet<(String, u64)> = visits
        .iter()
        .flat_map(|(name, count)| (1..=*count).map(|number| (name.clone(), number)))
        .collect();
    let events = taken(&receiver, &all);
    // Whatever came twice is the same; nothing else has its id.
    let mut by_id: BTreeMap<&str, &Value> = BTreeMap::new();
    for event in &events {
        let id = event["id"].as_str().expect("an id");
        let first = *by_id.entry(id).or_insert(event);
        assert_eq!(first, event, "E2: an id is one event's");
    }
    let mut ends: BTreeMap<(&str, u64), u32> = BTreeMap::new();
    for event in by_id.values() {
        let (kind, name, number) = session(event);
        if kind == DISCONNECTED {
            *ends.entry((name, number)).or_default() += 1;
        }
    }
    assert!(ends.values().all(|count| *count == 1), "E1: {ends:?}");
    for (name, (number, is_connected)) in states(&events) {
        if let Some(count) = visits.get(&name) {
            assert_eq!((number, is_connected), (*count, false), "E8: {name}");
        }
    }
    drop(keepers);
    cluster.assert_states_agree();
}

#[test]
fn a_minority_delivers_nothing_and_nothing_is_missing_afterwards() {
    let mut cluster = Cluster::start();
    let receiver = Receiver::start();
    subscribe(&cluster, "minority", &receiver, &json!({}));
    visit(&cluster, 0, "minority-a");
    taken(&receiver, &visits_of(&["minority-a"]));
    let leader = cluster.wait_leader();
    // A repetition of what the leader has sent before is not what this is about.
    wait::until("the log to be told", ARRIVED_WITHIN, || {
        (subscription(&cluster, leader, "minority")["delivered"] == 2).then_some(())
    });
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    for other in &others {
        cluster.nodes[*other].pause();
    }
    let before = receiver.received().len();
    let refused = std::thread::scope(|scope| {
        let address = cluster.mqtt(leader);
        let connect = cluster_tests::wire::Connect::v5("minority-b");
        let tried = scope.spawn(move || Connection::try_connect(address, &connect).is_err());
        // By then it would have sent what it could.
        wait::until("it to give up", ARRIVED_WITHIN, || {
            (!cluster.nodes[leader].is_ready()).then_some(())
        });
        assert_eq!(
            receiver.received().len(),
            before,
            "E6: no majority, no delivery"
        );
        for other in &others {
            cluster.nodes[*other].resume();
        }
        tried.join().expect("it ends")
    });
    cluster.wait_ready();
    visit(&cluster, leader, "minority-c");
    taken(&receiver, &visits_of(&["minority-c"]));
    let events = receiver.events();
    let of_b = events
        .iter()
        .filter(|event| session(event).1 == "minority-b");
    assert!(refused || of_b.count() >= 1, "who was let in is told of");
}
