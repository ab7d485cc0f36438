//! Many devices with twins that nobody is connected to: what it takes to make them, to find some of them, and to have
//! their devices listen.
//!
//! The run makes the devices and their twins over HTTP, some at a time, then asks queries one after the other, and last
//! connects observers.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quorumq::base::time::wall_now;
use quorumq::cli;
use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;
use quorumq::codec::{QoS, Version};
use serde_json::{Value, json};

use crate::arguments::FleetArgs;
use crate::connect;
use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::http;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};
use crate::process;
use crate::report::{Report, round};
use crate::twin::{API_VERSION, NOTIFICATIONS, TOKEN_S};

/// Devices of one site: what a filter query finds.
const DEVICES_OF_SITE: u64 = 100;

/// What is made, and how the back end proves who it is.
pub struct Plan {
    /// Names of the devices begin with it.
    id: String,
    /// Number of devices.
    devices: u64,
    /// Requests under way while they are made.
    clients: usize,
    /// Devices that connect and observe their desired properties.
    observers: usize,
    /// Bytes of the desired property of each.
    value_bytes: usize,
    /// A name of the hub.
    host: String,
    /// The policy of the back end, which connects devices as well.
    policy: String,
    /// Its key.
    key: Vec<u8>,
    /// Time for each query.
    duration: Duration,
    /// Connections being opened at the same time.
    opening: usize,
    /// Processes of the nodes.
    pids: Vec<u32>,
}

/// What a run asks again and again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    Create,
    Patch,
    /// The ids of one site, which has all rows read.
    Filter,
    /// Whole twins of one site.
    FilterAll,
    /// How many devices a site has.
    Count,
    /// One device by its id.
    LookUp,
}

impl Ask {
    fn mode(self) -> &'static str {
        match self {
            Ask::Create => "fleet-create",
            Ask::Patch => "fleet-patch",
            Ask::Filter => "fleet-filter",
            Ask::FilterAll => "fleet-filter-all",
            Ask::Count => "fleet-count",
            Ask::LookUp => "fleet-look-up",
        }
    }

    /// Whether each answer has had all rows read.
    fn reads_all(self) -> bool {
        matches!(self, Ask::Filter | Ask::FilterAll | Ask::Count)
    }
}

impl Plan {
    /// What the flags say.
    ///
    /// # Errors
    /// The key can't be read.
    pub fn new(
        arguments: &FleetArgs,
        run: &str,
        duration: Duration,
        opening: usize,
        pids: Vec<u32>,
    ) -> Result<Plan, Failure> {
        let hub = &arguments.hub;
        Ok(Plan {
            id: format!("fleet-{run}"),
            devices: arguments.devices,
            clients: arguments.clients as usize,
            observers: u64::from(arguments.observers).min(arguments.devices) as usize,
            value_bytes: arguments.value_bytes as usize,
            host: hub.host_name.clone(),
            policy: hub.policy.clone(),
            key: cli::key_of_file(&hub.policy_key_file)?.to_vec(),
            duration,
            opening,
            pids,
        })
    }

    fn token(&self, resource: &str) -> String {
        let end = wall_now().0 / 1000 + TOKEN_S;
        cli::sign(resource, &self.key, end, Some(&self.policy))
    }

    fn device(&self, number: u64) -> String {
        format!("{}-{number:07}", self.id)
    }

    fn sites(&self) -> u64 {
        self.devices.div_ceil(DEVICES_OF_SITE)
    }

    /// Method, path and body of a request.
    fn request(&self, ask: Ask, number: u64) -> (&'static str, String, String) {
        let site = number % self.sites();
        // Numbers that follow one another are of devices far apart.
        let device = self.device(number.wrapping_mul(7_919) % self.devices);
        let query = |text: String| {
            let body = json!({ "query": text }).to_string();
            ("POST", "/devices/query".to_owned(), body)
        };
        let of_site = format!("FROM devices WHERE tags.site = '{}-{site}'", self.id);
        match ask {
            Ask::Create => {
                let id = self.device(number);
                let body = format!("{{\"deviceId\":\"{id}\"}}");
                ("PUT", format!("/devices/{id}"), body)
            }
            Ask::Patch => {
                let value = "v".repeat(self.value_bytes);
                let body = json!({
                    "tags": { "site": format!("{}-{site}", self.id), "floor": number % 7 },
                    "properties": { "desired": { "value": value } },
                });
                let path = format!("/twins/{}", self.device(number));
                ("PATCH", path, body.to_string())
            }
            Ask::Filter => query(format!("SELECT deviceId {of_site}")),
            Ask::FilterAll => query(format!("SELECT * {of_site}")),
            Ask::Count => query(format!("SELECT COUNT() AS n {of_site}")),
            Ask::LookUp => query(format!("SELECT * FROM devices WHERE deviceId = '{device}'")),
        }
    }

