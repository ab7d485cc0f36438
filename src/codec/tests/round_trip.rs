//! What one role writes, the other reads back as it was.

use proptest::prelude::*;

use super::super::*;
use super::only_frame;
use super::strategies::parts;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn connect(parts in parts()) {
        let (pairs, will) = (parts.pairs(), parts.will_properties());
        let connect = parts.connect(&pairs, &will);
        let mut bytes = Vec::new();
        client::connect(&mut bytes, &connect).unwrap();
        prop_assert_eq!(decode_connect(only_frame(&bytes)), Ok(connect));
    }

    #[test]
    fn publish(parts in parts()) {
        let list = parts.properties(false);
        let publish = parts.publish(&list);
        let mut bytes = Vec::new();
        client::publish(&mut bytes, parts.version, &publish).unwrap();
        prop_assert_eq!(decode(parts.version, only_frame(&bytes)), Ok(Packet::Publish(publish)));
        prop_assert_eq!(client::decode(parts.version, only_frame(&bytes)), Ok(client::Packet::Publish(publish)));
    }

    #[test]
    fn a_forwarded_publish_keeps_what_is_to_be_kept(parts in parts(), ids in prop::collection::vec(1..300_u32, 0..3)) {
        let list = parts.properties(false);
        let publish = parts.publish(&list);
        let header = PublishHeader {
            qos: publish.qos,
            packet_id: publish.packet_id,
            retain: publish.retain,
            subscription_ids: &ids,
            remaining_expiry: publish.properties.message_expiry().map(|seconds| seconds / 2),
            ..PublishHeader::plain(parts.version)
        };
        let mut bytes = Vec::new();
        let forwardable = publish.properties.forwardable();
        encode_publish(&mut bytes, "a/topic", &forwardable, publish.payload, &header).unwrap();
        let Ok(client::Packet::Publish(received)) = client::decode(parts.version, only_frame(&bytes)) else {
            return Err(TestCaseError::fail("not a PUBLISH"));
        };
        let (sent, got) = (publish.properties, received.properties);
        prop_assert_eq!((received.topic, received.payload, received.dup), ("a/topic", publish.payload, false));
        // [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
        prop_assert_eq!(got.payload_format(), sent.payload_format());
        prop_assert_eq!(got.response_topic(), sent.response_topic());
        prop_assert_eq!(got.correlation_data(), sent.correlation_data());
        prop_assert_eq!(got.content_type(), sent.content_type());
        prop_assert_eq!(got.user_properties(), sent.user_properties());
        // [MQTT-3.3.2-6] [MQTT-3.3.4-3]
        prop_assert_eq!(got.message_expiry(), sent.message_expiry().map(|seconds| seconds / 2));
        prop_assert_eq!(got.topic_alias(), None);
        let expected = if parts.version.is_v5() { ids } else { vec![] };
        prop_assert_eq!(got.subscription_ids().map(u32::from).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn acknowledgements(parts in parts()) {
        let pairs = parts.pairs();
        let (ack, release) = (parts.ack(&pairs, false), parts.ack(&pairs, true));
        let mut bytes = Vec::new();
        encode::puback(&mut bytes, parts.version, &ack, PeerLimits::NONE).unwrap();
        prop_assert_eq!(decode(parts.version, only_frame(&bytes)), Ok(Packet::PubAck(ack)));
        bytes.clear();
        encode::pubrec(&mut bytes, parts.version, &ack, PeerLimits::NONE).unwrap();
        prop_assert_eq!(client::decode(parts.version, only_frame(&bytes)), Ok(client::Packet::PubRec(ack)));
        bytes.clear();
        encode::pubrel(&mut bytes, parts.version, &release, PeerLimits::NONE).unwrap();
        prop_assert_eq!(decode(parts.version, only_frame(&bytes)), Ok(Packet::PubRel(release)));
        bytes.clear();
        encode::pubcomp(&mut bytes, parts.version, &release, PeerLimits::NONE).unwrap();
        prop_assert_eq!(client::decode(parts.version, only_frame(&bytes)), Ok(client::Packet::PubComp(release)));
    }

    #[test]
    fn subscriptions(parts in parts()) {
        let (pairs, requests, names) = (parts.pairs(), parts.requests(), parts.names());
        let subscribe = parts.subscribe(&pairs, &requests);
        let mut bytes = Vec::new();
        client::subscribe(&mut bytes, parts.version, &subscribe).unwrap();
        prop_assert_eq!(decode(parts.version, only_frame(&bytes)), Ok(Packet::Subscribe(subscribe)));
        let unsubscribe = parts.unsubscribe(&pairs, &names);
        bytes.clear();
        client::unsubscribe(&mut bytes, parts.version, &unsubscribe).unwrap();
        prop_assert_eq!(decode(parts.version, only_frame(&bytes)), Ok(Packet::Unsubscribe(unsubscribe)));
    }

    #[test]
    fn what_only_a_server_sends(parts in parts()) {
        let pairs = parts.pairs();
        let (connack, suback, unsuback) = (parts.connack(&pairs), parts.suback(&pairs), parts.unsuback(&pairs));
        let mut bytes = Vec::new();
        encode::connack(&mut bytes, parts.version, &connack, PeerLimits::NONE).unwrap();
        prop_assert_eq!(client::decode(parts.version, only_frame(&bytes)), Ok(client::Packet::ConnAck(connack)));
        bytes.clear();
        encode::suback(&mut bytes, parts.version, &suback, PeerLimits::NONE).unwrap();
        prop_assert_eq!(client::decode(parts.version, only_frame(&bytes)), Ok(client::Packet::SubAck(suback)));
        bytes.clear();
        encode::unsuback(&mut bytes, parts.version, &unsuback, PeerLimits::NONE).unwrap();
        prop_assert_eq!(client::decode(parts.version, only_frame(&bytes)), Ok(client::Packet::UnsubAck(unsuback)));
    }

    #[test]
    fn disconnect_and_auth(parts in parts()) {
        let pairs = parts.pairs();
        let (version, limits) = (parts.version, PeerLimits::NONE);
        let disconnect = parts.disconnect(&pairs, false);
        let mut bytes = Vec::new();
        client::disconnect(&mut bytes, version, &disconnect, limits).unwrap();
        prop_assert_eq!(decode(version, only_frame(&bytes)), Ok(Packet::Disconnect(disconnect)));
        if !version.is_v5() {
            return Ok(());
        }
        let auth = parts.auth(&pairs, false);
        bytes.clear();
        client::auth(&mut bytes, version, &auth, limits).unwrap();
        prop_assert_eq!(decode(version, only_frame(&bytes)), Ok(Packet::Auth(auth)));
        let (disconnect, auth) = (parts.disconnect(&pairs, true), parts.auth(&pairs, true));
        bytes.clear();
        encode::disconnect(&mut bytes, version, &disconnect, limits).unwrap();
        prop_assert_eq!(client::decode(version, only_frame(&bytes)), Ok(client::Packet::Disconnect(disconnect)));
        bytes.clear();
        encode::auth(&mut bytes, version, &auth, limits).unwrap();
        prop_assert_eq!(client::decode(version, only_frame(&bytes)), Ok(client::Packet::Auth(auth)));
    }

    #[test]
    fn a_packet_within_its_limit_is_never_larger(parts in parts(), kind in any::<u8>(), max in 2..400_u32) {
        // [MQTT-3.1.2-24]
        let pairs = parts.pairs();
        let limits = PeerLimits { max_packet_size: max, problem_information: kind & 1 == 0 };
        let (version, mut out) = (parts.version, vec![9; 3]);
        let result = match kind % 4 {
            0 => encode::puback(&mut out, version, &parts.ack(&pairs, false), limits),
            1 => encode::suback(&mut out, version, &parts.suback(&pairs), limits),
            2 if version.is_v5() => encode::disconnect(&mut out, version, &parts.disconnect(&pairs, true), limits),
            _ => encode::connack(&mut out, version, &parts.connack(&pairs), limits),
        };
        match result {
            Ok(size) => {
                prop_assert!(size <= max as usize || !version.is_v5(), "{size} > {max}");
                prop_assert_eq!(out.len(), size + 3);
                prop_assert!(client::decode(version, only_frame(&out[3..])).is_ok());
            }
            Err(error) => {
                let too_large = matches!(error, EncodeError::TooLarge { .. });
                prop_assert!(too_large, "{error}");
                prop_assert_eq!(&out, &vec![9; 3]);
            }
        }
    }
}
