//! Requests of clients and their outcomes, with the times of both on one monotonic clock.

use crate::store::Hlc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A value of a test; written as decimal digits, unique per write where a check needs that.
pub type ValueId = u32;

/// A request on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    Set(ValueId),
    SetNx(ValueId),
    SetNex(ValueId),
    Get,
    Del,
    Vdel(ValueId),
}

/// What was answered to a [`Command`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// `+OK`.
    Ok,
    /// `:-1`.
    Refused,
    /// `:1` or `:0`.
    Deleted(bool),
    Value(ValueId),
    /// `$-1`.
    Absent,
    /// There was no answer; the command was executed or not.
    Unknown,
}

/// One request of one client.
#[derive(Debug, Clone)]
pub struct Operation {
    pub client: usize,
    pub key: usize,
    pub command: Command,
    pub outcome: Outcome,
    /// `__ts` of the answer.
    pub version: Option<Hlc>,
    /// `__ts` of the request.
    pub requested: Option<Hlc>,
    /// Nanoseconds since the history began.
    pub invoked: u64,
    /// `u64::MAX` when unknown.
    pub returned: u64,
}

impl Operation {
    pub fn is_write(&self) -> bool {
        self.command != Command::Get
    }

    pub fn is_known(&self) -> bool {
        self.outcome != Outcome::Unknown
    }

    /// Whether it is an acknowledged SET.
    pub fn has_set(&self) -> bool {
        self.outcome == Outcome::Ok
    }
}

/// Operations of all clients.
#[derive(Debug)]
pub struct History {
    began: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            operations: Mutex::new(Vec::new()),
        }
    }
}

impl History {
    pub fn new() -> Self {
        Self::default()
    }

    /// Nanoseconds since the beginning.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("a test is shorter than 500 years")
    }

    pub fn add(&self, operation: Operation) {
        self.operations
            .lock()
            .expect("no holder of the lock panics")
            .push(operation);
    }

    /// Everything so far, by time of invocation.
    pub fn operations(&self) -> Vec<Operation> {
        let mut all = self
            .operations
            .lock()
            .expect("no holder of the lock panics")
            .clone();
        all.sort_by_key(|operation| operation.invoked);
        all
    }

    /// The longest time between two acknowledged changes that follow each other.
    pub fn longest_write_gap(&self) -> Duration {
        let mut times: Vec<u64> = self
            .operations()
            .iter()
            .filter(|operation| operation.is_write() && operation.is_known())
            .map(|operation| operation.returned)
            .collect();
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        Duration::from_nanos(gaps.max().unwrap_or(0))
    }
}
