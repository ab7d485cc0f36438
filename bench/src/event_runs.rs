//! Events of clients' connections: what recording them costs, how fast they are delivered, and what becomes of them
//! when their endpoint is away for long, or a node dies with all of its clients.

use std::process::Command;
use std::time::{Duration, Instant};

use quorumq::cli::exit::Failure;
use serde_json::{Value, json};

use crate::arguments::{DeathArgs, EventArgs, OutageArgs, Protocol};
use crate::bystanders::Bystanders;
use crate::connect;
use crate::engine::Engine;
use crate::events::{Delivered, Endpoint, Subscription};
use crate::http;
use crate::latency::Latencies;
use crate::link::Speech;
use crate::process;
use crate::report::{Report, round};
use crate::run::{Run, cpu_per_operation, of_servers, resolve};

/// Most events of a request where batches are not what is measured.
const BATCH: u32 = 100;
/// Time without an event after which a run ends with an error: longer than a node waits between two attempts, and than
/// it takes to notice that another one has died.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);

/// Connects without events, with events that wait, both as fast as can be and at a steady rate; then their delivery in batches and one by one, then their lag at a
/// steady rate.
///
/// # Errors
/// Exit code 69 when a connection cannot be made, 1 when no event comes.
pub fn deliveries(run: &Run, arguments: &EventArgs) -> Result<Vec<Report>, Failure> {
    let node = resolve(std::slice::from_ref(&arguments.http))?[0];
    let endpoint = Endpoint::open()?;
    let storm = |mode: &str, rate: Option<u32>| -> Result<Report, Failure> {
        eprintln!("{mode}");
        let plan = connect::Plan {
            slots: arguments.clients as usize,
            version: Protocol::V5.version(),
            durable: false,
            most_per_second: rate.map(|events| f64::from(events) / 2.0),
        };
        let id = format!("{}-{mode}", run.id);
        let cpu = process::cpu_times(&run.pids);
        let times = (run.warmup, run.duration);
        let (storm, elapsed) = connect::storm(&run.servers, plan, Speech::Mqtt, &id, times)?;
        let operations = storm.latency.total();
        Ok(Report {
            mode: mode.to_owned(),
            clients: plan.slots,
            elapsed,
            operations,
            latency: storm.latency,
            errors: 0,
            extra: cpu_per_operation(run, cpu, operations)
                .into_iter()
                .collect(),
        })
    };
    let steady = Some(2 * arguments.connects);
    let mut reports = vec![
        storm("events-off", None)?,
        storm("events-off-steady", steady)?,
    ];
    {
        let single = Subscription::add(node, "single", &endpoint, None)?;
        let batch = Subscription::add(node, "batch", &endpoint, Some(arguments.batch))?;
        single.pause()?;
        batch.pause()?;
        reports.push(storm("events-recorded-steady", steady)?);
        reports.push(storm("events-recorded", None)?);
        let waiting = batch.waiting()?;
        for (mode, subscription) in [("events-batch", batch), ("events-single", single)] {
            eprintln!("{mode}");
            endpoint.reset();
            subscription.resume()?;
            let mut found = endpoint.measure(run.duration, waiting)?;
            // How long they had to wait says nothing.
            found.lag.clear();
            reports.push(delivered(mode, found, arguments.clients));
        }
    }
    let _live = Subscription::add(node, "lag", &endpoint, Some(arguments.batch))?;
    endpoint.reset();
    let connects = storm("events-lag", Some(arguments.rate))?;
    let lag = endpoint.take(connects.elapsed + run.warmup);
    reports.push(delivered("events-lag", lag, arguments.clients));
    Ok(reports)
}

fn delivered(mode: &str, found: Delivered, clients: u32) -> Report {
    let events_each = found.events as f64 / found.requests.max(1) as f64;
    Report {
        mode: mode.to_owned(),
        clients: clients as usize,
        elapsed: found.elapsed,
        operations: found.events,
        latency: found.lag,
        errors: 0,
        extra: vec![("events_of_a_request", json!(round(events_each, 1)))],
    }
}

