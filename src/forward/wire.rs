//! A message on its way to another node: the bytes inside `cluster.DeliverRequest.messages`.
//!
//! | field | bytes |
//! |---|---|
//! | length of what follows | u32 |
//! | session of the publisher, 0 when there is none | u64 |
//! | flags: QoS (bits 0 and 1), retain (2), message expiry present (3), direct (4), groups present (5), groups only (6) | u8 |
//! | message expiry interval, seconds | u32, if present |
//! | groups, one member of each of which gets the message: `$share/{name}/{filter}` | u32 length, and for each u16 length, bytes; if present |
//! | topic | u16 length, bytes |
//! | properties as they are forwarded | u32 length, bytes |
//! | payload | the rest |
//!
//! With "groups only" the message is not for subscriptions that are not shared. Numbers are big-endian. The layout is for
//! ever; another one gets another field of the request.

use bytes::{BufMut, BytesMut};

use crate::base::ids::SessionId;
use crate::codec::QoS;

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
const GROUPS: u8 = 1 << 5;
const ONLY_GROUPS: u8 = 1 << 6;

/// Names of groups, as they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups<'a>(&'a [u8]);

impl<'a> Groups<'a> {
    /// The groups written to `names` by [`Groups::add`].
    pub fn new(names: &'a [u8]) -> Groups<'a> {
        Groups(names)
    }

    /// Writes one more.
    pub fn add(names: &mut impl Extend<u8>, group: &str) {
        // A filter is below 2^16 bytes.
        names.extend((group.len() as u16).to_be_bytes());
        names.extend(group.bytes());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the first name off.
    fn next(&mut self) -> Option<&'a str> {
        let length = u16::from_be_bytes(take(&mut self.0)?).into();
        std::str::from_utf8(take_slice(&mut self.0, length)?).ok()
    }

    /// All names.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self;
        std::iter::from_fn(move || rest.next())
    }

    fn is_well_formed(mut self) -> bool {
        while self.next().is_some() {}
        self.is_empty()
    }
}

/// A message for another node, and for whom there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded<'a> {
    /// The message.
    pub message: Message<'a>,
    /// One member of each of these gets it.
    pub groups: Groups<'a>,
    /// Nobody else gets it.
    pub only_groups: bool,
}

impl<'a> From<Message<'a>> for Forwarded<'a> {
    fn from(message: Message<'a>) -> Forwarded<'a> {
        Forwarded {
            message,
            groups: Groups::default(),
            only_groups: false,
        }
    }
}

impl<'a> Forwarded<'a> {
    /// Appends the message.
    pub fn encode(&self, out: &mut BytesMut) {
        let message = &self.message;
        let expiry = if message.expiry.is_some() { 4 } else { 0 };
        let groups = if self.groups.is_empty() {
            0
        } else {
            4 + self.groups.0.len()
        };
        let texts = message.topic.len() + message.properties.len() + message.payload.len();
        let length = 8 + 1 + expiry + groups + 2 + 4 + texts;
        out.reserve(4 + length);
        // An MQTT packet is below 2^28 bytes, and a topic below 2^16.
        out.put_u32(length as u32);
        out.put_u64(message.publisher.map_or(0, |session| session.0));
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        out.put_u8(
            message.qos as u8
                | flag(message.retain, RETAIN)
                | flag(message.expiry.is_some(), EXPIRY)
                | flag(message.direct, DIRECT)
                | flag(groups > 0, GROUPS)
                | flag(self.only_groups, ONLY_GROUPS),
        );
        if let Some(seconds) = message.expiry {
            out.put_u32(seconds);
        }
        if groups > 0 {
            out.put_u32(self.groups.0.len() as u32);
            out.put_slice(self.groups.0);
        }
        out.put_u16(message.topic.len() as u16);
        out.put_slice(message.topic.as_bytes());
        out.put_u32(message.properties.len() as u32);
        out.put_slice(message.properties);
        out.put_slice(message.payload);
    }

    /// Takes the first message off `bytes`; `None` when it is malformed.
    pub fn decode(bytes: &mut &'a [u8]) -> Option<Forwarded<'a>> {
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
        let groups = if flags & GROUPS != 0 {
            let length = u32::from_be_bytes(take(body)?) as usize;
            Groups(take_slice(body, length)?)
        } else {
            Groups::default()
        };
        if !groups.is_well_formed() {
            return None;
        }
        let topic_length = u16::from_be_bytes(take(body)?).into();
        let topic = std::str::from_utf8(take_slice(body, topic_length)?).ok()?;
        let properties_length = u32::from_be_bytes(take(body)?) as usize;
        let properties = take_slice(body, properties_length)?;
        Some(Forwarded {
            message: Message {
                publisher: (publisher != 0).then_some(SessionId(publisher)),
                qos: QoS::from_bits(flags & 0b11)?,
                retain: flags & RETAIN != 0,
                topic,
                properties,
                expiry,
                direct: flags & DIRECT != 0,
                payload: body,
            },
            groups,
            only_groups: flags & ONLY_GROUPS != 0,
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
            groups in prop::collection::vec("\\PC{0,9}", 0..3), only_groups: bool,
        ) {
            let mut names = Vec::new();
            for group in &groups {
                Groups::add(&mut names, group);
            }
            let message = Forwarded {
                message: Message {
                    publisher: (publisher != 0).then_some(SessionId(publisher)),
                    qos: QoS::from_bits(qos).expect("below 3"), retain, topic: &topic,
                    properties: &properties, expiry, direct, payload: &payload,
                },
                groups: Groups::new(&names),
                only_groups,
            };
            prop_assert!(message.groups.iter().eq(groups.iter()));
            let mut bytes = BytesMut::new();
            for _ in 0..copies {
                message.encode(&mut bytes);
            }
            let mut rest = &bytes[..];
            for _ in 0..copies {
                prop_assert_eq!(Forwarded::decode(&mut rest), Some(message));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut rest = &bytes[..];
            while !rest.is_empty() && Forwarded::decode(&mut rest).is_some() {}
        }
    }
}
