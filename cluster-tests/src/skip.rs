//! Tests that lack something on this machine: libfaketime, the right to mount, file descriptors.
//!
//! Invariant: a test never returns early without calling [`skip`]. Otherwise a machine without that thing would report a
//! rule as shown that nobody looked at.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Skips of this process.
static SKIPS: AtomicUsize = AtomicUsize::new(0);

/// Says that a test cannot show its rule here, and why; the caller returns afterwards.
///
/// The skip is counted: it is printed with its number, and appended as a line to the file that `QUORUMQ_SKIPS` names, which
/// adds up the processes of a run. Panics unless `QUORUMQ_ALLOW_SKIP=1`.
#[track_caller]
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let count = SKIPS.fetch_add(1, Ordering::Relaxed) + 1;
    eprintln!("skip {count}: {test}: {reason}");
    if let Some(path) = std::env::var_os("QUORUMQ_SKIPS") {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
        let written = file.and_then(|mut file| writeln!(file, "{test}: {reason}"));
        written.expect("the file that QUORUMQ_SKIPS names can be written");
    }
    let allowed = std::env::var("QUORUMQ_ALLOW_SKIP").is_ok_and(|value| value == "1");
    assert!(
        allowed,
        "{reason}; QUORUMQ_ALLOW_SKIP=1 lets tests be skipped"
    );
}

/// Skips of this process so far.
pub fn count() -> usize {
    SKIPS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_counted_and_fails_unless_it_is_allowed() {
        let allowed = std::env::var("QUORUMQ_ALLOW_SKIP").is_ok_and(|value| value == "1");
        let before = count();
        let skipped = std::panic::catch_unwind(|| skip("this test skips to see what happens"));
        assert_eq!(skipped.is_ok(), allowed);
        assert!(count() > before);
    }
}
