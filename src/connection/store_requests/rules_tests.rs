//! Requests to the state store by clients whom the rules do not let do everything.

use super::*;
use crate::acl::Rules;
use crate::codec::{Property, PublishPropertiesBuf};
use crate::connection::hub::shared::Hub;

const ID: PacketId = PacketId::new(7).expect("not zero");

/// Keys below `a` may be read, and those below `w` written.
pub(super) const RULES: &str = r#"{"rules": [{
    "broker_resources": [{"method": "subscribe", "topics": ["answers", "commands"]},
        {"method": "publish", "topics": ["answers", "alarms"]}],
    "state_store_resources": [
        {"method": "read", "keys": ["a*"]}, {"method": "write", "keys": ["w*"]}]}]}"#;

pub(super) fn request(response_topic: &str, words: &[&str]) -> (PublishPropertiesBuf, Vec<u8>) {
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
fn an_answer_goes_only_where_the_client_may_read_and_write() {
    let mut context = Context::for_tests(false);
    let rules = Rules::parse(RULES.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    let others = format!("clients/other/services/{}/response", topics::INVOKE);
    for topic in ["alarms", "commands", &others] {
        // Also what would be answered at once, with text of the client's choice beside it.
        for words in [&["GET", "a1"][..], &["GET", "w1"]] {
            let sent = ask(&mut context, topic, words);
            assert_eq!((sent[0], &sent[2..5]), (0x40, &[0, 7, 0x87][..]), "{topic}");
        }
    }
    assert_eq!(context.requests.len(), 0);
    let own = format!("clients/client/services/{}/response", topics::INVOKE);
    assert!(ask(&mut context, &own, &["GET", "a1"]).is_empty());
    assert_eq!(context.requests.len(), 1, "its own needs no rule");
}

/// Whatever the rules say: back ends take what is published there for a device's.
#[test]
fn an_answer_is_no_message_of_a_device() {
    let mut context = Context::for_tests(false);
    let topics = [
        "devices/d/messages/events/alarm=true",
        "devices/d/messages/events",
        "devices/d/modules/m/messages/events/",
    ];
    for topic in topics {
        assert!(ask(&mut context, topic, &["GET", "a1"]).is_empty());
    }
    assert_eq!(context.requests.len(), 3, "there is no hub");
    let mut context = Context::for_tests(false);
    let broker = Arc::get_mut(&mut context.broker).expect("no other connection");
    broker.services.hub = Some(Hub::for_tests());
    for topic in topics {
        let sent = ask(&mut context, topic, &["GET", "a1"]);
        assert_eq!((sent[0], &sent[2..5]), (0x40, &[0, 7, 0x87][..]), "{topic}");
    }
    assert_eq!(context.requests.len(), 0);
}

#[test]
fn where_nothing_is_published_nothing_is_answered() {
    let mut context = Context::for_tests(false);
    let broker = Arc::get_mut(&mut context.broker).expect("no other connection");
    let bounds = &mut broker.settings.mqtt;
    (bounds.max_topic_levels, bounds.max_topic_bytes) = (8, 64);
    let (deep, long) = (["a"; 9].join("/"), "a".repeat(65));
    for topic in ["$SYS/broker/clients/connected", &deep, &long] {
        let (properties, payload) = request(topic, &["GET", "a1"]);
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: topics::INVOKE,
            packet_id: Some(ID),
            properties: properties.as_properties().expect("well-formed"),
            payload: &payload,
        };
        let flow = StoreRequests::default().handle_publish(&mut context, &publish, false);
        let reason = flow.expect_err("the connection ends").reason;
        assert_eq!(reason, Some(ReasonCode::TopicNameInvalid));
    }
}

#[test]
fn without_any_right_to_read_nothing_is_listed() {
    let mut context = Context::for_tests(false);
    let rules =
        r#"{"rules": [{"broker_resources": [{"method": "subscribe"}, {"method": "publish"}]}]}"#;
    let rules = Rules::parse(rules.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    assert_eq!(
        ask(&mut context, "answers", &["SCAN", "*"]),
        [0x40, 2, 0, 7]
    );
    assert_eq!(context.requests.len(), 0);
}

/// A GET may wait for long until its client takes what was read before.
#[test]
fn a_right_that_is_lost_while_a_get_waits_counts_in_its_answer() {
    for (readable, is_answered) in [("a*", true), ("b*", false)] {
        let mut context = Context::for_tests(false);
        let rules = Rules::parse(RULES.as_bytes(), 1).expect("rules");
        context.broker.services.rules.set(rules);
        ask(&mut context, "answers", &["GET", "a1"]);
        let others = RULES.replace("a*", readable);
        let others = Rules::parse(others.as_bytes(), 2).expect("rules");
        context.broker.services.rules.set(others);
        StoreRequests::default().answer_reply(&mut context, 0, &Reply::NoValue);
        assert_eq!(context.requests.len(), 0);
        let gets = context.broker.metrics.store_commands.of(Verb::Get);
        let counted = [Outcome::Absent, Outcome::Error].map(|outcome| gets.of(outcome).get());
        let expected = [u64::from(is_answered), u64::from(!is_answered)];
        assert_eq!(counted, expected, "{readable}");
    }
}
