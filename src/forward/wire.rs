//! The bytes of a forwarded message: the items of `cluster.DeliverRequest.messages`.
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
//! With "groups only" the message is not for subscriptions that are not shared; without groups it stands in for one
//! that has expired on its way, and is for nobody. Numbers are big-endian.
//!
//! Invariant: the layout never changes, because nodes of different versions talk to each other. Another layout gets
//! another field of the request. Why the bytes are not a protobuf message:
//! `docs/adr/0010-forwarded-messages-are-not-protobuf.md`.

use bytes::{BufMut, Bytes, BytesMut};

use crate::base::ids::SessionId;
use crate::codec::QoS;
use crate::router::{Message, Recipients};

const RETAIN: u8 = 1 << 2;
const EXPIRY: u8 = 1 << 3;
const DIRECT: u8 = 1 << 4;
const GROUPS: u8 = 1 << 5;
const ONLY_GROUPS: u8 = 1 << 6;

/// Names a message: the number of its batch, and how many messages come before it in there.
pub(super) type Position = (u64, u32);

/// Where the flags of an encoded message are.
const FLAGS_AT: usize = 4 + 8;

/// Where the message expiry interval of an encoded message is, if it has one.
const EXPIRY_AT: usize = FLAGS_AT + 1;

/// The least that a message with an expiry interval takes.
pub(super) const LEAST_EXPIRING: usize = EXPIRY_AT + 4 + 2 + 4;

/// The messages of a batch as they go through the log: those that somebody waits for; and how many others there are:
/// those with QoS 0. `left` has what is left of each expiry interval, in order; for a message that is over it is
/// `None`, and a stand-in goes, so that the others keep their places. The batch was encoded by [`encode`].
pub(super) fn for_log(messages: &Bytes, mut left: impl FnMut(u32) -> Option<u32>) -> (Bytes, u64) {
    let mut kept = BytesMut::new();
    let mut left_out = 0;
    let mut is_same = true;
    let mut rest = &messages[..];
    while let Some(length) = rest.first_chunk::<4>() {
        let length = 4 + u32::from_be_bytes(*length) as usize;
        let Some((message, behind)) = rest.split_at_checked(length) else {
            break;
        };
        rest = behind;
        let flags = message.get(FLAGS_AT).copied().unwrap_or_default();
        let interval = interval(message, flags);
        let now = interval.and_then(&mut left);
        is_same &= flags & 0b11 != 0 && now == interval;
        match (interval, now) {
            _ if flags & 0b11 == 0 => left_out += 1,
            (Some(_), None) => stand_in(message, &mut kept),
            (_, Some(seconds)) => {
                kept.extend_from_slice(&message[..EXPIRY_AT]);
                kept.put_u32(seconds);
                kept.extend_from_slice(&message[EXPIRY_AT + 4..]);
            }
            (None, None) => kept.extend_from_slice(message),
        }
    }
    match is_same {
        true => (messages.clone(), 0),
        false => (kept.freeze(), left_out),
    }
}

/// The message expiry interval of an encoded message.
fn interval(message: &[u8], flags: u8) -> Option<u32> {
    let interval = message.get(EXPIRY_AT..)?.first_chunk::<4>()?;
    (flags & EXPIRY != 0).then(|| u32::from_be_bytes(*interval))
}

/// Appends what takes the place of a message that is over: it is for nobody.
fn stand_in(message: &[u8], out: &mut BytesMut) {
    let mut message = message;
    if let Ok(Forwarded { message, .. }) = Forwarded::decode(&mut message) {
        let stand_in = Message {
            properties: &[],
            expiry: None,
            payload: &[],
            ..message
        };
        let nobody = Recipients {
            groups: &[],
            only_groups: true,
        };
        encode(&stand_in, nobody, out);
    }
}

/// The number of messages in a batch that was encoded by [`encode`].
pub(super) fn count(messages: &[u8]) -> u64 {
    let mut count = 0;
    let mut rest = messages;
    while let Some(length) = rest.first_chunk::<4>() {
        let length = 4 + u32::from_be_bytes(*length) as usize;
        rest = rest.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

/// The bytes are no forwarded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a forwarded message is malformed")]
pub struct Malformed;

/// The names of groups in a message that was received. They are well-formed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupNames<'a>(&'a [u8]);

impl<'a> GroupNames<'a> {
    fn decode(bytes: &'a [u8]) -> Result<GroupNames<'a>, Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            take_name(&mut rest)?;
        }
        Ok(GroupNames(bytes))
    }

    /// All names.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.0;
        std::iter::from_fn(move || take_name(&mut rest).ok())
    }
}

