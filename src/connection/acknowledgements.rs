//! What the client has acknowledged and the log must know.
//!
//! It is gathered over a batch of packets and proposed as one command. PUBREL and PUBCOMP that follow from it are sent
//! when the command is committed, so that whichever node the client connects to next knows as much as the client.

use crate::base::ids::ConnectionId;
use crate::base::proto::command;
use crate::codec::PacketId;
use crate::session::Sequence;

/// Acknowledgements that are gathered for the log.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    gathered: command::Acknowledge,
}

/// Acknowledgements on their way through the log, for the packets that follow from their commit.
#[derive(Debug)]
pub(super) struct AcknowledgementsInLog {
    received: Vec<u64>,
    released: Vec<u32>,
}

/// A command with what follows from its commit.
pub(super) struct Gathered {
    pub(super) command: command::Acknowledge,
    /// `None` when nothing follows, so that the command may wait for others.
    pub(super) in_log: Option<AcknowledgementsInLog>,
}

impl Acknowledgements {
    /// A delivery of the session's queue is complete: its PUBACK or PUBCOMP came, or it is not sent at all.
    pub(super) fn complete(&mut self, sequence: Sequence) {
        self.gathered.completed.push(sequence.0);
    }

    /// The PUBREC of a message of the session's queue came: its PUBREL follows.
    pub(super) fn receive(&mut self, sequence: Sequence) {
        self.gathered.received.push(sequence.0);
    }

    /// The PUBREL of a message of the client came: its PUBCOMP follows.
    pub(super) fn release(&mut self, packet_id: PacketId) {
        self.gathered.released.push(packet_id.get().into());
    }

    /// Takes what was gathered, if there is anything.
    pub(super) fn take(&mut self, connection: ConnectionId) -> Option<Gathered> {
        let gathered = &self.gathered;
        let has_answer = !(gathered.received.is_empty() && gathered.released.is_empty());
        if gathered.completed.is_empty() && !has_answer {
            return None;
        }
        let mut command = std::mem::take(&mut self.gathered);
        command.connection = connection.0;
        let in_log = has_answer.then(|| AcknowledgementsInLog {
            received: command.received.clone(),
            released: command.released.clone(),
        });
        Some(Gathered { command, in_log })
    }
}

impl AcknowledgementsInLog {
    /// Messages of the session's queue whose PUBREL is due.
    pub(super) fn received(&self) -> impl Iterator<Item = Sequence> {
        self.received.iter().copied().map(Sequence)
    }

    /// Messages of the client whose PUBCOMP is due.
    pub(super) fn released(&self) -> impl Iterator<Item = PacketId> {
        let ids = self.released.iter();
        ids.filter_map(|packet_id| u16::try_from(*packet_id).ok().and_then(PacketId::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_command_and_only_pubrec_and_pubrel_have_an_answer() {
        let mut acknowledgements = Acknowledgements::default();
        assert!(acknowledgements.take(ConnectionId(7)).is_none());
        acknowledgements.complete(Sequence(1));
        acknowledgements.complete(Sequence(2));
        let taken = acknowledgements.take(ConnectionId(7)).expect("gathered");
        assert_eq!(taken.command.connection, 7);
        assert_eq!(taken.command.completed, [1, 2]);
        assert!(taken.in_log.is_none());
        acknowledgements.complete(Sequence(3));
        acknowledgements.receive(Sequence(4));
        acknowledgements.release(PacketId::MAX);
        let taken = acknowledgements.take(ConnectionId(7)).expect("gathered");
        assert_eq!(taken.command.completed, [3]);
        let in_log = taken.in_log.expect("a PUBREL and a PUBCOMP are due");
        assert!(in_log.received().eq([Sequence(4)]));
        assert!(in_log.released().eq([PacketId::MAX]));
        assert!(acknowledgements.take(ConnectionId(7)).is_none());
    }
}
