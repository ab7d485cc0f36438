//! The compiled rules against the naive reading of them.

use core::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::document::{
    BrokerMethod, BrokerResource, Document, Effect, HttpMethod, HttpResource, KeyType,
    PrincipalsText, RuleText, StoreMethod, StoreResource,
};
use super::{Facts, KeyAccess, Publication, Rights, Rules, Share, naive};
use crate::codec::QoS;
use crate::topic::{Filter, check_filter, matches};

fn some<T: Clone + std::fmt::Debug + 'static>(of: Vec<T>) -> impl Strategy<Value = Option<Vec<T>>> {
    let list = prop::collection::vec(prop::sample::select(of), 1..3);
    prop_oneof![3 => Just(None), 1 => list.prop_map(Some)]
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const VALUES: [&str; 6] = ["a", "b", "a/b", "+", "$s", "*"];

/// Networks, as operators write them: of one address, of many, of all of them; IPv4 also as IPv6 writes it.
const NETWORKS: [&str; 9] = [
    "10.0.0.0/8",
    "10.1.0.0/15",
    "10.1.2.3",
    "0.0.0.0/0",
    "::ffff:10.1.2.0/119",
    "::ffff:0:0/96",
    "::/0",
    "2001:db8::/33",
    "2001:db8::1",
];

/// Addresses beside both ends of the networks.
const ADDRESSES: [&str; 10] = [
    "9.255.255.255",
    "10.0.0.0",
    "10.1.2.3",
    "10.1.3.255",
    "10.2.0.1",
    "::ffff:10.1.2.3",
    "::ffff:11.0.0.0",
    "::1",
    "2001:db8::1",
    "2001:db8:8000::",
];

fn networks() -> impl Strategy<Value = Option<Vec<String>>> {
    some(words(&NETWORKS))
}

/// The far end; `None`: a Unix socket's.
fn address() -> impl Strategy<Value = Option<IpAddr>> {
    let address = |text: &str| text.parse().expect("an address");
    prop::option::weighted(0.9, prop::sample::select(ADDRESSES.map(address).to_vec()))
}

fn facts() -> impl Strategy<Value = Facts> {
    let value = || prop::sample::select(VALUES.to_vec());
    let name = prop_oneof![1 => Just(""), 4 => value()];
    let group = prop::collection::vec(prop::sample::select(vec!["g", "h"]), 0..2);
    let client = (name, value(), group, prop::option::of(value()));
    let listener = prop::sample::select(vec!["l", "m"]);
    (client, address(), listener).prop_map(|((name, client_id, groups, x), address, listener)| {
        Facts {
            name: name.into(),
            method: if name.is_empty() { "anonymous" } else { "jwt" },
            groups: groups.into_iter().map(Into::into).collect(),
            attributes: x.into_iter().map(|x| ("x".into(), x.into())).collect(),
            client_id: client_id.into(),
            address,
            listener: listener.into(),
        }
    })
}

fn principals() -> impl Strategy<Value = PrincipalsText> {
    let set = [("x".to_owned(), "a".to_owned())].into();
    (
        some(words(&["a", "b", "+"])),
        some(words(&["g"])),
        some(words(&["a", "?", "*b"])),
        some(vec![set]),
        networks(),
        some(words(&["l", "n"])),
        some(words(&["anonymous", "jwt"])),
    )
        .prop_map(
            |(names, groups, client_ids, attributes, networks, listeners, methods)| {
                PrincipalsText {
                    names,
                    groups,
                    client_ids,
                    attributes,
                    networks,
                    listeners,
                    methods,
                }
            },
        )
}

const PLACEHOLDERS: [&str; 3] = [
    "{principal.name}",
    "{principal.client_id}",
    "{principal.attributes.x}",
];

fn level() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(words(&["a", "b", "+", "", "$s"])),
        2 => prop::sample::select(words(&PLACEHOLDERS)),
        1 => prop::sample::select(words(&PLACEHOLDERS)).prop_map(|word| format!("a{word}")),
    ]
}

fn pattern() -> impl Strategy<Value = String> {
    (prop::collection::vec(level(), 0..4), any::<bool>()).prop_filter_map(
        "a filter",
        |(mut levels, below)| {
            if below || levels.is_empty() {
                levels.push("#".to_owned());
            }
            let pattern = levels.join("/");
            check_filter(&pattern).is_ok().then_some(pattern)
        },
    )
}

