//! Rules about routes of the HTTP port, one by one.

use super::routes::RouteVerdict;
use super::{Facts, RuleBook, Rules};

const RULES: &str = r#"{
  "default": "deny",
  "rules": [
    {"principals": {"names": ["ops"], "methods": ["token"]},
     "http_resources": [{"paths": ["/v1/tokens"]}]},
    {"effect": "deny",
     "http_resources": [
       {"paths": ["/v1/token", "/v1/tokens"]},
       {"methods": ["PUT", "DELETE"], "paths": ["/v1/events/subscriptions/*"]}]},
    {"principals": {"networks": ["10.0.0.0/8"]},
     "httpResources": [{"methods": ["get"]}]},
    {"effect": "deny",
     "principals": {"names": ["grafana"]},
     "http_resources": [{"paths": ["/v1/sessions"]}, {"paths": ["/v1/of/{principal.name}"]}]}
  ]
}"#;

fn caller(name: &str, method: &'static str, address: &str) -> Facts {
    Facts {
        name: name.into(),
        method,
        address: address.parse().ok(),
        ..Facts::default()
    }
}

fn rules(text: &str) -> Rules {
    Rules::parse(text.as_bytes(), 7).expect("rules")
}

/// `None`: no rule speaks.
fn judged(facts: &Facts, method: &str, path: &str) -> Option<(bool, u32)> {
    let verdict = rules(RULES).route(facts, method, path)?;
    Some((verdict.is_allowed, verdict.rule.expect("they can be read")))
}

#[test]
fn the_first_rule_that_speaks_decides_and_the_default_does_not_reach_there() {
    let ops = caller("ops", "token", "192.0.2.1");
    assert_eq!(judged(&ops, "GET", "/v1/tokens"), Some((true, 0)));
    assert_eq!(judged(&ops, "DELETE", "/v1/token"), Some((false, 1)));
    assert_eq!(judged(&ops, "GET", "/v1/sessions"), None);
    let other = caller("ops", "certificate", "192.0.2.1");
    assert_eq!(judged(&other, "GET", "/v1/tokens"), Some((false, 1)));
    let grafana = caller("grafana", "token", "192.0.2.1");
    assert_eq!(judged(&grafana, "GET", "/v1/sessions"), Some((false, 3)));
    assert_eq!(judged(&grafana, "HEAD", "/v1/sessions"), Some((false, 3)));
    assert_eq!(judged(&grafana, "GET", "/v1/of/grafana"), Some((false, 3)));
    assert_eq!(judged(&grafana, "GET", "/v1/of/ops"), None);
    let inside = caller("grafana", "token", "::ffff:10.1.2.3");
    assert_eq!(judged(&inside, "GET", "/v1/sessions"), Some((true, 2)));
    assert_eq!(judged(&inside, "POST", "/v1/sessions"), Some((false, 3)));
}

#[test]
fn no_way_of_writing_a_path_gives_more() {
    let ops = caller("ops", "token", "192.0.2.1");
    for path in [
        "/v1/events/subscriptions/a",
        "/v1/events/subscriptions/%61",
        "/v1/events/subscriptions/a/pause",
        "/v1/events/subscriptions/a%2Fpause",
        "/v1/events/subscriptions/%ff",
        "/v1/%65vents/subscriptions/a",
        "/v1/events%2fsubscriptions/a",
    ] {
        let (is_allowed, rule) = judged(&ops, "PUT", path).expect(path);
        assert!(!is_allowed && rule == 1, "{path} {rule}");
    }
    // What no handler reads as this path is not allowed because of it.
    for path in ["/v1/tokens%2F", "/v1%2Ftokens", "/v1/tokens%ff"] {
        assert_eq!(judged(&ops, "GET", path), Some((false, 1)), "{path}");
    }
}

#[test]
fn who_is_not_named_by_a_value_that_fits_gets_no_more() {
    let text = r#"{"rules": [
        {"effect": "deny", "http_resources": [{"paths": ["/v1/of/{principal.name}"]}]},
        {"effect": "allow", "http_resources": [{"paths": ["/v1/{principal.name}"]}]}]}"#;
    let verdict = |name: &str, path: &str| {
        let verdict = rules(text).route(&caller(name, "certificate", "::1"), "GET", path);
        verdict.map(|verdict| verdict.is_allowed)
    };
    assert_eq!(verdict("bob", "/v1/of/ann"), None);
    assert_eq!(verdict("*", "/v1/of/ann"), None);
    assert_eq!(
        verdict("a/b", "/v1/of/ann"),
        Some(false),
        "it can't stand there"
    );
    assert_eq!(verdict("bob", "/v1/bob"), Some(true));
}

