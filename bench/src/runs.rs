//! What each mode does: it opens the connections, warms up, measures, and makes a report.

use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use quorumq::cli;
use quorumq::cli::exit::Failure;
use quorumq::codec::QoS;
use serde_json::json;
use uuid::Uuid;

use crate::arguments::{
    BacklogArgs, Bench, ConnectArgs, KvArgs, Mode, MqttArgs, Protocol, Topology, TwinArgs, TwinWork,
};
use crate::backlog::Backlog;
use crate::connect;
use crate::engine::Engine;
use crate::event_runs;
use crate::fleet;
use crate::flow::{self, Flow, SMALLEST_PAYLOAD};
use crate::kv::{self, Kind, KvLoad};
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::pings;
use crate::process;
use crate::report::{Report, round};
use crate::run::{Run, cpu_per_operation, load_cpu, of_servers, own_cpu, resolve};
use crate::socket;
use crate::twin::{self, TwinLoad};

/// Runs the mode, once for each number of clients or quality of service that it is given.
///
/// # Errors
/// Arguments that make no sense; exit code 69 when a connection cannot be made or is lost.
pub fn run(bench: Bench) -> Result<Vec<Report>, Failure> {
    let seconds = |value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| Failure::failed(format!("{value} is no number of seconds")))
    };
    if let Some(file) = &bench.ca_file {
        socket::use_tls(file, !bench.no_resumption).map_err(Failure::failed)?;
    }
    if bench.ws {
        socket::use_websocket();
    }
    let run = Run {
        servers: resolve(&bench.servers)?,
        id: Uuid::new_v4().simple().to_string()[..8].to_owned(),
        warmup: seconds(bench.warmup)?,
        duration: seconds(bench.duration)?,
        pids: bench.pid,
        opening: bench.opening as usize,
    };
    match bench.mode {
        Mode::KvSet(arguments) => kv_runs(&run, Kind::Set, &arguments),
        Mode::KvGet(arguments) => kv_runs(&run, Kind::Get, &arguments),
        Mode::KvMixed(arguments) => kv_runs(&run, Kind::Mixed, &arguments),
        Mode::Mqtt(arguments) => mqtt_runs(&run, &arguments),
        Mode::Connect(arguments) => connect_runs(&run, &arguments),
        Mode::Twin(arguments) => twin_runs(&run, &arguments),
        Mode::Fleet(arguments) => {
            let plan = fleet::Plan::new(&arguments, &run.id, run.duration, run.opening, run.pids)?;
            fleet::run(&plan, &resolve(&arguments.hub.hub)?, &run.servers)
        }
        Mode::Events(arguments) => event_runs::deliveries(&run, &arguments),
        Mode::EventsOutage(arguments) => event_runs::outage(&run, &arguments),
        Mode::EventsDeath(arguments) => event_runs::death(&run, &arguments),
        Mode::Backlog(arguments) => backlog_run(&run, &arguments).map(|report| vec![report]),
        Mode::Idle {
            connections,
            subscribe,
            settle,
            protocol,
        } => {
            let (connections, settle) = (connections as usize, seconds(settle)?);
            idle_run(&run, connections, subscribe, settle, protocol).map(|report| vec![report])
        }
        Mode::Failover {
            clients,
            value_bytes,
            silence_ms,
        } => {
            let plan = kv::Plan {
                kind: Kind::Set,
                clients,
                value_bytes,
                keys: 16,
                response_qos: QoS::AtLeastOnce,
                survive: Some(Duration::from_millis(silence_ms)),
            };
            kv_run(&run, plan, "failover").map(|report| vec![report])
        }
    }
}

fn kv_runs(run: &Run, kind: Kind, arguments: &KvArgs) -> Result<Vec<Report>, Failure> {
    let mode = match kind {
        Kind::Set => "kv-set",
        Kind::Get => "kv-get",
        Kind::Mixed => "kv-mixed",
    };
    let plan = |clients| kv::Plan {
        kind,
        clients,
        value_bytes: arguments.value_bytes,
        keys: arguments.keys as usize,
        response_qos: QoS::from_bits(arguments.response_qos).unwrap_or_default(),
        survive: None,
    };
    arguments
        .clients
        .iter()
        .map(|clients| kv_run(run, plan(*clients), mode))
        .collect()
}

