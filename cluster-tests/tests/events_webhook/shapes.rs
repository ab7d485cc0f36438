//! What an endpoint and a reader get, and what is refused.

use super::*;

pub fn the_schema_of_event_grid(cluster: &Cluster) {
    let receiver = Receiver::with(|received| {
        let kind = received.headers.get("aeg-event-type").map(String::as_str);
        if kind != Some("SubscriptionValidation") {
            return Reply::status(200);
        }
        let code = &received.events()[0]["data"]["validationCode"];
        let body = json!({ "validationResponse": code }).to_string();
        Reply::Status(200, Vec::new(), body)
    });
    subscribe(
        cluster,
        "grid",
        &receiver,
        &json!({ "schema": "eventgrid" }),
    );
    visit(cluster, 0, "grid-a");
    let events = taken(&receiver, &visits_of(&["grid-a"]));
    let of_client = events.iter().find(|event| session(event).0 == CONNECTED);
    let event = of_client.expect("it was taken");
    assert_eq!(event["topic"], "/namespaces/test");
    assert_eq!(
        (&event["dataVersion"], &event["metadataVersion"]),
        (&json!("1"), &json!("1"))
    );
    assert!(event.get("specversion").is_none());
    remove(cluster, "grid");
}

pub fn readers_pull_from_any_node(cluster: &Cluster) {
    let receiver = Receiver::with(|_| Reply::status(503));
    // Somebody asks for events, and nobody takes them: they stay in the outbox.
    subscribe(cluster, "pull", &receiver, &json!({ "handshake": "off" }));
    let pull = |node: usize, after: &str, wait_s: u64| {
        let target = format!("/v1/events?after={after}&wait_s={wait_s}&subject=clients/pull");
        let answer = ask(cluster.nodes[node].http(), "GET", &target, &[], "");
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let body: Value = serde_json::from_str(&answer.body).expect("an answer is JSON");
        let next = body["next"].as_str().expect("a token").to_owned();
        let events = body["events"].as_array().expect("a list").clone();
        assert_eq!(body["lost"], false, "{body}");
        (events, next)
    };
    visit(cluster, 0, "pull-a");
    let mut seen = Vec::new();
    let mut token = String::new();
    for node in 0..3 {
        visit(cluster, (node + 1) % 3, &format!("pull-{node}"));
        let (events, next) = pull(node, &token, 1);
        token = next;
        seen.extend(events);
    }
    let ids: BTreeSet<&str> = seen
        .iter()
        .filter_map(|event| event["id"].as_str())
        .collect();
    assert_eq!(
        (seen.len(), ids.len()),
        (8, 8),
        "each comes once, from whichever node"
    );
    let began = Instant::now();
    assert!(pull(2, &token, 1).0.is_empty());
    assert!(began.elapsed() >= Duration::from_secs(1), "it waits");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pull(2, &token, 9));
        visit(cluster, 0, "pull-late");
        let (events, _) = waiting.join().expect("it answers");
        assert_eq!(session(&events[0]), (CONNECTED, "pull-late", 1));
    });
    remove(cluster, "pull");
}

pub fn what_makes_no_sense_is_refused(cluster: &Cluster) {
    for (name, body, part) in [
        (
            "a",
            json!({ "url": "http://events.example/" }),
            "plain HTTP",
        ),
        ("a", json!({ "url": "ftp://events.example/" }), "url"),
        (
            "a",
            json!({ "url": "https://e/", "types": ["x"] }),
            "no type",
        ),
        (
            "a",
            json!({ "url": "https://e/", "reasons": ["x"] }),
            "no reason",
        ),
        ("a", json!({ "url": "https://e/", "ttl_min": 0 }), "ttl_min"),
        ("a", json!({ "url": "https://e/", "mode": "x" }), "no mode"),
        ("a_b", json!({ "url": "https://e/" }), "a name"),
    ] {
        let answer = admin(cluster, 0, "PUT", &format!("/{name}"), &body);
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(part), "{}", answer.body);
    }
    assert_eq!(admin(cluster, 0, "GET", "/absent", &json!({})).status, 404);
    assert_eq!(
        admin(cluster, 0, "DELETE", "/absent", &json!({})).status,
        404
    );
}