fn take_name<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    let length = u16::from_be_bytes(take(bytes)?).into();
    std::str::from_utf8(take_slice(bytes, length)?).map_err(|_| Malformed)
}

/// A message from another node, and which subscriptions of this one it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded<'a> {
    /// The message.
    pub message: Message<'a>,
    /// One member of each of these gets it.
    pub groups: GroupNames<'a>,
    /// Subscriptions that are not shared do not get it.
    pub only_groups: bool,
}

impl Forwarded<'_> {
    /// Whether it stands in for a message that has expired on its way.
    pub fn is_for_nobody(&self) -> bool {
        self.only_groups && self.groups.0.is_empty()
    }
}

/// Appends a message.
pub fn encode(message: &Message<'_>, recipients: Recipients<'_>, out: &mut BytesMut) {
    let expiry = if message.expiry.is_some() { 4 } else { 0 };
    let names: usize = recipients.groups.iter().map(|name| 2 + name.len()).sum();
    let groups = if names > 0 { 4 + names } else { 0 };
    let texts = message.topic.len() + message.properties.len() + message.payload.len();
    let length = 8 + 1 + expiry + groups + 2 + 4 + texts;
    out.reserve(4 + length);
    // An MQTT packet is below 2^28 bytes, and a topic name or filter below 2^16: every length fits.
    out.put_u32(length as u32);
    out.put_u64(message.publisher.map_or(0, |session| session.0));
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    out.put_u8(
        message.qos as u8
            | flag(message.retain, RETAIN)
            | flag(message.expiry.is_some(), EXPIRY)
            | flag(message.direct, DIRECT)
            | flag(groups > 0, GROUPS)
            | flag(recipients.only_groups, ONLY_GROUPS),
    );
    if let Some(seconds) = message.expiry {
        out.put_u32(seconds);
    }
    if groups > 0 {
        out.put_u32(names as u32);
        for name in recipients.groups {
            out.put_u16(name.len() as u16);
            out.put_slice(name.as_bytes());
        }
    }
    out.put_u16(message.topic.len() as u16);
    out.put_slice(message.topic.as_bytes());
    out.put_u32(message.properties.len() as u32);
    out.put_slice(message.properties);
    out.put_slice(message.payload);
}

