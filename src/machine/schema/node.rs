//! `0x02 | node u64` → `state.Node`: incarnation and last applied proposal of each node.

use super::{key, ordinal, take_u64, whole};
use crate::base::ids::NodeId;

/// The row of `node`.
pub fn encode(node: NodeId) -> Vec<u8> {
    key(ordinal::NODE, &[&node.0.to_be_bytes()])
}

/// The node of a key of this table.
pub fn decode(key: &[u8]) -> Option<NodeId> {
    let rest = key.strip_prefix(&[ordinal::NODE])?;
    match take_u64(rest)? {
        (node, []) => Some(NodeId(node)),
        _ => None,
    }
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::NODE)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let node = crate::base::ids::NodeId(0x0102_0304_0506_0708);
        assert_eq!(super::decode(&super::encode(node)), Some(node));
        assert_eq!(super::decode(&[2, 0]), None);
    }
}