fn broker_resource(effect: Effect) -> impl Strategy<Value = BrokerResource> {
    let method = prop::sample::select(vec![
        BrokerMethod::Connect,
        BrokerMethod::Publish,
        BrokerMethod::Subscribe,
        BrokerMethod::Will,
    ]);
    let topics = prop::option::of(prop::collection::vec(pattern(), 1..4));
    let ids = some(words(&[
        "a",
        "{principal.name}",
        "*",
        "b{principal.attributes.x}",
    ]));
    (
        method,
        topics,
        ids,
        prop::option::of(0u8..3),
        prop::option::of(any::<bool>()),
        some(words(&["s", "t*"])),
    )
        .prop_map(
            move |(method, topics, client_ids, max_qos, retain, share_names)| {
                let connects = method == BrokerMethod::Connect;
                let subscribes = method == BrokerMethod::Subscribe;
                let is_bounded = effect == Effect::Allow && !connects;
                BrokerResource {
                    method,
                    topics: topics.filter(|_| !connects),
                    client_ids: client_ids.filter(|_| connects),
                    max_qos: max_qos.filter(|_| is_bounded),
                    retain: retain.filter(|_| is_bounded && !subscribes),
                    share_names: share_names.filter(|_| subscribes),
                }
            },
        )
}

fn store_resource() -> impl Strategy<Value = StoreResource> {
    let method = vec![
        StoreMethod::Read,
        StoreMethod::Write,
        StoreMethod::ReadWrite,
    ];
    let key_type = vec![KeyType::Pattern, KeyType::String, KeyType::Prefix];
    let key = words(&[
        "a",
        "b*",
        "*",
        "a/{principal.name}",
        "{principal.client_id}*",
        "[ab]/?",
    ]);
    (
        prop::sample::select(method),
        prop::sample::select(key_type),
        prop::collection::vec(prop::sample::select(key), 1..3),
    )
        .prop_map(|(method, key_type, keys)| StoreResource {
            method,
            key_type,
            keys,
        })
}

fn effect() -> impl Strategy<Value = Effect> {
    prop::sample::select(vec![Effect::Allow, Effect::Deny])
}

fn http_resource() -> impl Strategy<Value = HttpResource> {
    let methods = vec![
        HttpMethod::Get,
        HttpMethod::Post,
        HttpMethod::Put,
        HttpMethod::Delete,
    ];
    let paths = words(&[
        "/v1/*",
        "*",
        "/v1/a",
        "/v1/[ab]",
        "/v1/a/?",
        "/v1/%61",
        "/v1/{principal.name}",
        "/v1/a/{principal.name}*",
    ]);
    (some(methods), some(paths)).prop_map(|(methods, paths)| HttpResource { methods, paths })
}

/// A rule about routes, and sometimes about clients, too.
fn http_rule() -> impl Strategy<Value = RuleText> {
    effect().prop_flat_map(|effect| {
        let methods = words(&["anonymous", "certificate", "token"]);
        let principals = (some(words(&["a", "b", "+"])), networks(), some(methods));
        let broker = prop::collection::vec(broker_resource(effect), 0..2);
        let http = prop::collection::vec(http_resource(), 1..3);
        (principals, broker, http).prop_map(
            move |((names, networks, methods), mut broker_resources, http_resources)| {
                let is_token = |methods: &Vec<String>| methods.iter().all(|word| word == "token");
                if methods.as_ref().is_some_and(is_token) {
                    broker_resources.clear();
                }
                RuleText {
                    effect,
                    principals: PrincipalsText {
                        names,
                        networks,
                        methods,
                        ..PrincipalsText::default()
                    },
                    broker_resources,
                    http_resources,
                    ..RuleText::default()
                }
            },
        )
    })
}

fn rule() -> impl Strategy<Value = RuleText> {
    prop_oneof![3 => client_rule(), 2 => http_rule()]
}

fn client_rule() -> impl Strategy<Value = RuleText> {
    effect().prop_flat_map(|effect| {
        let broker = prop::collection::vec(broker_resource(effect), 1..4);
        let store = prop::collection::vec(store_resource(), 0..2);
        (principals(), broker, store).prop_map(
            move |(principals, broker_resources, state_store_resources)| RuleText {
                effect,
                principals,
                broker_resources,
                state_store_resources,
                ..RuleText::default()
            },
        )
    })
}

fn document() -> impl Strategy<Value = Document> {
    (effect(), prop::collection::vec(rule(), 0..7)).prop_map(|(default, rules)| Document {
        default,
        rules,
        limits: Vec::new(),
    })
}

fn name() -> impl Strategy<Value = String> {
    let level = prop::sample::select(vec!["a", "b", "aa", "ab", "", "$s", "*"]);
    let name = prop::collection::vec(level, 1..5).prop_map(|levels| levels.join("/"));
    name.prop_filter("a name", |name| !name.is_empty())
}

fn compiled(document: &Document) -> Rules {
    let text = serde_json::to_vec(document).expect("documents are JSON");
    Rules::parse(&text, 1).expect("the document is valid")
}

fn judged(document: &Document, facts: &Facts) -> Rights {
    Rights::new(&Arc::new(compiled(document)), facts)
}

/// Who asks over HTTP.
fn caller() -> impl Strategy<Value = Facts> {
    let method = prop::sample::select(vec!["anonymous", "certificate", "token"]);
    let name = prop::sample::select(VALUES.to_vec());
    (name, method, address()).prop_map(|(name, method, address)| Facts {
        name: name.into(),
        method,
        address,
        ..Facts::default()
    })
}

