//! Conversations of devices and modules, byte for byte, without socket, log and other nodes.

use super::*;
use crate::codec::{PublishProperties, Version};
use crate::connection::rights::ClientRights;
use crate::registry::IdentityId;

/// The identity `devA` with MQTT 3.1.1 unless it is told otherwise.
struct Device {
    context: Context,
    hub: HubRequests,
}

const GET: &str = "$iothub/twin/GET/?$rid=1";
const PATCH: &str = "$iothub/twin/PATCH/properties/reported/?$rid=2";

impl Device {
    fn new(version: Version) -> Device {
        let id = IdentityId::device("devA").expect("an id");
        let identity = Arc::new(HubIdentity::new(id, 7, &[1; 16], String::new(), 0));
        let mut context = Context::for_tests(true);
        context.options.version = version;
        let client = context.rights.client().clone();
        *context.rights = ClientRights::of(client, Some(identity.clone()));
        Device {
            context,
            hub: HubRequests::new(Some(identity)),
        }
    }

    fn try_publish(
        &mut self,
        topic: &str,
        qos: QoS,
        packet_id: u16,
        payload: &[u8],
    ) -> Result<Option<Flow>, Ended> {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: PacketId::new(packet_id).filter(|_| qos != QoS::AtMostOnce),
            properties: PublishProperties::EMPTY,
            payload,
        };
        self.hub.handle_publish(&mut self.context, topic, &publish)
    }

    /// With QoS 1.
    fn publish(&mut self, topic: &str, packet_id: u16, payload: &[u8]) -> Flow {
        let published = self.try_publish(topic, QoS::AtLeastOnce, packet_id, payload);
        let flow = published.expect("the connection goes on");
        flow.expect("it is for the hub")
    }

    fn replied(&mut self, request_id: RequestId, reported: Reported) {
        let reply = Reply::Hub(HubReply::Reported(reported));
        let replied = self.hub.handle_reply(&mut self.context, request_id, &reply);
        assert!(replied.is_ok());
    }

    fn passed(&mut self, request_id: RequestId) {
        self.hub.handle_barrier(&mut self.context, request_id);
    }

    /// What one turn does with GETs that are due: the number of answers.
    fn answered(&mut self) -> usize {
        let before = self.waiting();
        assert!(self.hub.answer_due(&mut self.context).is_ok());
        before - self.waiting()
    }

    fn waiting(&self) -> usize {
        self.hub
            .state
            .as_ref()
            .map_or(0, |state| state.waiting.len())
    }

    /// What goes to the client, acknowledgements behind everything else.
    fn sent(&mut self) -> Vec<u8> {
        let mut sent = std::mem::take(&mut self.context.output.packets().bytes);
        sent.extend(self.context.take_acknowledgements());
        sent
    }

    fn command(&self, topic: &str, dup: bool, payload: &[u8]) -> Result<PatchReported, Answer> {
        self.command_of(topic, dup, 1, payload)
    }

    fn command_of(
        &self,
        topic: &str,
        dup: bool,
        packet_id: u16,
        payload: &[u8],
    ) -> Result<PatchReported, Answer> {
        let state = self.hub.state.as_ref().expect("it is an identity");
        let Publication::Patch(request) = state.identity.topics.publication(topic) else {
            panic!("{topic} is no PATCH");
        };
        let publish = Publish {
            dup,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic,
            packet_id: PacketId::new(packet_id),
            properties: PublishProperties::EMPTY,
            payload,
        };
        state.command(&self.context, &publish, request)
    }
}

/// A PUBLISH with QoS 0 of MQTT 3.1.1.
fn message(topic: &str, payload: &str) -> Vec<u8> {
    let mut packet = vec![0x30];
    let length = 2 + topic.len() + payload.len();
    match length {
        ..128 => packet.push(length as u8),
        _ => packet.extend([(length % 128) as u8 | 0x80, (length / 128) as u8]),
    }
    packet.extend((topic.len() as u16).to_be_bytes());
    packet.extend(topic.as_bytes());
    packet.extend(payload.as_bytes());
    packet
}

fn puback(packet_id: u16) -> Vec<u8> {
    let [high, low] = packet_id.to_be_bytes();
    vec![0x40, 2, high, low]
}

