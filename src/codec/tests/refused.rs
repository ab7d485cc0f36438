//! Every violation the decoders know, provoked by the bytes that commit it.

use std::collections::HashSet;

use super::super::{DecodeError, Version, frame};
use super::*;
use DecodeError as E;
use Version::{V5, V31, V311};

/// Bytes to a server after the CONNECT.
const TO_SERVER: &[(Version, &[u8], DecodeError)] = &[
    // Frame.
    (V5, &[0x00, 0], E::PacketTypeReserved),
    (
        V5,
        &[0xC0, 0x80, 0x80, 0x80, 0x80, 0x01],
        E::RemainingLengthTooLong,
    ),
    (V5, &[0xC0, 0x80, 0x00], E::RemainingLengthNotMinimal),
    // [MQTT-2.1.3-1], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1], [MQTT-3.14.1-1], [MQTT-3.15.1-1]
    (V5, &[0x41, 2, 0, 1], E::HeaderFlags),
    (V5, &[0x52, 2, 0, 1], E::HeaderFlags),
    (V5, &[0x60, 2, 0, 1], E::HeaderFlags),
    (V5, &[0x63, 2, 0, 1], E::HeaderFlags),
    (V5, &[0x78, 2, 0, 1], E::HeaderFlags),
    (V5, &[0x80, 7, 0, 1, 0, 0, 1, b'a', 0], E::HeaderFlags),
    (V5, &[0xA0, 6, 0, 1, 0, 0, 1, b'a'], E::HeaderFlags),
    (V5, &[0xC1, 0], E::HeaderFlags),
    (V5, &[0xE1, 0], E::HeaderFlags),
    (V5, &[0xF2, 0], E::HeaderFlags),
    (V311, &[0x6A, 2, 0, 1], E::HeaderFlags),
    (V311, &[0x8A, 6, 0, 1, 0, 1, b'a', 0], E::HeaderFlags),
    (V31, &[0x48, 2, 0, 1], E::HeaderFlags),
    // Direction and version.
    (V5, &[0x10, 0], E::SecondConnect),
    (V5, &[0x20, 3, 0, 0, 0], E::PacketFromWrongSide),
    (V5, &[0x90, 4, 0, 1, 0, 0], E::PacketFromWrongSide),
    (V311, &[0xB0, 2, 0, 1], E::PacketFromWrongSide),
    (V311, &[0xD0, 0], E::PacketFromWrongSide),
    (V311, &[0xF0, 0], E::AuthBeforeV5),
    // Exact consumption.
    (V5, &[0x30, 1, 0], E::BodyTooShort),
    (V5, &[0x30, 3, 0, 2, b'a'], E::BodyTooShort),
    (V5, &[0x30, 3, 0, 1, b'a'], E::BodyTooShort),
    (V5, &[0x30, 4, 0, 1, b'a', 1], E::BodyTooShort),
    (V311, &[0x40, 1, 0], E::BodyTooShort),
    (V311, &[0x40, 3, 0, 1, 0], E::BodyTooLong),
    (V5, &[0x40, 5, 0, 1, 0, 0, 0], E::BodyTooLong),
    (V5, &[0xC0, 1, 0], E::BodyTooLong),
    (V311, &[0xE0, 1, 0], E::BodyTooLong),
    (V311, &[0x82, 5, 0, 1, 0, 1, b'a'], E::BodyTooShort),
    (V311, &[0xA2, 4, 0, 1, 0, 1], E::BodyTooShort),
    // Variable byte integers [MQTT-1.5.5-1].
    (
        V5,
        &[0x30, 8, 0, 1, b'a', 0x80, 0x80, 0x80, 0x80, 0x01],
        E::VariableByteIntegerTooLong,
    ),
    (
        V5,
        &[0x30, 5, 0, 1, b'a', 0x80, 0x00],
        E::VariableByteIntegerNotMinimal,
    ),
    (
        V5,
        &[0x82, 10, 0, 1, 3, 0x0B, 0x81, 0x00, 0, 1, b'a', 0],
        E::VariableByteIntegerNotMinimal,
    ),
    // Strings [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.7-1].
    (V311, &[0x30, 3, 0, 1, 0xFF], E::StringNotUtf8),
    (V311, &[0x30, 5, 0, 3, 0xED, 0xA0, 0x80], E::StringNotUtf8),
    (V311, &[0x30, 3, 0, 1, 0], E::StringHasNul),
    (V311, &[0x82, 6, 0, 1, 0, 1, 0xC3, 0], E::StringNotUtf8),
    (V311, &[0x82, 6, 0, 1, 0, 1, 0, 0], E::StringHasNul),
    (V311, &[0xA2, 5, 0, 1, 0, 1, 0], E::StringHasNul),
    (
        V5,
        &[0x30, 9, 0, 0, 6, 0x26, 0, 1, 0, 0, 0],
        E::StringHasNul,
    ),
    // Packet identifiers [MQTT-2.2.1-3].
    (V5, &[0x32, 6, 0, 1, b'a', 0, 0, 0], E::PacketIdZero),
    (V311, &[0x40, 2, 0, 0], E::PacketIdZero),
    (V311, &[0x82, 6, 0, 0, 0, 1, b'a', 0], E::PacketIdZero),
    (V311, &[0xA2, 5, 0, 0, 0, 1, b'a'], E::PacketIdZero),
    // Reason codes [MQTT-3.4.2-1] [MQTT-3.6.2-1] [MQTT-3.14.2-1] [MQTT-3.15.2-1].
    (V5, &[0x40, 3, 0, 1, 0x01], E::ReasonCodeNotAllowed),
    (V5, &[0x50, 3, 0, 1, 0x92], E::ReasonCodeNotAllowed),
    (V5, &[0x62, 3, 0, 1, 0x80], E::ReasonCodeNotAllowed),
    (V5, &[0x70, 3, 0, 1, 0x10], E::ReasonCodeNotAllowed),
    (V5, &[0xE0, 1, 0x8E], E::ReasonCodeNotAllowed),
    (V5, &[0xE0, 1, 0x05], E::ReasonCodeNotAllowed),
    (V5, &[0xF0, 0], E::ReasonCodeNotAllowed),
    (V5, &[0xF0, 1, 0x00], E::ReasonCodeNotAllowed),
    // Properties.
    (V5, &[0x30, 5, 0, 1, b'a', 1, 0x7F], E::PropertyUnknown),
    (
        V5,
        &[0x30, 6, 0, 1, b'a', 2, 0xFF, 0x7F],
        E::PropertyUnknown,
    ),
    (
        V5,
        &[0x30, 9, 0, 1, b'a', 5, 0x11, 0, 0, 0, 1],
        E::PropertyNotAllowed,
    ),
    (V5, &[0x40, 6, 0, 1, 0, 2, 0x01, 0], E::PropertyNotAllowed),
    (V5, &[0xE0, 5, 0, 3, 0x1C, 0, 0], E::PropertyNotAllowed),
    (
        V5,
        &[0x30, 8, 0, 1, b'a', 4, 1, 0, 1, 0],
        E::PropertyRepeated,
    ),
    (
        V5,
        &[0x30, 10, 0, 1, b'a', 6, 0x23, 0, 1, 0x23, 0, 1],
        E::PropertyRepeated,
    ),
    (
        V5,
        &[0x82, 11, 0, 1, 4, 0x0B, 1, 0x0B, 2, 0, 1, b'a', 0],
        E::PropertyRepeated,
    ),
    (V5, &[0x30, 6, 0, 1, b'a', 2, 1, 2], E::PropertyOutOfRange),
    (
        V5,
        &[0x82, 9, 0, 1, 2, 0x0B, 0, 0, 1, b'a', 0],
        E::PropertyOutOfRange,
    ),
    (V5, &[0x30, 6, 0, 1, b'a', 2, 2, 0], E::PropertyLength),
    (V5, &[0x30, 5, 0, 1, b'a', 1, 1], E::PropertyLength),
    (V5, &[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 0], E::TopicAliasZero),
    (
        V5,
        &[0x30, 8, 0, 1, b'a', 4, 8, 0, 1, b'#'],
        E::ResponseTopicInvalid,
    ),
    (
        V5,
        &[0x30, 7, 0, 1, b'a', 3, 8, 0, 0],
        E::ResponseTopicInvalid,
    ),
    (
        V5,
        &[0x30, 6, 0, 1, b'a', 2, 0x0B, 1],
        E::SubscriptionIdFromClient,
    ),
    (V5, &[0xF0, 2, 0x18, 0], E::AuthenticationMethodMissing),
    (
        V5,
        &[0xF0, 5, 0x18, 3, 0x16, 0, 0],
        E::AuthenticationMethodMissing,
    ),
    // PUBLISH.
    (V5, &[0x36, 6, 0, 1, b'a', 0, 1, 0], E::PublishQosInvalid),
    (V31, &[0x36, 5, 0, 1, b'a', 0, 1], E::PublishQosInvalid),
    (V311, &[0x38, 3, 0, 1, b'a'], E::DupWithoutQos),
    (V311, &[0x30, 3, 0, 1, b'+'], E::TopicNameWildcard),
    (
        V5,
        &[0x30, 6, 0, 3, b'a', b'/', b'#', 0],
        E::TopicNameWildcard,
    ),
    (V311, &[0x30, 2, 0, 0], E::TopicNameEmpty),
    (V5, &[0x30, 3, 0, 0, 0], E::TopicNameEmpty),
    // SUBSCRIBE, UNSUBSCRIBE [MQTT-3.8.3-2] [MQTT-3.10.3-2].
    (V311, &[0x82, 2, 0, 1], E::NoTopicFilter),
    (V5, &[0x82, 3, 0, 1, 0], E::NoTopicFilter),
    (V5, &[0xA2, 3, 0, 1, 0], E::NoTopicFilter),
    (
        V311,
        &[0x82, 6, 0, 1, 0, 1, b'a', 0x04],
        E::SubscriptionOptionsReserved,
    ),
    (
        V5,
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x40],
        E::SubscriptionOptionsReserved,
    ),
    (
        V5,
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x03],
        E::SubscriptionQosInvalid,
    ),
    (
        V311,
        &[0x82, 6, 0, 1, 0, 1, b'a', 0x03],
        E::SubscriptionQosInvalid,
    ),
    (
        V5,
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x30],
        E::RetainHandlingInvalid,
    ),
    (
        V5,
        &[
            0x82, 16, 0, 1, 0, 0, 10, b'$', b's', b'h', b'a', b'r', b'e', b'/', b'g', b'/', b'a',
            0x04,
        ],
        E::NoLocalOnShared,
    ),
];

