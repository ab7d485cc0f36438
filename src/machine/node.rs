//! Which incarnation of each node may propose, and how far its proposals have been applied.
//!
//! This is what makes proposals exactly-once: a proposal is applied when its sequence is the last applied one plus one,
//! passed over when it is lower (it was applied already), refused when it is higher.

use std::collections::BTreeMap;

use super::batch::Batch;
use super::effect::Output;
use super::schema;
use super::tables::Backing;
use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::{command, state};

/// What is to become of a proposal.
#[must_use]
pub(super) enum Admission {
    /// It is not applied; its node has been told why, if it has to know.
    Refused,
    /// It is the next one: [`Nodes::count`] it and apply it.
    Next,
    /// It is the first one of a new incarnation, which [`Nodes::register`] registers. The former one, if it was not
    /// declared dead before, has ended.
    Registers { former: Option<Incarnation> },
}

/// The rows of all nodes.
#[derive(Default)]
pub(super) struct Nodes {
    rows: BTreeMap<NodeId, state::Node>,
}

impl Nodes {
    /// Reads the rows again.
    pub fn restore(&mut self, backing: &dyn Backing) {
        self.rows.clear();
        backing.rows::<schema::Node>(&schema::Range::all(), |node, row| {
            self.rows.insert(node, row.decode());
            true
        });
    }

    /// The newest incarnation of `node` that was registered.
    pub fn incarnation(&self, node: NodeId) -> Incarnation {
        Incarnation(self.rows.get(&node).map_or(0, |row| row.incarnation))
    }

    #[cfg(test)]
    pub fn row(&self, node: NodeId) -> Option<&state::Node> {
        self.rows.get(&node)
    }

    /// Nodes whose connections may be live, with their incarnation.
    pub fn live(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.rows
            .iter()
            .filter(|(_, row)| !row.down && row.incarnation != 0)
            .map(|(node, row)| (*node, Incarnation(row.incarnation)))
    }

    /// Decides whether the proposal of the batch's node is to be applied now.
    pub fn admit(&self, batch: &mut Batch<'_, '_>, sequence: u64) -> Admission {
        let known = self.rows.get(&batch.node).cloned().unwrap_or_default();
        let incarnation = batch.incarnation.0;
        if incarnation < known.incarnation || (incarnation == known.incarnation && known.down) {
            refuse(batch, known.incarnation);
            return Admission::Refused;
        }
        let is_new = incarnation > known.incarnation;
        // A new incarnation begins with its first proposal, which is on its way again if it is missing.
        let expected = if is_new { 1 } else { known.sequence + 1 };
        if sequence != expected {
            if is_new || sequence > expected {
                gap(batch, expected);
            }
            return Admission::Refused;
        }
        if !is_new {
            return Admission::Next;
        }
        let was_live = known.incarnation != 0 && !known.down;
        Admission::Registers {
            former: was_live.then_some(Incarnation(known.incarnation)),
        }
    }

    /// Counts an admitted proposal as applied.
    pub fn count(&mut self, batch: &mut Batch<'_, '_>, sequence: u64) {
        let known = self.rows.get(&batch.node);
        let known = known.filter(|known| known.incarnation == batch.incarnation.0);
        let row = state::Node {
            incarnation: batch.incarnation.0,
            sequence,
            down: false,
            low_disk: known.is_some_and(|known| known.low_disk),
        };
        batch.tables.put::<schema::Node>(batch.node, &row);
        self.rows.insert(batch.node, row);
    }

    /// Registers the incarnation of an admitted proposal, its first.
    pub fn register(&mut self, batch: &mut Batch<'_, '_>, sequence: u64) {
        batch.outputs.push(Output::NodesChanged);
        self.count(batch, sequence);
    }

    /// The proposing node says whether its disk is low.
    pub fn set_disk(&mut self, batch: &mut Batch<'_, '_>, low: bool) {
        let Some(row) = self.rows.get_mut(&batch.node) else {
            return;
        };
        row.low_disk = low;
        batch.tables.put::<schema::Node>(batch.node, row);
        batch.outputs.push(Output::NodesChanged);
    }

    /// Live nodes whose disks are low.
    pub fn low_disks(&self) -> impl Iterator<Item = NodeId> + '_ {
        let low = self
            .rows
            .iter()
            .filter(|(_, row)| row.low_disk && !row.down);
        low.map(|(node, _)| *node)
    }

    /// A node was declared dead: the incarnation that has ended, if it was live.
    pub fn declare_down(
        &mut self,
        batch: &mut Batch<'_, '_>,
        command: command::NodeDown,
    ) -> Option<(NodeId, Incarnation)> {
        let node = NodeId(command.node);
        let row = self.rows.get_mut(&node)?;
        if row.incarnation != command.incarnation || row.down {
            return None;
        }
        row.down = true;
        batch.tables.put::<schema::Node>(node, row);
        Some((node, Incarnation(command.incarnation)))
    }
}

fn refuse(batch: &mut Batch<'_, '_>, known: u64) {
    if batch.outputs.is_local(batch.node) {
        batch.outputs.push(Output::IncarnationRefused {
            refused: batch.incarnation,
            known: Incarnation(known),
        });
    }
}

fn gap(batch: &mut Batch<'_, '_>, expected: u64) {
    if batch.outputs.is_local(batch.node) {
        batch.outputs.push(Output::ProposalGap {
            incarnation: batch.incarnation,
            expected,
        });
    }
}
