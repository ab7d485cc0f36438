//! What all modes have in common: the servers, times, and what their processes use.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use quorumq::cli::exit::{Exit, Failure};
use quorumq::config::Address;
use serde_json::json;

use crate::process;
use crate::report::round;

/// What all modes have in common.
pub struct Run {
    pub servers: Vec<SocketAddr>,
    pub id: String,
    pub warmup: Duration,
    pub duration: Duration,
    pub pids: Vec<u32>,
    /// Connections being opened at the same time.
    pub opening: usize,
}

/// The addresses of servers.
///
/// # Errors
/// Exit code 69 when a name has none.
pub fn resolve(servers: &[Address]) -> Result<Vec<SocketAddr>, Failure> {
    let one = |address: &Address| {
        let found = (address.host(), address.port()).to_socket_addrs();
        found.ok().and_then(|mut all| all.next()).ok_or_else(|| {
            Failure::new(
                Exit::Unreachable,
                format!("{address}: there is no such host"),
            )
        })
    };
    servers.iter().map(one).collect()
}

/// CPU time of the servers per operation, in microseconds.
pub fn cpu_per_operation(
    run: &Run,
    before: Duration,
    operations: u64,
) -> Option<(&'static str, serde_json::Value)> {
    let spent = process::cpu_times(&run.pids).saturating_sub(before);
    let per = spent.as_secs_f64() * 1e6 / operations.max(1) as f64;
    (!run.pids.is_empty()).then(|| ("server_cpu_us", json!(round(per, 2))))
}

pub fn own_cpu() -> Duration {
    process::cpu_time(std::process::id()).unwrap_or_default()
}

/// The share of a core that this process used.
pub fn load_cpu(before: Duration, elapsed: Duration) -> (&'static str, serde_json::Value) {
    let spent = (own_cpu() - before).as_secs_f64();
    ("load_cpu", json!(round(spent / elapsed.as_secs_f64(), 2)))
}

/// Sum over the servers of what the system says about each, when they are known.
pub fn of_servers(run: &Run, each: impl Fn(u32) -> Option<u64>) -> Option<u64> {
    let sum = run.pids.iter().map(|pid| each(*pid)).sum::<Option<u64>>();
    sum.filter(|_| !run.pids.is_empty())
}
