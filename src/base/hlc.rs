//! Hybrid logical clock values: the versions, request timestamps and fencing tokens of the state store.
//!
//! A value is parsed, ordered, written and advanced here. No clock is read: the store's time is always an
//! argument, and it comes from the leader's stamp in the log.

use std::cmp::Ordering;
use std::fmt;

use crate::base::time::Millis;

/// How far ahead of the store's clock a request's timestamp or fencing token may be, in milliseconds
/// (docs/spec/state-store.md, Clock values). More is refused, because nothing would be comparable with it for too long.
pub const MAX_DRIFT_MS: u64 = 60_000;

/// The largest counter there is: the .NET client keeps it in a signed 32-bit integer (docs/spec/state-store.md, Clock
/// values).
pub const MAX_COUNTER: u32 = i32::MAX as u32;

/// The longest node id accepted, in bytes. Client libraries send a client id or a UUID; the bound keeps a
/// fencing token from costing more than its key.
pub const MAX_NODE_NAME_BYTES: usize = 1024;

/// The node id of every version this store makes, the same on all nodes of a cluster (docs/spec/state-store.md, Clock
/// values).
const STORE_NODE_NAME: &str = "StateStore";

/// Why a text is not a timestamp. Clients only ever see "malformed timestamp"; the cause is for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HlcError {
    /// There are not exactly three parts separated by two colons.
    #[error("not of the form wall:counter:node")]
    Shape,
    /// The wall clock is not a decimal number below 2^64.
    #[error("the wall clock is not a number of milliseconds")]
    Wall,
    /// The counter is not a decimal number below 2^31.
    #[error("the counter is not a number below 2^31")]
    Counter,
    /// The node id is empty, too long, or holds a colon or NUL.
    #[error("the node id is empty, too long or holds a forbidden character")]
    Node,
}

/// The node id of an [`Hlc`]: not empty, no colon, at most [`MAX_NODE_NAME_BYTES`] bytes.
///
/// The store's own name takes no memory, since every version and most fencing tokens carry it.
#[derive(Clone)]
pub struct NodeName(Repr);

#[derive(Clone)]
enum Repr {
    Store,
    Other(Box<str>),
}

impl NodeName {
    /// The name this store signs its versions with.
    pub const STORE: NodeName = NodeName(Repr::Store);

    /// Checks and takes a node id.
    ///
    /// # Errors
    /// [`HlcError::Node`] when it is empty, too long, or holds a colon or NUL.
    pub fn new(name: &str) -> Result<Self, HlcError> {
        if name == STORE_NODE_NAME {
            return Ok(Self::STORE);
        }
        let forbidden = |byte: u8| byte == b':' || byte == 0;
        if name.is_empty() || name.len() > MAX_NODE_NAME_BYTES || name.bytes().any(forbidden) {
            return Err(HlcError::Node);
        }
        Ok(NodeName(Repr::Other(name.into())))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Store => STORE_NODE_NAME,
            Repr::Other(name) => name,
        }
    }

    /// Whether this is the store's own name.
    pub fn is_store(&self) -> bool {
        matches!(self.0, Repr::Store)
    }
}

impl PartialEq for NodeName {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Store, Repr::Store) => true,
            (Repr::Other(a), Repr::Other(b)) => a == b,
            // `new` never keeps the store's name as `Other`.
            _ => false,
        }
    }
}

impl Eq for NodeName {}

impl PartialOrd for NodeName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NodeName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().as_bytes().cmp(other.as_str().as_bytes())
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A hybrid logical clock value, ordered by wall clock, then counter, then node id (docs/spec/state-store.md, Clock
/// values).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hlc {
    /// Milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Tells values of one millisecond apart; at most [`MAX_COUNTER`].
    pub counter: u32,
    /// Who made the value.
    pub node: NodeName,
}

impl Hlc {
    /// A value made by the store itself.
    pub fn of_store(wall_ms: u64, counter: u32) -> Self {
        Hlc {
            wall_ms,
            counter,
            node: NodeName::STORE,
        }
    }

