//! The load of `quorumq bench kv-set` and `kv-get`, for etcd: C clients in a closed loop over gRPC, one request each
//! under way, on one thread. Prints one line of JSON per number of clients, in the form of `quorumq bench -o json`.
//!
//! usage: etcd_load set|get|failover ENDPOINT[,ENDPOINT...] CLIENTS[,CLIENTS...] SECONDS [VALUE_BYTES [KEYS]]

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use values::{Values, next_random};

/// The values that `quorumq bench` writes.
#[path = "../../../bench/src/values.rs"]
mod values;

type Fault = Box<dyn std::error::Error>;

/// Time before the measured time; longer where keys have to be written that are then read.
const WARM_UP: Duration = Duration::from_secs(1);
const WARM_UP_GET: Duration = Duration::from_secs(3);
/// Keys of each client, unless told.
const KEYS: u64 = 16;
/// A request that takes longer is given up, as `quorumq bench failover` does.
const SILENCE: Duration = Duration::from_secs(2);

// The fields of etcd's public v3 API that this load needs; what else an answer holds is skipped.

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

/// Without `serializable` a range is linearizable.
#[derive(Clone, PartialEq, prost::Message)]
struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(int64, tag = "4")]
    count: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Set,
    Get,
    Failover,
}

struct Load {
    kind: Kind,
    endpoints: Vec<String>,
    seconds: f64,
    values: Values,
    /// Keys of each client.
    keys: u64,
}

/// What all clients of a run found.
struct Found {
    measuring_from: Instant,
    until: Instant,
    latencies_us: Vec<f64>,
    errors: u64,
    last_acknowledged: Instant,
    gaps: Vec<(f64, f64)>,
    longest_gap: Duration,
}

impl Found {
    fn record(&mut self, sent: Instant, acknowledged: bool) {
        let now = Instant::now();
        if now < self.measuring_from || now > self.until {
            self.last_acknowledged = now;
            return;
        }
        if !acknowledged {
            self.errors += 1;
            return;
        }
        self.latencies_us.push((now - sent).as_secs_f64() * 1e6);
        self.gap(now);
    }

    fn gap(&mut self, now: Instant) {
        let gap = now - self.last_acknowledged;
        self.last_acknowledged = now;
        self.longest_gap = self.longest_gap.max(gap);
        if gap >= Duration::from_millis(100) {
            let at = (now - self.measuring_from).as_secs_f64();
            self.gaps.push((at, gap.as_secs_f64() * 1e3));
        }
    }
}

async fn put(grpc: &mut Grpc<Channel>, key: Vec<u8>, value: Vec<u8>) -> Result<(), Fault> {
    grpc.ready().await?;
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
    let codec = ProstCodec::<PutRequest, PutResponse>::default();
    let request = tonic::Request::new(PutRequest { key, value });
    grpc.unary(request, path, codec).await?;
    Ok(())
}

async fn get(grpc: &mut Grpc<Channel>, key: Vec<u8>) -> Result<(), Fault> {
    grpc.ready().await?;
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
    let codec = ProstCodec::<RangeRequest, RangeResponse>::default();
    let request = tonic::Request::new(RangeRequest { key });
    let answer = grpc.unary(request, path, codec).await?;
    match answer.into_inner().count {
        1 => Ok(()),
        other => Err(format!("{other} keys where there is one").into()),
    }
}