    /// What the answer to a query must have, if it is right.
    fn is_right(&self, ask: Ask, body: &[u8]) -> bool {
        let found = serde_json::from_slice::<Value>(body).unwrap_or_default();
        let items = found.as_array().map_or(0, Vec::len) as u64;
        let least = DEVICES_OF_SITE.min(self.devices / self.sites());
        match ask {
            Ask::Create | Ask::Patch => true,
            Ask::Filter | Ask::FilterAll => items >= least,
            Ask::Count => found[0]["n"].as_u64().is_some_and(|count| count >= least),
            Ask::LookUp => items == 1,
        }
    }

    fn memory(&self) -> Option<u64> {
        let each = self.pids.iter().map(|pid| process::resident_bytes(*pid));
        let sum = each.sum::<Option<u64>>();
        sum.filter(|_| !self.pids.is_empty())
    }
}

/// Requests, each sent when an earlier one on its connection is answered.
struct Requests<'p> {
    plan: &'p Plan,
    ask: Ask,
    authorization: String,
    next: u64,
    end: u64,
    until: Option<Instant>,
    due: Vec<usize>,
    under_way: usize,
    sent_at: Vec<Instant>,
    latency: Latencies,
    errors: u64,
    first_error: Option<String>,
}

impl Requests<'_> {
    /// Whether another one is to be sent.
    fn goes_on(&self) -> bool {
        self.next < self.end && self.until.is_none_or(|until| Instant::now() < until)
    }

    fn send_due(&mut self, engine: &mut Engine) {
        while self.goes_on()
            && let Some(link) = self.due.pop()
        {
            let (method, mut target, body) = self.plan.request(self.ask, self.next);
            // Writing to a string does not fail.
            let _ = write!(target, "?api-version={API_VERSION}");
            let output = engine.link(link).output();
            let host = &self.plan.host;
            http::request(
                output,
                (method, target.as_str()),
                host,
                &self.authorization,
                &body,
            );
            engine.mark_dirty(link);
            self.sent_at[link] = Instant::now();
            self.next += 1;
            self.under_way += 1;
        }
    }
}

impl Workload for Requests<'_> {
    fn ready(&mut self, link: usize, _: &mut Vec<u8>, _: Instant) -> Result<(), BenchError> {
        self.due.push(link);
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

    fn bytes(
        &mut self,
        link: usize,
        bytes: &[u8],
        _: &mut Vec<u8>,
        now: Instant,
    ) -> Result<usize, BenchError> {
        let mut done = 0;
        while let Some(answer) = http::next(&bytes[done..])? {
            done += answer.length;
            self.under_way -= 1;
            self.due.push(link);
            let took = now.saturating_duration_since(self.sent_at[link]);
            match answer.is_success() && self.plan.is_right(self.ask, answer.body) {
                true => self.latency.record(took),
                false => {
                    self.errors += 1;
                    self.first_error.get_or_insert_with(|| answer.text());
                }
            }
        }
        Ok(done)
    }
}

/// Asks `count` times, or for as long as the plan says, over some connections.
fn measure(plan: &Plan, ask: Ask, hubs: &[SocketAddr]) -> Result<Report, Failure> {
    let is_query = !matches!(ask, Ask::Create | Ask::Patch);
    let clients = if is_query { 1 } else { plan.clients };
    eprintln!("{}: {clients} clients", ask.mode());
    let mut engine = Engine::new(plan.opening)?;
    for link in 0..clients {
        engine.add(Identity {
            speech: Speech::Http,
            client_id: format!("{}-{link}", plan.id),
            version: Version::V311,
            durable: false,
            filters: Vec::new(),
        });
    }
    let mut requests = Requests {
        plan,
        ask,
        authorization: plan.token(&plan.host),
        next: 0,
        end: if is_query { u64::MAX } else { plan.devices },
        until: None,
        due: Vec::new(),
        under_way: 0,
        sent_at: vec![Instant::now(); clients],
        latency: Latencies::default(),
        errors: 0,
        first_error: None,
    };
    engine.open_all(0, hubs, &mut requests)?;
    let begin = Instant::now();
    requests.until = is_query.then(|| begin + plan.duration);
    while requests.goes_on() || requests.under_way > 0 {
        requests.send_due(&mut engine);
        let turned = engine.turn(&mut requests, Duration::from_millis(10));
        turned.map_err(|error| {
            Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"))
        })?;
    }
    let elapsed = begin.elapsed();
    if let Some(error) = &requests.first_error {
        eprintln!("first error: {error}");
    }
    let operations = requests.latency.total();
    let mut extra = Vec::new();
    if ask.reads_all() {
        // At the pace of the query in the middle: the machine has other work, too.
        let p50_s = requests.latency.quantile_us(0.5) / 1e6;
        let rows = plan.devices as f64 / p50_s.max(1e-9);
        extra.push(("rows_per_second", json!(round(rows, 0))));
    }
    Ok(Report {
        mode: ask.mode().to_owned(),
        clients,
        elapsed,
        operations,
        latency: requests.latency,
        errors: requests.errors,
        extra,
    })
}

