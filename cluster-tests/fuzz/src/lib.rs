//! What the fuzz targets check: no panic, nothing read beyond a packet, and whatever is accepted can be written and is
//! read back as the same.

#[path = "../../../src/auth/mod.rs"]
pub mod auth;
pub mod base;
#[path = "../../../src/codec/mod.rs"]
pub mod codec;

#[allow(dead_code)]
#[path = "../../../src/transport/websocket/frames.rs"]
pub mod frames;

#[path = "../../../src/transport/proxy.rs"]
pub mod proxy;

#[path = "../../../src/query/mod.rs"]
pub mod query;

pub mod cluster_calls;
pub mod cluster_port;
mod identity;
pub mod peers;
pub mod router;
pub mod tls;
pub mod transport;
pub use identity::{certificate, signed_token, token};
mod twin_query;
pub use twin_query::twin_query;

use codec::{
    Connect, DecodeError, EncodeError, Frame, MAX_PACKET_SIZE, Packet, PeerLimits, Publish,
    PublishHeader, PublishProperties, Version, client, decode, decode_connect, encode,
    encode_publish, frame,
};

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

/// Packets larger than this are not tried.
const MAX_SIZE: u32 = 1 << 16;

/// Each packet of a stream, until it ends, is incomplete or is refused.
fn packets(mut stream: &[u8], mut check: impl FnMut(Frame<'_>)) {
    while let Ok(Some(frame)) = frame::next(stream, MAX_SIZE) {
        assert!(frame.length <= stream.len() && frame.length <= MAX_SIZE as usize);
        check(frame);
        stream = &stream[frame.length..];
    }
}

fn only_frame(bytes: &[u8]) -> Frame<'_> {
    let frame = frame::next(bytes, MAX_PACKET_SIZE)
        .expect("written well")
        .expect("whole");
    assert_eq!(frame.length, bytes.len());
    frame
}

/// CONNECT: read, written, read again.
pub fn connect(stream: &[u8]) {
    packets(stream, |frame| {
        let Ok(connect) = decode_connect(frame) else {
            return;
        };
        assert_eq!(codec::sniff_version(frame), Some(connect.version));
        let mut bytes = Vec::new();
        client::connect(&mut bytes, &connect).expect("what was read can be written");
        let again: Result<Connect<'_>, DecodeError> = decode_connect(only_frame(&bytes));
        assert_eq!(again, Ok(connect));
    });
}

fn check_publish(publish: &Publish<'_>) {
    let forwardable = publish.properties.forwardable();
    let forwarded = PublishProperties::parse(&forwardable).expect("what is forwarded is legal");
    assert_eq!(
        forwarded.user_properties(),
        publish.properties.user_properties()
    );
    assert_eq!(
        forwarded.response_topic(),
        publish.properties.response_topic()
    );
    assert_eq!(
        forwarded.correlation_data(),
        publish.properties.correlation_data()
    );
    assert_eq!(
        (forwarded.topic_alias(), forwarded.message_expiry()),
        (None, None)
    );
    let mut sent = Vec::new();
    let header = PublishHeader::plain(Version::V5);
    encode_publish(&mut sent, "t", &forwardable, publish.payload, &header).expect("fits");
    let frame = frame::next(&sent, u32::MAX).expect("legal").expect("whole");
    let Ok(client::Packet::Publish(received)) = client::decode(Version::V5, frame) else {
        panic!("what is sent is a PUBLISH");
    };
    assert_eq!((received.topic, received.payload), ("t", publish.payload));
}

fn write_client_packet(
    out: &mut Vec<u8>,
    version: Version,
    packet: &Packet<'_>,
) -> Result<usize, EncodeError> {
    let limits = PeerLimits::NONE;
    match packet {
        Packet::Publish(publish) => client::publish(out, version, publish),
        Packet::PubAck(ack) => encode::puback(out, version, ack, limits),
        Packet::PubRec(ack) => encode::pubrec(out, version, ack, limits),
        Packet::PubRel(ack) => encode::pubrel(out, version, ack, limits),
        Packet::PubComp(ack) => encode::pubcomp(out, version, ack, limits),
        Packet::Subscribe(subscribe) => client::subscribe(out, version, subscribe),
        Packet::Unsubscribe(unsubscribe) => client::unsubscribe(out, version, unsubscribe),
        Packet::PingReq => Ok(client::pingreq(out)),
        Packet::Disconnect(disconnect) => client::disconnect(out, version, disconnect, limits),
        Packet::Auth(auth) => client::auth(out, version, auth, limits),
    }
}