/// A request as it was sent.
fn request() -> impl Strategy<Value = (&'static str, String)> {
    let methods = vec!["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"];
    let parts = vec![
        "a", "b", "%61", "%2561", "a%2Fb", "%2f", "%ff", "+", "*", "", "A", "%", "%4", "%+1", "ab",
    ];
    let parts = prop::collection::vec(prop::sample::select(parts), 0..3);
    (prop::sample::select(methods), parts)
        .prop_map(|(method, parts)| (method, format!("/v1/{}", parts.join("/"))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_compiled_rules_say_what_the_text_says(
        document in document(),
        facts in facts(),
        topics in prop::collection::vec(name(), 1..12),
    ) {
        let rights = judged(&document, &facts);
        prop_assert_eq!(rights.may_connect(), naive::may_connect(&document, &facts));
        for topic in &topics {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                for retain in [false, true] {
                    let publication = Publication { qos, retain };
                    let naive = |is_will| {
                        naive::may_publish(&document, &facts, topic, publication, is_will)
                    };
                    prop_assert_eq!(rights.publish(topic).allow(publication), naive(false));
                    prop_assert_eq!(rights.will(topic).allow(publication), naive(true));
                }
            }
            for share in [None, Some("s"), Some("ta"), Some("u")] {
                prop_assert_eq!(
                    rights.may_receive(topic, share.map_or(Share::None, Share::Of)),
                    naive::may_receive(&document, &facts, topic, share),
                    "{} {:?}", topic, share
                );
            }
            for access in [KeyAccess::Read, KeyAccess::Write] {
                prop_assert_eq!(
                    rights.may_access(access, topic.as_bytes()),
                    naive::may_access(&document, &facts, access, topic)
                );
            }
        }
    }

    /// The rule that is named says what is done, and says so without those after it.
    #[test]
    fn the_named_rule_decides(
        document in document(),
        facts in facts(),
        topics in prop::collection::vec(name(), 1..6),
    ) {
        let decisions = |document: &Document| {
            let rights = judged(document, &facts);
            let mut found = vec![(rights.may_connect(), rights.rule_of_connect())];
            for topic in &topics {
                for qos in [QoS::AtMostOnce, QoS::ExactlyOnce] {
                    let publication = Publication { qos, retain: qos == QoS::AtMostOnce };
                    found.push((
                        rights.publish(topic).allow(publication),
                        rights.rule_of_publish(topic, publication),
                    ));
                    found.push((
                        rights.will(topic).allow(publication),
                        rights.rule_of_will(topic, publication),
                    ));
                }
                let share = Share::Of("s");
                found.push((
                    rights.may_receive(topic, share),
                    rights.rule_of_receive(topic, share),
                ));
                for access in [KeyAccess::Read, KeyAccess::Write] {
                    let key = topic.as_bytes();
                    found.push((
                        rights.may_access(access, key),
                        rights.rule_of_access(access, key),
                    ));
                }
                let filter = Filter { share: Some("s"), inner: topic, has_wildcard: false };
                let granted = rights.subscribe(&filter).is_some();
                found.push((granted, rights.rule_of_subscribe(&filter)));
            }
            found
        };
        let found = decisions(&document);
        for (at, (is_allowed, rule)) in found.iter().enumerate() {
            let Some(rule) = rule else { continue };
            let rule = *rule as usize;
            prop_assert_eq!(*is_allowed, document.rules[rule].effect == Effect::Allow);
            let mut shorter = document.clone();
            shorter.rules.truncate(rule + 1);
            prop_assert_eq!(decisions(&shorter)[at], (*is_allowed, Some(rule as u32)));
        }
    }

    #[test]
    fn routes_are_judged_as_the_text_says(
        document in document(),
        facts in caller(),
        requests in prop::collection::vec(request(), 1..12),
    ) {
        let rules = compiled(&document);
        for (method, path) in &requests {
            let verdict = rules.route(&facts, method, path).map(|verdict| verdict.is_allowed);
            let naive = naive::route(&document, &facts, method, path);
            prop_assert_eq!(verdict, naive, "{} {}", method, path);
        }
    }

    /// What is granted is not too little, and what a group may give is not too much.
    #[test]
    fn filters_are_judged_by_what_they_match(
        document in document(),
        facts in facts(),
        filter in pattern(),
        share in prop::option::of(prop::sample::select(vec!["s", "ta", "u"])),
        topics in prop::collection::vec(name(), 1..12),
    ) {
        prop_assume!(!filter.contains('{'));
        let rights = judged(&document, &facts);
        let asked = Filter { share, inner: &filter, has_wildcard: true };
        let granted = rights.subscribe(&asked).is_some();
        for topic in topics.iter().filter(|topic| matches(&filter, topic)) {
            let may_receive = naive::may_receive(&document, &facts, topic, share);
            match share {
                None if may_receive => prop_assert!(granted, "{} {}", filter, topic),
                Some(_) if granted => prop_assert!(may_receive, "{} {}", filter, topic),
                _ => {}
            }
        }
    }
}
