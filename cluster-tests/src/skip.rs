//! Tests that lack something on this machine: libfaketime, the right to mount, file descriptors.
//!
//! Invariant: a test never returns early without calling [`skip`]. Otherwise a machine without that thing would report
//! a rule as shown that nobody looked at.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Skips of this process.
static SKIPS: AtomicUsize = AtomicUsize::new(0);

/// Says that a test cannot show its rule here, and why; the caller returns afterwards.
///
/// The skip is counted: it is printed with its number, and appended as a line to the file that `QUORUMQ_SKIPS` names,
/// which adds up the processes of a run. Panics unless `QUORUMQ_ALLOW_SKIP=1`.
#[track_caller]
pub fn skip(reason: &str) {
    let is_allowed = std::env::var("QUORUMQ_ALLOW_SKIP").is_ok_and(|value| value == "1");
    let file = std::env::var_os("QUORUMQ_SKIPS");
    count(reason, is_allowed, file.as_deref().map(Path::new));
}

#[track_caller]
fn count(reason: &str, is_allowed: bool, file: Option<&Path>) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let number = SKIPS.fetch_add(1, Ordering::Relaxed) + 1;
    eprintln!("skip {number}: {test}: {reason}");
    if let Some(path) = file {
        let file = File::options().create(true).append(true).open(path);
        let written = file.and_then(|mut file| writeln!(file, "{test}: {reason}"));
        written.expect("the file that QUORUMQ_SKIPS names can be written");
    }
    assert!(
        is_allowed,
        "{reason}; QUORUMQ_ALLOW_SKIP=1 lets tests be skipped"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn a_skip_is_counted_and_fails_unless_it_is_allowed() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let path = file.path();
        assert!(catch_unwind(|| count("one", true, Some(path))).is_ok());
        assert!(catch_unwind(|| count("two", false, Some(path))).is_err());
        assert_eq!(SKIPS.load(Ordering::Relaxed), 2);
        let written = std::fs::read_to_string(path).expect("the file is there");
        let reasons: Vec<&str> = written
            .lines()
            .filter_map(|line| line.rsplit(": ").next())
            .collect();
        assert_eq!(reasons, ["one", "two"]);
    }
}