#[test]
fn the_answer_to_a_patch_goes_before_its_acknowledgement() {
    let mut device = Device::new(Version::V311);
    assert_eq!(device.publish(PATCH, 5, b"{\"a\":1}"), Flow::Continue);
    assert_eq!(device.sent(), [0; 0], "nothing before it is committed");
    device.replied(0, Reported::Patched(3));
    let answer = message("$iothub/twin/res/204/?$rid=2&$version=3", "");
    assert_eq!(device.sent(), [answer, puback(5)].concat());
    assert_eq!(device.context.requests.len(), 0);
    // With QoS 0 there is nothing to acknowledge.
    let published = device.try_publish(PATCH, QoS::AtMostOnce, 0, b"{}");
    assert!(matches!(published, Ok(Some(Flow::Continue))));
    device.replied(0, Reported::Patched(4));
    assert_eq!(
        device.sent(),
        message("$iothub/twin/res/204/?$rid=2&$version=4", "")
    );
    let metrics = &device.context.broker.metrics;
    let patches = metrics.hub_requests.of(HubOperation::PatchReported);
    assert_eq!(patches.of(Outcome::Ok).get(), 2);
    assert_eq!(metrics.hub_request_seconds.count(), 2);
}

#[test]
fn patches_may_be_under_way_together_and_are_answered_in_their_order() {
    let mut device = Device::new(Version::V311);
    for packet_id in 1..=3 {
        let topic = format!("$iothub/twin/PATCH/properties/reported/?$rid={packet_id}");
        let payload: &[u8] = match packet_id {
            // What is wrong is known at once, and said in its turn.
            2 => b"[]",
            _ => b"{}",
        };
        assert_eq!(device.publish(&topic, packet_id, payload), Flow::Continue);
    }
    assert_eq!(device.context.requests.len(), 2);
    assert_eq!(device.sent(), [0; 0]);
    device.replied(1, Reported::Patched(9));
    assert_eq!(device.sent(), [0; 0], "an earlier one is missing");
    device.replied(0, Reported::Patched(8));
    let sent = device.sent();
    let first = message("$iothub/twin/res/204/?$rid=1&$version=8", "");
    let last = message("$iothub/twin/res/204/?$rid=3&$version=9", "");
    assert!(sent.starts_with(&first));
    let end = [last, puback(1), puback(2), puback(3)].concat();
    assert!(sent.ends_with(&end));
    let between = &sent[first.len()..sent.len() - end.len()];
    let text = String::from_utf8_lossy(between);
    assert!(
        text.contains("$iothub/twin/res/400/?$rid=2{\"errorCode\":400004,"),
        "{text}"
    );
}

/// A GET sees what was patched before it, and no PATCH overtakes a GET.
#[test]
fn requests_of_two_kinds_wait_for_each_other() {
    let mut device = Device::new(Version::V311);
    assert_eq!(device.publish(PATCH, 1, b"{}"), Flow::Continue);
    assert_eq!(device.publish(GET, 2, b""), Flow::Retry);
    device.replied(0, Reported::Patched(2));
    assert_eq!(device.publish(GET, 2, b" "), Flow::Continue);
    assert_eq!(device.publish(GET, 3, b""), Flow::Continue);
    assert_eq!(device.publish(PATCH, 4, b"{}"), Flow::Retry);
    device.passed(0);
    device.passed(1);
    assert_eq!(
        device.publish(PATCH, 4, b"{}"),
        Flow::Retry,
        "they are not read"
    );
    assert_eq!(device.answered(), 2);
    assert_eq!(device.publish(PATCH, 4, b"{}"), Flow::Continue);
}

/// [MQTT-3.3.4-7]: messages with QoS 0 do not count against the receive maximum.
#[test]
fn requests_count_as_messages_that_are_not_acknowledged_if_they_are() {
    let mut device = Device::new(Version::V5);
    for topic in [GET, PATCH] {
        let published = device.try_publish(topic, QoS::AtMostOnce, 0, b"{}");
        assert!(matches!(published, Ok(Some(Flow::Continue))));
        assert_eq!(device.context.requests.stores(), 0, "{topic}");
        assert_eq!(device.publish(topic, 1, b"{}"), Flow::Continue);
        assert_eq!(device.context.requests.stores(), 1, "{topic}");
        for request_id in 0..2 {
            match topic {
                GET => device.passed(request_id),
                _ => device.replied(request_id, Reported::Patched(2)),
            }
        }
        device.answered();
        assert_eq!(device.waiting(), 0);
    }
}