/// Bodies of a CONNECT behind protocol name, level and flags: `(name, level, flags, rest)`.
type ConnectCase = (&'static [u8], u8, u8, &'static [u8], DecodeError);

const CONNECTS: &[ConnectCase] = &[
    // [MQTT-3.1.2-1] [MQTT-3.1.2-2]
    (b"MQTX", 5, 2, &[0, 0, 0, 0, 0], E::ProtocolName),
    (b"mqtt", 4, 2, &[0, 0, 0, 0], E::ProtocolName),
    (b"", 4, 2, &[0, 0, 0, 0], E::ProtocolName),
    (b"MQTT", 6, 2, &[0, 0, 0, 0, 0], E::ProtocolLevel),
    (b"MQTT", 3, 2, &[0, 0, 0, 0], E::ProtocolLevel),
    (b"MQIsdp", 4, 2, &[0, 0, 0, 1, b'a'], E::ProtocolLevel),
    // [MQTT-3.1.2-3] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13]
    (b"MQTT", 4, 0x03, &[0, 0, 0, 0], E::ConnectFlagReserved),
    (b"MQTT", 5, 0x0A, &[0, 0, 0, 0, 0], E::WillFlagsWithoutWill),
    (b"MQTT", 5, 0x22, &[0, 0, 0, 0, 0], E::WillFlagsWithoutWill),
    (
        b"MQTT",
        5,
        0x1E,
        &[0, 0, 0, 0, 0, 0, 0, 1, b'w', 0, 0],
        E::WillQosInvalid,
    ),
    (
        b"MQTT",
        4,
        0x06,
        &[0, 0, 0, 0, 0, 1, b'#', 0, 0],
        E::WillTopicInvalid,
    ),
    (
        b"MQTT",
        4,
        0x06,
        &[0, 0, 0, 0, 0, 0, 0, 0],
        E::WillTopicInvalid,
    ),
    // [MQTT311-3.1.2-22]
    (
        b"MQTT",
        4,
        0x42,
        &[0, 0, 0, 0, 0, 1, b'p'],
        E::PasswordWithoutUserName,
    ),
    // [MQTT311-3.1.3-7] [MQTT311-3.1.3-8]
    (b"MQTT", 4, 0x00, &[0, 0, 0, 0], E::ClientIdMissing),
    (b"MQIsdp", 3, 0x02, &[0, 0, 0, 0], E::ClientIdMissing),
    // Client id, will topic and user name are strings [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12].
    (b"MQTT", 4, 0x02, &[0, 0, 0, 1, 0xFF], E::StringNotUtf8),
    (b"MQTT", 4, 0x02, &[0, 0, 0, 1, 0], E::StringHasNul),
    (
        b"MQTT",
        4,
        0x06,
        &[0, 0, 0, 0, 0, 1, 0xFF, 0, 0],
        E::StringNotUtf8,
    ),
    (
        b"MQTT",
        4,
        0x82,
        &[0, 0, 0, 0, 0, 1, 0xFF],
        E::StringNotUtf8,
    ),
    // What the flags announce is there, and nothing else [MQTT-3.1.2-9] [MQTT-3.1.2-16] to [MQTT-3.1.2-19].
    (b"MQTT", 4, 0x02, &[0, 0, 0, 0, 0, 1, b'u'], E::BodyTooLong),
    (b"MQTT", 4, 0x82, &[0, 0, 0, 0], E::BodyTooShort),
    (b"MQTT", 4, 0x06, &[0, 0, 0, 0, 0, 1, b'w'], E::BodyTooShort),
    // Properties.
    (
        b"MQTT",
        5,
        2,
        &[0, 0, 3, 0x21, 0, 0, 0, 0],
        E::PropertyOutOfRange,
    ),
    (
        b"MQTT",
        5,
        2,
        &[0, 0, 5, 0x27, 0, 0, 0, 0, 0, 0],
        E::PropertyOutOfRange,
    ),
    (
        b"MQTT",
        5,
        2,
        &[0, 0, 2, 0x17, 2, 0, 0],
        E::PropertyOutOfRange,
    ),
    (
        b"MQTT",
        5,
        2,
        &[0, 0, 10, 0x11, 0, 0, 0, 1, 0x11, 0, 0, 0, 1, 0, 0],
        E::PropertyRepeated,
    ),
    (
        b"MQTT",
        5,
        2,
        &[0, 0, 5, 0x18, 0, 0, 0, 1, 0, 0],
        E::PropertyNotAllowed,
    ),
    (
        b"MQTT",
        5,
        6,
        &[0, 0, 0, 0, 0, 3, 0x23, 0, 0, 0, 1, b'w', 0, 0],
        E::PropertyNotAllowed,
    ),
    (
        b"MQTT",
        5,
        2,
        &[0, 0, 3, 0x16, 0, 0, 0, 0],
        E::AuthenticationDataWithoutMethod,
    ),
];

