//! Clients that do nothing but ask whether the server is there, alone and beside others that log in: whoever waits for a
//! password to be hashed is not to hold them up.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::{self, Packet};
use serde_json::json;

use crate::arguments::ConnectArgs;
use crate::connect::{Plan, Storm, refused};
use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::process;
use crate::report::Report;
use crate::run::{Run, cpu_per_operation, load_cpu, own_cpu};

/// Longest time to wait for something to happen: what is due is looked at as often.
const TURN: Duration = Duration::from_millis(1);

/// The clients that ask, which are the first links of their engine.
struct Pings {
    /// For each: when it has asked, or is to ask next.
    asked: Vec<Option<Instant>>,
    next: Vec<Instant>,
    interval: Duration,
    latency: Latencies,
}

impl Pings {
    fn new(engine: &mut Engine, arguments: &ConnectArgs, speech: &Speech, run: &str) -> Pings {
        let count = arguments.pingers as usize;
        for index in 0..count {
            engine.add(Identity {
                speech: speech.clone(),
                client_id: format!("bench-{run}-p{index}"),
                version: arguments.protocol.version(),
                durable: false,
                filters: Vec::new(),
            });
        }
        let interval = Duration::from_millis(arguments.ping_interval_ms);
        // Evenly, so that none waits behind the others.
        let first = |index| Instant::now() + interval * index / arguments.pingers.max(1);
        Pings {
            asked: vec![None; count],
            next: (0..arguments.pingers).map(first).collect(),
            interval,
            latency: Latencies::default(),
        }
    }

    /// Asks where it is time to.
    fn ask(&mut self, engine: &mut Engine) {
        let now = Instant::now();
        for link in 0..self.asked.len() {
            if self.asked[link].is_none() && self.next[link] <= now {
                client::pingreq(engine.link(link).output());
                engine.mark_dirty(link);
                self.asked[link] = Some(now);
            }
        }
    }

    fn report(&mut self, mode: &str, elapsed: Duration) -> Report {
        let mut latency = std::mem::take(&mut self.latency);
        // Those that still wait count, too.
        for asked in self.asked.iter().flatten() {
            latency.record(asked.elapsed());
        }
        Report {
            mode: mode.to_owned(),
            clients: self.asked.len(),
            elapsed,
            operations: latency.total(),
            latency,
            errors: 0,
            extra: Vec::new(),
        }
    }
}

/// Both: whose link it is goes by its number.
struct Beside {
    pings: Pings,
    storm: Storm,
}

impl Workload for Beside {
    fn ready(&mut self, link: usize, output: &mut Vec<u8>, now: Instant) -> Result<(), BenchError> {
        match link < self.pings.asked.len() {
            true => Ok(()),
            false => self.storm.ready(link, output, now),
        }
    }

    fn packet(
        &mut self,
        link: usize,
        packet: Packet<'_>,
        output: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), BenchError> {
        let Some(asked) = self.pings.asked.get_mut(link) else {
            return self.storm.packet(link, packet, output, now);
        };
        match (packet, asked.take()) {
            (Packet::PingResp, Some(asked)) => {
                let latency = now.saturating_duration_since(asked);
                self.pings.latency.record(latency);
                self.pings.next[link] = asked + self.pings.interval;
                Ok(())
            }
            (Packet::Disconnect(packet), _) => Err(BenchError::Refused(packet.reason)),
            _ => Err(BenchError::Protocol("no PINGRESP".into())),
        }
    }

    fn lost(&mut self, link: usize, error: BenchError) -> Result<(), BenchError> {
        match link < self.pings.asked.len() {
            true => Err(error),
            false => self.storm.lost(link, error),
        }
    }
}

/// How the clients log in.
///
/// # Errors
/// A user name without a password, or a file that can't be read.
pub fn speech(arguments: &ConnectArgs) -> Result<Speech, Failure> {
    if arguments.handshakes {
        return Ok(Speech::Handshake);
    }
    let Some(name) = arguments.username.clone() else {
        return Ok(Speech::Mqtt);
    };
    let password = match &arguments.password_file {
        Some(path) => {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        None => std::env::var("QUORUMQ_PASSWORD")
            .map_err(|_| Failure::failed("--username needs --password-file or QUORUMQ_PASSWORD"))?,
    };
    Ok(Speech::Login(name, password))
}

/// Pings alone, then beside connects: three reports, the middle one of the connects.
///
/// # Errors
/// Exit code 69 when a connection is refused or lost.
pub fn beside(
    run: &Run,
    arguments: &ConnectArgs,
    plan: Plan,
    speech: &Speech,
) -> Result<Vec<Report>, Failure> {
    let mut engine = Engine::new(run.opening)?;
    let pings = Pings::new(&mut engine, arguments, speech, &run.id);
    let storm = Storm::new(&mut engine, plan, speech.clone(), &run.id);
    let mut both = Beside { pings, storm };
    engine.open_range(0..both.pings.asked.len(), &run.servers, &mut both)?;
    drive(&mut engine, &mut both, None, run.warmup)?;
    both.pings.latency.clear();
    let elapsed = drive(&mut engine, &mut both, None, run.duration)?;
    let alone = both.pings.report("pings-alone", elapsed);

    let connects = Some((&run.servers[..], Instant::now()));
    drive(&mut engine, &mut both, connects, run.warmup)?;
    both.pings.latency.clear();
    both.storm.latency.clear();
    let (cpu, own) = (process::cpu_times(&run.pids), own_cpu());
    let elapsed = drive(&mut engine, &mut both, connects, run.duration)?;
    let latency = std::mem::take(&mut both.storm.latency);
    let operations = latency.total();
    let mut extra = vec![load_cpu(own, elapsed)];
    extra.extend(cpu_per_operation(run, cpu, operations));
    extra.push(("pingers", json!(both.pings.asked.len())));
    let report = Report {
        mode: "connect".into(),
        clients: plan.slots,
        elapsed,
        operations,
        latency,
        errors: 0,
        extra,
    };
    let pings = both.pings.report("pings-beside", elapsed);
    Ok(vec![alone, report, pings])
}

/// Has them ask for a time, and connects meanwhile, if there are servers, since a time. Returns how long it took.
fn drive(
    engine: &mut Engine,
    both: &mut Beside,
    connects: Option<(&[SocketAddr], Instant)>,
    limit: Duration,
) -> Result<Duration, Failure> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        both.pings.ask(engine);
        if let Some((servers, since)) = connects {
            both.storm
                .open(engine, servers, since.elapsed())
                .map_err(refused)?;
        }
        engine
            .turn(both, TURN)
            .map_err(|error| Failure::new(Exit::Unreachable, error))?;
    }
    Ok(begin.elapsed())
}
