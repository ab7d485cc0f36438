//! The stored row of a key, and its bytes.
//!
//! Decoding copies no value: a row read as [`Bytes`] gives a record whose value is a slice of it. A row's first
//! byte is its format, whose numbers are for ever:
//!
//! ```text
//! 1 value      flags:u8 version [expires_at:u64] [fencing token] value..
//! 2 tombstone  flags:u8 version
//! ```
//! A clock value is `wall:u64 counter:u32`, followed by `length:u16 node..` when the flags say that it isn't the
//! store's own. Numbers are big-endian.

use bytes::{Buf, Bytes};

use crate::base::hlc::{Hlc, MAX_COUNTER, NodeName};
use crate::base::time::Millis;

const FORMAT_VALUE: u8 = 1;
const FORMAT_TOMBSTONE: u8 = 2;

const FLAG_EXPIRY: u8 = 1;
const FLAG_FENCING: u8 = 1 << 1;
const FLAG_VERSION_NODE: u8 = 1 << 2;
const FLAG_FENCING_NODE: u8 = 1 << 3;

/// Why a stored row can't be read: it was written by a newer program, or it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The row's format, or a flag of it, is unknown.
    #[error("unknown row format {0}")]
    UnknownFormat(u8),
    /// The row ends too early.
    #[error("the row is cut short")]
    Truncated,
    /// A field holds what is never written, or bytes follow a tombstone.
    #[error("the row is damaged")]
    Damaged,
}

/// What stands for a value where only its length matters, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueLength(pub u32);

/// A value, or what stands for it.
pub trait Length {
    /// Bytes of the value.
    fn length(&self) -> usize;
}

impl<V: AsRef<[u8]>> Length for V {
    fn length(&self) -> usize {
        self.as_ref().len()
    }
}

impl Length for ValueLength {
    fn length(&self) -> usize {
        self.0 as usize
    }
}

/// A key that is there. `V` is [`Bytes`] when read from storage, `&[u8]` when about to be written, [`ValueLength`] when
/// the value was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord<V = Bytes> {
    /// The value, maybe empty.
    pub value: V,
    /// The version of the SET that wrote it.
    pub version: Hlc,
    /// The highest fencing token seen, when the key is protected.
    pub fencing_token: Option<Hlc>,
    /// When the key ends; `None` when never.
    pub expires_at: Option<Millis>,
}

impl<V> KeyRecord<V> {
    /// Whether the key's time is over. Expiry is never early: at the deadline, not before it (docs/spec/state-store.md,
    /// Expiry).
    pub fn is_expired(&self, store_clock: Millis) -> bool {
        self.expires_at
            .is_some_and(|deadline| deadline <= store_clock)
    }
}

/// What a deleted or expired key leaves behind, so that its next version is higher (docs/spec/state-store.md,
/// Versions).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Higher than the version of the value that went; also the version of the DELETE notification.
    pub version: Hlc,
}

impl Tombstone {
    /// From this store clock on the row may be removed: every later version is higher anyway. At most a minute and
    /// a millisecond after the deletion, by the drift limit.
    pub fn purge_at(&self) -> Millis {
        Millis(self.version.wall_ms).plus(1)
    }
}

/// The row of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRow<V = Bytes> {
    /// The key is there.
    Value(KeyRecord<V>),
    /// The key is gone, its last version is not.
    Tombstone(Tombstone),
}

impl<V> KeyRow<V> {
    /// The record, if the key is there.
    pub fn record(&self) -> Option<&KeyRecord<V>> {
        match self {
            KeyRow::Value(record) => Some(record),
            KeyRow::Tombstone(_) => None,
        }
    }

    /// The last version the key had.
    pub fn version(&self) -> &Hlc {
        match self {
            KeyRow::Value(record) => &record.version,
            KeyRow::Tombstone(tombstone) => &tombstone.version,
        }
    }
}

impl<V: AsRef<[u8]>> KeyRow<V> {
    /// Appends the row's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            KeyRow::Value(record) => encode_record(record, out),
            KeyRow::Tombstone(tombstone) => {
                out.push(FORMAT_TOMBSTONE);
                out.push(node_flag(&tombstone.version, FLAG_VERSION_NODE));
                encode_hlc(&tombstone.version, out);
            }
        }
    }
}

impl KeyRow<Bytes> {
    /// Reads a row; the value is a slice of it.
    ///
    /// # Errors
    /// The row is damaged or newer than this program; whoever reads it must stop rather than guess.
    pub fn decode(mut row: Bytes) -> Result<Self, RecordError> {
        let format = row.try_get_u8().map_err(|_| RecordError::Truncated)?;
        let flags = row.try_get_u8().map_err(|_| RecordError::Truncated)?;
        match format {
            FORMAT_VALUE => decode_record(flags, row).map(KeyRow::Value),
            FORMAT_TOMBSTONE => {
                if flags & !FLAG_VERSION_NODE != 0 {
                    return Err(RecordError::UnknownFormat(format));
                }
                let version = decode_hlc(&mut row, flags & FLAG_VERSION_NODE != 0)?;
                if !row.is_empty() {
                    return Err(RecordError::Damaged);
                }
                Ok(KeyRow::Tombstone(Tombstone { version }))
            }
            _ => Err(RecordError::UnknownFormat(format)),
        }
    }
}