/// Bytes to a client.
const TO_CLIENT: &[(Version, &[u8], DecodeError)] = &[
    (V5, &[0x20, 3, 2, 0, 0], E::ConnAckFlagsReserved),
    (V5, &[0x20, 3, 1, 0x87, 0], E::SessionPresentOnRefusal),
    (V5, &[0x20, 3, 0, 0x8E, 0], E::ReasonCodeNotAllowed),
    (V311, &[0x20, 2, 0, 6], E::ReasonCodeNotAllowed),
    (V311, &[0x90, 3, 0, 1, 3], E::ReasonCodeNotAllowed),
    (V311, &[0x90, 2, 0, 1], E::BodyTooShort),
    (V5, &[0xB0, 3, 0, 1, 0], E::BodyTooShort),
    (V5, &[0xE0, 1, 0x04], E::ReasonCodeNotAllowed),
    (
        V5,
        &[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 0],
        E::PropertyNotAllowed,
    ),
    (V311, &[0xE0, 0], E::PacketFromWrongSide),
    (V5, &[0xC0, 0], E::PacketFromWrongSide),
    (V5, &[0x22, 3, 0, 0, 0], E::HeaderFlags),
];

fn connect(name: &[u8], level: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut body = vec![0, name.len() as u8];
    body.extend_from_slice(name);
    body.extend_from_slice(&[level, flags]);
    body.extend_from_slice(rest);
    packet(0x10, &body)
}

