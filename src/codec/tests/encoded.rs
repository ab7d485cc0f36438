//! Exact bytes of what a server writes, and what it leaves out.

use super::super::*;
use super::*;
use Version::{V5, V31, V311};
use std::num::NonZeroU16;

const NO_PROBLEMS: PeerLimits = PeerLimits {
    problem_information: false,
    ..PeerLimits::NONE
};

fn within(max_packet_size: u32) -> PeerLimits {
    PeerLimits {
        max_packet_size,
        problem_information: true,
    }
}

/// What `write` appends behind bytes that are already there; its size is what it says.
fn written(
    write: impl FnOnce(&mut Vec<u8>) -> Result<usize, EncodeError>,
) -> Result<Vec<u8>, EncodeError> {
    let mut out = b"before".to_vec();
    let result = write(&mut out);
    let packet = out
        .strip_prefix(b"before")
        .expect("only appended to")
        .to_vec();
    match result {
        Ok(size) => assert_eq!(size, packet.len()),
        Err(_) => assert!(packet.is_empty(), "nothing is written on an error"),
    }
    result.map(|_| packet)
}

#[test]
fn connack_of_each_version() {
    let present = ConnAck::accepted(true);
    let bytes =
        |version| written(|out| encode::connack(out, version, &present, PeerLimits::NONE)).unwrap();
    // 3.1 has no session present flag; an empty property list is written as 0 [MQTT-2.2.2-1].
    assert_eq!(bytes(V31), [0x20, 2, 0, 0]);
    assert_eq!(bytes(V311), [0x20, 2, 1, 0]);
    assert_eq!(bytes(V5), [0x20, 3, 1, 0, 0]);
}

#[test]
fn a_refusal_never_says_session_present() {
    // [MQTT-3.2.2-6] [MQTT311-3.2.2-4]
    let refused = ConnAck {
        session_present: true,
        ..ConnAck::refused(ReasonCode::ServerUnavailable)
    };
    assert_eq!(
        written(|out| encode::connack(out, V5, &refused, PeerLimits::NONE)).unwrap(),
        [0x20, 3, 0, 0x88, 0]
    );
    assert_eq!(
        written(|out| encode::connack(out, V311, &refused, PeerLimits::NONE)).unwrap(),
        [0x20, 2, 0, 3]
    );
}

#[test]
fn a_reason_without_a_return_code_has_no_connack_before_v5() {
    // [MQTT311-3.2.2-6]
    let refused = ConnAck::refused(ReasonCode::MalformedPacket);
    let result = written(|out| encode::connack(out, V311, &refused, PeerLimits::NONE));
    assert_eq!(
        result,
        Err(EncodeError::ReasonCodeNotAllowed(
            ReasonCode::MalformedPacket
        ))
    );
    // [MQTT-3.2.2-8]
    let taken = ConnAck::refused(ReasonCode::SessionTakenOver);
    assert!(written(|out| encode::connack(out, V5, &taken, PeerLimits::NONE)).is_err());
}

#[test]
fn connack_leaves_out_user_properties_then_the_reason_string_when_too_large() {
    // [MQTT-3.2.2-19] [MQTT-3.2.2-20]; problem information 0 does not concern CONNACK [MQTT-3.1.2-29].
    let pairs = [("key", "value")];
    let connack = ConnAck {
        properties: ConnAckProperties {
            assigned_client_id: Some("id"),
            reason_string: Some("because"),
            user_properties: UserProperties::from_pairs(&pairs),
            ..ConnAckProperties::default()
        },
        ..ConnAck::accepted(false)
    };
    let size =
        |limits| written(|out| encode::connack(out, V5, &connack, limits)).map(|bytes| bytes.len());
    assert_eq!(size(PeerLimits::NONE), Ok(33));
    assert_eq!(size(NO_PROBLEMS), Ok(33));
    assert_eq!(size(within(33)), Ok(33));
    assert_eq!(size(within(32)), Ok(20));
    assert_eq!(size(within(19)), Ok(10));
    assert_eq!(
        size(within(9)),
        Err(EncodeError::TooLarge { size: 10, max: 9 })
    );
}

#[test]
fn maximum_qos_2_is_said_by_leaving_it_out() {
    let mut connack = ConnAck::accepted(false);
    connack.properties.maximum_qos = Some(QoS::ExactlyOnce);
    assert_eq!(
        written(|out| encode::connack(out, V5, &connack, PeerLimits::NONE)).unwrap(),
        [0x20, 3, 0, 0, 0]
    );
    connack.properties.maximum_qos = Some(QoS::AtLeastOnce);
    assert_eq!(
        written(|out| encode::connack(out, V5, &connack, PeerLimits::NONE)).unwrap(),
        [0x20, 5, 0, 0, 2, 0x24, 1]
    );
}