/// Whether a stored row is a key that is there at the store's clock, from its first bytes: SCAN asks this of many
/// rows whose values it doesn't want.
///
/// # Errors
/// As [`KeyRow::decode`], as far as it looks.
pub fn is_there(row: &[u8], store_clock: Millis) -> Result<bool, RecordError> {
    let (&[format, flags], rest) = row.split_first_chunk().ok_or(RecordError::Truncated)?;
    match format {
        FORMAT_TOMBSTONE => return Ok(false),
        FORMAT_VALUE => {}
        _ => return Err(RecordError::UnknownFormat(format)),
    }
    if flags & FLAG_EXPIRY == 0 {
        return Ok(true);
    }
    let (_version, mut rest) = rest
        .split_first_chunk::<12>()
        .ok_or(RecordError::Truncated)?;
    if flags & FLAG_VERSION_NODE != 0 {
        let (length, node) = rest.split_first_chunk().ok_or(RecordError::Truncated)?;
        let length = usize::from(u16::from_be_bytes(*length));
        rest = node.get(length..).ok_or(RecordError::Truncated)?;
    }
    let (deadline, _) = rest.split_first_chunk().ok_or(RecordError::Truncated)?;
    Ok(u64::from_be_bytes(*deadline) > store_clock.0)
}

fn encode_record<V: AsRef<[u8]>>(record: &KeyRecord<V>, out: &mut Vec<u8>) {
    let value = record.value.as_ref();
    let fencing = record.fencing_token.as_ref();
    out.reserve(value.len() + 48);
    let mut flags = node_flag(&record.version, FLAG_VERSION_NODE);
    if record.expires_at.is_some() {
        flags |= FLAG_EXPIRY;
    }
    if let Some(token) = fencing {
        flags |= FLAG_FENCING | node_flag(token, FLAG_FENCING_NODE);
    }
    out.push(FORMAT_VALUE);
    out.push(flags);
    encode_hlc(&record.version, out);
    if let Some(deadline) = record.expires_at {
        out.extend_from_slice(&deadline.0.to_be_bytes());
    }
    if let Some(token) = fencing {
        encode_hlc(token, out);
    }
    out.extend_from_slice(value);
}

fn decode_record(flags: u8, mut row: Bytes) -> Result<KeyRecord, RecordError> {
    const KNOWN: u8 = FLAG_EXPIRY | FLAG_FENCING | FLAG_VERSION_NODE | FLAG_FENCING_NODE;
    if flags & !KNOWN != 0 {
        return Err(RecordError::UnknownFormat(FORMAT_VALUE));
    }
    let version = decode_hlc(&mut row, flags & FLAG_VERSION_NODE != 0)?;
    let expires_at = if flags & FLAG_EXPIRY != 0 {
        Some(Millis(
            row.try_get_u64().map_err(|_| RecordError::Truncated)?,
        ))
    } else {
        None
    };
    let fencing_token = if flags & FLAG_FENCING != 0 {
        Some(decode_hlc(&mut row, flags & FLAG_FENCING_NODE != 0)?)
    } else {
        None
    };
    Ok(KeyRecord {
        value: row,
        version,
        fencing_token,
        expires_at,
    })
}

fn node_flag(hlc: &Hlc, flag: u8) -> u8 {
    if hlc.node.is_store() { 0 } else { flag }
}

/// Appends a clock value; its node only when it isn't the store's, which the caller notes in a flag.
pub(super) fn encode_hlc(hlc: &Hlc, out: &mut Vec<u8>) {
    out.extend_from_slice(&hlc.wall_ms.to_be_bytes());
    out.extend_from_slice(&hlc.counter.to_be_bytes());
    if !hlc.node.is_store() {
        let node = hlc.node.as_str().as_bytes();
        // `NodeName` bounds the length well below 2^16.
        out.extend_from_slice(&(node.len() as u16).to_be_bytes());
        out.extend_from_slice(node);
    }
}

