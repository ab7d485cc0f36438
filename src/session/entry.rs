//! The stored row of one message in one session's queue: a reference to the message, and how it is delivered.
//!
//! ```text
//! head:u8 message:u64 [identifier:varint ..]        queued
//! head:u8 order:u64                                 released
//! ```
//! The low four bits of `head` are the format, which is for ever: 1 queued, 2 released. The others of a queued
//! entry are QoS (two bits) and RETAIN. A queued entry without subscription identifier takes 9 bytes; the
//! message itself is stored once, however many sessions wait for it.

use smallvec::SmallVec;

use super::Qos;

const FORMAT_QUEUED: u8 = 1;
const FORMAT_RELEASED: u8 = 2;
const QOS_SHIFT: u32 = 4;
const FLAG_RETAIN: u8 = 1 << 6;

/// The largest subscription identifier (MQTT 5, 3.8.2.1.2).
pub const MAX_IDENTIFIER: u32 = 268_435_455;

/// A stored message, shared by the queues that refer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

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
    pub qos: Qos,
    /// RETAIN of this delivery `[MQTT-3.3.1-12]`, `[MQTT-3.3.1-13]`.
    pub retain: bool,
    /// Identifiers of the subscriptions it matched, each from 1 to [`MAX_IDENTIFIER`].
    pub identifiers: SmallVec<[u32; 2]>,
}

/// An unfinished delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// To be sent as PUBLISH; sent already or not.
    Queued(Queued),
    /// QoS 2, past its PUBREC: the message is gone, a PUBREL is owed until PUBCOMP `[MQTT-4.3.3-6]`.
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
                    Qos::AtMostOnce => 0,
                    Qos::AtLeastOnce => 1,
                    Qos::ExactlyOnce => 2,
                };
                let retain = if queued.retain { FLAG_RETAIN } else { 0 };
                out.push(FORMAT_QUEUED | qos << QOS_SHIFT | retain);
                out.extend_from_slice(&queued.message.0.to_be_bytes());
                for identifier in &queued.identifiers {
                    push_varint(out, *identifier);
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
        let (&head, rest) = row.split_first().ok_or(EntryError::Damaged)?;
        let (number, rest) = rest.split_first_chunk().ok_or(EntryError::Damaged)?;
        let number = u64::from_be_bytes(*number);
        match head & 0x0f {
            FORMAT_QUEUED => {
                let qos = match head >> QOS_SHIFT & 3 {
                    0 => Qos::AtMostOnce,
                    1 => Qos::AtLeastOnce,
                    2 => Qos::ExactlyOnce,
                    _ => return Err(EntryError::Damaged),
                };
                if head >> 7 != 0 {
                    return Err(EntryError::UnknownFormat(head));
                }
                Ok(Entry::Queued(Queued {
                    message: MessageId(number),
                    qos,
                    retain: head & FLAG_RETAIN != 0,
                    identifiers: identifiers(rest)?,
                }))
            }
            FORMAT_RELEASED if head != FORMAT_RELEASED => Err(EntryError::UnknownFormat(head)),
            FORMAT_RELEASED if rest.is_empty() => Ok(Entry::Released { order: number }),
            FORMAT_RELEASED => Err(EntryError::Damaged),
            _ => Err(EntryError::UnknownFormat(head)),
        }
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        // The low seven bits, and a mark that more follow.
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn identifiers(mut rest: &[u8]) -> Result<SmallVec<[u32; 2]>, EntryError> {
    let mut identifiers = SmallVec::new();
    while !rest.is_empty() {
        let mut value = 0u32;
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first().ok_or(EntryError::Damaged)?;
            rest = after;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 21 {
                return Err(EntryError::Damaged);
            }
        }
        if value == 0 {
            return Err(EntryError::Damaged);
        }
        identifiers.push(value);
    }
    Ok(identifiers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_entry() -> impl Strategy<Value = Entry> {
        let qos = prop::sample::select(vec![Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce]);
        let identifier = prop_oneof![1u32..300, 1..=MAX_IDENTIFIER];
        let queued = (
            any::<u64>(),
            qos,
            any::<bool>(),
            prop::collection::vec(identifier, 0..4),
        )
            .prop_map(|(message, qos, retain, identifiers)| {
                Entry::Queued(Queued {
                    message: MessageId(message),
                    qos,
                    retain,
                    identifiers: identifiers.into(),
                })
            });
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
        Entry::Queued(Queued {
            message: MessageId(0x0102),
            qos: Qos::ExactlyOnce,
            retain: true,
            identifiers: SmallVec::from_slice(&[5, 300]),
        })
        .encode(&mut out);
        assert_eq!(out, [0x61, 0, 0, 0, 0, 0, 0, 1, 2, 5, 0xac, 2]);
        out.clear();
        Entry::Released { order: 7 }.encode(&mut out);
        assert_eq!(out, [2, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn newer_and_damaged_rows_are_told_apart() {
        let row = |head: u8, tail: &[u8]| [&[head, 0, 0, 0, 0, 0, 0, 0, 1], tail].concat();
        assert_eq!(
            Entry::decode(&row(3, &[])),
            Err(EntryError::UnknownFormat(3))
        );
        assert_eq!(
            Entry::decode(&row(0x81, &[])),
            Err(EntryError::UnknownFormat(0x81))
        );
        assert_eq!(
            Entry::decode(&row(0x12, &[])),
            Err(EntryError::UnknownFormat(0x12))
        );
        for damaged in [
            row(0x31, &[]),
            row(1, &[0]),
            row(1, &[0x80]),
            row(2, &[1]),
            vec![1, 0],
        ] {
            assert_eq!(Entry::decode(&damaged), Err(EntryError::Damaged));
        }
        assert_eq!(
            Entry::decode(&row(1, &[0xff, 0xff, 0xff, 0xff, 1])),
            Err(EntryError::Damaged)
        );
    }
}