#[test]
fn acknowledgements_are_as_short_as_can_be() {
    let success = Ack::success(id(0x1234));
    let failed = Ack::with_reason(id(0x1234), ReasonCode::QuotaExceeded);
    let ack = |version, ack: &Ack<'_>| {
        written(|out| encode::puback(out, version, ack, PeerLimits::NONE)).unwrap()
    };
    assert_eq!(ack(V5, &success), [0x40, 2, 0x12, 0x34]);
    assert_eq!(ack(V5, &failed), [0x40, 3, 0x12, 0x34, 0x97]);
    assert_eq!(ack(V311, &failed), [0x40, 2, 0x12, 0x34]);
    assert_eq!(
        written(|out| encode::pubrec(out, V5, &success, PeerLimits::NONE)).unwrap()[0],
        0x50
    );
    assert_eq!(
        written(|out| encode::pubrel(out, V5, &success, PeerLimits::NONE)).unwrap()[0],
        0x62
    );
    assert_eq!(
        written(|out| encode::pubcomp(out, V5, &success, PeerLimits::NONE)).unwrap()[0],
        0x70
    );
    // [MQTT-3.6.2-1]
    assert!(written(|out| encode::pubrel(out, V5, &failed, PeerLimits::NONE)).is_err());
}

#[test]
fn acknowledgements_drop_their_extras_when_unwanted_or_too_large() {
    // [MQTT-3.1.2-29] [MQTT-3.4.2-2] [MQTT-3.4.2-3]
    let pairs = [("k", "v")];
    let ack = Ack {
        reason_string: Some("r"),
        user_properties: UserProperties::from_pairs(&pairs),
        ..Ack::with_reason(id(1), ReasonCode::NotAuthorized)
    };
    let bytes = |limits| written(|out| encode::puback(out, V5, &ack, limits)).unwrap();
    assert_eq!(
        bytes(PeerLimits::NONE),
        b"\x40\x0F\0\x01\x87\x0B\x1F\0\x01r\x26\0\x01k\0\x01v"
    );
    assert_eq!(bytes(within(16)), b"\x40\x08\0\x01\x87\x04\x1F\0\x01r");
    assert_eq!(bytes(within(9)), b"\x40\x03\0\x01\x87");
    assert_eq!(bytes(NO_PROBLEMS), b"\x40\x03\0\x01\x87");
    let result = written(|out| encode::puback(out, V5, &Ack::success(id(1)), within(3)));
    assert_eq!(result, Err(EncodeError::TooLarge { size: 4, max: 3 }));
}

#[test]
fn suback_says_why_in_v5_and_0x80_before() {
    // [MQTT311-3.9.3-2]
    let codes = [
        ReasonCode::GrantedQos2,
        ReasonCode::TopicFilterInvalid,
        ReasonCode::GRANTED_QOS_0,
    ];
    let suback = SubAck::new(id(7), &codes);
    let bytes =
        |version| written(|out| encode::suback(out, version, &suback, PeerLimits::NONE)).unwrap();
    assert_eq!(bytes(V5), [0x90, 6, 0, 7, 0, 2, 0x8F, 0]);
    assert_eq!(bytes(V311), [0x90, 5, 0, 7, 2, 0x80, 0]);
    // [MQTT-3.9.3-2]
    let wrong = SubAck::new(id(7), &[ReasonCode::NoSubscriptionExisted]);
    assert!(written(|out| encode::suback(out, V5, &wrong, PeerLimits::NONE)).is_err());
}

#[test]
fn unsuback_has_codes_in_v5_only() {
    let codes = [ReasonCode::Success, ReasonCode::NoSubscriptionExisted];
    let unsuback = UnsubAck::new(id(7), &codes);
    let bytes = |version| {
        written(|out| encode::unsuback(out, version, &unsuback, PeerLimits::NONE)).unwrap()
    };
    assert_eq!(bytes(V5), [0xB0, 5, 0, 7, 0, 0, 0x11]);
    assert_eq!(bytes(V311), [0xB0, 2, 0, 7]);
}

