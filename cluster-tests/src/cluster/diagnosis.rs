//! What the processes of a cluster were doing when a test failed or hung: the end of each log, and where each thread
//! is.
//!
//! Must not depend on the nodes' answers: whoever asks suspects that they don't answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Lines of each log.
const LOG_LINES: usize = 60;

/// How long gdb may take for one process: to read the symbols of a large binary takes seconds on a busy machine.
const GDB_WITHIN: Duration = Duration::from_secs(15);

/// A node's process as a diagnosis finds it, shared with the node that starts and ends it.
#[derive(Debug)]
pub struct Process {
    pub name: String,
    pub log: PathBuf,
    /// 0 while it does not run.
    pub pid: AtomicU32,
}

impl Process {
    pub fn new(name: String, log: PathBuf) -> Self {
        Self {
            name,
            log,
            pid: AtomicU32::new(0),
        }
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// Everything about it, as text.
    pub fn describe(&self) -> String {
        let mut text = format!("--- {}: ", self.name);
        match self.pid() {
            Some(pid) => {
                let _ = writeln!(text, "process {pid}, its threads");
                text += &threads(pid);
                text += &backtraces(pid);
            }
            None => text += "does not run\n",
        }
        text + &self.log_tail()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_LINES);
        let path = self.log.display();
        let mut text = format!("--- {}: the last lines of {path}\n", self.name);
        for line in &lines[from..] {
            text += line;
            text.push('\n');
        }
        text
    }
}

/// The threads of a process as the kernel sees them. Those at the same place share an entry.
fn threads(pid: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("process {pid} has ended\n");
    };
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for task in tasks.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("?", str::trim).to_owned()
        };
        let mut place = format!("{} in {}", field("State:"), read("wchan"));
        // The kernel's stack is for root only.
        for line in read("stack").lines() {
            let _ = write!(place, "\n    {line}");
        }
        let who = format!(
            "{} {} ({} waits)",
            task.file_name().to_string_lossy(),
            read("comm").trim(),
            field("voluntary_ctxt_switches:")
        );
        places.entry(place).or_default().push(who);
    }
    let mut text = String::new();
    for (place, who) in places {
        let _ = writeln!(text, "{}: {place}", who.join(", "));
    }
    text
}

/// The stack of every thread in user space, where gdb is installed and may look.
fn backtraces(pid: u32) -> String {
    let child = Command::new("timeout")
        .args(["--kill-after=1", &GDB_WITHIN.as_secs().to_string()])
        .args(["gdb", "-p", &pid.to_string(), "-batch", "-nx"])
        .args(["-iex", "set debuginfod enabled off"])
        .args(["-iex", "set auto-load off"])
        .args(["-ex", "thread apply all bt"])
        .stdin(Stdio::null())
        .output();
    match child {
        // The status of `timeout` when there is no such command.
        Ok(output) if output.status.code() == Some(127) => "gdb is not installed\n".into(),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let wrong = String::from_utf8_lossy(&output.stderr);
            let wrong: Vec<&str> = wrong.lines().rev().take(3).collect();
            format!("{text}gdb ended with {}: {wrong:?}\n", output.status)
        }
        Err(error) => format!("no stacks: {error}\n"),
    }
}
