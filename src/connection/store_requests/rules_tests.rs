//! Requests to the state store by clients whom the rules do not let do everything.

use super::*;
use crate::acl::Rules;
use crate::telemetry::labels::Action;

const ID: PacketId = PacketId::new(7).expect("not zero");

/// Keys below `a` may be read, and those below `w` written.
const RULES: &str = r#"{"rules": [{
    "broker_resources": [{"method": "subscribe", "topics": ["answers"]}],
    "state_store_resources": [
        {"method": "read", "keys": ["a*"]}, {"method": "write", "keys": ["w*"]}]}]}"#;

fn request(response_topic: &str, words: &[&str]) -> (PublishPropertiesBuf, Vec<u8>) {
    let mut properties = PublishPropertiesBuf::new();
    for property in [
        Property::ResponseTopic(response_topic),
        Property::CorrelationData(b"1"),
    ] {
        properties.push(property).expect("it fits");
    }
    properties
        .push_user("__ts", "000000000000001:00000:client")
        .expect("it fits");
    let mut payload = format!("*{}\r\n", words.len());
    for word in words {
        payload += &format!("${}\r\n{word}\r\n", word.len());
    }
    (properties, payload.into_bytes())
}

/// What is acknowledged at once; requests that go on are counted by `context.requests`.
fn ask(context: &mut Context, response_topic: &str, words: &[&str]) -> Vec<u8> {
    let (properties, payload) = request(response_topic, words);
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: topics::INVOKE,
        packet_id: Some(ID),
        properties: properties.as_properties().expect("well-formed"),
        payload: &payload,
    };
    let flow = StoreRequests::default().handle_publish(context, &publish, false);
    assert_eq!(flow, Ok(Flow::Continue));
    context.take_acknowledgements()
}

#[test]
fn every_verb_is_judged_by_its_key() {
    let mut context = Context::for_tests(false);
    let rules = Rules::parse(RULES.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    let acknowledged = [0x40, 2, 0, 7];
    for refused in [
        &["GET", "w1"][..],
        &["KEYNOTIFY", "w1"],
        &["SET", "a1", "v"],
        &["DEL", "a1"],
        &["VDEL", "a1", "v"],
    ] {
        let sent = ask(&mut context, "answers", refused);
        assert_eq!(sent, acknowledged, "{refused:?} is answered at once");
        assert_eq!(context.requests.len(), 0, "{refused:?}");
    }
    let metrics = context.broker.metrics.clone();
    assert_eq!(metrics.not_authorized.of(Action::Read).get(), 2);
    assert_eq!(metrics.not_authorized.of(Action::Write).get(), 3);
    let errors = metrics.store_commands.of(Verb::Vdel).of(Outcome::Error);
    assert_eq!(errors.get(), 1);
    let allowed = [
        &["GET", "a1"][..],
        &["KEYNOTIFY", "a1"],
        &["KEYNOTIFY", "w1", "STOP"],
        &["SET", "w1", "v"],
        &["DEL", "w1"],
        &["SCAN", "*"],
    ];
    for (number, words) in allowed.into_iter().enumerate() {
        assert!(ask(&mut context, "answers", words).is_empty());
        assert_eq!(context.requests.len(), number + 1, "{words:?}");
    }
}

#[test]
fn an_answer_goes_only_where_the_client_may_read() {
    let mut context = Context::for_tests(false);
    let rules = Rules::parse(RULES.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    let sent = ask(&mut context, "alarms", &["GET", "a1"]);
    assert_eq!((sent[0], &sent[2..5]), (0x40, &[0, 7, 0x87][..]));
    assert_eq!(context.requests.len(), 0);
}

#[test]
fn without_any_right_to_read_nothing_is_listed() {
    let mut context = Context::for_tests(false);
    let rules = r#"{"rules": [{"broker_resources": [{"method": "subscribe"}]}]}"#;
    let rules = Rules::parse(rules.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    assert_eq!(
        ask(&mut context, "answers", &["SCAN", "*"]),
        [0x40, 2, 0, 7]
    );
    assert_eq!(context.requests.len(), 0);
}
