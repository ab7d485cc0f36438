//! What a frame of the log changes, and its bytes.
//!
//! Invariant: numbers of kinds are for ever.

use crate::base::ids::{GROUP_ZERO, GroupId};

/// What a frame changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// An entry is appended.
    Append {
        group: GroupId,
        index: u64,
        term: u64,
        /// What the payload is.
        kind: u8,
        payload: &'a [u8],
    },
    /// The vote.
    Vote { group: GroupId, vote: &'a [u8] },
    /// Every entry from `from` on is removed; `last_term` is the term of the one before, when the log holds it.
    Truncate {
        group: GroupId,
        from: u64,
        last_term: Option<u64>,
    },
    /// Every entry up to `upto` is removed, whose log id is `log_id`.
    Purge {
        group: GroupId,
        upto: u64,
        log_id: &'a [u8],
    },
    /// The log id of the last entry known to be committed.
    Committed { group: GroupId, log_id: &'a [u8] },
    /// The first index that a log may hold, and term and index of its last entry. Only in the first frame of a segment.
    Bounds {
        group: GroupId,
        start: u64,
        last: Option<(u64, u64)>,
    },
    /// Where in the segment before there are entries from `first` on. Only in the first frame of a segment.
    Point {
        group: GroupId,
        first: u64,
        offset: u32,
    },
    /// In the segment before, every entry from `from` on was removed. Only in the first frame of a segment.
    Cut { group: GroupId, from: u64 },
    /// The log was opened. By this random number, no frame that an earlier process left behind the end follows.
    Opened { number: u64 },
    /// The log was closed.
    Closed,
}

/// Number of each kind on disk.
pub mod kind {
    pub const APPEND: u8 = 1;
    pub const VOTE: u8 = 2;
    pub const TRUNCATE: u8 = 3;
    pub const PURGE: u8 = 4;
    pub const COMMITTED: u8 = 5;
    pub const BOUNDS: u8 = 6;
    pub const POINT: u8 = 7;
    pub const CUT: u8 = 8;
    pub const OPENED: u8 = 9;
    pub const CLOSED: u8 = 10;
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    // A frame is shorter than 4 GiB, which its writer checks.
    to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}

fn put_option(to: &mut Vec<u8>, number: Option<u64>) {
    to.push(u8::from(number.is_some()));
    to.extend_from_slice(&number.unwrap_or_default().to_le_bytes());
}

/// Begins a change.
fn begin(to: &mut Vec<u8>, kind: u8, group: GroupId) {
    to.push(kind);
    to.extend_from_slice(&group.0.to_le_bytes());
}

impl Change<'_> {
    /// Adds this change to a payload.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match *self {
            Change::Append {
                group,
                index,
                term,
                kind,
                payload,
            } => {
                begin(to, kind::APPEND, group);
                to.extend_from_slice(&index.to_le_bytes());
                to.extend_from_slice(&term.to_le_bytes());
                to.push(kind);
                put_bytes(to, payload);
            }
            Change::Vote { group, vote } => {
                begin(to, kind::VOTE, group);
                put_bytes(to, vote);
            }
            Change::Truncate {
                group,
                from,
                last_term,
            } => {
                begin(to, kind::TRUNCATE, group);
                to.extend_from_slice(&from.to_le_bytes());
                put_option(to, last_term);
            }
            Change::Purge {
                group,
                upto,
                log_id,
            } => {
                begin(to, kind::PURGE, group);
                to.extend_from_slice(&upto.to_le_bytes());
                put_bytes(to, log_id);
            }
            Change::Committed { group, log_id } => {
                begin(to, kind::COMMITTED, group);
                put_bytes(to, log_id);
            }
            change => change.encode_beside(to),
        }
    }

    /// The same for what is not a change of a group's log itself.
    fn encode_beside(&self, to: &mut Vec<u8>) {
        match *self {
            Change::Bounds { group, start, last } => {
                begin(to, kind::BOUNDS, group);
                to.extend_from_slice(&start.to_le_bytes());
                put_option(to, last.map(|(term, _)| term));
                to.extend_from_slice(&last.map_or(0, |(_, index)| index).to_le_bytes());
            }
            Change::Point {
                group,
                first,
                offset,
            } => {
                begin(to, kind::POINT, group);
                to.extend_from_slice(&first.to_le_bytes());
                to.extend_from_slice(&offset.to_le_bytes());
            }
            Change::Cut { group, from } => {
                begin(to, kind::CUT, group);
                to.extend_from_slice(&from.to_le_bytes());
            }
            Change::Closed => begin(to, kind::CLOSED, GROUP_ZERO),
            Change::Opened { number } => {
                begin(to, kind::OPENED, GROUP_ZERO);
                to.extend_from_slice(&number.to_le_bytes());
            }
            _ => {}
        }
    }
}

/// The changes of a payload, in order; an error when what follows is none.
pub struct Changes<'a>(&'a [u8]);

/// A payload holds what this release does not know.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

impl<'a> Changes<'a> {
    /// Of the payload `payload`.
    pub fn of(payload: &'a [u8]) -> Self {
        Changes(payload)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn option(&mut self) -> Option<Option<u64>> {
        let [is_some] = self.take()?;
        let number = self.u64()?;
        Some((is_some != 0).then_some(number))
    }

    fn change(&mut self) -> Option<Change<'a>> {
        let [kind] = self.take()?;
        let group = GroupId(self.u32()?);
        Some(match kind {
            kind::APPEND => {
                let (index, term) = (self.u64()?, self.u64()?);
                let [kind] = self.take()?;
                let payload = self.bytes()?;
                Change::Append {
                    group,
                    index,
                    term,
                    kind,
                    payload,
                }
            }
            kind::VOTE => Change::Vote {
                group,
                vote: self.bytes()?,
            },
            kind::TRUNCATE => {
                let (from, last_term) = (self.u64()?, self.option()?);
                Change::Truncate {
                    group,
                    from,
                    last_term,
                }
            }
            kind::PURGE => {
                let (upto, log_id) = (self.u64()?, self.bytes()?);
                Change::Purge {
                    group,
                    upto,
                    log_id,
                }
            }
            kind::COMMITTED => Change::Committed {
                group,
                log_id: self.bytes()?,
            },
            kind::BOUNDS => {
                let (start, term, index) = (self.u64()?, self.option()?, self.u64()?);
                Change::Bounds {
                    group,
                    start,
                    last: term.map(|term| (term, index)),
                }
            }
            kind::POINT => {
                let (first, offset) = (self.u64()?, self.u32()?);
                Change::Point {
                    group,
                    first,
                    offset,
                }
            }
            kind::CLOSED => Change::Closed,
            kind::OPENED => Change::Opened {
                number: self.u64()?,
            },
            kind::CUT => Change::Cut {
                group,
                from: self.u64()?,
            },
            _ => return None,
        })
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Result<Change<'a>, Unknown>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let change = self.change();
        if change.is_none() {
            self.0 = &[];
        }
        Some(change.ok_or(Unknown))
    }
}