#[test]
fn disconnect_and_auth_are_v5_and_each_sides_own() {
    let bye = Disconnect {
        session_expiry: Some(3),
        ..Disconnect::new(ReasonCode::ServerShuttingDown)
    };
    // [MQTT-3.14.2-2]
    assert_eq!(
        written(|out| encode::disconnect(out, V5, &bye, PeerLimits::NONE)).unwrap(),
        [0xE0, 1, 0x8B]
    );
    assert_eq!(
        written(|out| encode::disconnect(out, V311, &bye, PeerLimits::NONE)),
        Err(EncodeError::Version)
    );
    assert!(written(|out| client::disconnect(out, V5, &bye, PeerLimits::NONE)).is_err());
    let normal = Disconnect::new(ReasonCode::NORMAL_DISCONNECTION);
    for version in VERSIONS {
        assert_eq!(
            written(|out| client::disconnect(out, version, &normal, PeerLimits::NONE)).unwrap(),
            [0xE0, 0]
        );
    }
    let auth = Auth::new(ReasonCode::ContinueAuthentication, "m", None);
    assert_eq!(
        written(|out| encode::auth(out, V5, &auth, PeerLimits::NONE)).unwrap(),
        b"\xF0\x06\x18\x04\x15\0\x01m"
    );
    assert_eq!(
        written(|out| encode::auth(out, V311, &auth, PeerLimits::NONE)),
        Err(EncodeError::Version)
    );
    let again = Auth::new(ReasonCode::ReAuthenticate, "m", None);
    assert!(written(|out| encode::auth(out, V5, &again, PeerLimits::NONE)).is_err());
    assert!(written(|out| client::auth(out, V5, &again, PeerLimits::NONE)).is_ok());
}

#[test]
fn pings_are_two_bytes() {
    assert_eq!(written(|out| Ok(encode::pingresp(out))).unwrap(), [0xD0, 0]);
    assert_eq!(written(|out| Ok(client::pingreq(out))).unwrap(), [0xC0, 0]);
}

#[test]
fn publish_is_patched_per_subscriber() {
    let bytes = |header: &PublishHeader<'_>| {
        written(|out| encode_publish(out, "t", &[0x01, 1], b"xy", header)).unwrap()
    };
    let plain = PublishHeader::plain(V5);
    assert_eq!(bytes(&plain), b"\x30\x08\0\x01t\x02\x01\x01xy");
    assert_eq!(
        bytes(&PublishHeader {
            retain: true,
            ..plain
        }),
        b"\x31\x08\0\x01t\x02\x01\x01xy"
    );
    assert_eq!(bytes(&PublishHeader::plain(V311)), b"\x30\x05\0\x01txy");
    let qos1 = PublishHeader {
        qos: QoS::AtLeastOnce,
        dup: true,
        packet_id: Some(id(0x102)),
        ..plain
    };
    assert_eq!(bytes(&qos1), b"\x3A\x0A\0\x01t\x01\x02\x02\x01\x01xy");
    assert_eq!(
        bytes(&PublishHeader {
            version: V31,
            ..qos1
        }),
        b"\x3A\x07\0\x01t\x01\x02xy"
    );
    // DUP and packet id do not go with QoS 0 [MQTT-3.3.1-2] [MQTT-2.2.1-2].
    assert_eq!(
        bytes(&PublishHeader {
            qos: QoS::AtMostOnce,
            ..qos1
        }),
        bytes(&plain)
    );
    let full = PublishHeader {
        subscription_ids: &[1, 300],
        remaining_expiry: Some(9),
        topic_alias: Some(TopicAlias {
            alias: NonZeroU16::new(5).unwrap(),
            send_topic: false,
        }),
        ..plain
    };
    assert_eq!(
        bytes(&full),
        b"\x30\x14\0\0\x0F\x23\0\x05\x02\0\0\0\x09\x0B\x01\x0B\xAC\x02\x01\x01xy"
    );
    // Before 5.0 there is no alias, so the topic is needed.
    assert_eq!(
        bytes(&PublishHeader {
            version: V311,
            ..full
        }),
        bytes(&PublishHeader::plain(V311))
    );
}

#[test]
fn a_publish_that_does_not_fit_is_not_written() {
    // [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    let header = |max| PublishHeader {
        max_packet_size: max,
        ..PublishHeader::plain(V5)
    };
    let publish = |max| written(|out| encode_publish(out, "t", &[], &[0; 200], &header(max)));
    assert_eq!(publish(207).map(|bytes| bytes.len()), Ok(207));
    let too_large = Err(EncodeError::TooLarge {
        size: 207,
        max: 206,
    });
    assert_eq!(publish(206), too_large);
}

