//! What the leader lets into the log: only proposals that every replica can decode, and in which a node speaks for
//! itself.
//!
//! Invariant: a proposal that is refused takes its place in the log without its commands. So its sequence is used up
//! once and for all, what the node proposes next follows on it, and the node learns of it from its own apply, whoever
//! leads then (docs/spec/replication.md, What can't be decoded).

use bytes::Bytes;
use prost::Message as _;

use super::proposer::SequencedProposal;
use crate::base::ids::NodeId;
use crate::base::proto::command;
use crate::base::wire::{Fields, Value};
use crate::machine::entry::check_commands;
use crate::telemetry::metrics::Metrics;

/// Number of `Command.node_down`.
const NODE_DOWN: u32 = 2;

/// The proposal as it goes into the log.
pub(super) fn checked(
    node: NodeId,
    proposal: SequencedProposal,
    metrics: &Metrics,
) -> command::Proposal {
    let mut checked = command::Proposal {
        node: node.0,
        incarnation: proposal.incarnation.0,
        sequence: proposal.sequence,
        commands: proposal.commands,
        refused: false,
    };
    let judged = check_commands(&checked.commands).map_err(|error| error.to_string());
    let judged = judged.and_then(|()| match ends_another(node, &checked.commands) {
        Some(other) => Err(format!(
            "it declares node {other} down, which only a leader does"
        )),
        None => Ok(()),
    });
    if let Err(why) = judged {
        metrics.proposals_refused.increment();
        tracing::error!(
            %node,
            sequence = checked.sequence,
            why,
            "a proposal was refused"
        );
        checked.commands = Bytes::new();
        checked.refused = true;
    }
    checked
}

/// The node that commands of `node` declare down, if it is another one. A node that stops ends its own incarnation;
/// those of others are ended by the leader, on its own account.
fn ends_another(node: NodeId, commands: &[u8]) -> Option<NodeId> {
    let mut rest = Fields(commands);
    while !rest.0.is_empty() {
        let mut fields = Fields(rest.delimited().ok()?);
        if let Ok(Some((NODE_DOWN, Value::Delimited(down)))) = fields.next_field() {
            let down = command::NodeDown::decode(down).unwrap_or_default();
            if down.node != node.0 {
                return Some(NodeId(down.node));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Incarnation;
    use crate::base::proto::command::command::Kind;

    fn check(commands: impl Into<Bytes>, metrics: &Metrics) -> command::Proposal {
        let proposal = SequencedProposal {
            incarnation: Incarnation(7),
            sequence: 3,
            commands: commands.into(),
            weight: 0,
        };
        checked(NodeId(2), proposal, metrics)
    }

    #[test]
    fn what_cannot_be_decoded_keeps_its_place_and_loses_its_commands() {
        let metrics = Metrics::default();
        let known = command::Command {
            kind: Some(Kind::Nothing(command::Nothing {})),
        };
        let good = known.encode_length_delimited_to_vec();
        let kept = check(good.clone(), &metrics);
        assert_eq!((kept.refused, &kept.commands[..]), (false, &good[..]));
        assert_eq!(metrics.proposals_refused.get(), 0);
        // A wrong length, a kind that is not known, a field of another type, no kind, two kinds.
        let wrong: [&[u8]; 5] = [
            &[9, 1],
            &[3, 0xba, 0x3e, 0],
            &[2, 0x08, 0],
            &[0],
            &[4, 0x0a, 0, 0x0a, 0],
        ];
        for commands in wrong {
            let refused = check([&good[..], commands].concat(), &metrics);
            assert_eq!(
                (refused.node, refused.incarnation, refused.sequence),
                (2, 7, 3)
            );
            assert!(
                refused.refused && refused.commands.is_empty(),
                "{commands:?}"
            );
        }
        assert_eq!(metrics.proposals_refused.get(), wrong.len() as u64);
    }

    #[test]
    fn a_node_declares_only_itself_down() {
        let metrics = Metrics::default();
        let down = |node| {
            let down = command::NodeDown {
                node,
                incarnation: 7,
            };
            let nothing = Kind::Nothing(command::Nothing {});
            let all = [nothing, Kind::NodeDown(down)];
            let all = all.map(|kind| command::Command { kind: Some(kind) });
            all.map(|command| command.encode_length_delimited_to_vec())
                .concat()
        };
        assert!(!check(down(2), &metrics).refused, "it is node 2");
        for other in [0, 1, 3, u64::MAX] {
            let refused = check(down(other), &metrics);
            assert!(refused.refused && refused.commands.is_empty(), "{other}");
        }
    }
}
