//! Rules one by one, exact bytes, round trips, hostile bytes.

mod accepted;
mod encoded;
mod hostile;
mod refused;
mod round_trip;
mod speed;
mod strategies;

use super::{DecodeError, Frame, MAX_PACKET_SIZE, PacketId, Version, frame};

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("tests use ids above 0")
}

/// The only packet in `bytes`.
fn only_frame(bytes: &[u8]) -> Frame<'_> {
    let frame = frame::next(bytes, MAX_PACKET_SIZE)
        .expect("a header")
        .expect("a whole packet");
    assert_eq!(frame.length, bytes.len(), "nothing follows");
    frame
}

/// A packet with this first byte around a body shorter than 128 bytes.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    assert!(body.len() < 128);
    let mut bytes = vec![first, body.len() as u8];
    bytes.extend_from_slice(body);
    bytes
}

/// What the server says to a packet, CONNECT or other.
fn server_error(version: Version, bytes: &[u8]) -> Option<DecodeError> {
    let frame = match frame::next(bytes, MAX_PACKET_SIZE) {
        Err(error) => return Some(error),
        Ok(frame) => frame.expect("a whole packet"),
    };
    super::decode(version, frame).err()
}

/// What the server says to a first packet.
fn connect_error(bytes: &[u8]) -> Option<DecodeError> {
    super::decode_connect(only_frame(bytes)).err()
}

/// What a client says to a packet.
fn client_error(version: Version, bytes: &[u8]) -> Option<DecodeError> {
    super::client::decode(version, only_frame(bytes)).err()
}
