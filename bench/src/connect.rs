//! Connections per second, and what an idle connection costs the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::{self, Packet};
use quorumq::codec::{Disconnect, PeerLimits, QoS, ReasonCode, Version};

use crate::engine::{Engine, Idle, Workload};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::link::Identity;
use crate::process::resident_bytes;

/// Connects, disconnects, connects again: a fixed number at a time.
pub struct Storm {
    opened_at: Vec<Instant>,
    done: Vec<usize>,
    version: Version,
    durable: bool,
    /// TCP connect to CONNACK.
    pub latency: Latencies,
}

impl Workload for Storm {
    fn ready(&mut self, link: usize, output: &mut Vec<u8>, now: Instant) -> Result<(), BenchError> {
        self.latency
            .record(now.saturating_duration_since(self.opened_at[link]));
        let packet = Disconnect::new(ReasonCode::Success);
        client::disconnect(output, self.version, &packet, PeerLimits::NONE)?;
        self.done.push(link);
        Ok(())
    }

    fn packet(
        &mut self,
        _: usize,
        _: Packet<'_>,
        _: &mut Vec<u8>,
        _: Instant,
    ) -> Result<(), BenchError> {
        Ok(())
    }

    fn lost(&mut self, link: usize, error: BenchError) -> Result<(), BenchError> {
        // The server may close first after DISCONNECT.
        if self.done.contains(&link) {
            Ok(())
        } else {
            Err(error)
        }
    }
}

/// Connects for a time and returns the storm with its latencies, and the measured time.
///
/// # Errors
/// Exit code 69 when a connection is refused.
pub fn storm(
    servers: &[SocketAddr],
    slots: usize,
    version: Version,
    durable: bool,
    run: &str,
    (warmup, duration): (Duration, Duration),
) -> Result<(Storm, Duration), Failure> {
    let mut engine = Engine::new(slots)?;
    let mut storm = Storm {
        opened_at: vec![Instant::now(); slots],
        done: Vec::new(),
        version,
        durable,
        latency: Latencies::default(),
    };
    for _ in 0..slots {
        let link = engine.add(storm.identity(run, 0));
        storm.done.push(link);
    }
    let mut made = 0usize;
    let lost = |error| {
        Failure::new(
            Exit::Unreachable,
            format!("a connection was refused: {error}"),
        )
    };
    let begin = Instant::now();
    let mut measured_from = None;
    loop {
        let now = Instant::now();
        if measured_from.is_none() && now - begin >= warmup {
            storm.latency.clear();
            measured_from = Some(now);
        }
        if let Some(from) = measured_from
            && now - from >= duration
        {
            return Ok((storm, now - from));
        }
        for link in std::mem::take(&mut storm.done) {
            engine.close(link);
            made += 1;
            engine.rename(link, storm.identity(run, made));
            storm.opened_at[link] = Instant::now();
            engine
                .open_from(link, servers[made % servers.len()], made)
                .map_err(lost)?;
        }
        engine
            .turn(&mut storm, Duration::from_millis(10))
            .map_err(lost)?;
    }
}

impl Storm {
    fn identity(&self, run: &str, number: usize) -> Identity {
        let filter = || (format!("bench/{run}/{number}"), QoS::AtLeastOnce);
        Identity {
            client_id: format!("bench-{run}-{number}"),
            version: self.version,
            durable: self.durable,
            filters: self.durable.then(filter).into_iter().collect(),
        }
    }
}

/// What idle connections cost.
pub struct IdleCost {
    /// Time to open them all.
    pub opening: Duration,
    /// Resident memory of the watched processes before and after, in bytes.
    pub memory: Option<(u64, u64)>,
}

/// Opens connections, `opening` at the same time, lets the server settle, and compares its memory.
///
/// # Errors
/// Exit code 69 when not all of them can be opened.
pub fn open_idle(
    servers: &[SocketAddr],
    opening: usize,
    identities: Vec<Identity>,
    pids: &[u32],
    settle: Duration,
) -> Result<IdleCost, Failure> {
    let memory = || {
        pids.iter()
            .map(|pid| resident_bytes(*pid))
            .sum::<Option<u64>>()
    };
    let before = memory();
    let mut engine = Engine::new(opening)?;
    for identity in identities {
        engine.add(identity);
    }
    let begin = Instant::now();
    engine.open_all(0, servers, &mut Idle)?;
    let opening = begin.elapsed();
    let until = Instant::now() + settle;
    while Instant::now() < until {
        engine
            .turn(&mut Idle, Duration::from_millis(50))
            .map_err(|error| {
                Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"))
            })?;
    }
    let memory = before.zip(memory()).filter(|_| !pids.is_empty());
    Ok(IdleCost { opening, memory })
}
