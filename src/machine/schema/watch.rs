//! `0x21 | node u64 | incarnation u64 | connection u64 | state-store key` → [`ClientId`]: a KEYNOTIFY registration.
//!
//! It belongs to a connection, and ends with it.

use std::str::Utf8Error;

use bytes::Bytes;

use super::table::{Row, Table, key, only_u64, rest, take_u64};
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner};

/// The table.
pub enum Watch {}

impl Table for Watch {
    const ORDINAL: u8 = 0x21;
    type Key<'a> = (Owner, &'a [u8]);
    type Row = ClientId;

    fn encode((owner, store_key): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[
            &owner.node.0.to_be_bytes(),
            &owner.incarnation.0.to_be_bytes(),
            &owner.connection.0.to_be_bytes(),
            store_key,
        ])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        let (node, rest) = take_u64(rest::<Self>(key)?)?;
        let (incarnation, rest) = take_u64(rest)?;
        let (connection, store_key) = take_u64(rest)?;
        let owner = Owner {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            connection: ConnectionId(connection),
        };
        Some((owner, store_key))
    }
}

/// A connection as the subject of a timer.
pub fn subject(owner: Owner) -> Vec<u8> {
    Watch::encode((owner, b"")).split_off(1)
}

/// The inverse of [`subject`].
pub fn of_subject(subject: &[u8]) -> Option<Owner> {
    let (node, rest) = take_u64(subject)?;
    let (incarnation, rest) = take_u64(rest)?;
    Some(Owner {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
        connection: ConnectionId(only_u64(rest)?),
    })
}

/// The client that watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientId(pub String);

impl Row for ClientId {
    type Error = Utf8Error;

    fn to_bytes(&self) -> Vec<u8> {
        self.0.clone().into_bytes()
    }

    fn from_bytes(row: Bytes) -> Result<Self, Utf8Error> {
        Ok(ClientId(std::str::from_utf8(&row)?.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let owner = Owner {
            node: NodeId(1),
            incarnation: Incarnation(2),
            connection: ConnectionId(3),
        };
        let key = Watch::encode((owner, b"k"));
        assert_eq!(Watch::decode(&key), Some((owner, &b"k"[..])));
        assert_eq!(of_subject(&subject(owner)), Some(owner));
    }
}
