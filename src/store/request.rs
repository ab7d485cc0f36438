//! Requests: a PUBLISH's payload and user properties, read into what the client asks for.
//!
//! Only what needs neither the clock nor the key is judged here; [`super::apply`] does the rest. Errors come in
//! the order of docs/spec/state-store.md, Order of checks: syntax first, then timestamps.

use crate::base::hlc::{Hlc, decimal};

use super::error::StoreError;
use super::resp3;

/// The user properties of a request that mean something to the store (docs/spec/state-store.md, Requests); the others
/// are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    /// `__ts`: the client's clock.
    pub timestamp: Option<&'a str>,
    /// `__ft`: the fencing token.
    pub fencing_token: Option<&'a str>,
    /// `$high_priority`, whatever its value: exempt from back-pressure.
    pub high_priority: bool,
}

impl<'a> Properties<'a> {
    /// Picks the known names out of a PUBLISH's user properties. The first of a repeated name counts.
    pub fn collect(user_properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut properties = Properties::default();
        for (name, value) in user_properties {
            match name {
                "__ts" => properties.timestamp = properties.timestamp.or(Some(value)),
                "__ft" => properties.fencing_token = properties.fencing_token.or(Some(value)),
                "$high_priority" => properties.high_priority = true,
                _ => {}
            }
        }
        properties
    }
}

/// When a SET applies (docs/spec/state-store.md, Commands).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    #[default]
    None,
    /// `NX`: only when the key is absent.
    Nx,
    /// `NEX`: only when the key is absent or already has the value being set.
    Nex,
}

/// What a write does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAction<'a> {
    /// `SET key value [NX | NEX] [PX ms]`.
    Set {
        /// The new value.
        value: &'a [u8],
        /// When the SET applies.
        condition: Condition,
        /// `PX`: milliseconds until the key expires, at least 1; without it the key never does.
        expire_ms: Option<u64>,
    },
    /// `DEL key`.
    Del,
    /// `VDEL key value`.
    VDel {
        /// The value the key must have.
        value: &'a [u8],
    },
}

/// A request that may change a key: it goes through the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The key, at least one byte.
    pub key: &'a [u8],
    /// What to do to it.
    pub action: WriteAction<'a>,
    /// `__ts`; always present for SET.
    pub timestamp: Option<Hlc>,
    /// `__ft`.
    pub fencing_token: Option<Hlc>,
}

impl<'a> Write<'a> {
    /// The value that the stored one is compared with, where that decides.
    pub fn compared(&self) -> Option<&'a [u8]> {
        match self.action {
            WriteAction::Set {
                value,
                condition: Condition::Nex,
                ..
            }
            | WriteAction::VDel { value } => Some(value),
            WriteAction::Set { .. } | WriteAction::Del => None,
        }
    }
}

/// A well-formed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// SET, DEL or VDEL.
    Write(Write<'a>),
    /// `GET key`.
    Get {
        /// The key, at least one byte.
        key: &'a [u8],
    },
    /// `KEYNOTIFY key [STOP]`.
    KeyNotify {
        /// The key, at least one byte.
        key: &'a [u8],
        /// Whether watching ends.
        stop: bool,
    },
    /// `SCAN pattern [token]`.
    Scan {
        /// A glob over the whole key; see [`super::glob::Glob`].
        pattern: &'a [u8],
        /// Where the previous page ended.
        token: Option<&'a [u8]>,
    },
}

