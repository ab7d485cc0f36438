//! Which life of each node may propose, and how far its proposals have been applied.
//!
//! This is what makes proposals exactly-once: a proposal is applied when its sequence is the last applied
//! one plus one, passed over when it is lower (it was applied already), refused when it is higher.

use prost::Message as _;

use super::effect::{Output, Reply};
use super::{Context, Machine, schema};
use crate::base::ids::{Incarnation, NodeId};
use crate::base::proto::{command, state};

impl Machine {
    /// Decides whether a proposal is to be applied now, and counts it as applied if so.
    pub(super) fn admit(
        &mut self,
        context: &mut Context<'_, '_>,
        node: NodeId,
        incarnation: Incarnation,
        sequence: u64,
    ) -> bool {
        let known = self.nodes.get(&node).cloned().unwrap_or_default();
        if incarnation.0 < known.incarnation || (incarnation.0 == known.incarnation && known.down) {
            self.refuse(node, incarnation, known.incarnation);
            return false;
        }
        let mut row = known;
        if incarnation.0 > known.incarnation {
            if sequence != 1 {
                // A new life begins with its first proposal, which is on its way again.
                self.gap(node, incarnation, 1);
                return false;
            }
            if known.incarnation != 0 && !known.down {
                self.end_incarnation(context, node, Incarnation(known.incarnation));
            }
            row = state::Node {
                incarnation: incarnation.0,
                sequence: 0,
                down: false,
            };
            self.outputs.push(Output::NodesChanged);
        }
        if sequence != row.sequence + 1 {
            if sequence > row.sequence {
                self.gap(node, incarnation, row.sequence + 1);
            }
            return false;
        }
        row.sequence = sequence;
        context
            .tables
            .put(schema::node::encode(node), row.encode_to_vec());
        self.nodes.insert(node, row);
        true
    }

    fn refuse(&mut self, node: NodeId, refused: Incarnation, known: u64) {
        if node == self.local {
            self.outputs.push(Output::IncarnationRefused {
                refused,
                known: Incarnation(known),
            });
        }
    }

    fn gap(&mut self, node: NodeId, incarnation: Incarnation, expected: u64) {
        if node == self.local {
            self.outputs.push(Output::ProposalGap {
                incarnation,
                expected,
            });
        }
    }

    pub(super) fn node_down(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::NodeDown,
    ) -> Reply {
        let node = NodeId(command.node);
        let Some(row) = self.nodes.get_mut(&node) else {
            return Reply::Done;
        };
        if row.incarnation == command.incarnation && !row.down {
            row.down = true;
            let row = row.encode_to_vec();
            context.tables.put(schema::node::encode(node), row);
            self.end_incarnation(context, node, Incarnation(command.incarnation));
        }
        Reply::Done
    }

    /// Nodes whose connections may be live, with their incarnation.
    pub fn live_nodes(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.nodes
            .iter()
            .filter(|(_, row)| !row.down && row.incarnation != 0)
            .map(|(node, row)| (*node, Incarnation(row.incarnation)))
    }
}
