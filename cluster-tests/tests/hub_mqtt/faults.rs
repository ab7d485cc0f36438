//! Twins while nodes are killed, paused, cut off, and started with other clocks: T1 to T6, T8 and T9, judged from what
//! back ends and devices were told. `make chaos`.

use crate::back_end::{BackEnd, Hub};
use crate::device::{ANSWERS, DESIRED, connect, own_token, patch};
use cluster_tests::clocks::{skewed, start_with_offset};
use cluster_tests::cluster::{DEADLINE, Plan};
use cluster_tests::connection::{Connection, Fault};
use cluster_tests::faults::{self, setting};
use cluster_tests::random::Random;
use cluster_tests::trial::RECOVERY;
use cluster_tests::wire::{self, Message, Packet, Publish, V311};
use serde_json::{Map, Value as Json, json};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const DEVICES: usize = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// How long a device waits for an answer before it looks for another node.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// When the faults are over, and how things stand then.
#[derive(Default)]
struct End {
    faults: AtomicBool,
    /// The desired properties of each device.
    desired: OnceLock<Vec<Json>>,
}

#[test]
#[ignore = "long; `make chaos` runs it"]
fn twins_keep_their_promises_under_faults() {
    let seed = setting("QUORUMQ_CHAOS_SEED", 1);
    let seconds = setting("QUORUMQ_CHAOS_SECONDS", 60);
    let Some(plan) = skewed([0, 25, -25]) else {
        return;
    };
    let mut hub = Hub::start_with(Plan {
        network: true,
        deadline: Duration::from_secs(seconds) + DEADLINE,
        ..plan
    });
    hub.create("shared");
    let devices: Vec<String> = (0..DEVICES).map(|n| format!("fault-{n}")).collect();
    devices.iter().for_each(|device| hub.create(device));
    let before = version_of(&hub.back_end, "shared");
    let addresses = hub.cluster.addresses();
    // Subscribed once, before anything fails.
    let open: Vec<Connection> = devices
        .iter()
        .map(|device| subscribed(addresses[0], device))
        .collect();
    let end = End::default();
    let back_end = hub.back_end.clone();
    let (counted, heard) = std::thread::scope(|scope| {
        let (end, back_end, addresses) = (&end, &back_end, &addresses);
        let counters: Vec<_> = (0..3)
            .map(|n| scope.spawn(move || count(back_end, end, Random::new(seed + n))))
            .collect();
        let steers = scope.spawn(|| steer(back_end, &devices, end, Random::new(seed + 10)));
        let devices: Vec<_> = devices
            .iter()
            .zip(open)
            .enumerate()
            .map(|(n, (identity, connection))| {
                let random = Random::new(seed + 20 + n as u64);
                scope
                    .spawn(move || Device::new(identity, addresses, random).run(connection, n, end))
            })
            .collect();
        let mut random = Random::new(seed);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(seconds) {
            match random.chance(20) {
                true => restart_with_another_clock(&mut hub, &mut random),
                false => faults::one(&mut hub.cluster, &mut random),
            }
            if random.chance(50) {
                hub.cluster.wait_ready();
            }
        }
        hub.cluster.wait_ready();
        end.faults.store(true, Relaxed);
        let counted: Vec<Counted> = counters
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect();
        steers.join().expect("no panic");
        let desired = devices_desired(back_end);
        end.desired.set(desired).expect("set once");
        let heard: Vec<Heard> = devices
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect();
        (counted, heard)
    });
    let shared = twin(&hub.back_end, "shared");
    let count = shared["tags"]["count"].as_u64().unwrap_or(0);
    let (added, unknown) = counted
        .iter()
        .fold((0, 0), |sum, one| (sum.0 + one.added, sum.1 + one.unknown));
    eprintln!("twins: {count} counted, {added} answered, {unknown} unknown; {heard:?}");
    assert!(
        added > 0 && (added..=added + unknown).contains(&count),
        "T2"
    );
    assert_eq!(
        shared["version"].as_u64(),
        Some(before + count),
        "T1: one for each"
    );
    assert!(
        heard
            .iter()
            .all(|one| one.reports > 0 && one.notifications > 0)
    );
    hub.cluster.assert_states_agree();
}

fn restart_with_another_clock(hub: &mut Hub, random: &mut Random) {
    let node = random.below(3) as usize;
    let offset_s = random.below(601) as i32 - 300;
    eprintln!(
        "chaos: node {} goes on with a clock that is {offset_s} s off",
        node + 1
    );
    hub.cluster.nodes[node].kill();
    start_with_offset(&mut hub.cluster, node, offset_s);
}

fn subscribed(node: SocketAddr, identity: &str) -> Connection {
    let (mut connection, connack) =
        Connection::connect(node, &connect(V311, identity, &own_token(identity)));
    assert_eq!(connack.code, 0);
    connection.subscribe(&[(ANSWERS, 1), (DESIRED, 1)]);
    connection
}

