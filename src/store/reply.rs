//! Replies: their exact payload, their `__ts`, and the bytes under which they are remembered.
//!
//! Remembered replies let a re-sent request get the answer it got the first time (docs/spec/state-store.md, Retries).

use bytes::{Buf, Bytes};

use crate::base::hlc::Hlc;

use super::error::StoreError;
use super::record::{RecordError, decode_hlc, encode_hlc};
use super::resp3::{push_array, push_blob};

/// `__stat` of every answer, errors included (docs/spec/state-store.md, Answers).
pub const STATUS: &str = "200";
/// `__protVer` of every answer and notification.
pub const PROTOCOL_VERSION: &str = "1.0";
/// Content type of every answer and notification.
pub const CONTENT_TYPE: &str = "application/octet-stream";

/// The answer to a request (docs/spec/state-store.md, Answers).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// SET applied.
    Set {
        /// The new version.
        version: Hlc,
    },
    /// SET refused by NX or NEX.
    NotSet {
        /// The version of the key that is there.
        version: Hlc,
    },
    /// GET of a key that is there.
    Value {
        /// Its value.
        value: Bytes,
        /// Its version, as its SET returned it.
        version: Hlc,
    },
    /// GET of a key that is not there.
    NoValue,
    /// DEL or VDEL applied.
    Deleted {
        /// The version of the value that went.
        version: Hlc,
    },
    /// DEL or VDEL of a key that is not there.
    NothingToDelete,
    /// VDEL of a key that has another value.
    ValueDiffers,
    /// KEYNOTIFY done: watched now, or STOP of a watched key.
    Notify,
    /// KEYNOTIFY STOP of a key that was not watched.
    NotWatched,
    /// SCAN: a page of keys.
    Page {
        /// The keys, in order.
        keys: Vec<Bytes>,
        /// Where the next page starts; `None` on the last one.
        token: Option<Bytes>,
    },
    /// The request is refused.
    Error(StoreError),
}

impl Reply {
    /// Bytes of what it holds beside itself: a value, or keys and a token.
    pub fn content_bytes(&self) -> usize {
        match self {
            Reply::Value { value, .. } => value.len(),
            Reply::Page { keys, token } => {
                let parts = keys.iter().chain(token);
                parts.map(|part| size_of::<Bytes>() + part.len()).sum()
            }
            _ => 0,
        }
    }

