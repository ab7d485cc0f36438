//! The stored row of one message in one session's queue: a reference to the message, and how to deliver it.
//!
//! ```text
//! head:u8 message:u64 size:varint [expires:u64] [group:varint] [identifier:varint ..]    queued
//! head:u8 order:u64                                                                      released
//! ```
//! The low three bits of `head` are the format, which never changes its meaning: 1 queued, 2 released. The others of a
//! queued entry are QoS (two bits), RETAIN, and whether it expires and came through a group. A queued entry usually
//! takes 11 bytes; the message itself is stored once, however many sessions wait for it.

use smallvec::SmallVec;

use super::QoS;
use crate::base::time::Millis;

const FORMAT: u8 = 0b111;
const FORMAT_QUEUED: u8 = 1;
const FORMAT_RELEASED: u8 = 2;
const QOS_SHIFT: u32 = 3;
const FLAG_RETAIN: u8 = 1 << 5;
const FLAG_EXPIRES: u8 = 1 << 6;
const FLAG_GROUP: u8 = 1 << 7;

/// The largest subscription identifier (MQTT 5, 3.8.2.1.2).
pub const MAX_IDENTIFIER: u32 = 268_435_455;

/// A stored message, shared by the queues that refer to it: its number, and in the highest bit whether only one may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

impl MessageId {
    const FOR_ONE: u64 = 1 << 63;

    /// The same number of a message that only one queue may refer to.
    pub fn for_one(self) -> MessageId {
        MessageId(self.0 | MessageId::FOR_ONE)
    }

    /// Whether only one queue may refer to it.
    pub fn is_for_one(self) -> bool {
        self.0 & MessageId::FOR_ONE != 0
    }
}

/// Why a stored entry can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The entry's format is unknown: a newer program wrote it.
    #[error("unknown format {0} of a queue entry")]
    UnknownFormat(u8),
    /// The entry is cut short or holds what is never written.
    #[error("the queue entry is damaged")]
    Damaged,
}

/// A message to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The message.
    pub message: MessageId,
    /// QoS of this delivery.
    pub qos: QoS,
    /// RETAIN of this delivery `[MQTT-3.3.1-12]`, `[MQTT-3.3.1-13]`.
    pub retain: bool,
    /// Its share of the queue's bounds, bytes.
    pub size: u32,
    /// The log time after which it is not sent any more.
    pub expires_at: Option<Millis>,
    /// The group of a shared subscription that it goes back to when its session can't take it.
    pub group: Option<u64>,
    /// Identifiers of the subscriptions it matched, each from 1 to [`MAX_IDENTIFIER`].
    pub identifiers: SmallVec<[u32; 2]>,
}

/// An unfinished delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// To be sent as PUBLISH; sent already or not.
    Queued(Queued),
    /// QoS 2, after its PUBREC: the message is gone, and PUBREL is repeated until PUBCOMP `[MQTT-4.3.3-6]`.
    Released {
        /// The place of its PUBREC among those of the session: PUBRELs go out again in this order.
        order: u64,
    },
}

impl Entry {
    /// Appends the row.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entry::Queued(queued) => {
                let qos = match queued.qos {
                    QoS::AtMostOnce => 0,
                    QoS::AtLeastOnce => 1,
                    QoS::ExactlyOnce => 2,
                };
                let flag = |set: bool, flag: u8| if set { flag } else { 0 };
                out.push(
                    FORMAT_QUEUED
                        | qos << QOS_SHIFT
                        | flag(queued.retain, FLAG_RETAIN)
                        | flag(queued.expires_at.is_some(), FLAG_EXPIRES)
                        | flag(queued.group.is_some(), FLAG_GROUP),
                );
                out.extend_from_slice(&queued.message.0.to_be_bytes());
                push_varint(out, queued.size.into());
                if let Some(expires_at) = queued.expires_at {
                    out.extend_from_slice(&expires_at.0.to_be_bytes());
                }
                if let Some(group) = queued.group {
                    push_varint(out, group);
                }
                for identifier in &queued.identifiers {
                    push_varint(out, (*identifier).into());
                }
            }
            Entry::Released { order } => {
                out.push(FORMAT_RELEASED);
                out.extend_from_slice(&order.to_be_bytes());
            }
        }
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is damaged or newer than this program; whoever reads it must stop rather than guess.
    pub fn decode(row: &[u8]) -> Result<Self, EntryError> {
        let (&head, mut rest) = row.split_first().ok_or(EntryError::Damaged)?;
        match head & FORMAT {
            FORMAT_QUEUED => queued(head, rest).map(Entry::Queued),
            FORMAT_RELEASED if head != FORMAT_RELEASED => Err(EntryError::UnknownFormat(head)),
            FORMAT_RELEASED => {
                let order = take_u64(&mut rest)?;
                if rest.is_empty() {
                    Ok(Entry::Released { order })
                } else {
                    Err(EntryError::Damaged)
                }
            }
            _ => Err(EntryError::UnknownFormat(head)),
        }
    }
}