fn kv_run(run: &Run, plan: kv::Plan, mode: &str) -> Result<Report, Failure> {
    eprintln!("{mode}: {} clients", plan.clients);
    let survives = plan.survive.is_some();
    let clients = plan.clients;
    let id = format!("{}-{}", run.id, Uuid::new_v4().simple());
    let mut engine = Engine::new(run.opening)?;
    let mut load = KvLoad::new(&mut engine, plan, run.servers.clone(), &id[..13]);
    engine.open_all(0, &run.servers, &mut load)?;
    load.start(&mut engine)?;
    kv::drive(&mut engine, &mut load, |load, _| load.is_populated())?;
    let warm = Instant::now() + run.warmup;
    kv::drive(&mut engine, &mut load, |_, now| now >= warm)?;
    load.reset();
    let (begin, cpu, own) = (Instant::now(), process::cpu_times(&run.pids), own_cpu());
    let end = begin + run.duration;
    kv::drive(&mut engine, &mut load, |_, now| now >= end)?;
    let elapsed = begin.elapsed();
    if let Some(error) = &load.first_error {
        eprintln!("first error: {error}");
    }
    let operations = load.latency.total();
    let mut extra = vec![load_cpu(own, elapsed)];
    extra.extend(cpu_per_operation(run, cpu, operations));
    if survives {
        load.finish(Instant::now());
        let ms = |gap: Duration| round(gap.as_secs_f64() * 1e3, 1);
        extra.push(("longest_gap_ms", json!(ms(load.longest_gap))));
        let gaps: Vec<_> = load
            .gaps
            .iter()
            .map(|(at, gap)| json!({ "at_s": round((*at - begin).as_secs_f64(), 2), "ms": ms(*gap) }))
            .collect();
        extra.push(("gaps", json!(gaps)));
        extra.push(("connections_lost", json!(load.lost)));
    }
    Ok(Report {
        mode: mode.to_owned(),
        clients,
        elapsed,
        operations,
        latency: load.latency,
        errors: load.errors,
        extra,
    })
}

fn mqtt_runs(run: &Run, arguments: &MqttArgs) -> Result<Vec<Report>, Failure> {
    if arguments.payload_bytes < SMALLEST_PAYLOAD {
        let message = format!("--payload-bytes: at least {SMALLEST_PAYLOAD}, for a time stamp");
        return Err(Failure::failed(message));
    }
    if arguments.topology == Topology::Wildcards && arguments.filters < arguments.subscribers {
        let message = "--filters: at least as many as there are subscribers";
        return Err(Failure::failed(message));
    }
    arguments
        .qos
        .iter()
        .map(|qos| mqtt_run(run, arguments, *qos))
        .collect()
}

fn mqtt_run(run: &Run, arguments: &MqttArgs, qos: u8) -> Result<Report, Failure> {
    let plan = flow::Plan {
        topology: arguments.topology,
        publishers: arguments.publishers as usize,
        subscribers: arguments.subscribers as usize,
        filters: arguments.filters as usize,
        qos: QoS::from_bits(qos).unwrap_or_default(),
        window: arguments.window.max(1),
        lag: arguments.lag,
        payload_bytes: arguments.payload_bytes,
        version: arguments.protocol.version(),
        durable: arguments.durable,
    };
    eprintln!(
        "mqtt: QoS {qos}, {} publishers, {} subscribers",
        plan.publishers, plan.subscribers
    );
    let (clients, subscribers) = (plan.publishers + plan.subscribers, plan.subscribers);
    let id = format!("{}q{qos}", run.id);
    let mut engine = Engine::new(run.opening)?;
    let mut flow = Flow::new(&mut engine, plan, &id);
    engine.open_all(0, &run.servers, &mut flow)?;
    flow.add_publishers(&mut engine, &id);
    engine.open_all(subscribers, &run.servers, &mut flow)?;
    flow::drive(&mut engine, &mut flow, Instant::now() + run.warmup)?;
    flow.reset();
    let (begin, cpu, own) = (Instant::now(), process::cpu_times(&run.pids), own_cpu());
    flow::drive(&mut engine, &mut flow, begin + run.duration)?;
    let elapsed = begin.elapsed();
    let published = flow.published as f64 / elapsed.as_secs_f64();
    let mut extra = vec![
        ("published_per_second", json!(round(published, 0))),
        ("missing", json!(flow.missing)),
        load_cpu(own, elapsed),
    ];
    extra.extend(cpu_per_operation(run, cpu, flow.delivered));
    Ok(Report {
        mode: format!("mqtt-qos{qos}"),
        clients,
        elapsed,
        operations: flow.delivered,
        latency: flow.latency,
        errors: 0,
        extra,
    })
}

fn backlog_run(run: &Run, arguments: &BacklogArgs) -> Result<Report, Failure> {
    let (messages, sessions) = (arguments.messages, u64::from(arguments.sessions));
    eprintln!("backlog: {messages} messages, {sessions} sessions");
    let mut extra = Vec::new();
    let mut memory = |name, each: fn(u32) -> Option<u64>| {
        extra.extend(of_servers(run, each).map(|bytes| (name, json!(bytes))));
    };
    memory("resident_empty_bytes", process::resident_bytes);
    let mut backlog = Backlog::new(&run.servers, run.opening, &run.id, arguments)?;
    let filling = backlog.fill()?;
    memory("resident_filled_bytes", process::resident_bytes);
    let draining = match arguments.no_drain {
        true => None,
        false => Some(backlog.drain()?),
    };
    memory("resident_bytes", process::resident_bytes);
    memory("resident_peak_bytes", process::peak_resident_bytes);
    let filled = messages as f64 / filling.as_secs_f64();
    extra.push(("filled_per_second", json!(round(filled, 0))));
    Ok(Report {
        mode: "backlog".into(),
        clients: arguments.sessions as usize,
        elapsed: draining.unwrap_or(filling),
        operations: draining.map_or(messages, |_| messages * sessions),
        latency: Latencies::default(),
        errors: 0,
        extra,
    })
}

