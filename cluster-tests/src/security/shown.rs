//! What a test has seen of the cells that name it.

use super::Security;
use std::collections::{BTreeMap, BTreeSet};

/// Part, entry point, who asks.
type Key = (&'static str, String, String);

/// The cells that a test has seen, with their outcomes.
///
/// Invariant: a test that ends well has seen each cell of the table that names it, with the outcome that the table has,
/// and no other cell.
pub struct Shown {
    test: &'static str,
    seen: BTreeMap<Key, BTreeSet<String>>,
}

/// What the table calls the answer to an HTTP request: a route that was reached may have found nothing to do.
pub fn of_status(status: u16) -> String {
    match status {
        200 | 400 | 404 | 409 => "allowed".to_owned(),
        other => other.to_string(),
    }
}

/// What the table calls a reason code.
pub fn of_code(code: u8) -> String {
    match code {
        0 => "allowed".to_owned(),
        other => format!("{other:#04X}").replace("0X", "0x"),
    }
}

impl Shown {
    /// Of the test with this name.
    pub fn by(test: &'static str) -> Shown {
        Shown {
            test,
            seen: BTreeMap::new(),
        }
    }

    /// Who has asked where, and what came of it. A cell that is seen several times has all the outcomes.
    pub fn saw(&mut self, part: &'static str, entry: &str, who: &str, outcome: impl Into<String>) {
        let key = (part, entry.to_owned(), who.to_owned());
        self.seen.entry(key).or_default().insert(outcome.into());
    }

    /// Compares with the table.
    #[track_caller]
    pub fn finish(self) {
        let problems = self.problems(&Security::read());
        assert!(problems.is_empty(), "{}: {problems:#?}", self.test);
    }

    fn problems(&self, table: &Security) -> Vec<String> {
        let mut problems = Vec::new();
        let mut seen = self.seen.clone();
        for (part, entry, who, cell) in table.cells().filter(|cell| cell.3.test == self.test) {
            let found = seen.iter().find(|((known, at, by), _)| {
                (*known, at.as_str(), by.as_str()) == (part, entry, who)
            });
            let key = found.map(|(key, _)| key.clone());
            let outcomes = key.and_then(|key| seen.remove(&key)).unwrap_or_default();
            let outcomes: Vec<String> = outcomes.into_iter().collect();
            if outcomes.join(", ") != cell.outcome {
                let wanted = &cell.outcome;
                problems.push(format!(
                    "{part}, {entry}, {who}: {outcomes:?}, not {wanted}"
                ));
            }
        }
        let more = seen.keys().map(|(part, entry, who)| {
            format!("{part}, {entry}, {who}: the cell is another test's, or there is none")
        });
        problems.extend(more);
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "part\tentry point\twho asks\toutcome\ttest\n\
                         P\ta\tx\t403, 415\tt\nP\ta\ty\tallowed\tt\nP\ta\tz\t0x87\tother\n";

    fn problems(seen: &[(&str, &str)]) -> usize {
        let mut shown = Shown::by("t");
        for (who, outcome) in seen {
            shown.saw("P", "a", who, *outcome);
        }
        shown.problems(&Security::parse(TABLE)).len()
    }

    #[test]
    fn a_test_shows_its_cells_and_no_other() {
        let right = [("x", "415"), ("x", "403"), ("y", "allowed")];
        assert_eq!(problems(&right), 0);
        assert_eq!(problems(&right[..2]), 1, "y is not shown");
        assert_eq!(problems(&right[1..]), 1, "x is shown in part");
        assert_eq!(
            problems(&[&right[..], &[("y", "401")]].concat()),
            1,
            "y has another outcome"
        );
        assert_eq!(
            problems(&[&right[..], &[("z", "0x87")]].concat()),
            1,
            "z is another test's"
        );
        assert_eq!(
            problems(&[&right[..], &[("w", "401")]].concat()),
            1,
            "w is not there"
        );
    }

    #[test]
    fn outcomes_have_their_names() {
        assert_eq!(of_status(404), "allowed");
        assert_eq!(of_status(401), "401");
        assert_eq!(
            (of_code(0), of_code(0x8A)),
            ("allowed".into(), "0x8A".into())
        );
    }
}
