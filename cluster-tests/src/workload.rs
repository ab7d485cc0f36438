//! A load of many clients on a few keys. Each client sends its next request after the answer; all is recorded.

use crate::history::{Command, History, Operation, Outcome};
use crate::random::Random;
use crate::store::{CallOutcome, Hlc, Reply, Request, StoreClient};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a load consists of.
#[derive(Debug, Clone)]
pub struct Shape {
    pub clients: usize,
    pub keys: usize,
    /// In names of keys and clients, so that loads of one test do not share any.
    pub name: String,
    pub seed: u64,
    /// How long a client waits for an answer before it calls the outcome unknown.
    pub timeout: Duration,
    /// Waited between two requests of a client; it bounds the length of the history.
    pub pause: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            clients: 8,
            keys: 24,
            name: "load".into(),
            seed: 1,
            timeout: Duration::from_secs(3),
            pause: Duration::from_millis(3),
        }
    }
}

impl Shape {
    pub fn key(&self, index: usize) -> String {
        format!("{}/{index}", self.name)
    }
}

/// A running load; [`Load::stop`] ends it.
pub struct Load {
    pub history: Arc<History>,
    shape: Shape,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    values: Arc<AtomicU32>,
}

impl Load {
    pub fn start(addresses: &[SocketAddr], shape: Shape) -> Self {
        let history = Arc::new(History::new());
        let stop = Arc::new(AtomicBool::new(false));
        let values = Arc::new(AtomicU32::new(1));
        let threads = (0..shape.clients)
            .map(|number| {
                let mut worker = Worker {
                    client: StoreClient::new(
                        &format!("{}-{number}", shape.name),
                        addresses,
                        number,
                    ),
                    number,
                    random: Random::new(
                        shape
                            .seed
                            .wrapping_mul(1_000_003)
                            .wrapping_add(number as u64),
                    ),
                    history: history.clone(),
                    values: values.clone(),
                    shape: shape.clone(),
                };
                let stop = stop.clone();
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        worker.one();
                        std::thread::sleep(worker.shape.pause);
                    }
                })
            })
            .collect();
        Self {
            history,
            shape,
            stop,
            threads,
            values,
        }
    }

    /// Waits until that many more operations were answered: proof that the cluster serves.
    #[track_caller]
    pub fn wait_progress(&self, count: usize, within: Duration) {
        let answered = || {
            self.history
                .operations()
                .iter()
                .filter(|operation| operation.is_write() && operation.is_known())
                .count()
        };
        let goal = answered() + count;
        let what = format!("{count} writes to be answered");
        crate::wait::until_ok(&what, within, || match goal.saturating_sub(answered()) {
            0 => Ok(()),
            missing => Err(format!("{missing} are missing")),
        });
    }

    /// Ends the load, then reads every key through every given node; all of it is in the history.
    #[track_caller]
    pub fn stop(self, nodes: &[SocketAddr]) -> Arc<History> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a worker does not panic");
        }
        for (index, node) in nodes.iter().enumerate() {
            let mut worker = Worker {
                client: StoreClient::new(
                    &format!("{}-final-{index}", self.shape.name),
                    &[*node],
                    0,
                ),
                number: self.shape.clients + index,
                random: Random::new(0),
                history: self.history.clone(),
                values: self.values.clone(),
                shape: self.shape.clone(),
            };
            for key in 0..self.shape.keys {
                let outcome = worker.ask(key, Command::Get);
                assert_ne!(
                    outcome,
                    Outcome::Unknown,
                    "final read of key {key} through {node}"
                );
            }
        }
        self.history
    }
}

struct Worker {
    client: StoreClient,
    number: usize,
    random: Random,
    history: Arc<History>,
    values: Arc<AtomicU32>,
    shape: Shape,
}

impl Worker {
    fn one(&mut self) {
        let key = self.random.below(self.shape.keys as u64) as usize;
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let command = match self.random.below(100) {
            0..35 => Command::Set(value),
            35..45 => Command::SetNx(value),
            45..85 => Command::Get,
            85..93 => Command::Del,
            // One of the latest values, which may be there.
            _ => Command::Vdel(value.saturating_sub(1 + self.random.below(40) as u32)),
        };
        self.ask(key, command);
    }

    fn ask(&mut self, key: usize, command: Command) -> Outcome {
        let name = self.shape.key(key);
        let requested = Hlc::now("client");
        let digits = |value: u32| value.to_string();
        let request = match command {
            Command::Set(value) => Request::set(&name, digits(value)),
            Command::SetNx(value) => Request::of(["SET", &name, &digits(value), "NX"]),
            Command::SetNex(value) => Request::of(["SET", &name, &digits(value), "NEX"]),
            Command::Get => Request::get(&name),
            Command::Del => Request::del(&name),
            Command::Vdel(value) => Request::vdel(&name, digits(value)),
        }
        .at(&requested.to_string());
        let invoked = self.history.now();
        let called = self.client.try_call(&request, self.shape.timeout);
        let returned = self.history.now();
        let (outcome, version) = match called {
            CallOutcome::Answered(reply) => (outcome_of(command, &reply), reply.version),
            // Not executed: nothing to record.
            CallOutcome::Refused(_) => {
                self.client.fail_over();
                return Outcome::Unknown;
            }
            CallOutcome::NotSent => return Outcome::Unknown,
            CallOutcome::Unknown => (Outcome::Unknown, None),
        };
        self.history.add(Operation {
            client: self.number,
            key,
            command,
            outcome,
            version,
            requested: Some(requested),
            invoked,
            returned: if outcome == Outcome::Unknown {
                u64::MAX
            } else {
                returned
            },
        });
        outcome
    }
}

/// The answer's meaning. Panics on one that the command does not have.
fn outcome_of(command: Command, reply: &Reply) -> Outcome {
    let wrong = || {
        panic!(
            "{command:?} was answered {:?}",
            String::from_utf8_lossy(&reply.payload)
        )
    };
    match (command, reply.payload.as_slice()) {
        (Command::Set(_) | Command::SetNx(_) | Command::SetNex(_), b"+OK\r\n") => Outcome::Ok,
        (Command::SetNx(_) | Command::SetNex(_) | Command::Vdel(_), b":-1\r\n") => Outcome::Refused,
        (Command::Del | Command::Vdel(_), b":1\r\n") => Outcome::Deleted(true),
        (Command::Del | Command::Vdel(_), b":0\r\n") => Outcome::Deleted(false),
        (Command::Get, b"$-1\r\n") => Outcome::Absent,
        (Command::Get, payload) => value(payload).map_or_else(wrong, Outcome::Value),
        _ => wrong(),
    }
}

fn value(payload: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(payload).ok()?;
    let (length, rest) = text.strip_prefix('$')?.split_once("\r\n")?;
    let digits = rest.strip_suffix("\r\n")?;
    (length.parse::<usize>().ok()? == digits.len()).then(|| digits.parse().ok())?
}
