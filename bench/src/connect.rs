//! Connections per second, and what an idle connection costs the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::{self, Packet};
use quorumq::codec::{Disconnect, PeerLimits, QoS, ReasonCode, Version};

use crate::engine::{Engine, Idle, Workload};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::process::resident_bytes;

/// What the clients of a storm do.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Connections that are being made at the same time.
    pub slots: usize,
    /// Protocol version.
    pub version: Version,
    /// Whether each has a durable session with one QoS 1 subscription.
    pub durable: bool,
    /// Most connections in a second; `None`: as many as there can be.
    pub most_per_second: Option<f64>,
}

/// Connects, disconnects, connects again: a fixed number at a time.
pub struct Storm {
    opened_at: Vec<Instant>,
    done: Vec<usize>,
    plan: Plan,
    speech: Speech,
    run: String,
    made: usize,
    /// TCP connect to CONNACK, or to the end of the handshake.
    pub latency: Latencies,
}

impl Workload for Storm {
    fn ready(&mut self, link: usize, output: &mut Vec<u8>, now: Instant) -> Result<(), BenchError> {
        self.latency
            .record(now.saturating_duration_since(self.opened_at[link]));
        if !matches!(self.speech, Speech::Handshake) {
            let packet = Disconnect::new(ReasonCode::Success);
            client::disconnect(output, self.plan.version, &packet, PeerLimits::NONE)?;
        }
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
    plan: Plan,
    speech: Speech,
    run: &str,
    (warmup, duration): (Duration, Duration),
) -> Result<(Storm, Duration), Failure> {
    let mut engine = Engine::new(plan.slots)?;
    let mut storm = Storm::new(&mut engine, plan, speech, run);
    let begin = Instant::now();
    let mut measured_from = None;
    // A bounded rate is kept evenly.
    let turn_ms = if plan.most_per_second.is_some() {
        1
    } else {
        10
    };
    loop {
        let now = Instant::now();
        if measured_from.is_none() && now - begin >= warmup {
            storm.latency.clear();
            measured_from = Some(now);
        }
        if let Some(from) = measured_from
            && now - from >= duration
        {
            // Without a ticket nobody knows when a handshake is done.
            if matches!(storm.speech, Speech::Handshake) && storm.latency.total() == 0 {
                let message = "no handshake ended with a ticket of TLS 1.3".to_owned();
                return Err(Failure::new(Exit::Unreachable, message));
            }
            return Ok((storm, now - from));
        }
        storm
            .open(&mut engine, servers, now - begin)
            .map_err(refused)?;
        engine
            .turn(&mut storm, Duration::from_millis(turn_ms))
            .map_err(refused)?;
    }
}

/// A connection that could not be made, or was lost before it had done anything.
pub fn refused(error: BenchError) -> Failure {
    Failure::new(
        Exit::Unreachable,
        format!("a connection was refused: {error}"),
    )
}

impl Storm {
    /// Adds its connections to an engine.
    pub fn new(engine: &mut Engine, plan: Plan, speech: Speech, run: &str) -> Storm {
        let mut storm = Storm {
            opened_at: Vec::new(),
            done: Vec::new(),
            plan,
            speech,
            run: run.to_owned(),
            made: 0,
            latency: Latencies::default(),
        };
        for _ in 0..plan.slots {
            let link = engine.add(storm.identity(0));
            storm.opened_at.resize(link + 1, Instant::now());
            storm.done.push(link);
        }
        storm
    }

    /// Makes those connections that may be made after this time.
    pub fn open(
        &mut self,
        engine: &mut Engine,
        servers: &[SocketAddr],
        elapsed: Duration,
    ) -> Result<(), BenchError> {
        let until_now = |rate| (elapsed.as_secs_f64() * rate) as usize;
        let allowed = self.plan.most_per_second.map_or(usize::MAX, until_now);
        while self.made < allowed
            && let Some(link) = self.done.pop()
        {
            engine.close(link);
            self.made += 1;
            engine.rename(link, self.identity(self.made));
            self.opened_at[link] = Instant::now();
            engine.open_from(link, servers[self.made % servers.len()], self.made)?;
        }
        Ok(())
    }

    fn identity(&self, number: usize) -> Identity {
        let run = &self.run;
        let filter = || (format!("bench/{run}/{number}"), QoS::AtLeastOnce);
        Identity {
            speech: self.speech.clone(),
            client_id: format!("bench-{run}-{number}"),
            version: self.plan.version,
            durable: self.plan.durable,
            filters: self.plan.durable.then(filter).into_iter().collect(),
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
