//! What the system says about a process: memory in RAM and CPU time used.

use std::time::Duration;

/// Clock ticks per second in `/proc/PID/stat`; 100 on every Linux that runs Rust.
const TICKS_PER_SECOND: u64 = 100;

/// Memory of a process that is in RAM, in bytes.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    memory(pid, "VmRSS:")
}

/// The most memory of a process that was ever in RAM, in bytes.
pub fn peak_resident_bytes(pid: u32) -> Option<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

/// CPU time a process has used, user and system.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<_> = rest.split_whitespace().collect();
    let ticks: u64 = [11, 12]
        .iter()
        .map(|index| fields.get(*index)?.parse::<u64>().ok())
        .sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Sum of the CPU time of several processes; those that are gone count nothing.
pub fn cpu_times(pids: &[u32]) -> Duration {
    pids.iter().filter_map(|pid| cpu_time(*pid)).sum()
}
