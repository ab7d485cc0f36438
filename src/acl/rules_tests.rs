//! Rules, one by one.

use std::sync::Arc;

use super::{Facts, KeyAccess, Publication, Rights, RuleBook, Rules};
use crate::codec::QoS;
use crate::topic::Filter;

const RULES: &str = r##"{
  "rules": [
    {"effect": "deny",
     "principals": {"groups": ["sensors"]},
     "broker_resources": [{"method": "publish", "topics": ["site/+/locked"]}]},
    {"principals": {"groups": ["sensors"], "networks": ["10.0.0.0/8", "::1"]},
     "broker_resources": [
       {"method": "connect", "client_ids": ["{principal.name}-*"]},
       {"method": "publish", "topics": ["site/{principal.attributes.site}/#"], "max_qos": 1, "retain": false},
       {"method": "will", "topics": ["gone/{principal.client_id}"]},
       {"method": "subscribe", "topics": ["site/+/commands", "all/#"], "max_qos": 1},
       {"method": "subscribe", "topics": ["jobs/#"], "share_names": ["work-*"]}
     ],
     "state_store_resources": [
       {"method": "read", "keys": ["config/*"]},
       {"method": "read_write", "key_type": "prefix", "keys": ["own/{principal.name}/"]},
       {"method": "write", "key_type": "binary", "keys": ["/wA="]}
     ]}
  ],
  "limits": [
    {"principals": {"groups": ["sensors"]}, "limits": {"in_flight": 10}},
    {"limits": {"in_flight": 20, "subscriptions": 5}}
  ]
}"##;

fn sensor() -> Facts {
    Facts {
        name: "bob".into(),
        method: "jwt",
        groups: vec!["sensors".into()],
        attributes: [("site".into(), "oslo".into())].into(),
        client_id: "bob-1".into(),
        address: "::ffff:10.1.2.3".parse().ok(),
        listener: "main".into(),
    }
}

fn rules() -> Arc<Rules> {
    Arc::new(Rules::parse(RULES.as_bytes(), 7).expect("rules"))
}

fn rights(facts: &Facts) -> Rights {
    Rights::new(&rules(), facts)
}

fn publication(qos: QoS, retain: bool) -> Publication {
    Publication { qos, retain }
}

fn granted(rights: &Rights, filter: &str) -> Option<QoS> {
    rights.subscribe(&Filter::parse(filter).expect("a filter"))
}

#[test]
fn a_rule_is_about_who_meets_all_of_its_lists() {
    assert!(rights(&sensor()).may_connect());
    for change in [
        |facts: &mut Facts| facts.groups.clear(),
        |facts: &mut Facts| facts.address = "11.0.0.1".parse().ok(),
        |facts: &mut Facts| facts.address = None,
        |facts: &mut Facts| facts.client_id = "ann-1".into(),
        |facts: &mut Facts| facts.name = "*".into(),
    ] {
        let mut other = sensor();
        change(&mut other);
        assert!(!rights(&other).may_connect(), "{other:?}");
    }
}

#[test]
fn publications_have_bounds_and_the_first_rule_that_speaks_decides() {
    let rights = rights(&sensor());
    let own = rights.publish("site/oslo/x");
    assert!(own.allow(publication(QoS::AtLeastOnce, false)));
    assert!(!own.allow(publication(QoS::ExactlyOnce, false)));
    assert!(!own.allow(publication(QoS::AtMostOnce, true)));
    let none = |topic: &str| {
        !rights
            .publish(topic)
            .allow(publication(QoS::AtMostOnce, false))
    };
    assert!(none("site/oslo/locked") && none("site/rome/x") && none("gone/bob-1"));
    let will = publication(QoS::ExactlyOnce, true);
    assert!(rights.will("gone/bob-1").allow(will));
    assert!(!rights.will("gone/ann-1").allow(will) && !rights.will("site/oslo/x").allow(will));
}

#[test]
fn a_filter_is_granted_if_some_of_it_may_be_received_and_a_shared_one_if_all() {
    let rights = rights(&sensor());
    assert_eq!(granted(&rights, "#"), Some(QoS::AtLeastOnce));
    assert_eq!(granted(&rights, "site/oslo/+"), Some(QoS::AtLeastOnce));
    assert_eq!(granted(&rights, "site/oslo/state"), None);
    assert_eq!(granted(&rights, "jobs/1"), None, "only shared");
    assert_eq!(
        granted(&rights, "$share/work-1/jobs/#"),
        Some(QoS::ExactlyOnce)
    );
    assert_eq!(granted(&rights, "$share/other/jobs/#"), None);
    assert_eq!(
        granted(&rights, "$share/work-1/site/#"),
        None,
        "not all of it"
    );
    assert_eq!(granted(&rights, "$SYS/#"), None);
    assert!(rights.may_receive("site/rome/commands") && rights.may_receive("jobs/1"));
    assert!(!rights.may_receive("site/rome/state"));
}

