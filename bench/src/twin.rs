//! Load on the hub: devices with twins over MQTT, and their back end over HTTP. Every client is a device that the run
//! registers, and has one request under way.
//!
//! Invariant: where the back end takes part, its links come first, one for each client; those of the devices follow.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use quorumq::base::time::wall_now;
use quorumq::cli;
use quorumq::cli::exit::{Exit, Failure};
use quorumq::codec::client::Packet;
use quorumq::codec::{Publish, PublishHeader, QoS, Version, encode_publish};

use crate::arguments::TwinWork;
use crate::engine::{Engine, Workload};
use crate::error::BenchError;
use crate::http;
use crate::latency::Latencies;
use crate::link::{Identity, Speech};

/// The version of the API that requests name.
pub const API_VERSION: &str = "2021-04-12";
/// How long tokens hold, seconds: longer than any run.
pub const TOKEN_S: u64 = 24 * 60 * 60;
const ANSWERS: &str = "$iothub/twin/res/";
/// Where devices hear of desired properties.
pub const NOTIFICATIONS: &str = "$iothub/twin/PATCH/properties/desired/";
/// Digits with which a value begins: the number of the request that wrote it.
pub const STAMP_DIGITS: usize = 16;

/// What the clients do, and how they prove who they are.
pub struct Plan {
    /// Which requests.
    pub work: TwinWork,
    /// Number of devices.
    pub clients: usize,
    /// Bytes of a property's value.
    pub value_bytes: usize,
    /// A name of the hub.
    pub host: String,
    /// The policy of the back end.
    pub policy: String,
    /// Its key.
    pub key: Vec<u8>,
}

impl Plan {
    /// Whether devices take part, or the back end alone.
    fn has_devices(&self) -> bool {
        !matches!(self.work, TwinWork::HttpGet | TwinWork::Create)
    }

    /// Whether requests go over HTTP.
    fn is_back_end(&self) -> bool {
        !matches!(self.work, TwinWork::Patch | TwinWork::Get)
    }

    fn token(&self, resource: &str, key: &[u8], policy: Option<&str>) -> String {
        cli::sign(resource, key, wall_now().0 / 1000 + TOKEN_S, policy)
    }
}

struct Client {
    id: String,
    /// Number of the request under way.
    sequence: u64,
    sent_at: Instant,
    /// Whether the answer to it is still to come.
    answer_due: bool,
    /// Whether the notification of what it has changed is still to come.
    notification_due: bool,
}

/// The workload.
pub struct TwinLoad {
    plan: Plan,
    authorization: String,
    clients: Vec<Client>,
    /// Clients whose next request is to be sent.
    due: Vec<usize>,
    /// The end of each value.
    padding: String,
    target: String,
    body: String,
    /// Latencies since the last reset: to the answer, or to the notification of a desired property.
    pub latency: Latencies,
    /// Latencies of the answers to the back end where `latency` is of notifications.
    pub answers: Latencies,
    /// Answers that were errors since the last reset.
    pub errors: u64,
    /// The first error, for people.
    pub first_error: Option<String>,
}

impl TwinLoad {
    /// Registers the devices at the hub's servers in turn and adds all connections to the engine.
    ///
    /// # Errors
    /// Exit code 69 when the hub does not answer, 1 when it refuses.
    pub fn new(
        engine: &mut Engine,
        plan: Plan,
        hubs: &[SocketAddr],
        run: &str,
    ) -> Result<TwinLoad, Failure> {
        let mut load = TwinLoad {
            clients: Vec::new(),
            authorization: plan.token(&plan.host, &plan.key, Some(&plan.policy)),
            due: Vec::new(),
            padding: "v".repeat(plan.value_bytes.saturating_sub(STAMP_DIGITS)),
            target: String::new(),
            body: String::new(),
            latency: Latencies::default(),
            answers: Latencies::default(),
            errors: 0,
            first_error: None,
            plan,
        };
        let mut devices = Vec::new();
        for index in 0..load.plan.clients {
            let id = format!("bench-{run}-{index}");
            let device = load.register(&id, hubs[index % hubs.len()])?;
            if load.plan.is_back_end() {
                engine.add(Identity {
                    speech: Speech::Http,
                    filters: Vec::new(),
                    ..device.clone()
                });
            }
            devices.push(device);
            load.clients.push(Client {
                id,
                sequence: 0,
                sent_at: Instant::now(),
                answer_due: false,
                notification_due: false,
            });
        }
        for device in devices.into_iter().filter(|_| load.plan.has_devices()) {
            engine.add(device);
        }
        Ok(load)
    }

