//! K1: the operations on each key have an order that agrees with what was answered and with real time.
//!
//! The search is `todc-utils`' (Wing and Gong, with Lowe's memory of what was tried). A request without an answer is
//! given one at the end of the history that agrees with everything: it may have been done at any time or never.

use crate::history::{Ask, Operation, Told};
use std::collections::BTreeMap;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// A key of the state store.
struct Key;

impl Specification for Key {
    type State = Option<u32>;
    type Operation = (Ask, Told);

    fn init() -> Self::State {
        None
    }

    fn apply((ask, told): &Self::Operation, state: &Self::State) -> (bool, Self::State) {
        let (wanted, next) = step(*ask, *state);
        (*told == Told::Unknown || *told == wanted, next)
    }
}

/// What the store answers to a request, and the value after it.
fn step(ask: Ask, state: Option<u32>) -> (Told, Option<u32>) {
    match (ask, state) {
        (Ask::Set(value), _) => (Told::Ok, Some(value)),
        (Ask::SetNx(value) | Ask::SetNex(value), None) => (Told::Ok, Some(value)),
        (Ask::SetNx(_), Some(_)) => (Told::Refused, state),
        (Ask::SetNex(value), Some(found)) if value == found => (Told::Ok, state),
        (Ask::SetNex(_), Some(_)) => (Told::Refused, state),
        (Ask::Get, None) => (Told::Absent, None),
        (Ask::Get, Some(found)) => (Told::Value(found), state),
        (Ask::Del | Ask::Vdel(_), None) => (Told::Deleted(false), None),
        (Ask::Del, Some(_)) => (Told::Deleted(true), None),
        (Ask::Vdel(value), Some(found)) if value == found => (Told::Deleted(true), None),
        (Ask::Vdel(_), Some(_)) => (Told::Refused, state),
    }
}

/// The keys whose operations have no such order, with their operations.
pub fn violations(operations: &[Operation]) -> Vec<(usize, Vec<Operation>)> {
    let mut keys: BTreeMap<usize, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        // A GET without an answer says nothing.
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
        let both = (operation.ask, operation.told);
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

    fn operation(ask: Ask, told: Told, invoked: u64, returned: u64) -> Operation {
        Operation {
            client: 0,
            key: 1,
            ask,
            told,
            version: None,
            requested: None,
            invoked,
            returned,
        }
    }

    #[test]
    fn a_stale_read_is_found() {
        let stale = [
            operation(Ask::Set(1), Told::Ok, 0, 1),
            operation(Ask::Set(2), Told::Ok, 2, 3),
            operation(Ask::Get, Told::Value(1), 4, 5),
        ];
        assert_eq!(violations(&stale).len(), 1);
    }

    #[test]
    fn a_read_during_a_write_may_see_either() {
        for seen in [1, 2] {
            let history = [
                operation(Ask::Set(1), Told::Ok, 0, 1),
                operation(Ask::Set(2), Told::Ok, 2, 9),
                operation(Ask::Get, Told::Value(seen), 4, 5),
            ];
            assert!(violations(&history).is_empty());
        }
    }

    #[test]
    fn an_unknown_write_may_be_done_late_or_never_but_not_undone() {
        let late = [
            operation(Ask::Set(1), Told::Ok, 0, 1),
            operation(Ask::Set(2), Told::Unknown, 2, u64::MAX),
            operation(Ask::Get, Told::Value(1), 4, 5),
            operation(Ask::Get, Told::Value(2), 6, 7),
        ];
        assert!(violations(&late).is_empty());
        let undone = [
            late[0].clone(),
            late[1].clone(),
            operation(Ask::Get, Told::Value(2), 4, 5),
            operation(Ask::Get, Told::Value(1), 6, 7),
        ];
        assert_eq!(violations(&undone).len(), 1);
    }

    #[test]
    fn a_lost_acknowledged_write_is_found() {
        let lost = [
            operation(Ask::Set(1), Told::Ok, 0, 1),
            operation(Ask::Get, Told::Absent, 2, 3),
        ];
        assert_eq!(violations(&lost).len(), 1);
    }

    #[test]
    fn two_winners_of_one_nx_are_found() {
        let twice = [
            operation(Ask::SetNx(1), Told::Ok, 0, 5),
            operation(Ask::SetNx(2), Told::Ok, 0, 5),
        ];
        assert_eq!(violations(&twice).len(), 1);
    }

    #[test]
    fn conditions_compare_with_the_value() {
        let history = [
            operation(Ask::SetNex(7), Told::Ok, 0, 1),
            operation(Ask::SetNex(7), Told::Ok, 2, 3),
            operation(Ask::SetNex(8), Told::Refused, 4, 5),
            operation(Ask::Vdel(8), Told::Refused, 6, 7),
            operation(Ask::Vdel(7), Told::Deleted(true), 8, 9),
            operation(Ask::Vdel(7), Told::Deleted(false), 10, 11),
        ];
        assert!(violations(&history).is_empty());
    }
}