#[test]
fn the_answers_of_the_store_need_no_rule() {
    let rights = rights(&sensor());
    let topic = format!(
        "clients/bob-1/services/{}/response",
        crate::store::topics::INVOKE
    );
    assert!(rights.may_receive(&topic));
    assert_eq!(granted(&rights, &topic), Some(QoS::ExactlyOnce));
    assert_eq!(granted(&rights, &topic.replace("bob-1", "ann-1")), None);
    let mut stranger = sensor();
    stranger.groups.clear();
    let rights = Rights::new(&rules(), &stranger);
    assert!(!rights.may_receive(&topic), "it may not use the store");
}

#[test]
fn keys_are_read_and_written_by_the_rules() {
    let rights = rights(&sensor());
    let reads = |key: &[u8]| rights.may_access(KeyAccess::Read, key);
    let writes = |key: &[u8]| rights.may_access(KeyAccess::Write, key);
    assert!(reads(b"config/a") && !writes(b"config/a"));
    assert!(reads(b"config/\xff"), "any bytes");
    assert!(reads(b"own/bob/x") && writes(b"own/bob/x") && !reads(b"own/ann/x"));
    assert!(writes(&[0xff, 0x00]) && !reads(&[0xff, 0x00]));
    assert!(rights.may_read_some());
}

#[test]
fn of_each_limit_the_first_entry_that_names_it_decides() {
    let limits = rules().limits(&sensor());
    assert_eq!(
        (limits.in_flight, limits.subscriptions),
        (Some(10), Some(5))
    );
    let limits = rules().limits(&Facts::default());
    assert_eq!(
        (limits.in_flight, limits.subscriptions),
        (Some(20), Some(5))
    );
}

#[test]
fn what_azure_iot_operations_takes_is_taken() {
    let text = r##"{"rules": [{
        "principals": {"usernames": ["u"], "clientIds": ["c"], "attributes": [{"floor": "1"}]},
        "brokerResources": [
          {"method": "Connect", "clientIds": ["{principal.clientId}"]},
          {"method": "Publish", "topics": ["a/{principal.username}"]},
          {"method": "Subscribe"}],
        "stateStoreResources": [{"method": "ReadWrite", "keyType": "Pattern", "keys": ["*"]}]
    }]}"##;
    let rules = Arc::new(Rules::parse(text.as_bytes(), 1).expect("rules"));
    let facts = Facts {
        name: "u".into(),
        client_id: "c".into(),
        attributes: [("floor".into(), "1".into())].into(),
        ..Facts::default()
    };
    let rights = Rights::new(&rules, &facts);
    assert!(rights.may_connect() && rights.may_receive("$SYS/x"));
    assert!(
        rights
            .publish("a/u")
            .allow(publication(QoS::ExactlyOnce, true))
    );
    assert!(rights.may_access(KeyAccess::Write, b"k"));
}

#[test]
fn every_error_says_where_it_is() {
    for (rule, error) in [
        (
            r#"{"broker_resources": [{"method": "publish", "topics": ["a/#/b"]}]}"#,
            "rules[0].broker_resources[0].topics[0]",
        ),
        (
            r#"{"broker_resources": [{"method": "publish", "topics": []}]}"#,
            "topics: the list is empty",
        ),
        (
            r#"{"broker_resources": [{"method": "publish", "share_names": ["a"]}]}"#,
            "share_names: it means nothing",
        ),
        (
            r#"{"broker_resources": [{"method": "subscribe", "topics": ["$share/g/a"]}]}"#,
            "use share_names",
        ),
        (
            r#"{"effect": "deny", "broker_resources": [{"method": "publish", "max_qos": 1}]}"#,
            "a rule that denies",
        ),
        (
            r#"{"broker_resources": [{"method": "publish", "max_qos": 3}]}"#,
            "QoS is",
        ),
        (
            r#"{"broker_resources": [{"method": "publish", "topic": ["a"]}]}"#,
            "unknown field",
        ),
        (
            r#"{"principals": {"name": ["a"]}, "broker_resources": [{"method": "publish"}]}"#,
            "unknown field",
        ),
        (
            r#"{"principals": {"networks": ["a"]}, "broker_resources": [{"method": "publish"}]}"#,
            "networks[0]",
        ),
        (
            r#"{"state_store_resources": [{"method": "read", "keys": ["[a"]}]}"#,
            "keys[0]: not a pattern",
        ),
        (r#"{"principals": {}}"#, "names no resource"),
    ] {
        let text = format!(r#"{{"rules": [{rule}]}}"#);
        let found = Rules::parse(text.as_bytes(), 1)
            .expect_err(rule)
            .to_string();
        assert!(found.contains(error), "{found}");
    }
    let many = format!(r#"{{"rules": [{}]}}"#, vec!["{}"; 1025].join(","));
    assert!(Rules::parse(many.as_bytes(), 1).is_err());
    assert!(Rules::parse(&vec![b' '; 600 << 10], 1).is_err());
}

#[test]
fn the_book_tells_when_rules_have_changed() {
    let book = Arc::new(RuleBook::default());
    let client = super::Client::new(sensor(), &book);
    assert!(client.rights().are_open() && client.may_receive("anything"));
    book.set(Rules::parse(RULES.as_bytes(), 7).expect("rules"));
    assert_eq!(client.changes(), 1);
    assert!(!client.may_receive("anything") && client.may_receive("all/x"));
    book.set(Rules::open());
    assert!(client.may_receive("anything"));
}
