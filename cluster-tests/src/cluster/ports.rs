//! Turns on this machine: how many clusters run at once, and the ports of each.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use crate::wait;

/// Clusters that run side by side.
const SLOTS: u16 = 3;

/// Ports of a slot, below the range that outgoing connections take theirs from.
const FIRST_PORT: u16 = 20_000;
const SLOT_PORTS: u16 = 4_000;

/// Suites that state bounds of time and memory: nothing else runs beside them.
const ALONE: [&str; 6] = [
    "fault_delay",
    "fault_links",
    "fault_nodes",
    "fault_stalls",
    "fault_subscribe",
    "hostile_",
];

/// How long other clusters of this machine may take to end: a whole run of all tests, where a runner starts them at
/// once.
const MACHINE_WITHIN: Duration = Duration::from_secs(3600);

/// The right to run a cluster, and the ports that no other one takes meanwhile.
pub struct Slot {
    number: u16,
    _machine: File,
    _slot: File,
}

impl Slot {
    /// Waits until there is one; for a suite that must be alone, until no other cluster runs.
    pub fn wait() -> Slot {
        let machine = lock_file("quorumq-cluster-tests.lock");
        let suite = std::env::current_exe().unwrap_or_default();
        let suite = suite.file_name().unwrap_or_default().to_string_lossy();
        let is_alone = ALONE.iter().any(|name| suite.starts_with(name));
        wait::until("another cluster's end", MACHINE_WITHIN, || {
            let locked = match is_alone {
                true => machine.try_lock(),
                false => machine.try_lock_shared(),
            };
            locked.ok()
        });
        let (number, slot) = wait::until("another cluster's end", MACHINE_WITHIN, || {
            (0..SLOTS).find_map(|number| {
                let file = lock_file(&format!("quorumq-cluster-tests.{number}.lock"));
                file.try_lock().ok().map(|()| (number, file))
            })
        });
        Slot {
            number,
            _machine: machine,
            _slot: slot,
        }
    }

    /// That many free addresses on loopback, none of `taken`.
    pub fn free_ports(&self, count: usize, taken: &[SocketAddr]) -> Vec<SocketAddr> {
        let begin = FIRST_PORT + self.number * SLOT_PORTS;
        let end = begin + SLOT_PORTS;
        let first = begin
            + u16::try_from(std::process::id() % u32::from(SLOT_PORTS)).expect("a u16's rest");
        let mut found = Vec::new();
        for port in (first..end).chain(begin..first) {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            if !taken.contains(&address) && TcpListener::bind(address).is_ok() {
                found.push(address);
                if found.len() == count {
                    return found;
                }
            }
        }
        panic!("no {count} free ports between {begin} and {end}");
    }
}

fn lock_file(name: &str) -> File {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(std::env::temp_dir().join(name))
        .expect("the lock file can be opened")
}
