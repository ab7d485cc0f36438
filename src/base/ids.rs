//! Newtypes for every identifier that crosses a module border, so that none is mistaken for another.
//!
//! Nothing here allocates ids or knows where they come from.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A broker of the cluster. Given by the operator, never reused for another data directory.
    NodeId(u64)
);
id!(
    /// One Raft group. There is one group so far; everything that names the log carries its number.
    GroupId(u32)
);
id!(
    /// One run of a node's process: rises each time the node starts.
    Incarnation(u64)
);
id!(
    /// One network connection of one node's incarnation; never reused within it.
    ConnectionId(u64)
);
id!(
    /// One MQTT session from its creation to its end; a client id that starts anew gets a new one.
    SessionId(u64)
);
id!(
    /// Index of an entry in a group's Raft log.
    LogIndex(u64)
);

/// The cluster itself as a proposer: what a leader proposes on its own account. No node has this id.
pub const CLUSTER: NodeId = NodeId(0);

/// The only Raft group there is so far.
pub const GROUP_ZERO: GroupId = GroupId(0);

/// What the client ids begin with that the server makes; a random UUID follows, in hexadecimal digits.
pub const ASSIGNED_PREFIX: &str = "auto-";

/// Whether a client id is one that the server has made, as far as one can see.
pub fn is_assigned(client_id: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = client_id.strip_prefix(ASSIGNED_PREFIX);
    digits.is_some_and(|digits| digits.len() == 32 && digits.bytes().all(is_digit))
}

/// A network connection as every replica names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The node the client is connected to.
    pub node: NodeId,
    /// The incarnation of that node in which the connection was made.
    pub incarnation: Incarnation,
    /// The connection within that incarnation.
    pub connection: ConnectionId,
}