/// Takes a clock value off the front of `row`.
pub(super) fn decode_hlc(row: &mut Bytes, has_node: bool) -> Result<Hlc, RecordError> {
    let wall_ms = row.try_get_u64().map_err(|_| RecordError::Truncated)?;
    let counter = row.try_get_u32().map_err(|_| RecordError::Truncated)?;
    if counter > MAX_COUNTER {
        return Err(RecordError::Damaged);
    }
    let node = if has_node {
        let length = usize::from(row.try_get_u16().map_err(|_| RecordError::Truncated)?);
        if row.len() < length {
            return Err(RecordError::Truncated);
        }
        let node = row.split_to(length);
        let node = std::str::from_utf8(&node).map_err(|_| RecordError::Damaged)?;
        NodeName::new(node)
            .ok()
            .filter(|node| !node.is_store())
            .ok_or(RecordError::Damaged)?
    } else {
        NodeName::STORE
    };
    Ok(Hlc {
        wall_ms,
        counter,
        node,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_hlc() -> impl Strategy<Value = Hlc> {
        let node = prop_oneof![Just("StateStore".to_owned()), "[^:\0]{1,8}"];
        (any::<u64>(), 0..=MAX_COUNTER, node).prop_map(|(wall_ms, counter, node)| Hlc {
            wall_ms,
            counter,
            node: NodeName::new(&node).expect("the pattern has no colon or NUL"),
        })
    }

    fn any_row() -> impl Strategy<Value = KeyRow> {
        let record = (
            prop::collection::vec(any::<u8>(), 0..40),
            any_hlc(),
            prop::option::of(any_hlc()),
            prop::option::of(any::<u64>()),
        )
            .prop_map(|(value, version, fencing_token, expires_at)| {
                KeyRow::Value(KeyRecord {
                    value: Bytes::from(value),
                    version,
                    fencing_token,
                    expires_at: expires_at.map(Millis),
                })
            });
        prop_oneof![
            4 => record,
            1 => any_hlc().prop_map(|version| KeyRow::Tombstone(Tombstone { version })),
        ]
    }

    proptest! {
        #[test]
        fn rows_round_trip(row in any_row()) {
            let mut out = Vec::new();
            row.encode(&mut out);
            prop_assert_eq!(KeyRow::decode(Bytes::from(out)), Ok(row));
        }

        #[test]
        fn a_glance_tells_what_decoding_tells(row in any_row(), clock in any::<u64>(), at_deadline in any::<bool>()) {
            let mut out = Vec::new();
            row.encode(&mut out);
            let deadline = row.record().and_then(|record| record.expires_at);
            let clock = deadline.filter(|_| at_deadline).unwrap_or(Millis(clock));
            let there = row.record().is_some_and(|record| !record.is_expired(clock));
            prop_assert_eq!(is_there(&out, clock), Ok(there));
            for end in 0..out.len() {
                let _ = is_there(&out[..end], clock);
            }
        }

        #[test]
        fn a_cut_row_is_an_error_or_has_a_shorter_value(row in any_row()) {
            let mut out = Vec::new();
            row.encode(&mut out);
            let whole = Bytes::from(out);
            let value = row.record().map_or(0, |record| record.value.len());
            for end in 0..whole.len() {
                let cut = KeyRow::decode(whole.slice(..end));
                prop_assert_eq!(cut.is_ok(), end >= whole.len() - value);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut row in prop::collection::vec(any::<u8>(), 0..60), format in 0u8..4) {
            let _ = KeyRow::decode(Bytes::from(row.clone()));
            if let Some(first) = row.first_mut() {
                *first = format;
            }
            let _ = KeyRow::decode(Bytes::from(row));
        }
    }

    #[test]
    fn the_bytes_are_for_ever() {
        let row = KeyRow::Value(KeyRecord {
            value: &b"v"[..],
            version: Hlc::of_store(0x0102, 3),
            fencing_token: Some(Hlc::parse("4:5:ab").unwrap()),
            expires_at: Some(Millis(6)),
        });
        let mut out = Vec::new();
        row.encode(&mut out);
        let expected: &[u8] = &[
            1, 0b1011, // format, flags
            0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, // version
            0, 0, 0, 0, 0, 0, 0, 6, // expiry
            0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5, 0, 2, b'a', b'b', // fencing token
            b'v',
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn a_newer_format_is_named() {
        let newer = Bytes::from_static(&[9, 0, 0]);
        assert_eq!(KeyRow::decode(newer), Err(RecordError::UnknownFormat(9)));
        let flag = Bytes::from_static(&[1, 0x80, 0]);
        assert_eq!(KeyRow::decode(flag), Err(RecordError::UnknownFormat(1)));
    }

    #[test]
    fn the_value_is_not_copied() {
        let mut out = Vec::new();
        KeyRow::Value(KeyRecord {
            value: &b"value"[..],
            version: Hlc::of_store(1, 1),
            fencing_token: None,
            expires_at: None,
        })
        .encode(&mut out);
        let row = Bytes::from(out);
        let end = row.as_ptr_range().end;
        let decoded = KeyRow::decode(row).unwrap();
        let value = &decoded.record().unwrap().value;
        assert_eq!(value.as_ptr_range().end, end);
    }
}