/// One client: the next request when the answer is there, over the next node when there is none.
async fn client(
    load: Rc<Load>,
    channels: Rc<Vec<Channel>>,
    number: usize,
    found: Rc<RefCell<Found>>,
) {
    let mut node = number % channels.len();
    let mut grpc = Grpc::new(channels[node].clone());
    let until = found.borrow().until;
    let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(number as u64 + 1);
    let mut sequence = 0;
    while Instant::now() < until {
        next_random(&mut random);
        // Those that are read have to be there; others are written in no order from the start.
        let populating = load.kind != Kind::Set && sequence < load.keys;
        let key = if populating {
            sequence
        } else {
            random % load.keys
        };
        sequence += 1;
        let key = format!("bench/{number}/{key}").into_bytes();
        let sent = Instant::now();
        let request = async {
            match load.kind {
                Kind::Get if !populating => get(&mut grpc, key).await,
                _ => {
                    let mut value = Vec::with_capacity(load.values.size());
                    load.values.append(&mut value, random);
                    put(&mut grpc, key, value).await
                }
            }
        };
        let answered = matches!(tokio::time::timeout(SILENCE, request).await, Ok(Ok(())));
        found.borrow_mut().record(sent, answered);
        if !answered {
            node = (node + 1) % channels.len();
            grpc = Grpc::new(channels[node].clone());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn run(load: Rc<Load>, clients: usize) -> Result<(), Fault> {
    let mut channels = Vec::new();
    for endpoint in &load.endpoints {
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(1));
        channels.push(endpoint.connect_lazy());
    }
    let channels = Rc::new(channels);
    let warm_up = if load.kind == Kind::Get {
        WARM_UP_GET
    } else {
        WARM_UP
    };
    let measuring_from = Instant::now() + warm_up;
    let found = Rc::new(RefCell::new(Found {
        measuring_from,
        until: measuring_from + Duration::from_secs_f64(load.seconds),
        latencies_us: Vec::new(),
        errors: 0,
        last_acknowledged: measuring_from,
        gaps: Vec::new(),
        longest_gap: Duration::ZERO,
    }));
    let tasks: Vec<_> = (0..clients)
        .map(|number| {
            tokio::task::spawn_local(client(
                load.clone(),
                channels.clone(),
                number,
                found.clone(),
            ))
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let mut found = found.borrow_mut();
    let end = found.until.max(found.last_acknowledged);
    found.gap(end);
    report(&load, clients, &mut found);
    Ok(())
}

fn report(load: &Load, clients: usize, found: &mut Found) {
    found.latencies_us.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let last = found.latencies_us.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        found
            .latencies_us
            .get(at)
            .copied()
            .unwrap_or_default()
            .round()
    };
    let mode = match load.kind {
        Kind::Set => "kv-set",
        Kind::Get => "kv-get",
        Kind::Failover => "failover",
    };
    let mut line = serde_json::json!({
        "mode": mode,
        "clients": clients,
        "seconds": load.seconds,
        "operations": found.latencies_us.len(),
        "per_second": (found.latencies_us.len() as f64 / load.seconds).round(),
        "errors": found.errors,
        "latency_us": { "p50": quantile(0.5), "p99": quantile(0.99), "p99.9": quantile(0.999), "max": quantile(1.0) },
    });
    if load.kind == Kind::Failover {
        line["longest_gap_ms"] = (found.longest_gap.as_secs_f64() * 1e3).round().into();
        line["gaps"] = found
            .gaps
            .iter()
            .map(|(at, ms)| serde_json::json!({ "at_s": at, "ms": ms.round() }))
            .collect();
    }
    println!("{line}");
}

fn arguments() -> Option<(Load, Vec<usize>)> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [kind, endpoints, clients, seconds, rest @ ..] = arguments.as_slice() else {
        return None;
    };
    let load = Load {
        kind: match kind.as_str() {
            "set" => Kind::Set,
            "get" => Kind::Get,
            "failover" => Kind::Failover,
            _ => return None,
        },
        endpoints: endpoints.split(',').map(str::to_owned).collect(),
        seconds: seconds.parse().ok().filter(|seconds| *seconds > 0.0)?,
        values: Values::new(rest.first().map_or(Some(256), |bytes| bytes.parse().ok())?),
        keys: rest
            .get(1)
            .map_or(Some(KEYS), |keys| keys.parse().ok())
            .filter(|keys| *keys > 0)?,
    };
    let clients = clients
        .split(',')
        .map(|count| count.parse().ok())
        .collect::<Option<_>>()?;
    Some((load, clients))
}

fn main() -> ExitCode {
    let Some((load, clients)) = arguments() else {
        eprintln!(
            "usage: etcd_load set|get|failover ENDPOINT[,ENDPOINT...] CLIENTS[,CLIENTS...] SECONDS [VALUE_BYTES [KEYS]]"
        );
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("etcd_load: {error}");
            return ExitCode::FAILURE;
        }
    };
    let load = Rc::new(load);
    for clients in clients {
        let local = tokio::task::LocalSet::new();
        if let Err(error) = local.block_on(&runtime, run(load.clone(), clients)) {
            eprintln!("etcd_load: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