#[test]
fn the_size_limit_counts_what_is_added_per_subscriber() {
    let header = PublishHeader {
        remaining_expiry: Some(1),
        max_packet_size: 11,
        ..PublishHeader::plain(V5)
    };
    assert_eq!(
        written(|out| encode_publish(out, "t", &[], b"x", &header)),
        Err(EncodeError::TooLarge { size: 12, max: 11 })
    );
}

#[test]
fn a_publish_needs_its_packet_id_and_real_subscription_ids() {
    let bad =
        |delivery: PublishHeader<'_>| written(|out| encode_publish(out, "t", &[], &[], &delivery));
    let plain = PublishHeader::plain(V5);
    assert_eq!(
        bad(PublishHeader {
            qos: QoS::AtLeastOnce,
            ..plain
        }),
        Err(EncodeError::PacketIdMissing)
    );
    assert_eq!(
        bad(PublishHeader {
            subscription_ids: &[0],
            ..plain
        }),
        Err(EncodeError::VariableByteInteger(0))
    );
    let large = MAX_REMAINING_LENGTH + 1;
    assert_eq!(
        bad(PublishHeader {
            subscription_ids: &[large],
            ..plain
        }),
        Err(EncodeError::VariableByteInteger(large))
    );
}

#[test]
fn fields_longer_than_65535_bytes_are_refused() {
    let long = "x".repeat(65_536);
    let longest = &long[1..];
    let publish =
        |topic| written(|out| encode_publish(out, topic, &[], &[], &PublishHeader::plain(V5)));
    assert_eq!(publish(&long), Err(EncodeError::FieldTooLong(65_536)));
    assert!(publish(longest).is_ok());
    let mut connack = ConnAck::accepted(false);
    connack.properties.assigned_client_id = Some(&long);
    let result = written(|out| encode::connack(out, V5, &connack, PeerLimits::NONE));
    assert_eq!(result, Err(EncodeError::FieldTooLong(65_536)));
    let mut list = PublishPropertiesBuf::new();
    assert_eq!(
        list.push_user("k", &long).err(),
        Some(EncodeError::FieldTooLong(65_536))
    );
    assert!(list.raw().is_empty(), "a failed push leaves nothing behind");
    assert!(list.push_user("k", longest).is_ok());
}

#[test]
fn packets_larger_than_the_protocol_can_say_are_refused() {
    let payload = vec![0_u8; MAX_REMAINING_LENGTH as usize];
    let result = written(|out| encode_publish(out, "", &[], &payload, &PublishHeader::plain(V311)));
    assert_eq!(
        result,
        Err(EncodeError::TooLarge {
            size: 268_435_462,
            max: MAX_PACKET_SIZE
        })
    );
    let size =
        written(|out| encode_publish(out, "", &[], &payload[2..], &PublishHeader::plain(V311)))
            .map(|bytes| bytes.len());
    assert_eq!(size, Ok(MAX_PACKET_SIZE as usize));
}

#[test]
fn lengths_at_the_edges_of_the_variable_byte_integer_are_minimal() {
    // [MQTT-1.5.5-1]
    for remaining in [127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
        let payload = vec![0; remaining - 3];
        let mut bytes = Vec::new();
        encode_publish(&mut bytes, "t", &[], &payload, &PublishHeader::plain(V311)).unwrap();
        let frame = only_frame(&bytes);
        assert_eq!(frame.body.len(), remaining);
        let text = "r".repeat(remaining.min(60_000));
        let ack = Ack {
            reason_string: Some(&text),
            ..Ack::with_reason(id(1), ReasonCode::UnspecifiedError)
        };
        bytes.clear();
        encode::puback(&mut bytes, V5, &ack, PeerLimits::NONE).unwrap();
        assert_eq!(decode(V5, only_frame(&bytes)), Ok(Packet::PubAck(ack)));
    }
}

#[test]
fn all_27_properties_have_their_identifier() {
    assert_eq!(PropertyId::ALL.len(), 27);
    let numbers = PropertyId::ALL
        .iter()
        .map(|id| *id as u8)
        .collect::<Vec<_>>();
    assert_eq!(
        numbers,
        [
            1, 2, 3, 8, 9, 11, 17, 18, 19, 21, 22, 23, 24, 25, 26, 28, 31, 33, 34, 35, 36, 37, 38,
            39, 40, 41, 42
        ]
    );
}