fn twin(back_end: &BackEnd, identity: &str) -> Json {
    cluster_tests::wait::until("a twin", RECOVERY, || {
        let (status, twin) =
            back_end.try_ask(0, "GET", &format!("/twins/{identity}"), "", &Json::Null)?;
        (status == 200).then_some(twin)
    })
}

/// The desired properties of each device, as devices see them.
fn devices_desired(back_end: &BackEnd) -> Vec<Json> {
    let desired = (0..DEVICES).map(|number| {
        let mut twin = twin(back_end, &format!("fault-{number}"));
        let mut desired = twin["properties"]["desired"].take();
        desired
            .as_object_mut()
            .expect("an object")
            .remove("$metadata");
        desired
    });
    desired.collect()
}

fn version_of(back_end: &BackEnd, identity: &str) -> u64 {
    twin(back_end, identity)["version"]
        .as_u64()
        .expect("a number")
}

#[derive(Default)]
struct Counted {
    added: u64,
    /// Nobody has said what became of them.
    unknown: u64,
}

/// T2: reads, adds one, writes what was read. T3: what was answered is seen through another node.
fn count(back_end: &BackEnd, end: &End, mut random: Random) -> Counted {
    let mut counted = Counted::default();
    let path = "/twins/shared";
    while !end.faults.load(Relaxed) {
        let mut node = || random.below(3) as usize;
        let Some((200, twin)) = back_end.try_ask(node(), "GET", path, "", &Json::Null) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let body = json!({"tags": {"count": twin["tags"]["count"].as_u64().unwrap_or(0) + 1}});
        let etag = twin["etag"].as_str().expect("an etag");
        match back_end.try_ask(node(), "PATCH", path, etag, &body) {
            Some((200, written)) => {
                counted.added += 1;
                if let Some((200, seen)) = back_end.try_ask(node(), "GET", path, "", &Json::Null) {
                    let (seen, written) = (seen["version"].as_u64(), written["version"].as_u64());
                    assert!(seen >= written, "T3: {seen:?} after {written:?}");
                }
            }
            Some((412 | 429 | 503, _)) => {}
            Some((504, _)) | None => counted.unknown += 1,
            Some(other) => panic!("{other:?}"),
        }
    }
    counted
}