    /// Makes a device with one desired property. Returns how it connects.
    fn register(&self, id: &str, hub: SocketAddr) -> Result<Identity, Failure> {
        let ask = |method, collection, body: &str| {
            let path = format!("/{collection}/{id}?api-version={API_VERSION}");
            http::ask(hub, (method, &path), &self.authorization, body)
        };
        let made = ask("PUT", "devices", &format!("{{\"deviceId\":\"{id}\"}}"))?;
        let key = made["authentication"]["symmetricKey"]["primaryKey"].as_str();
        let key = key.and_then(cli::key_from_base64);
        let key = key.ok_or_else(|| Failure::failed("the hub has made no key for the device"))?;
        let mut body = String::new();
        put_desired(&mut body, 0, &self.padding);
        ask("PATCH", "twins", &body)?;
        let host = &self.plan.host;
        let token = self.plan.token(&format!("{host}/devices/{id}"), &key, None);
        let topics = match self.plan.work {
            TwinWork::Desired => NOTIFICATIONS,
            _ => ANSWERS,
        };
        Ok(Identity {
            speech: Speech::Login(format!("{host}/{id}/?api-version={API_VERSION}"), token),
            client_id: id.to_owned(),
            version: Version::V311,
            durable: false,
            filters: vec![(format!("{topics}#"), QoS::AtMostOnce)],
        })
    }

    /// Opens all connections and lets every client begin.
    ///
    /// # Errors
    /// Exit code 69 when one cannot be opened in time.
    pub fn open(
        &mut self,
        engine: &mut Engine,
        hubs: &[SocketAddr],
        servers: &[SocketAddr],
    ) -> Result<(), Failure> {
        // A device is at another node than its back end, where there are several.
        let count = self.clients.len();
        let all: Vec<_> = (0..count)
            .filter(|_| self.plan.is_back_end())
            .map(|index| hubs[index % hubs.len()])
            .chain((1..=count).map(|index| servers[index % servers.len()]))
            .collect();
        engine.open_all(0, &all, self)?;
        self.due = (0..count).collect();
        Ok(())
    }

    /// Starts to measure anew.
    pub fn reset(&mut self) {
        self.latency.clear();
        self.answers.clear();
        self.errors = 0;
    }

    /// Sends the next request of every client that may go on, over the first of its links.
    fn send_due(&mut self, engine: &mut Engine) -> Result<(), BenchError> {
        while let Some(index) = self.due.pop() {
            self.send(index, engine.link(index).output())?;
            engine.mark_dirty(index);
        }
        Ok(())
    }

    fn send(&mut self, index: usize, output: &mut Vec<u8>) -> Result<(), BenchError> {
        let client = &mut self.clients[index];
        client.sequence += 1;
        client.sent_at = Instant::now();
        client.answer_due = true;
        client.notification_due = self.plan.work == TwinWork::Desired;
        let (id, sequence) = (&client.id, client.sequence);
        self.target.clear();
        self.body.clear();
        // Writing to a string does not fail.
        let _ = match self.plan.work {
            TwinWork::Patch => {
                put_value(&mut self.body, "", sequence, &self.padding, "");
                write!(
                    self.target,
                    "$iothub/twin/PATCH/properties/reported/?$rid={sequence}"
                )
            }
            TwinWork::Get => write!(self.target, "$iothub/twin/GET/?$rid={sequence}"),
            TwinWork::HttpGet => write!(self.target, "/twins/{id}"),
            TwinWork::Create => {
                let _ = write!(self.body, "{{\"deviceId\":\"{id}-{sequence}\"}}");
                write!(self.target, "/devices/{id}-{sequence}")
            }
            TwinWork::Desired => {
                put_desired(&mut self.body, sequence, &self.padding);
                write!(self.target, "/twins/{id}")
            }
        };
        let method = match self.plan.work {
            TwinWork::Patch | TwinWork::Get => {
                let header = PublishHeader {
                    qos: QoS::AtLeastOnce,
                    packet_id: NonZeroU16::new((sequence % 60_000) as u16 + 1),
                    ..PublishHeader::plain(Version::V311)
                };
                encode_publish(output, &self.target, &[], self.body.as_bytes(), &header)?;
                return Ok(());
            }
            TwinWork::HttpGet => "GET",
            TwinWork::Create => "PUT",
            TwinWork::Desired => "PATCH",
        };
        let _ = write!(self.target, "?api-version={API_VERSION}");
        let (target, host) = ((method, self.target.as_str()), &self.plan.host);
        http::request(output, target, host, &self.authorization, &self.body);
        Ok(())
    }

