//! K1: the operations on each key have an order that agrees with what was answered and with real time.
//!
//! `todc-utils` searches for the order: the algorithm of Wing and Gong with Lowe's cache of tried states. A request
//! without an answer gets one at the end of the history that agrees with everything: it may have been executed at any
//! time or never.

use crate::history::{Command, Operation, Outcome};
use std::collections::BTreeMap;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// A key of the state store.
struct Key;

impl Specification for Key {
    type State = Option<u32>;
    type Operation = (Command, Outcome);

    fn init() -> Self::State {
        None
    }

    fn apply((command, outcome): &Self::Operation, state: &Self::State) -> (bool, Self::State) {
        let (wanted, next) = step(*command, *state);
        (*outcome == Outcome::Unknown || *outcome == wanted, next)
    }
}

/// What the store answers to a request, and the value after it.
fn step(command: Command, state: Option<u32>) -> (Outcome, Option<u32>) {
    match (command, state) {
        (Command::Set(value), _) => (Outcome::Ok, Some(value)),
        (Command::SetNx(value) | Command::SetNex(value), None) => (Outcome::Ok, Some(value)),
        (Command::SetNx(_), Some(_)) => (Outcome::Refused, state),
        (Command::SetNex(value), Some(found)) if value == found => (Outcome::Ok, state),
        (Command::SetNex(_), Some(_)) => (Outcome::Refused, state),
        (Command::Get, None) => (Outcome::Absent, None),
        (Command::Get, Some(found)) => (Outcome::Value(found), state),
        (Command::Del | Command::Vdel(_), None) => (Outcome::Deleted(false), None),
        (Command::Del, Some(_)) => (Outcome::Deleted(true), None),
        (Command::Vdel(value), Some(found)) if value == found => (Outcome::Deleted(true), None),
        (Command::Vdel(_), Some(_)) => (Outcome::Refused, state),
    }
}

/// The keys whose operations have no such order, with their operations.
pub fn violations(operations: &[Operation]) -> Vec<(usize, Vec<Operation>)> {
    let mut keys: BTreeMap<usize, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        // A GET without an answer has no effect and shows nothing.
        if operation.is_known() || operation.is_write() {
            keys.entry(operation.key)
                .or_default()
                .push(operation.clone());
        }
    }
    keys.retain(|_, operations| !is_linearizable(operations));
    keys.into_iter().collect()
}

fn is_linearizable(operations: &[Operation]) -> bool {
    if operations.is_empty() {
        return true;
    }
    // At equal times the response comes last, which allows more.
    let mut events = Vec::with_capacity(operations.len() * 2);
    for (process, operation) in operations.iter().enumerate() {
        let both = (operation.command, operation.outcome);
        events.push((operation.invoked, 0, process, Action::Call(both)));
        let returned = if operation.is_known() {
            operation.returned
        } else {
            u64::MAX
        };
        events.push((returned, 1, process, Action::Response(both)));
    }
    events.sort_by_key(|(time, order, process, _)| (*time, *order, *process));
    let actions = events
        .into_iter()
        .map(|(_, _, process, action)| (process, action))
        .collect();
    WGLChecker::<Key>::is_linearizable(History::from_actions(actions))
}

/// Panics with the first violation.
#[track_caller]
pub fn assert_linearizable(operations: &[Operation]) {
    let found = violations(operations);
    if let Some((key, operations)) = found.first() {
        for operation in operations {
            eprintln!("{operation:?}");
        }
        panic!(
            "K1: key {key} is not linearizable ({} keys are not)",
            found.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(command: Command, outcome: Outcome, invoked: u64, returned: u64) -> Operation {
        Operation {
            client: 0,
            key: 1,
            command,
            outcome,
            version: None,
            requested: None,
            invoked,
            returned,
        }
    }

    #[test]
    fn a_stale_read_is_found() {
        let stale = [
            operation(Command::Set(1), Outcome::Ok, 0, 1),
            operation(Command::Set(2), Outcome::Ok, 2, 3),
            operation(Command::Get, Outcome::Value(1), 4, 5),
        ];
        assert_eq!(violations(&stale).len(), 1);
    }

    #[test]
    fn a_read_during_a_write_may_see_either() {
        for seen in [1, 2] {
            let history = [
                operation(Command::Set(1), Outcome::Ok, 0, 1),
                operation(Command::Set(2), Outcome::Ok, 2, 9),
                operation(Command::Get, Outcome::Value(seen), 4, 5),
            ];
            assert!(violations(&history).is_empty());
        }
    }

    #[test]
    fn an_unknown_write_may_be_done_late_or_never_but_not_undone() {
        let late = [
            operation(Command::Set(1), Outcome::Ok, 0, 1),
            operation(Command::Set(2), Outcome::Unknown, 2, u64::MAX),
            operation(Command::Get, Outcome::Value(1), 4, 5),
            operation(Command::Get, Outcome::Value(2), 6, 7),
        ];
        assert!(violations(&late).is_empty());
        let undone = [
            late[0].clone(),
            late[1].clone(),
            operation(Command::Get, Outcome::Value(2), 4, 5),
            operation(Command::Get, Outcome::Value(1), 6, 7),
        ];
        assert_eq!(violations(&undone).len(), 1);
    }

    #[test]
    fn a_lost_acknowledged_write_is_found() {
        let lost = [
            operation(Command::Set(1), Outcome::Ok, 0, 1),
            operation(Command::Get, Outcome::Absent, 2, 3),
        ];
        assert_eq!(violations(&lost).len(), 1);
    }

    #[test]
    fn two_winners_of_one_nx_are_found() {
        let twice = [
            operation(Command::SetNx(1), Outcome::Ok, 0, 5),
            operation(Command::SetNx(2), Outcome::Ok, 0, 5),
        ];
        assert_eq!(violations(&twice).len(), 1);
    }

    #[test]
    fn conditions_compare_with_the_value() {
        let history = [
            operation(Command::SetNex(7), Outcome::Ok, 0, 1),
            operation(Command::SetNex(7), Outcome::Ok, 2, 3),
            operation(Command::SetNex(8), Outcome::Refused, 4, 5),
            operation(Command::Vdel(8), Outcome::Refused, 6, 7),
            operation(Command::Vdel(7), Outcome::Deleted(true), 8, 9),
            operation(Command::Vdel(7), Outcome::Deleted(false), 10, 11),
        ];
        assert!(violations(&history).is_empty());
    }
}
