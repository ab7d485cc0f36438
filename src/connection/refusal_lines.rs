//! The rate of lines in the log about clients that are refused.
//!
//! Invariant: of each second there are [`LINES_PER_SECOND`] lines at most, and the next one tells how many were left
//! out.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines about refusals in one second.
const LINES_PER_SECOND: u32 = 50;

/// Lines of the present second.
#[derive(Debug, Default)]
pub(crate) struct RefusalLines {
    second: Mutex<Second>,
}

#[derive(Debug, Default)]
struct Second {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl RefusalLines {
    /// Whether one more line is written; then, how many were left out before it.
    pub(super) fn admit(&self, now: Instant) -> Option<u64> {
        let mut second = self.second.lock();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= SECOND;
        if second.since.is_none_or(is_over) {
            second.since = Some(now);
            second.lines = 0;
        }
        if second.lines >= LINES_PER_SECOND {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(std::mem::take(&mut second.left_out))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_flood_of_refusals_there_are_a_few_lines() {
        let lines = RefusalLines::default();
        let start = Instant::now();
        let written = |second: u32| {
            let now = start + second * SECOND;
            let written = (0..10_000).filter_map(|_| lines.admit(now));
            written.collect::<Vec<_>>()
        };
        let (first, second) = (written(0), written(1));
        assert_eq!(first.len() as u32, LINES_PER_SECOND);
        assert!(first.iter().all(|left_out| *left_out == 0));
        assert_eq!(second.len() as u32, LINES_PER_SECOND);
        let left_out = 10_000 - u64::from(LINES_PER_SECOND);
        assert_eq!(second[..2], [left_out, 0], "none is forgotten");
    }
}