/// Connects observers of desired properties. What they cost is what the nodes have more in memory then.
fn observe(plan: &Plan, servers: &[SocketAddr]) -> Result<Report, Failure> {
    eprintln!("fleet-observe: {} connections", plan.observers);
    let identity = |number: usize| {
        let (host, id) = (&plan.host, plan.device(number as u64));
        let user = format!("{host}/{id}/?api-version={API_VERSION}");
        Identity {
            speech: Speech::Login(user, plan.token(&format!("{host}/devices/{id}"))),
            client_id: id,
            version: Version::V311,
            durable: true,
            filters: vec![(format!("{NOTIFICATIONS}#"), QoS::AtMostOnce)],
        }
    };
    let identities = (0..plan.observers).map(identity).collect();
    let settle = Duration::from_secs(2);
    let cost = connect::open_idle(servers, plan.opening, identities, &plan.pids, settle)?;
    let mut extra = Vec::new();
    if let Some((before, after)) = cost.memory {
        let each = after.saturating_sub(before) as f64 / plan.observers as f64;
        extra.push(("bytes_per_connection", json!(round(each, 0))));
    }
    Ok(Report {
        mode: "fleet-observe".into(),
        clients: plan.observers,
        elapsed: cost.opening,
        operations: plan.observers as u64,
        latency: Latencies::default(),
        errors: 0,
        extra,
    })
}

/// Makes the fleet, and asks about it.
///
/// # Errors
/// Exit code 69 when the hub does not answer.
pub fn run(
    plan: &Plan,
    hubs: &[SocketAddr],
    servers: &[SocketAddr],
) -> Result<Vec<Report>, Failure> {
    let empty = plan.memory();
    let mut reports = vec![
        measure(plan, Ask::Create, hubs)?,
        measure(plan, Ask::Patch, hubs)?,
    ];
    if let (Some(empty), Some(full), Some(patched)) = (empty, plan.memory(), reports.last_mut()) {
        let copies = plan.devices as f64 * plan.pids.len() as f64;
        let each = full.saturating_sub(empty) as f64 / copies;
        patched
            .extra
            .push(("bytes_in_memory_per_twin", json!(round(each, 0))));
    }
    for ask in [Ask::Filter, Ask::FilterAll, Ask::Count, Ask::LookUp] {
        reports.push(measure(plan, ask, hubs)?);
    }
    if plan.observers > 0 {
        reports.push(observe(plan, servers)?);
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(devices: u64) -> Plan {
        Plan {
            id: "f".into(),
            devices,
            clients: 1,
            observers: 0,
            value_bytes: 16,
            host: "hub".into(),
            policy: "owner".into(),
            key: vec![1; 32],
            duration: Duration::ZERO,
            opening: 1,
            pids: Vec::new(),
        }
    }

    #[test]
    fn every_device_is_of_a_site_that_a_filter_finds() {
        let plan = plan(1_000);
        let site_of = |number| {
            let (_, _, body) = plan.request(Ask::Patch, number);
            let body: Value = serde_json::from_str(&body).expect("JSON");
            body["tags"]["site"].as_str().expect("a text").to_owned()
        };
        let first = (0..1_000).filter(|number| site_of(*number) == "f-3");
        assert_eq!(first.count() as u64, DEVICES_OF_SITE);
        let (_, _, query) = plan.request(Ask::Filter, 3);
        assert!(query.contains("tags.site = 'f-3'"), "{query}");
    }

    #[test]
    fn an_answer_that_lacks_rows_is_an_error() {
        let plan = plan(1_000);
        let rows = |count| Value::from(vec![json!({ "deviceId": "d" }); count]).to_string();
        assert!(plan.is_right(Ask::Filter, rows(100).as_bytes()));
        assert!(!plan.is_right(Ask::Filter, rows(99).as_bytes()));
        assert!(!plan.is_right(Ask::LookUp, rows(0).as_bytes()));
        assert!(plan.is_right(Ask::Count, b"[{\"n\":100}]"));
        assert!(!plan.is_right(Ask::Count, b"[{}]"));
    }
}