impl<'a> Forwarded<'a> {
    /// Takes the first message off `bytes`.
    ///
    /// # Errors
    /// When the bytes do not begin with a message.
    pub fn decode(bytes: &mut &'a [u8]) -> Result<Forwarded<'a>, Malformed> {
        let length = u32::from_be_bytes(take(bytes)?) as usize;
        let (mut body, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
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
            GroupNames::decode(take_slice(body, length)?)?
        } else {
            GroupNames::default()
        };
        let topic = take_name(body)?;
        let properties_length = u32::from_be_bytes(take(body)?) as usize;
        let properties = take_slice(body, properties_length)?;
        Ok(Forwarded {
            message: Message {
                publisher: (publisher != 0).then_some(SessionId(publisher)),
                qos: QoS::from_bits(flags & 0b11).ok_or(Malformed)?,
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

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(Malformed)?;
    *bytes = rest;
    Ok(*head)
}

fn take_slice<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (head, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
    *bytes = rest;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_for_ever() {
        let message = Message {
            publisher: Some(SessionId(0x0102)),
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: "t/1",
            properties: &[3, 0, 1, b'x'],
            expiry: Some(60),
            direct: true,
            payload: b"abc",
        };
        let recipients = Recipients {
            groups: &["$share/g/t/+"],
            only_groups: true,
        };
        let mut bytes = BytesMut::new();
        encode(&message, recipients, &mut bytes);
        let plain = Message {
            publisher: None,
            qos: QoS::AtMostOnce,
            retain: false,
            properties: &[],
            expiry: None,
            direct: false,
            ..message
        };
        encode(&plain, Recipients::default(), &mut bytes);
        let expected = [
            &[0, 0, 0, 47][..],
            &[0, 0, 0, 0, 0, 0, 1, 2],
            &[0b0111_1101],
            &[0, 0, 0, 60],
            &[0, 0, 0, 14, 0, 12],
            b"$share/g/t/+",
            &[0, 3],
            b"t/1",
            &[0, 0, 0, 4, 3, 0, 1, b'x'],
            b"abc",
            &[0, 0, 0, 21],
            &[0, 0, 0, 0, 0, 0, 0, 0],
            &[0],
            &[0, 3],
            b"t/1",
            &[0, 0, 0, 0],
            b"abc",
        ];
        assert_eq!(bytes, expected.concat());
    }

    proptest! {
        #[test]
        fn messages_decode_to_what_they_were(
            publisher in 0u64..3, qos in 0u8..3, retain: bool, direct: bool, topic in "\\PC{0,20}",
            properties in prop::collection::vec(any::<u8>(), 0..20), expiry: Option<u32>,
            payload in prop::collection::vec(any::<u8>(), 0..50), copies in 1usize..4,
            groups in prop::collection::vec("\\PC{0,9}", 0..3), only_groups: bool,
        ) {
            let message = Message {
                publisher: (publisher != 0).then_some(SessionId(publisher)),
                qos: QoS::from_bits(qos).expect("below 3"), retain, topic: &topic,
                properties: &properties, expiry, direct, payload: &payload,
            };
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            let mut bytes = BytesMut::new();
            for _ in 0..copies {
                encode(&message, Recipients { groups: &groups, only_groups }, &mut bytes);
            }
            let mut rest = &bytes[..];
            for _ in 0..copies {
                let decoded = Forwarded::decode(&mut rest).expect("it was encoded");
                prop_assert_eq!(decoded.message, message);
                prop_assert!(decoded.groups.iter().eq(groups.iter().copied()));
                prop_assert_eq!(decoded.only_groups, only_groups);
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn what_somebody_waits_for_is_what_has_qos_1_or_2(qualities in prop::collection::vec(0u8..3, 0..9)) {
            let (mut all, mut awaited) = (BytesMut::new(), BytesMut::new());
            for (at, qos) in qualities.iter().enumerate() {
                let message = Message {
                    publisher: None, qos: QoS::from_bits(*qos).expect("below 3"), retain: false, topic: "t",
                    properties: &[], expiry: Some(at as u32), direct: false, payload: &[*qos; 5][..at % 5],
                };
                encode(&message, Recipients::default(), &mut all);
                if *qos > 0 {
                    encode(&message, Recipients::default(), &mut awaited);
                }
            }
            let left_out = qualities.iter().filter(|qos| **qos == 0).count() as u64;
            prop_assert_eq!(for_log(&all.freeze(), Some), (awaited.freeze(), left_out));
        }

        /// Each is there with what is left of its interval; in the place of those that are over nobody gets anything.
        #[test]
        fn what_goes_through_the_log_says_what_is_left(
            messages in prop::collection::vec((0u8..3, proptest::option::of(0u32..9)), 0..9), waited in 0u32..9,
        ) {
            let mut all = BytesMut::new();
            for (qos, expiry) in &messages {
                let message = Message {
                    publisher: None, qos: QoS::from_bits(*qos).expect("below 3"), retain: false, topic: "t",
                    properties: &[3, 0, 1, b'x'], expiry: *expiry, direct: false, payload: b"abc",
                };
                encode(&message, Recipients::default(), &mut all);
            }
            let (logged, _) = for_log(&all.freeze(), |interval| interval.checked_sub(waited));
            let mut rest = &logged[..];
            for (qos, expiry) in messages.iter().filter(|(qos, _)| *qos > 0) {
                let found = Forwarded::decode(&mut rest).expect("it was encoded");
                let left = expiry.map(|interval| interval.checked_sub(waited));
                prop_assert_eq!(found.message.qos as u8, *qos);
                prop_assert_eq!(found.message.expiry, left.flatten());
                prop_assert_eq!(found.is_for_nobody(), left == Some(None));
                prop_assert_eq!(found.message.payload.is_empty(), left == Some(None));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut rest = &bytes[..];
            while !rest.is_empty() && Forwarded::decode(&mut rest).is_ok() {}
        }
    }
}
