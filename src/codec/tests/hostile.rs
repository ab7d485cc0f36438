//! Hostile bytes: no panic, nothing read beyond the frame, whatever is accepted can be said again.

use proptest::prelude::*;

use super::super::*;
use super::VERSIONS;
use super::strategies::parts;

/// Reads everything a decoded packet offers, so that a lazily read field that was not checked would show.
fn walk(packet: &Packet<'_>) -> usize {
    match packet {
        Packet::Publish(publish) => {
            let properties = &publish.properties;
            let again = properties.forwardable();
            let parsed = PublishProperties::parse(&again).expect("what is forwarded is legal");
            assert_eq!(parsed.user_properties(), properties.user_properties());
            assert_eq!(parsed.response_topic(), properties.response_topic());
            assert_eq!(parsed.correlation_data(), properties.correlation_data());
            assert_eq!(parsed.content_type(), properties.content_type());
            publish.payload.len()
        }
        Packet::Subscribe(subscribe) => {
            assert!(subscribe.filters.iter().count() > 0);
            subscribe
                .filters
                .iter()
                .map(|request| usize::from(request.topic_filter().is_ok()))
                .sum()
        }
        Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().count(),
        other => format!("{other:?}").len(),
    }
}

/// Every refusal can be told: as a CONNACK to a CONNECT, else as a DISCONNECT.
fn tell(error: DecodeError, connecting: bool) {
    let (mut out, limits) = (Vec::new(), PeerLimits::NONE);
    let told = if connecting {
        encode::connack(
            &mut out,
            Version::V5,
            &ConnAck::refused(error.reason()),
            limits,
        )
    } else {
        encode::disconnect(
            &mut out,
            Version::V5,
            &Disconnect::new(error.reason()),
            limits,
        )
    };
    assert!(told.is_ok(), "{error:?}: {told:?}");
}

/// Decodes one packet in every role and version.
fn decode_all(bytes: &[u8]) {
    let Ok(Some(frame)) = frame::next(bytes, 1 << 20) else {
        return;
    };
    assert!(frame.length <= bytes.len());
    let _ = sniff_version(frame);
    if let Ok(connect) = decode_connect(frame) {
        let mut again = Vec::new();
        client::connect(&mut again, &connect).expect("what was read can be written");
        let second =
            decode_connect(super::only_frame(&again)).expect("what was written can be read");
        assert_eq!(second, connect);
    }
    let _ = decode_connect(frame).map_err(|error| tell(error, true));
    for version in VERSIONS {
        match decode(version, frame) {
            Ok(packet) => drop(walk(&packet)),
            Err(error) => tell(error, false),
        }
        let _ = client::decode(version, frame).map(|packet| format!("{packet:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }

    #[test]
    fn arbitrary_bodies_never_panic(first in any::<u8>(), body in prop::collection::vec(any::<u8>(), 0..100)) {
        decode_all(&super::packet(first, &body));
    }

    #[test]
    fn bytes_after_a_packet_change_nothing(parts in parts(), kind in any::<u8>(), after in prop::collection::vec(any::<u8>(), 0..9)) {
        let bytes = parts.client_bytes(kind);
        let mut longer = bytes.clone();
        longer.extend_from_slice(&after);
        let frame = frame::next(&longer, MAX_PACKET_SIZE).unwrap().unwrap();
        prop_assert_eq!(frame.length, bytes.len());
        prop_assert_eq!(decode(parts.version, frame), decode(parts.version, super::only_frame(&bytes)));
    }

    #[test]
    fn a_packet_is_asked_for_byte_by_byte_and_no_further(parts in parts(), kind in any::<u8>()) {
        let bytes = parts.client_bytes(kind);
        for end in 0..bytes.len() {
            prop_assert_eq!(frame::next(&bytes[..end], MAX_PACKET_SIZE), Ok(None));
        }
        prop_assert!(frame::next(&bytes, bytes.len() as u32).unwrap().is_some());
        prop_assert_eq!(frame::next(&bytes, bytes.len() as u32 - 1), Err(DecodeError::PacketTooLarge));
    }

    #[test]
    fn a_body_cut_short_is_refused_or_a_shorter_legal_packet(parts in parts(), kind in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let bytes = parts.client_bytes(kind);
        let whole = super::only_frame(&bytes);
        let end = cut.index(whole.body.len() + 1);
        let frame = Frame { body: &whole.body[..end], ..whole };
        if let Ok(packet) = decode(parts.version, frame) {
            walk(&packet);
        }
    }

    #[test]
    fn flipped_bits_never_panic(parts in parts(), kind in any::<u8>(), flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8), 1..4)) {
        for mut bytes in [parts.client_bytes(kind), parts.connect_bytes(), parts.server_bytes(kind)] {
            for (place, bit) in &flips {
                let place = place.index(bytes.len());
                bytes[place] ^= 1 << bit;
            }
            decode_all(&bytes);
        }
    }

    #[test]
    fn legal_packets_are_accepted_by_the_other_role(parts in parts(), kind in any::<u8>()) {
        let from_client = parts.client_bytes(kind);
        let packet = decode(parts.version, super::only_frame(&from_client));
        prop_assert!(packet.is_ok(), "{packet:?}");
        let from_server = parts.server_bytes(kind);
        let packet = client::decode(parts.version, super::only_frame(&from_server));
        prop_assert!(packet.is_ok(), "{packet:?}");
        decode_all(&parts.connect_bytes());
    }
}

#[test]
fn every_first_byte_with_every_small_body() {
    for first in 0x10..=0xFF_u8 {
        decode_all(&[first, 0]);
        for value in 0..=u8::MAX {
            decode_all(&[first, 1, value]);
        }
        // A prime step meets every value of either byte.
        for value in (0..=u16::MAX).step_by(61) {
            let [high, low] = value.to_be_bytes();
            decode_all(&[first, 2, high, low]);
        }
    }
}
