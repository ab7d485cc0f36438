//! Rules about routes: what they take from whom, on every node once they are answered, however a path is written.

use super::*;
use serde_json::{Value, json};

/// Replaces the rules, and returns their version.
#[track_caller]
fn set(address: SocketAddr, token: &str, rules: &Value) -> u64 {
    let answer = ask(address, "PUT", "/v1/rules", token, &rules.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
    answer["version"].as_u64().expect("a version")
}

fn open() -> Value {
    json!({ "default": "allow" })
}

/// Denies the holders of the token `held` these routes.
fn denying(resource: &Value) -> Value {
    json!({ "default": "allow", "rules": [
        { "effect": "deny", "principals": { "names": ["held"] }, "http_resources": [resource] },
    ]})
}

pub fn a_rule_takes_a_route_from_a_token_on_every_node(cluster: &Cluster) {
    let held = make(cluster, 0, "held", "admin");
    let kick = "/v1/session/kick?client_id=nobody";
    let routes = [
        (
            "GET",
            "/v1/sessions",
            json!({ "paths": ["/v1/sessions"] }),
            200,
        ),
        (
            "GET",
            "/v1/users",
            json!({ "methods": ["GET"], "paths": ["/v1/user*"] }),
            200,
        ),
        ("POST", kick, json!({ "methods": ["POST"] }), 404),
    ];
    for round in 0..9 {
        let (method, target, resource, free) = &routes[round % routes.len()];
        let setter = http_of(cluster, (round / routes.len() + round) % 3);
        let version = set(setter, &admin(), &denying(resource));
        // Answered: in force everywhere, without waiting.
        for index in 0..3 {
            let answer = ask(http_of(cluster, index), method, target, &held, "{}");
            assert_eq!(
                answer.status, 403,
                "round {round}, node {index}: {}",
                answer.body
            );
            let told =
                format!("rules[0] of the cluster's rules does not allow this (version {version})");
            assert!(answer.body.contains(&told), "{}", answer.body);
        }
        assert_eq!(
            statuses(cluster, method, target, &admin()),
            [*free; 3],
            "others may"
        );
        assert_eq!(
            statuses(cluster, "GET", "/v1/rules", &held),
            [200; 3],
            "other routes"
        );
        assert_eq!(
            statuses(cluster, "GET", "/readyz", &held),
            [200; 3],
            "probes are free"
        );
        set(setter, &admin(), &open());
        assert_eq!(
            statuses(cluster, method, target, &held),
            [*free; 3],
            "round {round}"
        );
    }
    let mut shown = Shown::by("a_rule_takes_a_route_from_a_token_on_every_node");
    set(http_of(cluster, 1), &admin(), &denying(&json!({})));
    let who = "a token, scope `admin`, that a rule denies the route";
    see(&mut shown, cluster, who, &held);
    shown.finish();
    // No rule gives what the scope does not.
    let look = make(cluster, 1, "narrow", "read");
    let all = json!({ "default": "allow", "rules": [{ "http_resources": [{}] }] });
    set(http_of(cluster, 2), &admin(), &all);
    assert_eq!(statuses(cluster, "GET", "/v1/users", &look), [403; 3]);
    assert_eq!(statuses(cluster, "GET", "/v1/sessions", &look), [200; 3]);
    set(http_of(cluster, 2), &admin(), &open());
    for node in &cluster.nodes {
        let counted = node.metric("quorumq_not_authorized_total");
        assert!(counted.is_some_and(|counted| counted >= 9.0), "{counted:?}");
    }
}

pub fn no_way_of_writing_a_path_gets_round_a_rule(cluster: &Cluster) {
    let held = make(cluster, 1, "held-2", "admin");
    let rules = json!({ "default": "allow", "rules": [
        { "effect": "deny", "principals": { "names": ["held-2"] }, "http_resources": [
            { "methods": ["GET"], "paths": ["/v1/sessions", "/v1/events/subscriptions/n*"] } ] },
    ]});
    set(http_of(cluster, 0), &admin(), &rules);
    let address = http_of(cluster, 1);
    let absolute = format!("http://{address}/v1/sessions");
    for (method, target, expected) in [
        ("GET", "/v1/sessions", 403),
        ("HEAD", "/v1/sessions", 403),
        ("GET", "/v1/sessions?limit=1", 403),
        ("GET", "/v1/sessions?", 403),
        ("GET", absolute.as_str(), 403),
        ("GET", "/v1/events/subscriptions/none", 403),
        ("GET", "/v1/events/subscriptions/%6eone", 403),
        ("GET", "/v1/events/subscriptions/%6Eon%65?x", 403),
        ("GET", "/v1/events/subscriptions/other%2Fpause", 403),
        ("GET", "/v1/events/subscriptions/other%ff", 403),
    ] {
        let answer = ask(address, method, target, &held, "");
        assert_eq!(
            answer.status, expected,
            "{method} {target}: {}",
            answer.body
        );
        let may = ask(address, method, target, &admin(), "").status;
        assert!(may != 403, "{method} {target}: {may} for who is not held");
    }
    // There are no such routes, for whomever.
    for target in [
        "/v1/%73essions",
        "/v1%2Fsessions",
        "/v1//sessions",
        "//v1/sessions",
        "/v1/sessions/",
        "/v1/./sessions",
        "/v1/session/../sessions",
        "/V1/sessions",
        "/v1/Sessions",
        "/v1/sessions;x",
        "/v1/sessions%20",
        "/v1/event%73/subscriptions/none",
        "/v1/events/subscriptions//none",
    ] {
        for token in [&held, &admin()] {
            let answer = ask(address, "GET", target, token, "");
            assert_eq!(answer.status, 404, "{target}: {}", answer.body);
            assert!(
                answer.body.starts_with("there is"),
                "{target}: {}",
                answer.body
            );
        }
    }
    set(address, &admin(), &open());
}

pub fn the_command_line_tells_who_may_ask(cluster: &Cluster) {
    let http = http_of(cluster, 2).to_string();
    let token = admin();
    let environment = [("QUORUMQ_TOKEN", token.as_str())];
    let told = |arguments: &[&str]| {
        let arguments = [&["acl", "--http", &http, "test"], arguments].concat();
        let output = quorumq(&arguments, &environment);
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.code(), text, output.stderr)
    };
    let users = json!({ "methods": ["GET", "DELETE"], "paths": ["/v1/user*"] });
    set(http_of(cluster, 0), &admin(), &denying(&users));
    let (code, text, error) = told(&["held", "http", "GET", "/v1/users?limit=1"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(1), "deny (rules[0])"),
        "{error:?}"
    );
    let (code, text, _) = told(&["held", "http", "POST", "/v1/users"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the scope decides"), "{text}");
    let (code, text, _) = told(&[
        "other",
        "http",
        "GET",
        "/v1/users",
        "--method",
        "certificate",
    ]);
    assert_eq!(code, Some(0), "{text}");
    for wrong in [
        &["held", "http", "GET"][..],
        &["held", "publish", "a", "/b"],
    ] {
        let (code, text, error) = told(wrong);
        let error = String::from_utf8_lossy(&error).into_owned();
        assert!(
            code != Some(0) && error.contains("path"),
            "{wrong:?}: {text} {error}"
        );
    }
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let path = directory.path().join("rules.toml");
    let rules = "[[rules]]\neffect = \"deny\"\n[[rules.http_resources]]\npaths = [\"/v1/rules\"]\n";
    std::fs::write(&path, rules).expect("a file can be written");
    let file = path.to_str().expect("a path is text");
    let (code, text, _) = told(&["anonymous", "http", "put", "/v1/rules", "--file", file]);
    assert_eq!((code, text.as_str()), (Some(1), "deny (rules[0])"));
    let checked = quorumq(&["acl", "check", file], &[]);
    assert!(checked.status.success(), "{checked:?}");
    std::fs::write(&path, rules.replace("/v1/", "/v2/")).expect("a file can be written");
    let checked = quorumq(&["acl", "check", file], &[]);
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        !checked.status.success() && told.contains("paths[0]"),
        "{told}"
    );
    set(http_of(cluster, 0), &admin(), &open());
}

/// At a node alone that has the token of a file: rules that lock everybody out are set right with it.
pub fn no_rule_binds_the_token_of_a_file(address: SocketAddr, token: &str) {
    let body = "{\"name\":\"root\",\"scope\":\"admin\"}";
    let made = ask(address, "POST", "/v1/tokens", token, body);
    let made: Value = serde_json::from_str(&made.body).expect("JSON");
    let root = made["token"].as_str().expect("a token").to_owned();
    let nobody = json!({ "rules": [{ "effect": "deny", "http_resources": [{}] }] });
    set(address, &root, &nobody);
    let kick = "/v1/session/kick?client_id=nobody";
    for (method, target, free) in [
        ("GET", "/v1/sessions", 200),
        ("GET", "/v1/cluster/status", 200),
        ("POST", kick, 404),
        ("GET", "/v1/tokens", 200),
    ] {
        assert_eq!(
            ask(address, method, target, &root, "{}").status,
            403,
            "{target}"
        );
        assert_eq!(
            ask(address, method, target, token, "{}").status,
            free,
            "{target}"
        );
    }
    let mut shown = Shown::by("no_rule_binds_the_token_of_a_file");
    let who = "the token of `http.token_file`, where rules deny everybody everything";
    see_at(&mut shown, address, who, token);
    shown.finish();
    let open = open().to_string();
    assert_eq!(ask(address, "PUT", "/v1/rules", &root, &open).status, 403);
    assert_eq!(ask(address, "GET", "/livez", "", "").status, 200);
    set(address, token, &self::open());
    assert_eq!(ask(address, "GET", "/v1/sessions", &root, "").status, 200);
}
