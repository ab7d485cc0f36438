//! What looks odd and is legal, and what a decoded packet says.

use super::super::*;
use super::*;
use Version::{V5, V31, V311};
use std::borrow::Cow;

fn decode_ok(version: Version, bytes: &[u8]) -> Packet<'_> {
    decode(version, only_frame(bytes)).unwrap_or_else(|error| panic!("{bytes:02X?}: {error}"))
}

fn publish(version: Version, bytes: &[u8]) -> Publish<'_> {
    match decode_ok(version, bytes) {
        Packet::Publish(publish) => publish,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_port_takes_all_versions() {
    let v31 = b"\x10\x0F\0\x06MQIsdp\x03\x02\0\x3C\0\x01a";
    let v311 = b"\x10\x0D\0\x04MQTT\x04\x02\0\x3C\0\x01a";
    let v5 = b"\x10\x0E\0\x04MQTT\x05\x02\0\x3C\0\0\x01a";
    for (bytes, version) in [(v31.as_slice(), V31), (v311, V311), (v5, V5)] {
        let connect = decode_connect(only_frame(bytes)).expect("legal");
        assert_eq!(
            connect,
            Connect {
                keep_alive: 60,
                ..Connect::new(version, "a")
            }
        );
        assert_eq!(sniff_version(only_frame(bytes)), Some(version));
    }
}

#[test]
fn a_v5_client_may_leave_its_id_to_the_server_with_clean_start_0() {
    // [MQTT-3.1.3-6]; 3.1.1 needs clean session 1 [MQTT311-3.1.3-7].
    let v5 = b"\x10\x0D\0\x04MQTT\x05\0\0\0\0\0\0";
    let connect = decode_connect(only_frame(v5)).expect("legal");
    assert_eq!((connect.client_id, connect.clean_start), ("", false));
    let v311 = b"\x10\x0C\0\x04MQTT\x04\x02\0\0\0\0";
    assert!(decode_connect(only_frame(v311)).expect("legal").clean_start);
}

#[test]
fn client_ids_may_be_long_and_hold_wildcards() {
    for id in ["a/b+c#", "\u{fc}ber", &"x".repeat(65_535)] {
        for version in VERSIONS {
            let mut bytes = Vec::new();
            client::connect(&mut bytes, &Connect::new(version, id)).expect("fits");
            assert_eq!(
                decode_connect(only_frame(&bytes)).expect("legal").client_id,
                id
            );
        }
    }
}

#[test]
fn passwords_and_will_payloads_are_binary() {
    let bytes = b"\x10\x1B\0\x04MQTT\x04\xC6\0\0\0\x01a\0\x01w\0\x02\0\xFF\0\x01u\0\x02\xFF\0";
    let connect = decode_connect(only_frame(bytes)).expect("legal");
    let will = connect.will.expect("flag is set");
    assert_eq!(
        (will.topic, will.payload, will.qos, will.retain),
        ("w", b"\0\xFF".as_slice(), QoS::AtMostOnce, false)
    );
    assert_eq!(
        (connect.username, connect.password),
        (Some("u"), Some(b"\xFF\0".as_slice()))
    );
}

#[test]
fn v5_takes_a_password_without_a_user_name() {
    let bytes = b"\x10\x11\0\x04MQTT\x05\x42\0\0\0\0\x01a\0\x01p";
    let connect = decode_connect(only_frame(bytes)).expect("legal");
    assert_eq!(
        (connect.username, connect.password),
        (None, Some(b"p".as_slice()))
    );
}

#[test]
fn in_3_1_the_length_beats_the_user_name_and_password_flags() {
    let bytes = b"\x10\x0F\0\x06MQIsdp\x03\xC2\0\0\0\x01a";
    let connect = decode_connect(only_frame(bytes)).expect("legal");
    assert_eq!((connect.username, connect.password), (None, None));
    let user_only = b"\x10\x12\0\x06MQIsdp\x03\xC2\0\0\0\x01a\0\x01u";
    assert_eq!(
        decode_connect(only_frame(user_only))
            .expect("legal")
            .username,
        Some("u")
    );
}

#[test]
fn in_3_1_a_repeated_request_has_its_dup_flag() {
    assert!(matches!(
        decode_ok(V31, &[0x6A, 2, 0, 1]),
        Packet::PubRel(_)
    ));
    assert!(matches!(
        decode_ok(V31, &[0x8A, 6, 0, 1, 0, 1, b'a', 0]),
        Packet::Subscribe(_)
    ));
    assert!(publish(V31, &[0x38, 3, 0, 1, b'a']).dup);
}

#[test]
fn a_will_has_its_properties_and_its_delay() {
    let mut properties = PublishPropertiesBuf::new();
    properties
        .push(Property::ContentType("text"))
        .unwrap()
        .push_user("k", "v")
        .unwrap();
    let will = Will {
        qos: QoS::ExactlyOnce,
        retain: true,
        topic: "w",
        payload: b"gone",
        delay: 5,
        properties: properties.as_properties().unwrap(),
    };
    let mut bytes = Vec::new();
    client::connect(
        &mut bytes,
        &Connect {
            will: Some(will),
            ..Connect::new(V5, "a")
        },
    )
    .unwrap();
    let decoded = decode_connect(only_frame(&bytes)).unwrap().will.unwrap();
    assert_eq!(
        (decoded.delay, decoded.properties.content_type()),
        (5, Some("text"))
    );
    // The delay is not passed on; all else is, as it was.
    assert_eq!(
        decoded.properties.forwardable(),
        Cow::Borrowed(properties.raw())
    );
}

#[test]
fn expiry_0_and_payload_format_0_are_kept_as_sent() {
    let bytes = [0x30, 11, 0, 1, b'a', 7, 1, 0, 2, 0, 0, 0, 0];
    let properties = publish(V5, &bytes).properties;
    assert_eq!(properties.payload_format(), Some(PayloadFormat::Bytes));
    assert_eq!(properties.message_expiry(), Some(0));
    assert_eq!(*properties.forwardable(), [1, 0]);
}

#[test]
fn a_publish_may_leave_its_topic_to_an_alias() {
    let publish = publish(V5, &[0x30, 7, 0, 0, 3, 0x23, 0, 9, b'x']);
    assert_eq!((publish.topic, publish.payload), ("", b"x".as_slice()));
    assert_eq!(
        publish.properties.topic_alias().map(|alias| alias.get()),
        Some(9)
    );
    assert!(publish.properties.forwardable().is_empty());
}

#[test]
fn a_byte_order_mark_stays_in_the_topic() {
    // [MQTT-1.5.4-3]
    assert_eq!(
        publish(V311, b"\x30\x06\0\x04\xEF\xBB\xBFa").topic,
        "\u{FEFF}a"
    );
}

#[test]
fn publish_fields_are_where_the_flags_say() {
    let publish = publish(V5, b"\x3D\x09\0\x03a/b\0\x0A\0z");
    assert!(publish.dup && publish.retain);
    assert_eq!(
        (publish.qos, publish.packet_id),
        (QoS::ExactlyOnce, Some(id(10)))
    );
    assert_eq!((publish.topic, publish.payload), ("a/b", b"z".as_slice()));
    assert!(publish.properties.is_empty());
}

#[test]
fn what_the_broker_looks_at_is_found_among_other_properties() {
    let mut list = PublishPropertiesBuf::new();
    list.push_user("a", "1").unwrap();
    list.push(Property::ResponseTopic("answers/\u{fc}"))
        .unwrap();
    list.push_user("b", "2").unwrap();
    list.push(Property::CorrelationData(&[0, 255])).unwrap();
    list.push(Property::ContentType("")).unwrap();
    list.push(Property::PayloadFormatIndicator(PayloadFormat::Utf8))
        .unwrap();
    let properties = list.as_properties().expect("legal");
    assert_eq!(properties.response_topic(), Some("answers/\u{fc}"));
    assert_eq!(properties.correlation_data(), Some([0, 255].as_slice()));
    assert_eq!(properties.content_type(), Some(""));
    assert_eq!(properties.payload_format(), Some(PayloadFormat::Utf8));
    assert_eq!(
        properties.user_properties().iter().collect::<Vec<_>>(),
        [("a", "1"), ("b", "2")]
    );
    assert_eq!(properties.user_properties().get("b"), Some("2"));
    assert!(matches!(properties.forwardable(), Cow::Borrowed(raw) if raw == list.raw()));
    assert_eq!(PublishProperties::EMPTY.correlation_data(), None);
}

#[test]
fn forwarding_strips_what_holds_for_one_hop_wherever_it_stands() {
    let user = |name: &'static str| Property::UserProperty(name, "");
    let alias = Property::TopicAlias(std::num::NonZeroU16::new(7).unwrap());
    let expiry = Property::MessageExpiryInterval(9);
    let identifier = Property::SubscriptionIdentifier(std::num::NonZeroU32::new(300).unwrap());
    let build = |list: &[Property<'_>]| {
        let mut buffer = PublishPropertiesBuf::new();
        for property in list {
            buffer.push(*property).unwrap();
        }
        buffer
    };
    let kept = build(&[user("a"), user("b"), user("a")]);
    for (list, borrowed) in [
        (vec![alias, user("a"), user("b"), user("a"), expiry], true),
        (
            vec![
                alias,
                expiry,
                identifier,
                identifier,
                user("a"),
                user("b"),
                user("a"),
            ],
            true,
        ),
        (
            vec![user("a"), alias, user("b"), user("a"), identifier],
            false,
        ),
        (vec![user("a"), user("b"), expiry, alias, user("a")], false),
    ] {
        let buffer = build(&list);
        let forwarded = buffer.as_properties().unwrap().forwardable();
        assert_eq!(*forwarded, *kept.raw(), "{list:?}");
        assert_eq!(matches!(forwarded, Cow::Borrowed(_)), borrowed, "{list:?}");
    }
}

#[test]
fn acknowledgements_have_short_forms() {
    // MQTT 5.0 §3.4.2.1: without properties the length, with 0x00 the code as well, may be left out.
    for bytes in [
        [0x40, 2, 0, 1].as_slice(),
        &[0x40, 3, 0, 1, 0],
        &[0x40, 4, 0, 1, 0, 0],
    ] {
        assert_eq!(decode_ok(V5, bytes), Packet::PubAck(Ack::success(id(1))));
    }
    let bytes = b"\x62\x0F\0\x02\x92\x0B\x1F\0\x01r\x26\0\x01k\0\x01v";
    let pairs = [("k", "v")];
    let ack = Ack {
        reason_string: Some("r"),
        user_properties: UserProperties::from_pairs(&pairs),
        ..Ack::with_reason(id(2), ReasonCode::PacketIdentifierNotFound)
    };
    assert_eq!(decode_ok(V5, bytes), Packet::PubRel(ack));
}

#[test]
fn disconnect_has_short_forms() {
    for bytes in [[0xE0, 0].as_slice(), &[0xE0, 1, 0], &[0xE0, 2, 0, 0]] {
        assert_eq!(
            decode_ok(V5, bytes),
            Packet::Disconnect(Disconnect::new(ReasonCode::NORMAL_DISCONNECTION))
        );
    }
    let Packet::Disconnect(disconnect) = decode_ok(V5, &[0xE0, 7, 4, 5, 0x11, 0, 0, 1, 0]) else {
        panic!()
    };
    assert_eq!(
        (disconnect.reason, disconnect.session_expiry),
        (ReasonCode::DisconnectWithWill, Some(256))
    );
}

#[test]
fn an_invalid_filter_is_answered_in_its_place_not_by_closing() {
    let bytes = b"\x82\x1C\0\x01\0\0\x03a/+\x2D\0\x02a#\x00\0\0\x01\0\x08$share/g\x02";
    let Packet::Subscribe(subscribe) = decode_ok(V5, bytes) else {
        panic!()
    };
    let requests = subscribe.filters.iter().collect::<Vec<_>>();
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: true,
        retain_as_published: true,
        retain_handling: RetainHandling::DoNotSend,
    };
    assert_eq!(
        requests[0],
        FilterRequest {
            filter: "a/+",
            options
        }
    );
    assert_eq!(
        requests[0].topic_filter(),
        Ok(TopicFilter {
            share: None,
            filter: "a/+"
        })
    );
    assert_eq!(
        requests[1].topic_filter(),
        Err(FilterError::MultiLevelWildcard)
    );
    assert_eq!(requests[2].topic_filter(), Err(FilterError::Empty));
    assert_eq!(requests[3].topic_filter(), Err(FilterError::Share));
    assert_eq!(requests.len(), 4);
}