fn connect_runs(run: &Run, arguments: &ConnectArgs) -> Result<Vec<Report>, Failure> {
    let clients = arguments.clients as usize;
    eprintln!("connect: {clients} at a time");
    let plan = connect::Plan {
        slots: clients,
        version: arguments.protocol.version(),
        durable: arguments.durable,
        most_per_second: arguments.connects.map(f64::from),
    };
    let speech = pings::speech(arguments)?;
    if arguments.pingers > 0 {
        return pings::beside(run, arguments, plan, &speech);
    }
    let times = (run.warmup, run.duration);
    let cpu = process::cpu_times(&run.pids);
    let (storm, elapsed) = connect::storm(&run.servers, plan, speech, &run.id, times)?;
    let operations = storm.latency.total();
    Ok(vec![Report {
        mode: "connect".into(),
        clients,
        elapsed,
        operations,
        latency: storm.latency,
        errors: 0,
        extra: cpu_per_operation(run, cpu, operations)
            .into_iter()
            .collect(),
    }])
}

fn twin_runs(run: &Run, arguments: &TwinArgs) -> Result<Vec<Report>, Failure> {
    let runs = arguments.work.iter().flat_map(|work| {
        let clients = arguments.clients.iter();
        clients.map(move |clients| (*work, *clients as usize))
    });
    runs.map(|(work, clients)| twin_run(run, arguments, work, clients))
        .collect()
}

fn twin_run(
    run: &Run,
    arguments: &TwinArgs,
    work: TwinWork,
    clients: usize,
) -> Result<Report, Failure> {
    let name = work.to_possible_value();
    let mode = format!("twin-{}", name.as_ref().map_or("", |name| name.get_name()));
    eprintln!("{mode}: {clients} clients");
    let plan = twin::Plan {
        work,
        clients,
        value_bytes: arguments.value_bytes as usize,
        host: arguments.hub.host_name.clone(),
        policy: arguments.hub.policy.clone(),
        key: cli::key_of_file(&arguments.hub.policy_key_file)?.to_vec(),
    };
    let hubs = resolve(&arguments.hub.hub)?;
    let id = format!("{}-{mode}-{clients}", run.id);
    let mut engine = Engine::new(run.opening)?;
    let mut load = TwinLoad::new(&mut engine, plan, &hubs, &id)?;
    load.open(&mut engine, &hubs, &run.servers)?;
    twin::drive(&mut engine, &mut load, Instant::now() + run.warmup)?;
    load.reset();
    let (begin, cpu, own) = (Instant::now(), process::cpu_times(&run.pids), own_cpu());
    twin::drive(&mut engine, &mut load, begin + run.duration)?;
    let elapsed = begin.elapsed();
    if let Some(error) = &load.first_error {
        eprintln!("first error: {error}");
    }
    let operations = load.latency.total();
    let mut extra = vec![load_cpu(own, elapsed)];
    extra.extend(cpu_per_operation(run, cpu, operations));
    if load.answers.total() > 0 {
        let answered = round(load.answers.quantile_us(0.5), 1);
        extra.push(("answer_p50_us", json!(answered)));
    }
    Ok(Report {
        mode,
        clients,
        elapsed,
        operations,
        latency: load.latency,
        errors: load.errors,
        extra,
    })
}

fn idle_run(
    run: &Run,
    connections: usize,
    subscribe: bool,
    settle: Duration,
    protocol: Protocol,
) -> Result<Report, Failure> {
    eprintln!("idle: {connections} connections");
    let identity = |index| Identity {
        speech: Speech::Mqtt,
        client_id: format!("bench-{}-{index}", run.id),
        version: protocol.version(),
        durable: false,
        filters: match subscribe {
            true => vec![(format!("bench/{}/{index}", run.id), QoS::AtMostOnce)],
            false => Vec::new(),
        },
    };
    let identities = (0..connections).map(identity).collect();
    let cost = connect::open_idle(&run.servers, run.opening, identities, &run.pids, settle)?;
    let mut extra = Vec::new();
    if let Some((before, after)) = cost.memory {
        let each = after.saturating_sub(before) as f64 / connections as f64;
        extra.push(("bytes_per_connection", json!(round(each, 0))));
        extra.push(("resident_bytes", json!(after)));
    }
    Ok(Report {
        mode: "idle".into(),
        clients: connections,
        elapsed: cost.opening,
        operations: connections as u64,
        latency: Latencies::default(),
        errors: 0,
        extra,
    })
}