#[test]
fn a_client_of_a_listener_is_not_meant_by_rules_about_routes() {
    let text = r#"{"default": "allow", "rules": [{"effect": "deny", "http_resources": [{}]}]}"#;
    let everybody = caller("ops", "token", "::1");
    let denied = RouteVerdict {
        is_allowed: false,
        rule: Some(0),
    };
    let book = RuleBook::default();
    assert_eq!(book.rules().route(&everybody, "GET", "/v1/rules"), None);
    book.set(rules(text));
    let verdict = book.rules().route(&everybody, "GET", "/v1/rules");
    assert_eq!(verdict, Some(denied));
    assert!(book.are_open(), "clients cost nothing");
    assert!(book.rights(&Facts::default()).may_connect());
}

#[test]
fn rules_that_cannot_be_read_let_nobody_ask() {
    let verdict = Rules::closed(7).route(&caller("ops", "token", "::1"), "GET", "/v1/rules");
    let denied = RouteVerdict {
        is_allowed: false,
        rule: None,
    };
    assert_eq!(verdict, Some(denied));
}

#[test]
fn what_would_be_about_nobody_or_nothing_is_an_error_and_says_where() {
    let http = r#""http_resources": [{"paths": ["/v1/rules"]}]"#;
    let broker = r#""broker_resources": [{"method": "connect"}]"#;
    for (rule, error) in [
        (
            format!(r#"{{"principals": {{"groups": ["g"]}}, {http}}}"#),
            "rules[0].principals.groups: nobody who asks over HTTP",
        ),
        (
            format!(r#"{{"principals": {{"client_ids": ["*"]}}, {http}, {broker}}}"#),
            "rules[0].principals.client_ids: nobody",
        ),
        (
            format!(r#"{{"principals": {{"attributes": [{{"a": "b"}}]}}, {http}}}"#),
            "rules[0].principals.attributes: nobody",
        ),
        (
            format!(r#"{{"principals": {{"listeners": ["l"]}}, {http}}}"#),
            "rules[0].principals.listeners: nobody",
        ),
        (
            format!(r#"{{"principals": {{"methods": ["password", "http"]}}, {http}}}"#),
            "rules[0].principals.methods: nobody who asks over HTTP is known by that",
        ),
        (
            format!(r#"{{"principals": {{"methods": ["token"]}}, {http}, {broker}}}"#),
            "rules[0].principals.methods: no client",
        ),
        (
            r#"{"http_resources": [{"methods": []}]}"#.to_owned(),
            "http_resources[0].methods: the list is empty",
        ),
        (
            r#"{"http_resources": [{"methods": ["PATCH"]}]}"#.to_owned(),
            "unknown variant `PATCH`",
        ),
        (
            r#"{"http_resources": [{"path": ["/v1/rules"]}]}"#.to_owned(),
            "unknown field",
        ),
        (
            r#"{"http_resources": [{"paths": ["/v1/x", "/v1/{principal.client_id}"]}]}"#.to_owned(),
            "rules[0].http_resources[0].paths[1]: over HTTP there is no placeholder but {principal.name}",
        ),
        (
            r#"{"http_resources": [{"paths": ["/v1/[a"]}]}"#.to_owned(),
            "paths[0]: not a pattern",
        ),
    ] {
        let text = format!(r#"{{"rules": [{rule}]}}"#);
        let found = Rules::parse(text.as_bytes(), 1).expect_err(&rule);
        let found = found.to_string();
        assert!(found.contains(error), "{found}");
    }
    for (path, is_one) in [
        ("/v1/rules", true),
        ("/v1/*", true),
        ("*", true),
        ("/*", true),
        ("/v?/rules", true),
        ("/metrics", false),
        ("v1/rules", false),
        ("/v1", false),
        ("/V1/rules", false),
        ("/livez*", false),
    ] {
        let text = format!(r#"{{"rules": [{{"http_resources": [{{"paths": ["{path}"]}}]}}]}}"#);
        assert_eq!(Rules::parse(text.as_bytes(), 1).is_ok(), is_one, "{path}");
    }
    let limits =
        r#"{"limits": [{"principals": {"methods": ["token"]}, "limits": {"in_flight": 1}}]}"#;
    assert!(
        Rules::parse(limits.as_bytes(), 1).is_err(),
        "clients have limits"
    );
}

#[test]
fn patterns_of_routes_count_with_all_others() {
    let many = |count: usize| {
        let paths = vec![r#""/v1/a""#; count].join(",");
        format!(r#"{{"rules": [{{"http_resources": [{{"paths": [{paths}]}}]}}]}}"#)
    };
    assert!(Rules::parse(many(8192).as_bytes(), 1).is_ok());
    assert!(Rules::parse(many(8193).as_bytes(), 1).is_err());
}