/// Changes desired properties, each of them until it is answered.
fn steer(back_end: &BackEnd, devices: &[String], end: &End, mut random: Random) {
    for number in 0_u64.. {
        for device in devices {
            let key = format!("k{}", number % 5);
            let body = json!({"properties": {"desired": {key: number, "last": number}}});
            loop {
                if end.faults.load(Relaxed) {
                    return;
                }
                let node = random.below(3) as usize;
                match back_end.try_ask(node, "PATCH", &format!("/twins/{device}"), "", &body) {
                    Some((200, _)) => break,
                    Some((429 | 503 | 504, _)) | None => std::thread::sleep(PAUSE),
                    Some(other) => panic!("{other:?}"),
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// What a device was told, in numbers.
#[derive(Debug, Default)]
struct Heard {
    connections: u64,
    reports: u64,
    notifications: u64,
}

struct Device<'a> {
    identity: &'a str,
    addresses: &'a [SocketAddr],
    random: Random,
    heard: Heard,
    /// The last report, and whether it is answered.
    report: (u64, bool),
    /// Version of the reported properties.
    reported: u64,
    /// The desired properties, as it knows them.
    desired: Option<Json>,
}

fn number_in(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

impl<'a> Device<'a> {
    fn new(identity: &'a str, addresses: &'a [SocketAddr], random: Random) -> Device<'a> {
        Device {
            identity,
            addresses,
            random,
            heard: Heard::default(),
            report: (0, true),
            reported: 1,
            desired: None,
        }
    }

    /// Reports, and hears of desired properties, until the faults are over and it has heard of all.
    fn run(mut self, first: Connection, number: usize, end: &End) -> Heard {
        let mut connection = Some(first);
        let mut late = None;
        loop {
            let mut open = connection.take().unwrap_or_else(|| self.connect());
            self.heard.connections += 1;
            let fault = match self.converse(&mut open, number, end) {
                Ok(()) => {
                    let seen = self.get(&mut open).expect("no fault is left");
                    let version = &seen["reported"]["$version"];
                    assert_eq!(version, &json!(self.reported), "T1");
                    return self.heard;
                }
                Err(fault) => fault,
            };
            if end.desired.get().is_some() {
                let since = *late.get_or_insert_with(Instant::now);
                assert!(
                    since.elapsed() < RECOVERY,
                    "{fault:?}; report {:?}; T5: {:?}, not {:?}",
                    self.report,
                    self.desired,
                    end.desired
                );
            }
        }
    }

    /// The session goes on, at whichever node lets it in.
    fn connect(&mut self) -> Connection {
        let connect = connect(V311, self.identity, &own_token(self.identity));
        let until = Instant::now() + 3 * RECOVERY;
        while Instant::now() < until {
            let node = self.addresses[self.random.below(3) as usize];
            if let Ok((connection, connack)) = Connection::try_connect(node, &connect) {
                match connack.code {
                    0 => {
                        assert!(connack.session_present, "the session is kept");
                        return connection;
                    }
                    3 => {}
                    code => panic!("T8: {code} would lead a library to give up"),
                }
            }
            std::thread::sleep(PAUSE);
        }
        panic!("no node lets {} in", self.identity);
    }

    /// `Ok`: it knows all there is to know.
    fn converse(&mut self, open: &mut Connection, number: usize, end: &End) -> Result<(), Fault> {
        let twin = self.get(open)?;
        self.desired = Some(twin["desired"].clone());
        loop {
            match end.desired.get() {
                Some(all) if self.desired.as_ref() == Some(&all[number]) && self.report.1 => {
                    return Ok(());
                }
                Some(_) if self.report.1 => {
                    let publish = self.next(open)?;
                    self.notified(&publish);
                }
                _ => self.report(open)?,
            }
        }
    }

    /// The next message, acknowledged where it is QoS 1.
    fn next(&mut self, open: &mut Connection) -> Result<Publish, Fault> {
        loop {
            match open.receive(ANSWERED_WITHIN)? {
                Packet::Publish(publish) => {
                    if publish.qos == 1 {
                        open.try_send(&wire::acknowledgement(wire::PUBACK, publish.packet_id))?;
                    }
                    return Ok(publish);
                }
                Packet::Puback(_) => {}
                other => return Err(Fault::Wrong(format!("{other:?}"))),
            }
        }
    }

    /// The answer to a request: its status and what follows, and its body. What is heard before it is taken.
    fn answer(
        &mut self,
        open: &mut Connection,
        (request, packet_id): (Message, u16),
        id: &str,
    ) -> Result<(u64, String, Vec<u8>), Fault> {
        open.try_send(&request.qos(1, packet_id).bytes(V311))?;
        loop {
            let publish = self.next(open)?;
            let Some(rest) = publish.topic.strip_prefix("$iothub/twin/res/") else {
                self.notified(&publish);
                continue;
            };
            let (status, rest) = rest.split_once("/?$rid=").expect("an answer's topic");
            // Answers to what was asked on a former connection come, too.
            let (of, rest) = rest.split_once('&').unwrap_or((rest, ""));
            if of == id {
                return Ok((number_in(status), rest.to_owned(), publish.payload));
            }
        }
    }

    fn get(&mut self, open: &mut Connection) -> Result<Json, Fault> {
        // What is heard before the answer may be older.
        self.desired = None;
        let id = format!("g{}", self.random.draw());
        let request = Message::new(&format!("$iothub/twin/GET/?$rid={id}"), " ");
        let (status, _, body) = self.answer(open, (request, 1), &id)?;
        match status {
            200 => Ok(serde_json::from_slice(&body).expect("JSON")),
            429 | 503 => Err(Fault::Timeout),
            other => panic!("GET: {other}"),
        }
    }

    /// T6: one report after the other; one that has no answer is sent again, and applied once.
    fn report(&mut self, open: &mut Connection) -> Result<(), Fault> {
        let duplicate = !self.report.1;
        if !duplicate {
            self.report = (self.report.0 + 1, false);
        }
        let number = self.report.0;
        let id = format!("p{number}");
        let request = Message {
            duplicate,
            ..patch(&id, &json!({"n": number}))
        };
        // What is sent again has its packet identifier ([MQTT-4.4.0-1]).
        let packet_id = 2 + (number % 60_000) as u16;
        let (status, rest, _) = self.answer(open, (request, packet_id), &id)?;
        match status {
            204 => {
                let version = rest.strip_prefix("$version=").map(number_in);
                assert_eq!(version, Some(self.reported + 1), "T1, T6: report {number}");
                self.reported += 1;
                self.report.1 = true;
                self.heard.reports += 1;
                Ok(())
            }
            429 | 503 => Err(Fault::Timeout),
            other => panic!("PATCH: {other}"),
        }
    }

    /// T5: after a GET nothing older is heard, and nothing is left out but what was folded into a later one.
    fn notified(&mut self, publish: &Publish) {
        let version = publish
            .topic
            .strip_prefix("$iothub/twin/PATCH/properties/desired/?$version=");
        let version = number_in(version.unwrap_or_else(|| panic!("{}", publish.topic)));
        let Some(desired) = &mut self.desired else {
            return;
        };
        let known = desired["$version"].as_u64().expect("a number");
        assert!(version > known, "T5: {version} after {known}");
        let change: Map<String, Json> =
            serde_json::from_slice(&publish.payload).expect("an object");
        let members = desired.as_object_mut().expect("an object");
        for (name, value) in change {
            match value {
                Json::Null => drop(members.remove(&name)),
                value => drop(members.insert(name, value)),
            }
        }
        self.heard.notifications += 1;
    }
}