    /// Reads `wall:counter:node`, padded or not (docs/spec/state-store.md, Clock values).
    ///
    /// # Errors
    /// What is wrong with the text; a number that does not fit is as wrong as one that is none.
    pub fn parse(text: &str) -> Result<Self, HlcError> {
        let (wall, rest) = text.split_once(':').ok_or(HlcError::Shape)?;
        let (counter, node) = rest.split_once(':').ok_or(HlcError::Shape)?;
        let counter = decimal(counter.as_bytes())
            .and_then(|counter| u32::try_from(counter).ok())
            .filter(|counter| *counter <= MAX_COUNTER)
            .ok_or(HlcError::Counter)?;
        Ok(Hlc {
            wall_ms: decimal(wall.as_bytes()).ok_or(HlcError::Wall)?,
            counter,
            node: NodeName::new(node)?,
        })
    }

    /// Appends the text form: wall clock in at least 15 digits, counter in at least 5, node id
    /// (docs/spec/state-store.md, Clock values).
    pub fn write_text(&self, out: &mut Vec<u8>) {
        push_padded(out, self.wall_ms, 15);
        out.push(b':');
        push_padded(out, u64::from(self.counter), 5);
        out.push(b':');
        out.extend_from_slice(self.node.as_str().as_bytes());
    }

    /// Whether this value is more than [`MAX_DRIFT_MS`] ahead of the store's clock (docs/spec/state-store.md, Clock
    /// values).
    pub fn is_too_far_ahead_of(&self, store_clock: Millis) -> bool {
        self.wall_ms > store_clock.plus(MAX_DRIFT_MS).0
    }
}

impl fmt::Display for Hlc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:015}:{:05}:{}",
            self.wall_ms,
            self.counter,
            self.node.as_str()
        )
    }
}

/// The version of a change: above the key's previous version and above the request's timestamp
/// (docs/spec/state-store.md, Versions).
///
/// The wall clock is the highest of the three. When the store's clock alone is highest, the counter follows the
/// request's; otherwise it follows the highest counter among the values that share that wall clock.
/// Only this key's past counts, so a client whose clock is ahead drags no other key along. The request must
/// have passed [`Hlc::is_too_far_ahead_of`].
pub fn next_version(previous: Option<&Hlc>, request: Option<&Hlc>, store_clock: Millis) -> Hlc {
    let seen = || previous.into_iter().chain(request);
    let wall_ms = seen().map(|hlc| hlc.wall_ms).max();
    match wall_ms {
        Some(wall_ms) if wall_ms >= store_clock.0 => {
            let highest = seen()
                .filter(|hlc| hlc.wall_ms == wall_ms)
                .map(|hlc| hlc.counter)
                .max();
            match after(highest) {
                Some(counter) => Hlc::of_store(wall_ms, counter),
                // The millisecond is used up: the next one is as good, and still within the drift.
                None => Hlc::of_store(wall_ms.saturating_add(1), 0),
            }
        }
        _ => {
            // The wall clock alone makes the version higher, so a counter at its end may start again.
            let counter = request.map_or(0, |request| after(Some(request.counter)).unwrap_or(0));
            Hlc::of_store(store_clock.0, counter)
        }
    }
}

/// The counter after `counter`, if there is one.
fn after(counter: Option<u32>) -> Option<u32> {
    counter
        .and_then(|counter| counter.checked_add(1))
        .filter(|next| *next <= MAX_COUNTER)
}

/// Reads a non-empty string of decimal digits; `None` for anything else and for what does not fit in 64 bits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        if !digit.is_ascii_digit() {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// Appends `value` in decimal, padded with zeros to at least `width` digits (at most 20).
pub(crate) fn push_padded(out: &mut Vec<u8>, mut value: u64, width: usize) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    while value > 0 {
        start -= 1;
        // A remainder of ten fits in a byte.
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    out.extend_from_slice(&digits[start.min(digits.len() - width)..]);
}

#[cfg(test)]
#[path = "hlc_tests.rs"]
mod tests;
