//! Nodes that were removed from the cluster, so that none comes back by itself.
//!
//! A certificate of a node goes on being good after the node was removed, and whoever has it can say that the node
//! wants to be added. So the cluster remembers whom it has removed. A membership that names such a node again, which
//! only an operator can ask for, forgets it.
//!
//! Invariant: it follows from the entries of the log alone, and is a row of the state beside the membership: every
//! replica has the same, also after a restart and a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use prost::Message;

use super::encoding::Malformed;
use super::type_config::Membership;
use crate::base::proto::raft as pb;

/// Nodes that were removed, as of the last entry applied. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    nodes: Arc<RwLock<BTreeSet<u64>>>,
}

impl Removed {
    /// Whether `node` was removed, and named by nobody since.
    pub fn contains(&self, node: u64) -> bool {
        self.nodes.read().contains(&node)
    }

    /// The membership `after` takes the place of `before`.
    pub(super) fn change(&self, before: &Membership, after: &Membership) {
        let mut nodes = self.nodes.write();
        nodes.extend(before.nodes().map(|(id, _)| *id));
        nodes.retain(|id| after.get_node(id).is_none());
    }

    /// The row is another one now.
    pub(super) fn replace(&self, nodes: BTreeSet<u64>) {
        *self.nodes.write() = nodes;
    }

    pub(super) fn to_row(&self) -> Vec<u8> {
        let nodes = self.nodes.read().iter().copied().collect();
        pb::RemovedNodes { nodes }.encode_to_vec()
    }
}

/// What a row says; a state without one is of a release that remembered nobody.
pub(super) fn from_row(row: Option<Bytes>) -> Result<BTreeSet<u64>, Malformed> {
    let what = "removed nodes";
    let row = pb::RemovedNodes::decode(row.unwrap_or_default()).map_err(|_| Malformed { what })?;
    Ok(row.nodes.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::type_config::NodeInfo;
    use super::*;

    fn membership(voters: &[u64], learners: &[u64]) -> Membership {
        let all = voters.iter().chain(learners);
        let nodes: BTreeMap<u64, NodeInfo> = all.map(|id| (*id, NodeInfo::default())).collect();
        let voters = voters.iter().copied().collect();
        Membership::new(vec![voters], nodes).expect("voters are members")
    }

    #[test]
    fn who_leaves_is_remembered_until_it_is_named_again() {
        let removed = Removed::default();
        let has = |expected: &[u64]| {
            let found = from_row(Some(removed.to_row().into())).expect("a row");
            assert_eq!(found, expected.iter().copied().collect());
            assert!(expected.iter().all(|id| removed.contains(*id)));
        };
        removed.change(&Membership::default(), &membership(&[1, 2, 3], &[]));
        has(&[]);
        // A learner first, then gone.
        removed.change(&membership(&[1, 2, 3], &[]), &membership(&[1, 2], &[3]));
        has(&[]);
        removed.change(&membership(&[1, 2], &[3]), &membership(&[1, 2], &[]));
        has(&[3]);
        removed.change(&membership(&[1, 2], &[]), &membership(&[2], &[4]));
        has(&[1, 3]);
        removed.change(&membership(&[2], &[4]), &membership(&[2, 4], &[3]));
        has(&[1]);
        assert_eq!(from_row(None), Ok(BTreeSet::new()));
        assert!(from_row(Some(Bytes::from_static(b"\x0a\xff"))).is_err());
    }
}
