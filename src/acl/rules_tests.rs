//! Rules, one by one.

use std::sync::Arc;

use super::{Facts, KeyAccess, Publication, Rights, RuleBook, Rules, Share};
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
    assert!(
        rights.may_receive("site/rome/commands", Share::None)
            && rights.may_receive("jobs/1", Share::Of("work-1"))
    );
    assert!(!rights.may_receive("jobs/1", Share::None));
    assert!(!rights.may_receive("site/rome/state", Share::None));
}

#[test]
fn the_answers_of_the_store_need_no_rule() {
    let rights = rights(&sensor());
    let topic = format!(
        "clients/bob-1/services/{}/response",
        crate::store::topics::INVOKE
    );
    assert!(rights.may_receive(&topic, Share::None));
    assert_eq!(granted(&rights, &topic), Some(QoS::ExactlyOnce));
    assert_eq!(granted(&rights, &topic.replace("bob-1", "ann-1")), None);
    let mut stranger = sensor();
    stranger.groups.clear();
    let rights = Rights::new(&rules(), &stranger);
    assert!(
        !rights.may_receive(&topic, Share::None),
        "it may not use the store"
    );
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
    assert!(rights.may_connect() && rights.may_receive("$SYS/x", Share::None));
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
            r#"{"principals": {"methods": ["jwt", "passwrd"]}, "broker_resources": [{"method": "publish"}]}"#,
            "methods[1]: no method of authentication",
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

/// The example of docs/rules.md.
#[test]
fn a_share_name_bounds_what_groups_get_and_gives_nothing_to_others() {
    let text = r##"{"rules": [{"broker_resources": [
        {"method": "subscribe", "topics": ["site/+/commands"]},
        {"method": "subscribe", "topics": ["jobs/#"], "share_names": ["work-*"]}]}]}"##;
    let rules = Arc::new(Rules::parse(text.as_bytes(), 1).expect("rules"));
    let rights = Rights::new(&rules, &Facts::default());
    let is_granted = |filter: &str| {
        let filter = Filter::parse(filter).expect("a filter");
        rights.subscribe(&filter).is_some()
    };
    assert!(is_granted("#") && is_granted("$share/work-1/jobs/#"));
    assert!(!is_granted("jobs/#") && !is_granted("$share/other/jobs/#"));
    let may = |share| rights.may_receive("jobs/1", share);
    assert!(!may(Share::None), "the wide filter does not get the jobs");
    assert!(may(Share::Of("work-1")) && may(Share::Some));
    assert!(!may(Share::Of("other")));
    assert!(rights.may_receive("site/oslo/commands", Share::None));
}

#[test]
fn a_network_is_about_addresses_however_it_is_written() {
    let met = |network: &str, address: &str| {
        let text = format!(
            r#"{{"default": "allow", "rules": [{{"effect": "deny", "principals": {{"networks": ["{network}"]}},
            "broker_resources": [{{"method": "connect"}}]}}]}}"#
        );
        let rules = Arc::new(Rules::parse(text.as_bytes(), 1).expect("rules"));
        let facts = Facts {
            address: Some(address.parse().expect("an address")),
            ..Facts::default()
        };
        !Rights::new(&rules, &facts).may_connect()
    };
    for network in ["10.0.0.0/8", "::ffff:10.0.0.0/104", "::ffff:10.1.2.3"] {
        assert!(met(network, "10.1.2.3"), "{network}");
        assert!(met(network, "::ffff:10.1.2.3"), "{network}");
        assert!(!met(network, "11.1.2.3"), "{network}");
    }
    assert!(met("2001:db8::/32", "2001:db8::1") && !met("2001:db8::/32", "10.0.0.1"));
}

#[test]
fn what_is_in_force_stays_readable() {
    let text = br#"{"rules": [{"principals": {"methods": ["passwrd"]}, "broker_resources": [{"method": "publish"}]}]}"#;
    assert!(Rules::parse(text, 1).is_err());
    assert!(Rules::stored(text, 1).is_ok());
}

/// Nobody means to deny everybody everything by an empty list.
#[test]
fn a_list_is_no_document() {
    for text in [&b"[]"[..], br#"["allow"]"#] {
        let error = Rules::parse(text, 1).expect_err("a list");
        assert!(error.to_string().contains("expected an object"), "{error}");
        assert!(Rules::stored(text, 1).is_ok(), "it was taken");
    }
}

#[test]
fn the_book_tells_when_rules_have_changed() {
    let book = Arc::new(RuleBook::default());
    let client = super::Client::new(sensor(), &book);
    assert!(client.rights().are_open() && client.may_receive("anything", Share::None));
    book.set(Rules::parse(RULES.as_bytes(), 7).expect("rules"));
    assert_eq!(client.changes(), 1);
    assert!(
        !client.may_receive("anything", Share::None) && client.may_receive("all/x", Share::None)
    );
    book.set(Rules::open());
    assert!(client.may_receive("anything", Share::None));
}
