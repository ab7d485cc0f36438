//! `0x03 | node u64 | incarnation u64` → `state.EndedIncarnation`: its connections still own sessions.

use super::table::{Table, key, only_u64, rest, take_u64};
use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::state;

/// The table.
pub enum EndedIncarnation {}

impl Table for EndedIncarnation {
    const ORDINAL: u8 = 0x03;
    type Key<'a> = (NodeId, Incarnation);
    type Row = state::EndedIncarnation;

    fn encode((node, incarnation): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&node.0.to_be_bytes(), &incarnation.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        of_subject(rest::<Self>(key)?)
    }
}

/// An incarnation as the subject of a timer.
pub fn subject(node: NodeId, incarnation: Incarnation) -> Vec<u8> {
    EndedIncarnation::encode((node, incarnation)).split_off(1)
}

/// The inverse of [`subject`].
pub fn of_subject(subject: &[u8]) -> Option<(NodeId, Incarnation)> {
    let (node, rest) = take_u64(subject)?;
    Some((NodeId(node), Incarnation(only_u64(rest)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_subjects_decode_to_what_they_were_made_of() {
        let id = (NodeId(7), Incarnation(9));
        assert_eq!(
            EndedIncarnation::decode(&EndedIncarnation::encode(id)),
            Some(id)
        );
        assert_eq!(of_subject(&subject(id.0, id.1)), Some(id));
        assert_eq!(of_subject(&[0; 17]), None);
    }
}