/// As many events as come in a long outage of the endpoint, recorded as fast as they can be while it answers 503; then
/// it is back, and they are drained.
///
/// # Errors
/// As [`deliveries`].
pub fn outage(run: &Run, arguments: &OutageArgs) -> Result<Vec<Report>, Failure> {
    let node = resolve(std::slice::from_ref(&arguments.http))?[0];
    let endpoint = Endpoint::open()?;
    endpoint.set_down(true);
    let subscription = Subscription::add(node, "outage", &endpoint, Some(BATCH))?;
    let plan = connect::Plan {
        slots: arguments.clients as usize,
        version: Protocol::V5.version(),
        durable: false,
        most_per_second: None,
    };
    let mut recorded = Report {
        mode: "events-outage-recorded".to_owned(),
        clients: plan.slots,
        elapsed: Duration::ZERO,
        operations: 0,
        latency: Latencies::default(),
        errors: 0,
        extra: memory(run, "resident_before_bytes"),
    };
    while recorded.operations < arguments.events {
        let times = (Duration::ZERO, Duration::from_secs(1));
        let (_, elapsed) = connect::storm(&run.servers, plan, Speech::Mqtt, &run.id, times)?;
        recorded.elapsed += elapsed;
        recorded.operations = subscription.waiting()?;
        eprintln!("{} events wait", recorded.operations);
    }
    let waiting = recorded.operations;
    recorded.extra.extend(memory(run, "resident_bytes"));
    recorded.extra.push(("kept", kept(node)?));
    endpoint.reset();
    let back = Instant::now();
    endpoint.set_down(false);
    let arrived = endpoint.until(waiting, SILENCE_TIMEOUT)?;
    let mut drained = delivered(
        "events-outage-drained",
        endpoint.take(arrived.last.saturating_duration_since(arrived.first)),
        1,
    );
    // How long they had to wait says nothing.
    drained.latency.clear();
    let until_first = arrived.first.saturating_duration_since(back);
    let seconds = round(until_first.as_secs_f64(), 3);
    drained.extra.push(("seconds_until_first", json!(seconds)));
    drained.extra.extend(memory(run, "resident_peak_bytes"));
    Ok(vec![recorded, drained])
}

/// What the node keeps of events, by its metrics.
fn kept(node: std::net::SocketAddr) -> Result<Value, Failure> {
    let text = http::read(node, "/metrics")?;
    let names = [
        "quorumq_events_outbox ",
        "quorumq_events_outbox_bytes ",
        "quorumq_events_dropped_total",
    ];
    let lines = text.lines();
    let found = lines.filter(|line| names.iter().any(|name| line.starts_with(name)));
    let all = found.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let value: f64 = value.parse().ok()?;
        Some((name.to_owned(), json!(value)))
    });
    Ok(Value::Object(all.collect()))
}

fn memory(run: &Run, name: &'static str) -> Vec<(&'static str, Value)> {
    let each = match name {
        "resident_peak_bytes" => process::peak_resident_bytes,
        _ => process::resident_bytes,
    };
    let bytes = of_servers(run, each);
    bytes
        .map(|bytes| (name, json!(bytes)))
        .into_iter()
        .collect()
}

/// A node is killed that has many clients: when what was to be told of them has arrived, and what the clients of the
/// other nodes notice of it.
///
/// # Errors
/// As [`deliveries`]; the node can't be killed.
pub fn death(run: &Run, arguments: &DeathArgs) -> Result<Vec<Report>, Failure> {
    let node = resolve(std::slice::from_ref(&arguments.http))?[0];
    let victim = resolve(std::slice::from_ref(&arguments.victim))?;
    let clients = arguments.clients as usize;
    let endpoint = Endpoint::open()?;
    let _subscription = Subscription::of_lost(node, "death", &endpoint, BATCH)?;
    eprintln!(
        "events-death: {clients} clients, {} others",
        arguments.others
    );
    let mut engine = Engine::new(run.opening)?;
    let mut others = Bystanders::new(&mut engine, &run.id, clients, arguments.others as usize);
    others.open(&mut engine, &victim, &run.servers)?;
    let begin = Instant::now();
    while begin.elapsed() < run.warmup {
        others.turn(&mut engine)?;
    }
    others.reset();
    let begin = Instant::now();
    while begin.elapsed() < run.duration {
        others.turn(&mut engine)?;
    }
    let before = others.report("events-death-others-before", begin.elapsed());
    endpoint.reset();
    let killed = Instant::now();
    let status = Command::new("kill")
        .args(["-9", &arguments.kill.to_string()])
        .status()?;
    if !status.success() {
        return Err(Failure::failed(format!(
            "{} can't be killed",
            arguments.kill
        )));
    }
    let expected = clients as u64;
    while endpoint.events() < expected {
        others.turn(&mut engine)?;
        if killed.elapsed() > SILENCE_TIMEOUT {
            let found = endpoint.events();
            let text = format!("{found} of {expected} clients were told of");
            return Err(Failure::failed(text));
        }
    }
    let arrived = endpoint.until(expected, SILENCE_TIMEOUT)?;
    let during = others.report("events-death-others-during", killed.elapsed());
    let since = |at: Instant| round(at.saturating_duration_since(killed).as_secs_f64(), 3);
    let mut told = delivered(
        "events-death",
        endpoint.take(arrived.last.saturating_duration_since(killed)),
        arguments.clients,
    );
    told.latency.clear();
    told.extra
        .push(("seconds_until_first", json!(since(arrived.first))));
    told.extra
        .push(("seconds_until_last", json!(since(arrived.last))));
    Ok(vec![before, during, told])
}