/// Reads a request.
///
/// `__ts` and `__ft` are read for writes only: GET, KEYNOTIFY and SCAN need neither, and the clients send `__ts` on
/// every request, so a reader whose clock is wrong still reads (docs/spec/state-store.md, Reads).
///
/// # Errors
/// [`StoreError::Syntax`], [`StoreError::UnknownCommand`], [`StoreError::WrongNumberOfArguments`],
/// [`StoreError::EmptyKey`], then [`StoreError::MissingTimestamp`] and [`StoreError::MalformedTimestamp`].
pub fn parse<'a>(
    payload: &'a [u8],
    properties: &Properties<'_>,
) -> Result<Request<'a>, StoreError> {
    let arguments = resp3::parse(payload).map_err(|resp3::Malformed| StoreError::Syntax)?;
    let count = arguments.count();
    let (verb, operands) = arguments
        .as_slice()
        .split_first()
        .ok_or(StoreError::Syntax)?;
    match *verb {
        b"SET" => match operands {
            [key, value, options @ ..] => {
                let action = set(value, options, count)?;
                write(key, action, properties)
            }
            _ => Err(StoreError::WrongNumberOfArguments),
        },
        b"GET" => match operands {
            [key] => Ok(Request::Get { key: checked(key)? }),
            _ => Err(StoreError::WrongNumberOfArguments),
        },
        b"DEL" => match operands {
            [key] => write(key, WriteAction::Del, properties),
            _ => Err(StoreError::WrongNumberOfArguments),
        },
        b"VDEL" => match operands {
            [key, value] => write(key, WriteAction::VDel { value }, properties),
            _ => Err(StoreError::WrongNumberOfArguments),
        },
        b"KEYNOTIFY" => key_notify(operands),
        b"SCAN" => match operands {
            [pattern] => Ok(Request::Scan {
                pattern,
                token: None,
            }),
            [pattern, token] => Ok(Request::Scan {
                pattern,
                token: Some(token),
            }),
            _ => Err(StoreError::WrongNumberOfArguments),
        },
        _ => Err(StoreError::UnknownCommand),
    }
}

/// The options of a SET: any order, each at most once, NX and NEX exclude each other.
fn set<'a>(
    value: &'a [u8],
    mut options: &[&'a [u8]],
    count: usize,
) -> Result<WriteAction<'a>, StoreError> {
    // More than were kept: whatever they are, some option is there twice.
    if count > resp3::MAX_ARGUMENTS {
        return Err(StoreError::Syntax);
    }
    let mut condition = Condition::None;
    let mut expire_ms = None;
    while let Some((option, rest)) = options.split_first() {
        options = match *option {
            b"NX" if condition == Condition::None => {
                condition = Condition::Nx;
                rest
            }
            b"NEX" if condition == Condition::None => {
                condition = Condition::Nex;
                rest
            }
            b"PX" if expire_ms.is_none() => {
                let (ms, rest) = rest.split_first().ok_or(StoreError::Syntax)?;
                expire_ms = Some(
                    decimal(ms)
                        .filter(|ms| *ms >= 1)
                        .ok_or(StoreError::Syntax)?,
                );
                rest
            }
            _ => return Err(StoreError::Syntax),
        };
    }
    Ok(WriteAction::Set {
        value,
        condition,
        expire_ms,
    })
}

fn key_notify<'a>(operands: &[&'a [u8]]) -> Result<Request<'a>, StoreError> {
    let (key, stop) = match operands {
        [key] => (key, false),
        [key, option] if *option == b"STOP" => (key, true),
        [_, _] => return Err(StoreError::Syntax),
        _ => return Err(StoreError::WrongNumberOfArguments),
    };
    Ok(Request::KeyNotify {
        key: checked(key)?,
        stop,
    })
}

fn write<'a>(
    key: &'a [u8],
    action: WriteAction<'a>,
    properties: &Properties<'_>,
) -> Result<Request<'a>, StoreError> {
    let key = checked(key)?;
    let timestamp = hlc(properties.timestamp)?;
    if timestamp.is_none() && matches!(action, WriteAction::Set { .. }) {
        return Err(StoreError::MissingTimestamp);
    }
    Ok(Request::Write(Write {
        key,
        action,
        timestamp,
        fencing_token: hlc(properties.fencing_token)?,
    }))
}

fn checked(key: &[u8]) -> Result<&[u8], StoreError> {
    if key.is_empty() {
        Err(StoreError::EmptyKey)
    } else {
        Ok(key)
    }
}

fn hlc(text: Option<&str>) -> Result<Option<Hlc>, StoreError> {
    text.map(Hlc::parse)
        .transpose()
        .map_err(|_| StoreError::MalformedTimestamp)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