#[test]
fn unsubscribe_lists_its_filters() {
    for (version, bytes) in [
        (V5, b"\xA2\x0A\0\x01\0\0\x01a\0\x02#/".as_slice()),
        (V311, b"\xA2\x09\0\x01\0\x01a\0\x02#/"),
    ] {
        let Packet::Unsubscribe(unsubscribe) = decode_ok(version, bytes) else {
            panic!()
        };
        assert_eq!(unsubscribe.filters.iter().collect::<Vec<_>>(), ["a", "#/"]);
    }
}

#[test]
fn auth_carries_method_and_data() {
    let bytes = b"\xF0\x0B\x18\x09\x15\0\x01m\x16\0\x02\0\xFF";
    assert_eq!(
        decode_ok(V5, bytes),
        Packet::Auth(Auth::new(
            ReasonCode::ContinueAuthentication,
            "m",
            Some(&[0, 255])
        ))
    );
}

#[test]
fn a_server_may_send_several_subscription_ids() {
    let bytes = [0x30, 9, 0, 1, b'a', 5, 0x0B, 1, 0x0B, 0x80, 0x01];
    let client::Packet::Publish(publish) = client::decode(V5, only_frame(&bytes)).unwrap() else {
        panic!()
    };
    assert_eq!(
        publish
            .properties
            .subscription_ids()
            .map(u32::from)
            .collect::<Vec<_>>(),
        [1, 128]
    );
}
