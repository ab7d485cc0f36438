//! The events of clients' connections, and a webhook on loopback that takes them. The receiver has threads of its own;
//! a node sends one request at a time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use quorumq::base::time::{Millis, wall_now};
use quorumq::cli::exit::{Exit, Failure};
use serde_json::{Value, json};

use crate::http;
use crate::latency::Latencies;

/// Longest time to wait for the first event.
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// What is before the time of a CloudEvent. No text in JSON has it, because a quotation mark in one is escaped.
const TIME: &str = "\"time\":\"";

/// What has arrived since the last reset.
#[derive(Default)]
struct Arrivals {
    events: u64,
    requests: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Event to arrival.
    lag: Latencies,
}

/// What was delivered in some time.
pub struct Delivered {
    /// Events.
    pub events: u64,
    /// Requests that they came in.
    pub requests: u64,
    /// The time it took.
    pub elapsed: Duration,
    /// From what an event tells of to its arrival.
    pub lag: Latencies,
}

/// When the first and the last of some events have arrived.
pub struct Arrived {
    /// The first one.
    pub first: Instant,
    /// The last one.
    pub last: Instant,
}

/// The webhook.
pub struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    arrivals: Mutex<Arrivals>,
    is_down: AtomicBool,
}

impl Endpoint {
    /// Listens on a port of loopback.
    ///
    /// # Errors
    /// The system has no port.
    pub fn open() -> Result<Endpoint, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let of_streams = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_streams);
                // A connection that fails is the node's to open again.
                thread::spawn(move || receive(stream, &shared));
            }
        });
        Ok(Endpoint { address, shared })
    }

    /// Whether it answers 503, and counts nothing.
    pub fn set_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::SeqCst);
    }

    /// Events that have arrived since the last reset.
    pub fn events(&self) -> u64 {
        lock(&self.shared.arrivals).events
    }

    /// Waits until so many events have arrived since the last reset.
    ///
    /// # Errors
    /// None comes for so long.
    pub fn until(&self, events: u64, silence: Duration) -> Result<Arrived, Failure> {
        let mut since = Instant::now();
        loop {
            {
                let arrivals = lock(&self.shared.arrivals);
                since = arrivals.last.map_or(since, |last| last.max(since));
                if let (Some(first), Some(last)) = (arrivals.first, arrivals.last)
                    && arrivals.events >= events
                {
                    return Ok(Arrived { first, last });
                }
                if since.elapsed() > silence {
                    let text = format!("{} of {events} events were delivered", arrivals.events);
                    return Err(Failure::failed(text));
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets what has arrived.
    pub fn reset(&self) {
        *lock(&self.shared.arrivals) = Arrivals::default();
    }

    /// Takes what has arrived since the last reset, in a time that the caller has measured.
    pub fn take(&self, elapsed: Duration) -> Delivered {
        let arrivals = std::mem::take(&mut *lock(&self.shared.arrivals));
        Delivered {
            events: arrivals.events,
            requests: arrivals.requests,
            elapsed,
            lag: arrivals.lag,
        }
    }

    /// Measures from the first event on, until a time is over or so many events have come.
    ///
    /// # Errors
    /// None comes at all.
    pub fn measure(&self, duration: Duration, most: u64) -> Result<Delivered, Failure> {
        let begin = Instant::now();
        while lock(&self.shared.arrivals).events == 0 {
            if begin.elapsed() > FIRST_EVENT_TIMEOUT {
                return Err(Failure::failed("no event was delivered"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        let before = self.take(Duration::ZERO).events;
        while begin.elapsed() < duration && lock(&self.shared.arrivals).events + before < most {
            thread::sleep(Duration::from_millis(1));
        }
        let last = lock(&self.shared.arrivals).last.unwrap_or(begin);
        Ok(self.take(last.saturating_duration_since(begin)))
    }
}

fn lock(arrivals: &Mutex<Arrivals>) -> MutexGuard<'_, Arrivals> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the requests of one connection.
fn receive(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut bytes, mut scratch) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        while let Some(request) = http::next(&bytes).ok()? {
            let (now, wall) = (Instant::now(), wall_now());
            let body = std::str::from_utf8(request.body).ok()?;
            let is_down = shared.is_down.load(Ordering::SeqCst);
            if !is_down {
                let mut arrivals = lock(&shared.arrivals);
                arrivals.requests += 1;
                arrivals.first.get_or_insert(now);
                arrivals.last = Some(now);
                for time in times(body) {
                    arrivals.events += 1;
                    let ms = wall.0.saturating_sub(time.0);
                    arrivals.lag.record(Duration::from_millis(ms));
                }
            }
            let length = request.length;
            bytes.drain(..length);
            let answer: &[u8] = match is_down {
                true => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
                false => b"HTTP/1.1 204 No Content\r\n\r\n",
            };
            stream.write_all(answer).ok()?;
        }
        match stream.read(&mut scratch).ok()? {
            0 => return None,
            count => bytes.extend_from_slice(&scratch[..count]),
        }
    }
}

/// The times of the CloudEvents of a body.
fn times(body: &str) -> impl Iterator<Item = Millis> {
    let texts = body.split(TIME).skip(1);
    texts.map(|text| millis(text).unwrap_or(Millis::NEVER))
}

/// The time at the beginning of a text: `2026-01-05T09:59:06.001…`, UTC.
fn millis(text: &str) -> Option<Millis> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    // Years begin in March, so that a leap day is a year's last; 1970-01-01 is day 719,468 of year 0.
    let (year, month) = match month {
        3.. => (year, month - 3),
        _ => (year.checked_sub(1)?, month + 9),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = days.checked_sub(719_468)? * 86_400
        + number(11, 13)? * 3600
        + number(14, 16)? * 60
        + number(17, 19)?;
    Some(Millis(seconds * 1000 + number(20, 23)?))
}

/// An event subscription of a run, which is removed with it.
pub struct Subscription {
    node: SocketAddr,
    path: String,
}

impl Subscription {
    /// Makes one for connects and disconnects. `batch`: events of one request; `None` sends each alone.
    ///
    /// # Errors
    /// The node does not take it.
    pub fn add(
        node: SocketAddr,
        name: &str,
        endpoint: &Endpoint,
        batch: Option<u32>,
    ) -> Result<Subscription, Failure> {
        Subscription::make(node, name, endpoint, batch, &[])
    }

    /// The same for disconnects of clients whose connection is lost.
    ///
    /// # Errors
    /// The node does not take it.
    pub fn of_lost(
        node: SocketAddr,
        name: &str,
        endpoint: &Endpoint,
        batch: u32,
    ) -> Result<Subscription, Failure> {
        Subscription::make(node, name, endpoint, Some(batch), &["ConnectionLost"])
    }

    fn make(
        node: SocketAddr,
        name: &str,
        endpoint: &Endpoint,
        batch: Option<u32>,
        reasons: &[&str],
    ) -> Result<Subscription, Failure> {
        let kinds: &[&str] = match reasons {
            [] => &["Connected", "Disconnected"],
            _ => &["Disconnected"],
        };
        let kinds = kinds
            .iter()
            .map(|kind| format!("Microsoft.EventGrid.MQTTClientSession{kind}"));
        let body = json!({
            "url": format!("http://{}/", endpoint.address),
            "types": kinds.collect::<Vec<_>>(),
            "reasons": reasons,
            "mode": if batch.is_some() { "batch" } else { "structured" },
            "max_events": batch,
            "max_bytes": 1 << 20,
            "rate_per_min": 60_000,
            "handshake": "off",
        });
        let path = format!("/v1/events/subscriptions/bench-{name}");
        http::ask(node, ("PUT", &path), "", &body.to_string())?;
        Ok(Subscription { node, path })
    }

    /// Lets events wait.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn pause(&self) -> Result<(), Failure> {
        self.post("pause")
    }

    /// Has what waits delivered.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn resume(&self) -> Result<(), Failure> {
        self.post("resume")
    }

    fn post(&self, what: &str) -> Result<(), Failure> {
        let path = format!("{}/{what}", self.path);
        http::ask(self.node, ("POST", &path), "", "{}").map(drop)
    }

    /// Events that wait.
    ///
    /// # Errors
    /// The node does not answer, or none waits.
    pub fn waiting(&self) -> Result<u64, Failure> {
        let shown: Value = http::ask(self.node, ("GET", &self.path), "", "")?;
        let waiting = shown["waiting"].as_u64().filter(|waiting| *waiting > 0);
        waiting.ok_or_else(|| Failure::new(Exit::Failed, "no event was recorded"))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Err(failure) = http::ask(self.node, ("DELETE", &self.path), "", "") {
            eprintln!("{}: {}", self.path, failure.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_events_are_read() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.0000000Z", 0),
            ("2000-02-29T00:00:00.0010000Z", 951_782_400_001),
            ("2026-01-05T10:00:01.2340000Z", 1_767_607_201_234),
            ("2100-02-28T23:59:59.9990000Z", 4_107_542_399_999),
            ("2100-03-01T00:00:00.0000000Z", 4_107_542_400_000),
        ] {
            assert_eq!(millis(text), Some(Millis(ms)), "{text}");
        }
        assert_eq!(millis("1969-12-31T23:59:59.0000000Z"), None);
        assert_eq!(millis("yesterday"), None);
        let body = r#"[{"time":"1970-01-01T00:00:01.000Z","data":{"x":"\"time\":\""}},
                       {"time":"1970-01-01T00:00:02.000Z"}]"#;
        assert_eq!(
            times(body).collect::<Vec<_>>(),
            [Millis(1000), Millis(2000)]
        );
    }

    #[test]
    fn what_is_posted_is_counted_and_answered() {
        let endpoint = Endpoint::open().expect("a port");
        let body = r#"[{"time":"1970-01-01T00:00:01.000Z"},{"time":"1970-01-01T00:00:02.000Z"}]"#;
        for _ in 0..2 {
            http::ask(endpoint.address, ("POST", "/"), "", body).expect("204");
        }
        let delivered = endpoint.take(Duration::from_secs(1));
        assert_eq!((delivered.events, delivered.requests), (4, 2));
        assert_eq!(delivered.lag.total(), 4);
    }
}
