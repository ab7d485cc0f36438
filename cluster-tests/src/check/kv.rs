//! Rules on versions and notifications: K3, K4, K9.

use crate::history::{Command, Operation, Outcome};
use crate::store::{Hlc, Notification};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The value that an operation writes when it takes effect.
fn written(command: Command) -> Option<u32> {
    match command {
        Command::Set(value) | Command::SetNx(value) | Command::SetNex(value) => Some(value),
        Command::Get | Command::Del | Command::Vdel(_) => None,
    }
}

/// K3 and K4 over a history whose writes all have values of their own; one line per violation.
pub fn version_violations(operations: &[Operation]) -> Vec<String> {
    let mut keys: BTreeMap<usize, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        keys.entry(operation.key).or_default().push(operation);
    }
    let mut found = Vec::new();
    for (key, operations) in keys {
        rising(key, &operations, &mut found);
        reads_agree(key, &operations, &mut found);
        above_request(key, &operations, &mut found);
    }
    found
}

/// K3: of two acknowledged writes of which one began after the other was answered, the later has the higher version.
fn rising(key: usize, operations: &[&Operation], found: &mut Vec<String>) {
    let mut sets: Vec<(&Operation, &Hlc)> = Vec::new();
    let mut seen = BTreeSet::new();
    for operation in operations.iter().filter(|operation| operation.has_set()) {
        match &operation.version {
            Some(version) => {
                if !seen.insert(version.clone()) {
                    found.push(format!("K3: key {key}: version {version} was given twice"));
                }
                sets.push((operation, version));
            }
            None => found.push(format!(
                "K3: key {key}: +OK without a version: {operation:?}"
            )),
        }
    }
    // The highest version answered before each invocation must be lower than the operation's own.
    let mut by_return = sets.clone();
    by_return.sort_by_key(|(operation, _)| operation.returned);
    sets.sort_by_key(|(operation, _)| operation.invoked);
    let mut highest: Option<&Hlc> = None;
    let mut answered = by_return.into_iter().peekable();
    for (operation, version) in sets {
        while let Some((_, earlier)) =
            answered.next_if(|(other, _)| other.returned < operation.invoked)
        {
            highest = highest.max(Some(earlier));
        }
        if let Some(highest) = highest
            && highest >= version
        {
            found.push(format!(
                "K3: key {key}: version {version} after {highest} was answered"
            ));
        }
    }
}

/// K3: a read returns the version that the value's SET returned; two reads of a value agree.
fn reads_agree(key: usize, operations: &[&Operation], found: &mut Vec<String>) {
    let mut of_value: HashMap<u32, Hlc> = HashMap::new();
    for operation in operations {
        let value = match (operation.outcome, written(operation.command)) {
            (Outcome::Value(value), _) | (Outcome::Ok, Some(value)) => value,
            _ => continue,
        };
        let Some(version) = &operation.version else {
            found.push(format!(
                "K3: key {key}: an answer without a version: {operation:?}"
            ));
            continue;
        };
        let known = of_value.entry(value).or_insert_with(|| version.clone());
        if known != version {
            found.push(format!(
                "K3: key {key}: value {value} has versions {known} and {version}"
            ));
        }
    }
}

/// K4: the version is above the request's time stamp.
fn above_request(key: usize, operations: &[&Operation], found: &mut Vec<String>) {
    for operation in operations.iter().filter(|operation| operation.has_set()) {
        if let (Some(version), Some(requested)) = (&operation.version, &operation.requested)
            && version <= requested
        {
            found.push(format!(
                "K4: key {key}: version {version} is not above the request's {requested}"
            ));
        }
    }
}

/// What one watcher of a key received between its `+OK` and the end of its connection, in the history's time.
#[derive(Debug, Clone)]
pub struct WatchedKey {
    pub key: usize,
    pub from: u64,
    pub to: u64,
    /// The connection was cut: only notifications that were in transit may be lost.
    pub cut: bool,
    pub received: Vec<Notification>,
}

/// K9: what was received is exactly what happened to the key meanwhile, in version order.
pub fn notification_violations(watched: &WatchedKey, operations: &[Operation]) -> Vec<String> {
    let mut found = Vec::new();
    let key = watched.key;
    for pair in watched.received.windows(2) {
        if pair[0].version >= pair[1].version {
            found.push(format!(
                "K9: key {key}: notified of {} and then of {}",
                pair[0].version, pair[1].version
            ));
        }
    }
    let of_key: Vec<&Operation> = operations
        .iter()
        .filter(|operation| operation.key == key)
        .collect();
    let notified = notified_values(watched, &of_key, &mut found);
    // A cut connection may have lost its last notifications. What precedes a received one must have been received too.
    let last = watched.received.last().map(|last| &last.version);
    for operation in &of_key {
        let inside = operation.invoked > watched.from
            && operation.returned < watched.to
            && (!watched.cut || operation.version.as_ref() < last);
        if inside && operation.has_set() && !notified.contains(&written(operation.command)) {
            found.push(format!("K9: key {key}: not notified of {operation:?}"));
        }
    }
    deletions(watched, &of_key, &mut found);
    found
}

