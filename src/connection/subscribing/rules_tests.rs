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
    let reason = ended.expect_err("it may not connect").reason;
    assert_eq!(reason, Some(ReasonCode::NotAuthorized));
}
