//! SUBSCRIBE by clients whom the rules do not let do everything.

use super::*;

fn with_rules(context: &Context, resources: &str) {
    let text = format!(r#"{{"rules": [{{"broker_resources": [{resources}]}}]}}"#);
    let rules = crate::acl::Rules::parse(text.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
}

#[test]
fn a_filter_is_refused_or_granted_by_the_rules() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    with_rules(
        &context,
        r#"{"method": "subscribe", "topics": ["a"], "max_qos": 0}"#,
    );
    // Filters `b`, `a` and `+`, with QoS 2.
    let bytes = b"\x82\x0f\0\x05\0\0\x01b\x02\0\x01a\x02\0\x01+\x02";
    handle(&mut subscribing, &mut context, bytes);
    let reply = Reply::Subscribed {
        index: LogIndex(9),
        new: vec![true, true],
        refused: vec![1],
    };
    subscribing.handle_reply(&mut context, 0, &reply);
    let sent = context.take_acknowledgements();
    assert_eq!(
        sent, b"\x90\x06\0\x05\0\x87\x00\x97",
        "and the quota is told of the right one"
    );
    context.options.version = Version::V311;
    handle(&mut subscribing, &mut context, b"\x82\x06\0\x05\0\x01b\x02");
    assert_eq!(context.take_acknowledgements(), b"\x90\x03\0\x05\x80");
}

#[test]
fn retained_messages_are_judged_one_by_one() {
    let topics: Vec<String> = ["a/1", "a/2", "b/1"].map(str::to_owned).to_vec();
    let mut context = with_retained(&topics, b"");
    with_rules(&context, r#"{"method": "subscribe", "topics": ["+/1"]}"#);
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("#", 0));
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    let found: Vec<String> = page(&mut subscribing, &mut context)
        .into_iter()
        .map(|(topic, _)| topic)
        .collect();
    assert_eq!(found, ["a/1", "b/1"]);
}

#[test]
fn who_may_not_connect_any_more_does_not_stay() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    assert!(subscribing.handle_rules_changed(&mut context).is_ok());
    with_rules(
        &context,
        r#"{"method": "connect", "client_ids": ["other"]}"#,
    );
    let ended = subscribing.handle_rules_changed(&mut context);
    let ended = ended.expect_err("it may not connect");
    assert_eq!(ended.reason, Some(ReasonCode::NotAuthorized));
    assert!(ended.discard_will, "nor leave a will");
}

#[test]
fn who_may_not_have_its_will_any_more_does_not_stay_and_leaves_none() {
    let (mut subscribing, mut context) = (Subscribing::default(), Context::for_tests(false));
    let will = crate::codec::Will {
        topic: "plant/stop",
        qos: QoS::AtLeastOnce,
        retain: true,
        payload: b"stop",
        delay: 0,
        properties: crate::codec::PublishProperties::EMPTY,
    };
    context.rights.keep_will(&will);
    let rules = |retain| {
        format!(
            r#"{{"method": "connect"}}, {{"method": "publish", "topics": ["plant/#"], "retain": {retain}}}"#
        )
    };
    with_rules(&context, &rules(true));
    assert!(subscribing.handle_rules_changed(&mut context).is_ok());
    with_rules(&context, &rules(false));
    let ended = subscribing.handle_rules_changed(&mut context);
    let ended = ended.expect_err("it may not have its will");
    assert_eq!(ended.reason, Some(ReasonCode::NotAuthorized));
    assert!(ended.discard_will);
}

/// The commands that were proposed since the last call.
fn proposed(context: &Context, cursor: &mut crate::replica::proposer::Cursor) -> Vec<Kind> {
    use prost::Message as _;
    let mut kinds = Vec::new();
    while let Some(proposal) = context.broker.services.proposer.next(cursor) {
        let mut commands = proposal.commands;
        while !commands.is_empty() {
            let command = command::Command::decode_length_delimited(&mut commands);
            kinds.extend(command.expect("it was encoded").kind);
        }
    }
    kinds
}

/// The context of a session that has subscriptions of these filters, with QoS 2.
fn subscribed_to(filters: &[&str]) -> Context {
    let mut context = Context::for_tests(true);
    let row = crate::base::proto::state::Subscription {
        qos: 2,
        no_local: true,
        identifier: 9,
        ..Default::default()
    };
    let rows = filters.iter().map(|filter| (*filter, row));
    let broker = std::sync::Arc::get_mut(&mut context.broker).expect("no other connection");
    let rows = read::subscriptions_state(context.session, rows);
    broker.services.backing = std::sync::Arc::new(rows);
    context
}

#[test]
fn subscriptions_are_kept_to_the_rules() {
    let mut context = subscribed_to(&["$share/g/a", "$share/g/b", "a", "b", "c"]);
    let mut cursor = crate::replica::proposer::Cursor::default();
    context
        .broker
        .services
        .proposer
        .begin(crate::base::ids::Incarnation(1));
    proposed(&context, &mut cursor);
    let mut subscribing = Subscribing::default();
    with_rules(
        &context,
        r#"{"method": "connect"}, {"method": "subscribe", "topics": ["a"], "max_qos": 1},
        {"method": "subscribe", "topics": ["c"]}"#,
    );
    assert!(subscribing.handle_rules_changed(&mut context).is_ok());
    let kinds = proposed(&context, &mut cursor);
    let [Kind::Unsubscribe(left), Kind::Subscribe(lowered)] = &kinds[..] else {
        panic!("{kinds:?}");
    };
    assert_eq!(
        left.filters,
        ["$share/g/b"],
        "the group would lose messages"
    );
    let lowered = lowered.subscriptions.iter();
    let lowered: Vec<_> = lowered
        .map(|one| {
            (
                &*one.filter,
                one.qos,
                one.no_local,
                one.identifier,
                one.retain_handling,
            )
        })
        .collect();
    assert_eq!(
        lowered,
        [("$share/g/a", 1, true, 9, 2), ("a", 1, true, 9, 2)]
    );
}

#[test]
fn what_a_subscribe_has_made_under_other_rules_is_judged_again() {
    let mut context = subscribed_to(&["$share/g/b"]);
    let mut cursor = crate::replica::proposer::Cursor::default();
    context
        .broker
        .services
        .proposer
        .begin(crate::base::ids::Incarnation(1));
    let mut subscribing = Subscribing::default();
    handle(&mut subscribing, &mut context, &subscribe("$share/g/b", 0));
    with_rules(&context, r#"{"method": "connect"}"#);
    subscribing.handle_reply(&mut context, 0, &subscribed(9, true));
    let kinds = proposed(&context, &mut cursor);
    assert!(
        matches!(&kinds[..], [.., Kind::Subscribe(_), Kind::Unsubscribe(_)]),
        "{kinds:?}"
    );
}