/// The values notified; those that nobody wrote, or with another version, are violations.
fn notified_values(
    watched: &WatchedKey,
    of_key: &[&Operation],
    found: &mut Vec<String>,
) -> BTreeSet<Option<u32>> {
    let key = watched.key;
    let sets: HashMap<u32, &Operation> = of_key
        .iter()
        .filter(|operation| matches!(operation.outcome, Outcome::Ok | Outcome::Unknown))
        .filter_map(|operation| written(operation.command).map(|value| (value, *operation)))
        .collect();
    let mut notified = BTreeSet::new();
    for notification in &watched.received {
        let Some(value) = &notification.value else {
            continue;
        };
        let value = String::from_utf8_lossy(value).parse::<u32>().ok();
        match value.and_then(|value| sets.get(&value)) {
            None => found.push(format!("K9: key {key}: invented: {notification:?}")),
            Some(operation) => {
                notified.insert(value);
                let other = |version: &Hlc| *version != notification.version;
                if operation.version.as_ref().is_some_and(other) {
                    found.push(format!(
                        "K9: key {key}: {notification:?} does not agree with {operation:?}"
                    ));
                }
            }
        }
    }
    notified
}

/// Deletions carry no value that would identify them, so they are counted.
fn deletions(watched: &WatchedKey, of_key: &[&Operation], found: &mut Vec<String>) {
    let notified = watched
        .received
        .iter()
        .filter(|notification| notification.value.is_none())
        .count();
    let deleted = |operation: &&&Operation| operation.outcome == Outcome::Deleted(true);
    let least = of_key
        .iter()
        .filter(|operation| operation.invoked > watched.from && operation.returned < watched.to)
        .filter(deleted)
        .count();
    let may = |operation: &&&Operation| {
        matches!(operation.command, Command::Del | Command::Vdel(_))
            && operation.outcome == Outcome::Unknown
    };
    let most = of_key.iter().filter(deleted).count() + of_key.iter().filter(may).count();
    if (notified < least && !watched.cut) || notified > most {
        found.push(format!(
            "K9: key {}: {notified} deletions notified, between {least} and {most} happened",
            watched.key
        ));
    }
}

/// Panics when there is a violation.
#[track_caller]
pub fn assert_none(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{} violations:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hlc(wall_ms: u64) -> Hlc {
        Hlc {
            wall_ms,
            counter: 1,
            node: "StateStore".into(),
        }
    }

    fn operation(
        command: Command,
        outcome: Outcome,
        version: u64,
        invoked: u64,
        returned: u64,
    ) -> Operation {
        Operation {
            client: 0,
            key: 1,
            command,
            outcome,
            version: (version > 0).then(|| hlc(version)),
            requested: None,
            invoked,
            returned,
        }
    }

    #[test]
    fn a_version_that_goes_back_is_found() {
        let history = [
            operation(Command::Set(1), Outcome::Ok, 10, 0, 1),
            operation(Command::Del, Outcome::Deleted(true), 10, 2, 3),
            operation(Command::Set(2), Outcome::Ok, 9, 4, 5),
        ];
        assert_eq!(version_violations(&history).len(), 1);
    }

    #[test]
    fn concurrent_writes_may_have_either_order() {
        let history = [
            operation(Command::Set(1), Outcome::Ok, 10, 0, 5),
            operation(Command::Set(2), Outcome::Ok, 9, 1, 4),
            operation(Command::Get, Outcome::Value(1), 10, 6, 7),
        ];
        assert!(version_violations(&history).is_empty());
    }

    #[test]
    fn a_read_with_another_version_is_found() {
        let history = [
            operation(Command::Set(1), Outcome::Ok, 10, 0, 1),
            operation(Command::Get, Outcome::Value(1), 11, 2, 3),
        ];
        assert_eq!(version_violations(&history).len(), 1);
    }

    #[test]
    fn a_version_not_above_its_request_is_found() {
        let mut set = operation(Command::Set(1), Outcome::Ok, 10, 0, 1);
        set.requested = Some(hlc(10));
        assert_eq!(version_violations(&[set]).len(), 1);
    }

    fn notified(value: Option<&str>, version: u64) -> Notification {
        Notification {
            key: b"1".to_vec(),
            value: value.map(|value| value.as_bytes().to_vec()),
            version: hlc(version),
            received: std::time::Instant::now(),
        }
    }

    #[test]
    fn missing_reordered_and_invented_notifications_are_found() {
        let history = [
            operation(Command::Set(1), Outcome::Ok, 10, 1, 2),
            operation(Command::Set(2), Outcome::Ok, 11, 3, 4),
            operation(Command::Del, Outcome::Deleted(true), 11, 5, 6),
        ];
        let judge = |received: &[Notification]| {
            let watched = WatchedKey {
                key: 1,
                from: 0,
                to: 100,
                cut: false,
                received: received.to_vec(),
            };
            notification_violations(&watched, &history).len()
        };
        let (one, two, gone) = (
            notified(Some("1"), 10),
            notified(Some("2"), 11),
            notified(None, 12),
        );
        assert_eq!(judge(&[one.clone(), two.clone(), gone.clone()]), 0);
        assert_eq!(judge(&[one.clone(), two.clone()]), 1);
        assert_eq!(judge(&[one.clone(), gone.clone()]), 1);
        assert_eq!(judge(&[two.clone(), one.clone(), gone.clone()]), 1);
        assert_eq!(
            judge(&[
                one.clone(),
                two,
                notified(Some("3"), 12),
                notified(None, 13)
            ]),
            1
        );
        assert_eq!(judge(&[one.clone(), one, gone]), 2);
    }
}