fn queued(head: u8, mut rest: &[u8]) -> Result<Queued, EntryError> {
    let rest = &mut rest;
    let qos = match head >> QOS_SHIFT & 3 {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        2 => QoS::ExactlyOnce,
        _ => return Err(EntryError::Damaged),
    };
    let message = MessageId(take_u64(rest)?);
    let size = u32::try_from(take_varint(rest)?).map_err(|_| EntryError::Damaged)?;
    let expires_at = match head & FLAG_EXPIRES {
        0 => None,
        _ => Some(Millis(take_u64(rest)?)),
    };
    let group = match head & FLAG_GROUP {
        0 => None,
        _ => Some(take_varint(rest)?),
    };
    let mut identifiers = SmallVec::new();
    while !rest.is_empty() {
        match u32::try_from(take_varint(rest)?) {
            Ok(identifier @ 1..=MAX_IDENTIFIER) => identifiers.push(identifier),
            _ => return Err(EntryError::Damaged),
        }
    }
    Ok(Queued {
        message,
        qos,
        retain: head & FLAG_RETAIN != 0,
        size,
        expires_at,
        group,
        identifiers,
    })
}

fn take_u64(rest: &mut &[u8]) -> Result<u64, EntryError> {
    let (number, after) = rest.split_first_chunk().ok_or(EntryError::Damaged)?;
    *rest = after;
    Ok(u64::from_be_bytes(*number))
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // The low seven bits, and a mark that more follow.
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, EntryError> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(EntryError::Damaged)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(EntryError::Damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_entry() -> impl Strategy<Value = Entry> {
        let qos = prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        let identifier = prop_oneof![1u32..300, 1..=MAX_IDENTIFIER];
        let queued = (
            any::<u64>(),
            qos,
            any::<bool>(),
            any::<u32>(),
            prop::option::of(any::<u64>()),
            prop::option::of(0..1u64 << 50),
            prop::collection::vec(identifier, 0..4),
        )
            .prop_map(
                |(message, qos, retain, size, expires, group, identifiers)| {
                    Entry::Queued(Queued {
                        message: MessageId(message),
                        qos,
                        retain,
                        size,
                        expires_at: expires.map(Millis),
                        group,
                        identifiers: identifiers.into(),
                    })
                },
            );
        prop_oneof![
            queued,
            any::<u64>().prop_map(|order| Entry::Released { order })
        ]
    }

    proptest! {
        #[test]
        fn entries_round_trip(entry in any_entry()) {
            let mut out = Vec::new();
            entry.encode(&mut out);
            prop_assert_eq!(Entry::decode(&out), Ok(entry));
        }

        #[test]
        fn arbitrary_bytes_never_panic(row in prop::collection::vec(any::<u8>(), 0..20), head in 0u8..4) {
            let _ = Entry::decode(&row);
            let _ = Entry::decode(&[&[head], row.as_slice()].concat());
        }
    }

    #[test]
    fn the_bytes_are_for_ever() {
        let mut out = Vec::new();
        let queued = Queued {
            message: MessageId(0x0102),
            qos: QoS::ExactlyOnce,
            retain: true,
            size: 200,
            expires_at: None,
            group: None,
            identifiers: SmallVec::from_slice(&[5, 300]),
        };
        Entry::Queued(queued.clone()).encode(&mut out);
        assert_eq!(out, [0x31, 0, 0, 0, 0, 0, 0, 1, 2, 0xc8, 1, 5, 0xac, 2]);
        out.clear();
        Entry::Queued(Queued {
            expires_at: Some(Millis(7)),
            group: Some(3),
            identifiers: SmallVec::new(),
            ..queued
        })
        .encode(&mut out);
        assert_eq!(
            out,
            [
                0xf1, 0, 0, 0, 0, 0, 0, 1, 2, 0xc8, 1, 0, 0, 0, 0, 0, 0, 0, 7, 3
            ]
        );
        out.clear();
        Entry::Released { order: 7 }.encode(&mut out);
        assert_eq!(out, [2, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn newer_and_damaged_rows_are_told_apart() {
        let row = |head: u8, tail: &[u8]| [&[head, 0, 0, 0, 0, 0, 0, 0, 1], tail].concat();
        for head in [3, 0x82, 0x12] {
            assert_eq!(
                Entry::decode(&row(head, &[])),
                Err(EntryError::UnknownFormat(head))
            );
        }
        for damaged in [
            row(0x19, &[1]),
            row(1, &[]),
            row(1, &[1, 0]),
            row(1, &[1, 0x80]),
            row(0x41, &[1, 0]),
            row(2, &[1]),
            vec![1, 0],
            row(
                1,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ] {
            assert_eq!(Entry::decode(&damaged), Err(EntryError::Damaged));
        }
    }
}
