//! A message on its way to another node: the bytes inside `cluster.DeliverRequest.messages`.
//!
//! | field | bytes |
//! |---|---|
//! | length of what follows | u32 |
//! | session of the publisher, 0 when there is none | u64 |
//! | flags: QoS (bits 0 and 1), retain (2), message expiry present (3), direct (4) | u8 |
//! | message expiry interval, seconds | u32, if present |
//! | topic | u16 length, bytes |
//! | properties as they are forwarded | u32 length, bytes |
//! | payload | the rest |
//!
//! Numbers are big-endian. The layout is for ever; another one gets another field of the request.

use bytes::{BufMut, BytesMut};

use crate::ids::SessionId;
use crate::mqtt::codec::QoS;

/// A message as routing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The publisher's session, for No Local.
    pub publisher: Option<SessionId>,
    /// QoS it was published with.
    pub qos: QoS,
    /// RETAIN as published.
    pub retain: bool,
    /// Topic name.
    pub topic: &'a str,
    /// Properties as they are forwarded: a checked list without its length.
    pub properties: &'a [u8],
    /// Message expiry interval left, seconds.
    pub expiry: Option<u32>,
    /// It never goes through the log: sessions whose messages otherwise do get it straight too, while they are connected.
    pub direct: bool,
    /// The application message.
    pub payload: &'a [u8],
}

const RETAIN: u8 = 1 << 2;
const EXPIRY: u8 = 1 << 3;
const DIRECT: u8 = 1 << 4;

impl<'a> Message<'a> {
    /// Appends the message.
    pub fn encode(&self, out: &mut BytesMut) {
        let expiry = if self.expiry.is_some() { 4 } else { 0 };
        let length =
            8 + 1 + expiry + 2 + self.topic.len() + 4 + self.properties.len() + self.payload.len();
        out.reserve(4 + length);
        // An MQTT packet is below 2^28 bytes, and a topic below 2^16.
        out.put_u32(length as u32);
        out.put_u64(self.publisher.map_or(0, |session| session.0));
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.put_u8(
            self.qos as u8
                | flag(self.retain, RETAIN)
                | flag(self.expiry.is_some(), EXPIRY)
                | flag(self.direct, DIRECT),
        );
        if let Some(seconds) = self.expiry {
            out.put_u32(seconds);
        }
        out.put_u16(self.topic.len() as u16);
        out.put_slice(self.topic.as_bytes());
        out.put_u32(self.properties.len() as u32);
        out.put_slice(self.properties);
        out.put_slice(self.payload);
    }

    /// Takes the first message off `bytes`; `None` when it is malformed.
    pub fn decode(bytes: &mut &'a [u8]) -> Option<Message<'a>> {
        let length = u32::from_be_bytes(take(bytes)?) as usize;
        let (mut body, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        let body = &mut body;
        let publisher = u64::from_be_bytes(take(body)?);
        let [flags] = take(body)?;
        let expiry = if flags & EXPIRY != 0 {
            Some(u32::from_be_bytes(take(body)?))
        } else {
            None
        };
        let topic_length = u16::from_be_bytes(take(body)?).into();
        let topic = std::str::from_utf8(take_slice(body, topic_length)?).ok()?;
        let properties_length = u32::from_be_bytes(take(body)?) as usize;
        let properties = take_slice(body, properties_length)?;
        Some(Message {
            publisher: (publisher != 0).then_some(SessionId(publisher)),
            qos: QoS::from_bits(flags & 0b11)?,
            retain: flags & RETAIN != 0,
            topic,
            properties,
            expiry,
            direct: flags & DIRECT != 0,
            payload: body,
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

fn take_slice<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_decode_to_what_they_were(
            publisher in 0u64..3, qos in 0u8..3, retain: bool, direct: bool, topic in "\\PC{0,20}",
            properties in prop::collection::vec(any::<u8>(), 0..20), expiry: Option<u32>,
            payload in prop::collection::vec(any::<u8>(), 0..50), copies in 1usize..4,
        ) {
            let message = Message {
                publisher: (publisher != 0).then_some(SessionId(publisher)),
                qos: QoS::from_bits(qos).expect("below 3"), retain, topic: &topic,
                properties: &properties, expiry, direct, payload: &payload,
            };
            let mut bytes = BytesMut::new();
            for _ in 0..copies {
                message.encode(&mut bytes);
            }
            let mut rest = &bytes[..];
            for _ in 0..copies {
                prop_assert_eq!(Message::decode(&mut rest), Some(message));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut rest = &bytes[..];
            while !rest.is_empty() && Message::decode(&mut rest).is_some() {}
        }
    }
}
