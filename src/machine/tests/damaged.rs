//! Whatever bytes come out of the log: no replica panics, and all do the same, also those that have just restarted.

use bytes::Bytes;
use prost::Message as _;

use super::golden::{History, NODES};
use super::golden_commands::Random;
use crate::base::ids::LogIndex;
use crate::base::proto::command;
use crate::base::proto::command_schema;
use crate::machine::entry::{Commands, Decoded, Entry, check_commands};
use crate::machine::tables::Tables;

/// Changes a few bytes, wherever they are.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next() as u8),
            2 if at < bytes.len() => bytes[at] = random.next() as u8,
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
}

impl History {
    /// Applies an entry as it is on all replicas. One that stops them is as if it had never been.
    fn apply_bytes(&mut self, entry: &Bytes) {
        self.index += 1;
        let index = LogIndex(self.index);
        let mut results = Vec::new();
        for machine in &mut self.machines {
            let mut tables = Tables::new(&self.stored);
            let applied = machine.apply(index, entry.clone(), &mut tables);
            machine.take_outputs();
            results.push(applied.is_ok().then(|| tables.into_changes()));
        }
        assert!(
            results.iter().all(|result| *result == results[0]),
            "replicas agree on {entry:?}"
        );
        let Some(changes) = results.swap_remove(0) else {
            (0..NODES as usize).for_each(|machine_at| self.restart(machine_at));
            return;
        };
        for (key, change) in changes {
            match change.value() {
                Some(value) => self.stored.insert(key, value.to_vec()),
                None => self.stored.remove(&key),
            };
        }
    }

    /// The next proposal of a node as bytes of its commands, which are damaged if it says so.
    fn commands(&mut self, is_damaged: bool) -> command::Proposal {
        let mut kinds = Vec::new();
        let (node, kind) = self.command();
        kinds.push(kind);
        for _ in 0..self.random.below(3) {
            kinds.push(self.command().1);
        }
        let mut proposal = self.proposal(node, kinds);
        if is_damaged {
            let mut commands = proposal.commands.to_vec();
            damage(&mut self.random, &mut commands);
            proposal.commands = commands.into();
        }
        proposal
    }

    fn follow_sequences(&mut self) {
        // A damaged entry may have registered any incarnation, or applied nothing.
        for (node, known) in &mut self.nodes {
            let row = self.machines[0]
                .parts
                .nodes
                .row(crate::base::ids::NodeId(*node));
            *known = match row {
                Some(row) if !row.down => (row.incarnation, row.sequence),
                Some(row) => (row.incarnation.saturating_add(1), 0),
                None => (1, 0),
            };
        }
    }
}

#[test]
fn damaged_entries_and_commands_never_panic_and_never_make_replicas_differ() {
    let mut history = History::new();
    for step in 0..6_000 {
        history.now += history.random.below(50);
        let is_damaged = history.random.percent(60);
        let batch = command::Batch {
            stamp_ms: history.now,
            proposals: vec![history.commands(is_damaged), history.commands(false)],
            term: 1,
        };
        let mut entry = batch.encode_to_vec();
        if step % 5 == 0 {
            // The stamp is left alone: one that is far ahead would end the history.
            let mut rest = entry.split_off(7);
            damage(&mut history.random, &mut rest);
            entry.extend(rest);
        }
        if history.random.percent(3) {
            let machine_at = history.random.below(NODES) as usize;
            history.restart(machine_at);
        }
        history.apply_bytes(&entry.into());
        history.follow_sequences();
    }
    assert!(history.stored.len() > 20, "the history goes on");
}

#[test]
fn random_bytes_are_no_entry_or_one_that_does_little() {
    let mut history = History::new();
    for _ in 0..20_000 {
        let length = history.random.below(40);
        let mut entry = Vec::new();
        entry.extend((0..length).map(|_| history.random.next() as u8));
        history.apply_bytes(&entry.into());
    }
}

/// What the leader lets into the log is what every replica decodes.
#[test]
fn what_is_checked_can_be_decoded() {
    let mut history = History::new();
    let (mut accepted, mut refused) = (0, 0);
    for step in 0..30_000 {
        let proposal = history.commands(step % 4 != 0);
        match check_commands(&proposal.commands) {
            Ok(()) => {
                accepted += 1;
                let all = Commands(proposal.commands.clone());
                let decoded = all.map(|command| matches!(command, Decoded::Known(_)));
                assert!(decoded.into_iter().all(|known| known), "{proposal:?}");
            }
            Err(error) => {
                refused += 1;
                assert!(step % 4 != 0, "{error}: {proposal:?}");
            }
        }
    }
    assert!(accepted > 8_000 && refused > 8_000, "{accepted} {refused}");
}

/// Decoded, a command may take a hundred times as much memory: of long ones there is one at a time.
#[test]
fn few_commands_are_decoded_at_a_time() {
    let of = |bytes: usize| {
        let write = command::StoreWrite {
            value: vec![0; bytes].into(),
            ..Default::default()
        };
        let kind = Some(command::command::Kind::StoreWrite(write));
        command::Command { kind }.encode_length_delimited_to_vec()
    };
    let groups = |bytes: usize| {
        let mut commands = Commands(of(bytes).repeat(150).into());
        let mut groups = vec![commands.group().len()];
        while groups.last() != Some(&0) {
            groups.push(commands.group().len());
        }
        groups
    };
    assert_eq!(groups(10), [64, 64, 22, 0]);
    assert_eq!(groups(100_000), [vec![1; 150], vec![0]].concat());
}

#[test]
fn deep_nesting_and_long_lists_are_refused() {
    // Groups within groups, which the format once had.
    let deep = vec![0x0b; 1 << 20];
    assert!(command_schema::COMMAND.check(&deep).is_err());
    assert!(Entry::decode(&deep.clone().into()).is_none());
    let framed = |kind| {
        let command = command::Command { kind: Some(kind) };
        command.encode_length_delimited_to_vec()
    };
    let mut acknowledge = command::Acknowledge {
        completed: vec![1; 1 << 20],
        ..Default::default()
    };
    let full = framed(command::command::Kind::Acknowledge(acknowledge.clone()));
    assert!(
        check_commands(&full).is_err(),
        "the list itself counts as an element"
    );
    acknowledge.completed.truncate(1 << 10);
    let small = framed(command::command::Kind::Acknowledge(acknowledge));
    assert_eq!(check_commands(&small), Ok(()));
    // An entry of two bytes per proposal.
    let empty: Bytes = [0x12u8, 0].repeat(100_000).into();
    assert!(Entry::decode(&empty).is_none());
}
