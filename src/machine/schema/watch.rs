//! `0x21 | node u64 | incarnation u64 | connection u64 | state-store key` → client id: a KEYNOTIFY registration.
//!
//! It belongs to a connection, so that all registrations of an ended connection are one range.

use super::{key, ordinal, take_u64, whole};
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner};

/// The row of `owner` watching `store_key`.
pub fn encode(owner: Owner, store_key: &[u8]) -> Vec<u8> {
    key(
        ordinal::WATCH,
        &[
            &owner.node.0.to_be_bytes(),
            &owner.incarnation.0.to_be_bytes(),
            &owner.connection.0.to_be_bytes(),
            store_key,
        ],
    )
}

/// Connection and state-store key of a key of this table.
pub fn decode(key: &[u8]) -> Option<(Owner, &[u8])> {
    let (node, rest) = take_u64(key.strip_prefix(&[ordinal::WATCH])?)?;
    let (incarnation, rest) = take_u64(rest)?;
    let (connection, store_key) = take_u64(rest)?;
    let owner = Owner {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
        connection: ConnectionId(connection),
    };
    Some((owner, store_key))
}

/// All rows of one connection.
pub fn of_connection(owner: Owner) -> (Vec<u8>, Vec<u8>) {
    let next = Owner {
        connection: ConnectionId(owner.connection.0 + 1),
        ..owner
    };
    (encode(owner, &[]), encode(next, &[]))
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::WATCH)
}

#[cfg(test)]
mod tests {
    use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner};

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let owner = Owner {
            node: NodeId(1),
            incarnation: Incarnation(2),
            connection: ConnectionId(3),
        };
        assert_eq!(
            super::decode(&super::encode(owner, b"k")),
            Some((owner, &b"k"[..]))
        );
    }
}