    /// Appends the payload of the answer.
    pub fn write_payload(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Set { .. } | Reply::Notify => out.extend_from_slice(b"+OK\r\n"),
            Reply::NotSet { .. } | Reply::ValueDiffers => out.extend_from_slice(b":-1\r\n"),
            Reply::Value { value, .. } => push_blob(out, value),
            Reply::NoValue => out.extend_from_slice(b"$-1\r\n"),
            Reply::Deleted { .. } => out.extend_from_slice(b":1\r\n"),
            Reply::NothingToDelete | Reply::NotWatched => out.extend_from_slice(b":0\r\n"),
            Reply::Page { keys, token } => {
                push_array(out, 1 + usize::from(token.is_some()));
                push_array(out, keys.len());
                keys.iter().for_each(|key| push_blob(out, key));
                if let Some(token) = token {
                    push_blob(out, token);
                }
            }
            Reply::Error(error) => {
                out.extend_from_slice(b"-ERR ");
                out.extend_from_slice(error.to_string().as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The `__ts` of the answer, when it has one. An absent key has none: Go reads that as "no key".
    pub fn timestamp(&self) -> Option<&Hlc> {
        match self {
            Reply::Set { version }
            | Reply::NotSet { version }
            | Reply::Value { version, .. }
            | Reply::Deleted { version } => Some(version),
            Reply::NoValue
            | Reply::NothingToDelete
            | Reply::ValueDiffers
            | Reply::Notify
            | Reply::NotWatched
            | Reply::Page { .. }
            | Reply::Error(_) => None,
        }
    }

    /// Appends the bytes to remember this reply by; [`Reply::decode`] reads them.
    ///
    /// The first byte's numbers are for ever: 1 `Set`, 2 `NotSet`, 3 `Value`, 4 `NoValue`, 5 `Deleted`, 6
    /// `NothingToDelete`, 7 `ValueDiffers`, 8 `Notify`, 9 `NotWatched`, 10 `Page`, 11 `Error`; 128 is added when a
    /// version follows that isn't the store's own.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let number = match self {
            Reply::Set { .. } => 1,
            Reply::NotSet { .. } => 2,
            Reply::Value { .. } => 3,
            Reply::NoValue => 4,
            Reply::Deleted { .. } => 5,
            Reply::NothingToDelete => 6,
            Reply::ValueDiffers => 7,
            Reply::Notify => 8,
            Reply::NotWatched => 9,
            Reply::Page { .. } => 10,
            Reply::Error(_) => 11,
        };
        let version = self.timestamp();
        let foreign = version.is_some_and(|version| !version.node.is_store());
        out.push(number | if foreign { FOREIGN } else { 0 });
        if let Some(version) = version {
            encode_hlc(version, out);
        }
        match self {
            Reply::Value { value, .. } => out.extend_from_slice(value),
            Reply::Page { keys, token } => {
                out.push(u8::from(token.is_some()));
                token
                    .iter()
                    .chain(keys)
                    .for_each(|item| push_item(out, item));
            }
            Reply::Error(error) => out.push(error.number()),
            _ => {}
        }
    }

    /// Reads what [`Reply::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are damaged or newer than this program.
    pub fn decode(mut bytes: Bytes) -> Result<Self, RecordError> {
        let number = bytes.try_get_u8().map_err(|_| RecordError::Truncated)?;
        let version = |bytes: &mut Bytes| decode_hlc(bytes, number & FOREIGN != 0);
        let reply = match number & !FOREIGN {
            1 => Reply::Set {
                version: version(&mut bytes)?,
            },
            2 => Reply::NotSet {
                version: version(&mut bytes)?,
            },
            3 => Reply::Value {
                version: version(&mut bytes)?,
                value: std::mem::take(&mut bytes),
            },
            5 => Reply::Deleted {
                version: version(&mut bytes)?,
            },
            _ if number & FOREIGN != 0 => return Err(RecordError::UnknownFormat(number)),
            4 => Reply::NoValue,
            6 => Reply::NothingToDelete,
            7 => Reply::ValueDiffers,
            8 => Reply::Notify,
            9 => Reply::NotWatched,
            10 => decode_page(&mut bytes)?,
            11 => {
                let error = bytes.try_get_u8().map_err(|_| RecordError::Truncated)?;
                Reply::Error(
                    StoreError::from_number(error).ok_or(RecordError::UnknownFormat(error))?,
                )
            }
            _ => return Err(RecordError::UnknownFormat(number)),
        };
        if bytes.is_empty() {
            Ok(reply)
        } else {
            Err(RecordError::Damaged)
        }
    }
}

/// Marks a version that carries its own node id.
const FOREIGN: u8 = 128;

fn push_item(out: &mut Vec<u8>, item: &[u8]) {
    // Keys and tokens come out of packets, whose length is below 2^28.
    out.extend_from_slice(&(item.len() as u32).to_be_bytes());
    out.extend_from_slice(item);
}

fn decode_page(bytes: &mut Bytes) -> Result<Reply, RecordError> {
    let has_token = match bytes.try_get_u8() {
        Ok(0) => false,
        Ok(1) => true,
        Ok(_) => return Err(RecordError::Damaged),
        Err(_) => return Err(RecordError::Truncated),
    };
    let token = has_token.then(|| take_item(bytes)).transpose()?;
    let mut keys = Vec::new();
    while !bytes.is_empty() {
        keys.push(take_item(bytes)?);
    }
    Ok(Reply::Page { keys, token })
}

fn take_item(bytes: &mut Bytes) -> Result<Bytes, RecordError> {
    let length = bytes.try_get_u32().map_err(|_| RecordError::Truncated)?;
    let length = usize::try_from(length).map_err(|_| RecordError::Truncated)?;
    if bytes.len() < length {
        return Err(RecordError::Truncated);
    }
    Ok(bytes.split_to(length))
}

impl From<StoreError> for Reply {
    fn from(error: StoreError) -> Self {
        Reply::Error(error)
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
