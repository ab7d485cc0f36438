//! Versions and fencing tokens, as clients write and read them.

use std::time::{SystemTime, UNIX_EPOCH};

/// A version or token: `wall:counter:node`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hlc {
    pub wall_ms: u64,
    pub counter: u64,
    pub node: String,
}

impl Hlc {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let wall_ms = parts.next()?.parse().ok()?;
        let counter = parts.next()?.parse().ok()?;
        let node = parts.next()?;
        (!node.is_empty() && !node.contains(':')).then(|| Self {
            wall_ms,
            counter,
            node: node.to_owned(),
        })
    }

    /// The client's clock, counter 0.
    pub fn now(node: &str) -> Self {
        Self::ahead(node, 0)
    }

    /// The client's clock moved by that many milliseconds.
    pub fn ahead(node: &str, by_ms: i64) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("the clock is past 1970");
        let now_ms = i64::try_from(now.as_millis()).expect("milliseconds since 1970 fit 63 bits");
        Self {
            wall_ms: u64::try_from(now_ms + by_ms).expect("the clock stays past 1970"),
            counter: 0,
            node: node.to_owned(),
        }
    }
}

impl std::fmt::Display for Hlc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:015}:{:05}:{}", self.wall_ms, self.counter, self.node)
    }
}