#[test]
fn every_violation_is_found_and_named() {
    let mut provoked = HashSet::new();
    for (version, bytes, expected) in TO_SERVER {
        assert_eq!(
            server_error(*version, bytes),
            Some(*expected),
            "{version:?} {bytes:02X?}"
        );
        provoked.insert(*expected);
    }
    for (name, level, flags, rest, expected) in CONNECTS {
        let bytes = connect(name, *level, *flags, rest);
        assert_eq!(connect_error(&bytes), Some(*expected), "{bytes:02X?}");
        provoked.insert(*expected);
    }
    for (version, bytes, expected) in TO_CLIENT {
        assert_eq!(
            client_error(*version, bytes),
            Some(*expected),
            "{version:?} {bytes:02X?}"
        );
        provoked.insert(*expected);
    }
    // [MQTT-3.1.0-1]
    assert_eq!(connect_error(&[0xC0, 0]), Some(E::FirstPacketNotConnect));
    assert_eq!(frame::next(&[0x30, 100], 50), Err(E::PacketTooLarge));
    provoked.extend([E::FirstPacketNotConnect, E::PacketTooLarge]);
    let missing = DecodeError::ALL
        .iter()
        .filter(|error| !provoked.contains(error))
        .collect::<Vec<_>>();
    assert_eq!(missing, Vec::<&DecodeError>::new());
}