#[test]
fn so_many_requests_may_be_under_way() {
    let mut device = Device::new(Version::V311);
    for packet_id in 1..=16 {
        assert_eq!(device.publish(PATCH, packet_id, b"{}"), Flow::Continue);
    }
    assert_eq!(device.publish(PATCH, 17, b"{}"), Flow::Retry);
    assert!(device.hub.memory() > 0);
    device.replied(0, Reported::Patched(2));
    assert_eq!(device.publish(PATCH, 17, b"{}"), Flow::Continue);
}

#[test]
fn what_is_wrong_with_a_patch_is_said() {
    let device = Device::new(Version::V311);
    let failure = |topic: &str, payload: &[u8]| match device.command(topic, false, payload) {
        Err(Answer::Failed(failure, _)) => Some(failure),
        Err(answer) => panic!("{answer:?}"),
        Ok(_) => None,
    };
    let deep = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
    for payload in ["", "{", "{\"a\":}", "{} x", "\u{feff}{}", &deep] {
        assert_eq!(
            failure(PATCH, payload.as_bytes()),
            Some(Failure::Malformed),
            "{payload}"
        );
    }
    assert_eq!(
        failure(PATCH, b"{\"a\":\"\xff\"}"),
        Some(Failure::Malformed)
    );
    for payload in [
        "[]",
        "1",
        "null",
        "{\"a.b\":1}",
        "{\"a\":[null]}",
        "{\"a\":4503599627370496}",
    ] {
        assert_eq!(
            failure(PATCH, payload.as_bytes()),
            Some(Failure::Invalid),
            "{payload}"
        );
    }
    for version in ["", "x", "+1", "-1", "18446744073709551616"] {
        let topic = format!("{PATCH}&$version={version}");
        assert_eq!(failure(&topic, b"{}"), Some(Failure::Invalid), "{version}");
    }
    let padded = |length: usize| {
        let mut payload = b"{}".to_vec();
        payload.resize(length, b' ');
        payload
    };
    assert_eq!(failure(PATCH, &padded(256 << 10)), None);
    assert_eq!(
        failure(PATCH, &padded((256 << 10) + 1)),
        Some(Failure::Invalid)
    );
}

#[test]
fn a_patch_that_comes_again_is_known_by_its_id_and_content() {
    let device = Device::new(Version::V311);
    let command = |topic: &str, dup, payload: &str| {
        let command = device.command(topic, dup, payload.as_bytes());
        command.expect("nothing is wrong with it")
    };
    let conditional = format!("{PATCH}&$version=7");
    let (first, again) = (command(PATCH, false, "{}"), command(PATCH, true, "{}"));
    assert!(first.remember);
    assert_eq!(first.client_id, "client");
    assert!(!first.dup && again.dup && first.fingerprint == again.fingerprint);
    assert_eq!(first.fingerprint.len(), 16);
    assert_ne!(first.fingerprint, command(PATCH, false, "{ }").fingerprint);
    let guarded = command(&conditional, false, "{}");
    let other_rid = command(
        "$iothub/twin/PATCH/properties/reported/?$rid=3",
        false,
        "{}",
    );
    assert_ne!(first.fingerprint, other_rid.fingerprint);
    // Numbers begin anew with each run of a client, but seldom all of them alike.
    let other_packet = device.command_of(PATCH, true, 2, b"{}");
    let other_packet = other_packet.expect("nothing is wrong with it");
    assert_ne!(first.fingerprint, other_packet.fingerprint);
    assert_ne!(first.fingerprint, guarded.fingerprint);
    assert_eq!(
        (first.expected_version, guarded.expected_version),
        (None, Some(7))
    );
}

#[test]
fn what_apply_refuses_has_its_status() {
    let too_large = crate::twin::TooLarge {
        measure: crate::twin::Measure::Size,
        size: 9,
        most: 7,
    };
    for (reported, beginning, outcome) in [
        (
            Reported::Precondition,
            "412/?$rid=2{\"errorCode\":412001,",
            Outcome::Refused,
        ),
        (
            Reported::TooLarge(too_large),
            "400/?$rid=2{\"errorCode\":400004,",
            Outcome::Error,
        ),
        (
            Reported::Invalid,
            "500/?$rid=2{\"errorCode\":500001,",
            Outcome::Error,
        ),
    ] {
        let mut device = Device::new(Version::V311);
        device.publish(PATCH, 5, b"{}");
        device.replied(0, reported);
        let sent = device.sent();
        assert!(
            String::from_utf8_lossy(&sent).contains(beginning),
            "{beginning}"
        );
        assert!(sent.ends_with(&puback(5)), "it is answered all the same");
        let metrics = &device.context.broker.metrics.hub_requests;
        assert_eq!(metrics.of(HubOperation::PatchReported).of(outcome).get(), 1);
    }
}

