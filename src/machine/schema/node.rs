//! `0x02 | node u64` → `state.Node`: incarnation and last applied proposal of each node.

use super::table::{Table, key, only_u64, rest};
use crate::base::ids::NodeId;
use crate::base::proto::state;

/// The table.
pub enum Node {}

impl Table for Node {
    const ORDINAL: u8 = 0x02;
    type Key<'a> = NodeId;
    type Row = state::Node;

    fn encode(node: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&node.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        only_u64(rest::<Self>(key)?).map(NodeId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let node = NodeId(0x0102_0304_0506_0708);
        assert_eq!(Node::decode(&Node::encode(node)), Some(node));
        assert_eq!(Node::decode(&[2, 0]), None);
    }
}