#[test]
fn every_violation_has_an_error_code_and_a_rule() {
    for error in DecodeError::ALL {
        assert!(error.reason().is_error(), "{error:?}");
        assert!(error.rule().starts_with("MQTT"), "{error:?}");
        assert!(
            error.to_string().ends_with(&format!("[{}]", error.rule())),
            "{error}"
        );
    }
}

#[test]
fn the_version_of_a_refused_connect_is_known_for_its_answer() {
    let cut = connect(b"MQTT", 5, 0x03, &[]);
    assert_eq!(super::super::sniff_version(only_frame(&cut)), Some(V5));
    let later = connect(b"MQTT", 9, 0, &[]);
    assert_eq!(super::super::sniff_version(only_frame(&later)), Some(V5));
    let bridge = connect(b"MQTT", 0x84, 0, &[]);
    assert_eq!(
        super::super::sniff_version(only_frame(&bridge)),
        Some(Version::V311)
    );
    for (name, level) in [(&b"MQTT"[..], 3), (b"MQIsdp", 9), (b"HTTP", 5)] {
        let unknown = connect(name, level, 0, &[]);
        assert_eq!(super::super::sniff_version(only_frame(&unknown)), None);
    }
}

/// With QoS 0 there is no packet id, and with QoS 2 no PUBACK.
#[test]
fn only_qos_1_is_acknowledged_before_the_end() {
    let found = |first: u8| {
        let body = b"\0\x01t\0\x07\x05\x08\0\x02a#";
        let length = body.len() + 2;
        let frame = crate::codec::frame::Frame {
            first,
            body,
            length,
        };
        crate::codec::refused_publish(frame).map(|(topic, id)| (topic.to_owned(), id.get()))
    };
    assert_eq!(found(0x32), Some(("t".to_owned(), 7)));
    assert_eq!(found(0x3A), Some(("t".to_owned(), 7)), "DUP");
    assert_eq!((found(0x30), found(0x34)), (None, None));
}
