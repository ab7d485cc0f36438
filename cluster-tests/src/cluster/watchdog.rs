//! Ends a test that hangs, after it has written down what every node was doing.
//!
//! The runner would end it too, but without that.

use super::diagnosis::Process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a test with a cluster may take. The runner ends it after 300 s (`.config/nextest.toml`); what is left is
/// for the stacks of all nodes.
pub const DEADLINE: Duration = Duration::from_secs(225);

/// The processes of a cluster; nodes are added while it runs.
pub(super) type Processes = Arc<Mutex<Vec<Arc<Process>>>>;

/// Watches over a cluster as long as this value lives.
pub(super) struct Watchdog(#[expect(dead_code, reason = "its end ends the watch")] Sender<()>);

impl Watchdog {
    /// Calls `at_end` with the description of all processes, unless this value goes within `deadline`.
    pub fn start(
        processes: Processes,
        deadline: Duration,
        at_end: impl FnOnce(String) + Send + 'static,
    ) -> Self {
        let (sender, alive) = channel();
        std::thread::spawn(move || {
            if alive.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                at_end(describe(&processes));
            }
        });
        Self(sender)
    }
}

/// What every node is doing.
pub(super) fn describe(processes: &Processes) -> String {
    // Cloned: a node may be added meanwhile.
    let processes = processes
        .lock()
        .expect("no holder of the lock panics")
        .clone();
    let each: Vec<String> = processes.iter().map(|process| process.describe()).collect();
    each.concat()
}

/// What is left of the time that the runner gives a test. nextest runs each test in a process of its own and counts
/// from its start; other runners count nothing, so there a cluster has all of it from its own start.
pub(super) fn left_of(deadline: Duration) -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = FIRST.get_or_init(Instant::now);
    match std::env::var_os("NEXTEST") {
        Some(_) => deadline.saturating_sub(first.elapsed()),
        None => deadline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;
    use std::process::{Child, Command};
    use std::sync::atomic::Ordering;

    fn processes(directory: &std::path::Path) -> (Processes, Child) {
        let log = directory.join("node1.log");
        std::fs::write(&log, "first\nlast words\n").expect("a log can be written");
        let process = Process::new("node 1".into(), log);
        // It ends by itself when this test fails before it is killed.
        let sleeper = Command::new("sleep")
            .arg("100")
            .spawn()
            .expect("sleep can be started");
        process.pid.store(sleeper.id(), Ordering::Relaxed);
        (Arc::new(Mutex::new(vec![Arc::new(process)])), sleeper)
    }

    #[test]
    fn a_stuck_wait_ends_with_what_every_node_was_doing() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (processes, mut sleeper) = processes(directory.path());
        let (said, report) = channel();
        let _watchdog = Watchdog::start(processes, Duration::from_millis(200), move |text| {
            let _ = said.send(text);
        });
        // Stuck: nobody makes the condition true. The watchdog's report ends the wait.
        let text = wait::until("what never comes", Duration::from_secs(60), || {
            report.try_recv().ok()
        });
        let thread = format!("{} sleep (", sleeper.id());
        for part in [
            "--- node 1: process",
            &thread,
            "S (sleeping) in ",
            "last words",
        ] {
            assert!(text.contains(part), "{part:?} is missing:\n{text}");
        }
        let gdb = Command::new("gdb").arg("--version").output().is_ok();
        let part = if gdb {
            "gdb ended"
        } else {
            "gdb is not installed"
        };
        assert!(text.contains(part), "{text}");
        let ended = sleeper.kill().and_then(|()| sleeper.wait());
        ended.expect("it was started");
    }

    #[test]
    fn a_cluster_that_ended_in_time_is_left_alone() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let (processes, mut sleeper) = processes(directory.path());
        let (said, report) = channel();
        let watchdog = Watchdog::start(processes, Duration::from_secs(60), move |text| {
            let _ = said.send(text);
        });
        drop(watchdog);
        // Its thread goes, and with it the sender.
        let end = report.recv_timeout(Duration::from_secs(30));
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
        let ended = sleeper.kill().and_then(|()| sleeper.wait());
        ended.expect("it was started");
    }
}