/// Whoever lost the session is about to be ended: it is answered nothing.
#[test]
fn a_former_owner_is_not_answered() {
    let mut device = Device::new(Version::V311);
    device.publish(PATCH, 5, b"{}");
    let replied = device
        .hub
        .handle_reply(&mut device.context, 0, &Reply::NotOwner);
    assert!(replied.is_ok());
    assert_eq!(device.sent(), [0; 0]);
    assert_eq!(device.context.requests.len(), 0);
}

#[test]
fn a_foreign_topic_is_refused_or_ends_the_connection() {
    for topic in [
        "a",
        "devices/devB/messages/events/",
        "$SYS/x",
        crate::store::topics::INVOKE,
    ] {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut old = Device::new(Version::V311);
            assert!(old.try_publish(topic, qos, 7, b"").is_err(), "{topic}");
            let mut new = Device::new(Version::V5);
            let published = new.try_publish(topic, qos, 7, b"");
            let sent = new.sent();
            match qos {
                QoS::AtMostOnce => assert!(published.is_err()),
                QoS::AtLeastOnce => assert_eq!((sent[0], &sent[2..5]), (0x40, &[0, 7, 0x87][..])),
                QoS::ExactlyOnce => assert_eq!((sent[0], &sent[2..5]), (0x50, &[0, 7, 0x87][..])),
            }
        }
    }
}

#[test]
fn the_hub_has_its_topics_and_no_others_and_no_qos_2() {
    for version in [Version::V311, Version::V5] {
        for (topic, qos) in [
            (GET, QoS::ExactlyOnce),
            (PATCH, QoS::ExactlyOnce),
            ("$iothub/methods/res/200/?$rid=1", QoS::ExactlyOnce),
            ("$iothub/x", QoS::AtLeastOnce),
            ("$iothub/twin/res/200/", QoS::AtMostOnce),
        ] {
            let mut device = Device::new(version);
            let ended = device.try_publish(topic, qos, 7, b"").expect_err(topic);
            assert_eq!(ended.event, DisconnectionReason::ClientError, "{topic}");
        }
    }
    let mut device = Device::new(Version::V311);
    let answer = "$iothub/methods/res/200/?$rid=1";
    assert_eq!(device.publish(answer, 7, b"{}"), Flow::Continue);
    assert_eq!(device.sent(), puback(7), "acknowledged and dropped");
    let own = device.try_publish("devices/devA/messages/events/", QoS::AtLeastOnce, 7, b"");
    assert!(matches!(own, Ok(None)), "an ordinary message");
}

#[test]
fn an_answer_that_the_client_does_not_accept_ends_its_connection() {
    let mut device = Device::new(Version::V5);
    device.context.options.limits.max_packet_size = 20;
    device.publish(PATCH, 5, b"{}");
    let reply = Reply::Hub(HubReply::Reported(Reported::Patched(2)));
    let replied = device.hub.handle_reply(&mut device.context, 0, &reply);
    let ended = replied.expect_err("it would wait for ever");
    assert_eq!(ended.reason, Some(ReasonCode::PacketTooLarge));
}

/// Whether anybody has subscribed to the messages of a device is nothing that it is told.
#[test]
fn a_message_succeeds_with_subscribers_or_without() {
    let mut device = Device::new(Version::V5);
    let packet_id = PacketId::new(7).expect("not zero");
    let reason = ReasonCode::NoMatchingSubscribers;
    device
        .context
        .acknowledge(packet_id, QoS::AtLeastOnce, reason, None);
    assert_eq!(device.sent(), puback(7));
    *device.context.rights = ClientRights::new(device.context.rights.client().clone());
    device
        .context
        .acknowledge(packet_id, QoS::AtLeastOnce, reason, None);
    assert_eq!(device.sent(), [0x40, 3, 0, 7, 0x10]);
}

#[test]
fn whoever_is_no_identity_has_nothing_of_this() {
    let mut other = Device::new(Version::V5);
    other.hub = HubRequests::new(None);
    let published = other.try_publish(GET, QoS::AtLeastOnce, 7, b"");
    assert!(matches!(published, Ok(None)));
    assert_eq!(other.hub.memory(), 0);
}

#[path = "requests_turns_tests.rs"]
mod turns;