    /// The answer to a client's request is there; `error` says why it is none.
    fn answered(&mut self, index: usize, error: Option<String>, now: Instant) {
        let client = &mut self.clients[index];
        client.answer_due = false;
        let took = now.saturating_duration_since(client.sent_at);
        if let Some(error) = error {
            // What was refused has changed nothing, and nobody is told of it.
            client.notification_due = false;
            self.errors += 1;
            self.first_error.get_or_insert(error);
        } else if self.plan.work == TwinWork::Desired {
            self.answers.record(took);
        } else {
            self.latency.record(took);
        }
        self.go_on(index);
    }

    /// A device was told of the desired properties.
    fn notified(&mut self, index: usize, payload: &[u8], now: Instant) {
        let client = &mut self.clients[index];
        if client.notification_due && stamp(payload) == Some(client.sequence) {
            client.notification_due = false;
            let took = now.saturating_duration_since(client.sent_at);
            self.latency.record(took);
            self.go_on(index);
        }
    }

    fn go_on(&mut self, index: usize) {
        let client = &self.clients[index];
        if !client.answer_due && !client.notification_due {
            self.due.push(index);
        }
    }

    fn published(&mut self, index: usize, publish: &Publish<'_>, now: Instant) {
        if publish.topic.starts_with(NOTIFICATIONS) {
            self.notified(index, publish.payload, now);
        } else if let Some((status, sequence)) = answer_of(publish.topic)
            && self.clients[index].answer_due
            && self.clients[index].sequence == sequence
        {
            let failed = !(200..300).contains(&status);
            let error = failed.then(|| format!("{status}: {}", publish.payload.escape_ascii()));
            self.answered(index, error, now);
        }
    }
}

impl Workload for TwinLoad {
    fn ready(&mut self, _: usize, _: &mut Vec<u8>, _: Instant) -> Result<(), BenchError> {
        Ok(())
    }

    fn packet(
        &mut self,
        link: usize,
        packet: Packet<'_>,
        _: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), BenchError> {
        match packet {
            Packet::Publish(publish) => self.published(link % self.clients.len(), &publish, now),
            Packet::Disconnect(packet) => return Err(BenchError::Refused(packet.reason)),
            _ => {}
        }
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
            let error = (!answer.is_success()).then(|| answer.text());
            self.answered(link, error, now);
        }
        Ok(done)
    }
}

/// Appends `{"value":"…"}` between two texts; the value begins with a stamp.
fn put_value(body: &mut String, before: &str, sequence: u64, padding: &str, after: &str) {
    let _ = write!(
        body,
        "{before}{{\"value\":\"{sequence:0STAMP_DIGITS$}{padding}\"}}{after}"
    );
}

fn put_desired(body: &mut String, sequence: u64, padding: &str) {
    let before = "{\"properties\":{\"desired\":";
    put_value(body, before, sequence, padding, "}}");
}

/// The stamp of a document that [`put_value`] has made, as a device is told of it.
fn stamp(payload: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(payload).ok()?;
    let (_, value) = text.split_once("\"value\":\"")?;
    value.get(..STAMP_DIGITS)?.parse().ok()
}

/// The status and the request of an answer over MQTT.
fn answer_of(topic: &str) -> Option<(u16, u64)> {
    let (status, query) = topic.strip_prefix(ANSWERS)?.split_once("/?")?;
    let request = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("$rid="))?;
    Some((status.parse().ok()?, request.parse().ok()?))
}

/// Runs the engine until a time.
///
/// # Errors
/// Exit code 69 when a connection is lost.
pub fn drive(engine: &mut Engine, load: &mut TwinLoad, until: Instant) -> Result<(), Failure> {
    while Instant::now() < until {
        load.send_due(engine).map_err(Failure::failed)?;
        engine
            .turn(load, Duration::from_millis(10))
            .map_err(|error| {
                Failure::new(Exit::Unreachable, format!("a connection was lost: {error}"))
            })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_of_a_value_is_read_where_a_device_is_told_of_it() {
        let mut body = String::new();
        put_desired(&mut body, 4711, "vvv");
        let whole: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        let mut desired = whole["properties"]["desired"].clone();
        desired["$version"] = 3.into();
        assert_eq!(stamp(desired.to_string().as_bytes()), Some(4711));
        assert_eq!(stamp(b"{\"$version\":3}"), None);
        assert_eq!(stamp(b"{\"value\":\"1\"}"), None);
    }

    #[test]
    fn an_answer_names_its_status_and_its_request() {
        let answers = [
            ("$iothub/twin/res/200/?$rid=7", Some((200, 7))),
            ("$iothub/twin/res/204/?$rid=18&$version=3", Some((204, 18))),
            ("$iothub/twin/res/429/?$rid=1", Some((429, 1))),
            ("$iothub/twin/res/200/?$version=3", None),
            ("$iothub/twin/PATCH/properties/desired/?$version=3", None),
        ];
        for (topic, expected) in answers {
            assert_eq!(answer_of(topic), expected, "{topic}");
        }
    }
}