/// What a client sends after CONNECT, in every version: read, written, read again.
pub fn from_client(stream: &[u8]) {
    packets(stream, |frame| {
        for version in VERSIONS {
            let Ok(packet) = decode(version, frame) else {
                continue;
            };
            match &packet {
                // 3.1 has a DUP flag that is not written with QoS 0.
                Packet::Publish(publish) if publish.dup && publish.packet_id.is_none() => continue,
                Packet::Publish(publish) => check_publish(publish),
                Packet::Subscribe(subscribe) => {
                    assert!(
                        subscribe
                            .filters
                            .iter()
                            .filter(|request| request.topic_filter().is_ok())
                            .count()
                            < MAX_SIZE as usize
                    );
                }
                _ => {}
            }
            let mut bytes = Vec::new();
            write_client_packet(&mut bytes, version, &packet)
                .expect("what was read can be written");
            assert_eq!(decode(version, only_frame(&bytes)), Ok(packet));
        }
    });
}

/// What a server sends, in every version: read, and written again where the server's encoders know the packet.
pub fn from_server(stream: &[u8]) {
    packets(stream, |frame| {
        for version in VERSIONS {
            let Ok(packet) = client::decode(version, frame) else {
                continue;
            };
            let (mut bytes, limits) = (Vec::new(), PeerLimits::NONE);
            let written = match &packet {
                client::Packet::ConnAck(connack) => {
                    encode::connack(&mut bytes, version, connack, limits)
                }
                client::Packet::SubAck(suback) => {
                    encode::suback(&mut bytes, version, suback, limits)
                }
                client::Packet::UnsubAck(unsuback) => {
                    encode::unsuback(&mut bytes, version, unsuback, limits)
                }
                client::Packet::Disconnect(bye) => {
                    encode::disconnect(&mut bytes, version, bye, limits)
                }
                client::Packet::Auth(auth) => encode::auth(&mut bytes, version, auth, limits),
                client::Packet::Publish(publish) => {
                    check_publish(publish);
                    continue;
                }
                _ => continue,
            };
            written.expect("what was read can be written");
            assert_eq!(client::decode(version, only_frame(&bytes)), Ok(packet));
        }
    });
}

/// The header of the PROXY protocol, read as a connection reads it: no byte behind it is asked for.
pub fn proxy_header(stream: &[u8]) {
    let mut at = 0;
    while let Ok(proxy::Progress::Needs(more)) = proxy::progress(&stream[..at]) {
        assert!(more > 0 && at + more <= proxy::LARGEST_HEADER_BYTES);
        // What was asked for belongs to the header, whatever it is: without it there is no header.
        for short in at..(at + more).min(stream.len()) {
            let found = proxy::progress(&stream[..short]);
            assert!(!matches!(found, Ok(proxy::Progress::Whole(_))));
        }
        at += more;
        if at > stream.len() {
            return;
        }
    }
}

/// Frames of a client: the same bytes come out however they are cut, up to a frame that breaks the protocol, and little
/// is kept of them.
pub fn websocket_frames(stream: &[u8]) {
    let Some((piece, stream)) = stream.split_first() else {
        return;
    };
    let read = |piece: usize| {
        let mut frames = frames::Frames::new(frames::Role::Server);
        let mut content = Vec::new();
        for part in stream.chunks(piece.max(1)) {
            let mut part = part.to_vec();
            match frames.receive(&mut part) {
                Ok(length) => content.extend_from_slice(&part[..length]),
                Err(_) => assert!(frames.is_violated()),
            }
            assert!(frames.held_bytes() < 1 << 13);
        }
        let ends = (frames.is_closed(), frames.is_violated());
        (content, frames.answers.clone(), ends)
    };
    assert_eq!(read(usize::from(*piece)), read(stream.len()));
}
