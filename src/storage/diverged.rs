//! The end of a replica whose state is not that of the others.
//!
//! Invariant: a directory whose state is known to differ is never used again. Restarting would not help: the state is
//! what it was, and would be served until somebody compares it again.

use std::io::Write as _;
use std::path::Path;

use super::data_dir::DIFFERS;
use super::fatal::end_process;
use super::files::write_durably;

/// Exit status of a replica that differs, `EX_SOFTWARE` of sysexits.h.
pub const EXIT_DIVERGED: i32 = 70;

/// Notes why this directory must not be used any more, and ends the process at once.
pub fn give_up(data: &Path, why: &str) -> ! {
    tracing::error!(target: "quorumq::storage", "{why}; this node stops");
    if let Err(error) = mark(data, why) {
        tracing::error!(target: "quorumq::storage", %error, "{DIFFERS} could not be written");
    }
    let mut stderr = std::io::stderr();
    // Nothing is left to do when stderr is gone too.
    let _ = writeln!(
        stderr,
        "quorumq: {why}\nquorumq: stopping; see docs/operations.md, A state that differs"
    );
    let _ = stderr.flush();
    end_process(EXIT_DIVERGED)
}

fn mark(data: &Path, why: &str) -> std::io::Result<()> {
    write_durably(&data.join(DIFFERS), format!("{why}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::base::ids::NodeId;
    use crate::storage::DataDir;

    #[test]
    fn a_directory_whose_state_differs_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        drop(DataDir::open(dir.path(), NodeId(3), "c").expect("an empty directory"));
        mark(dir.path(), "table 0x20 differs").expect("a writable directory");
        let refused = DataDir::open(dir.path(), NodeId(3), "c").expect_err("it differs");
        let text = refused.to_string();
        assert!(text.contains("table 0x20 differs"), "{text}");
        assert!(text.contains("cluster leave 3"), "{text}");
        fs::remove_file(dir.path().join(DIFFERS)).expect("the mark");
        drop(DataDir::open(dir.path(), NodeId(3), "c").expect("nothing is wrong any more"));
    }
}
