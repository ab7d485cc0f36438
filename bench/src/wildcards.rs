//! Many different filters with wildcards, and topics of which each matches exactly one of them.

/// Shapes that take turns.
const SHAPES: usize = 4;

/// Filter `number` of a run: `+` at the end, `#`, `+` in the middle, `+` at the beginning and in the middle.
pub fn filter(run: &str, number: usize) -> String {
    match number % SHAPES {
        0 => format!("bench/{run}/{number}/+"),
        1 => format!("bench/{run}/{number}/#"),
        2 => format!("bench/{run}/+/{number}/state"),
        _ => format!("+/{run}/{number}/+/state"),
    }
}

/// A topic that [`filter`] `number` matches, and no other.
pub fn topic(run: &str, number: usize) -> String {
    match number % SHAPES {
        0 => format!("bench/{run}/{number}/state"),
        1 => format!("bench/{run}/{number}/room/state"),
        2 => format!("bench/{run}/house/{number}/state"),
        _ => format!("bench/{run}/{number}/room/state"),
    }
}

#[cfg(test)]
mod tests {
    use quorumq::topic::matches;

    use super::*;

    #[test]
    fn every_topic_matches_its_own_filter_and_no_other() {
        for number in 0..200 {
            let topic = topic("run", number);
            let matched: Vec<_> = (0..200)
                .filter(|other| matches(&filter("run", *other), &topic))
                .collect();
            assert_eq!(matched, [number], "{topic}");
        }
    }
}
