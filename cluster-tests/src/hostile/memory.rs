//! Resident memory of nodes while a test runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(50);

/// A running watch.
pub(super) struct MemoryWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl MemoryWatch {
    pub fn start(pids: impl Iterator<Item = u32>) -> Self {
        let pids: Vec<u32> = pids.collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let before: Vec<u64> = pids.iter().map(|pid| resident(*pid)).collect();
            let mut highest = before.clone();
            while !stopped.load(Ordering::Relaxed) {
                for (pid, highest) in pids.iter().zip(&mut highest) {
                    *highest = resident(*pid).max(*highest);
                }
                std::thread::sleep(EVERY);
            }
            let pairs = highest.iter().zip(&before);
            pairs.map(|(highest, before)| highest - before).collect()
        });
        Self { stop, thread }
    }

    /// By how many bytes each process grew at most, in the order of the processes.
    pub fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the watch does not panic")
    }
}

/// Anonymous memory of a process, in bytes: what it allocated, without files of the page cache. 0 when it has ended.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    field("RssAnon:").or_else(|| field("VmRSS:")).unwrap_or(0) << 10
}
