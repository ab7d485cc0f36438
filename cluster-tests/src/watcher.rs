//! A client that watches keys while others change them, and records its notifications.

use crate::check::kv::WatchedKey;
use crate::history::History;
use crate::store::{CallOutcome, Request, StoreClient};
use crate::workload::Shape;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running watcher of one node.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<WatchedKey>>,
}

impl Watcher {
    /// Watches the first `keys` keys of a load through one node; returns when all of them
    /// were answered `+OK`.
    #[track_caller]
    pub fn start(
        name: &str,
        node: SocketAddr,
        shape: &Shape,
        keys: usize,
        history: &Arc<History>,
    ) -> Self {
        let mut session = Session {
            client: StoreClient::new(name, &[node], 0),
            shape: shape.clone(),
            keys,
            history: history.clone(),
        };
        let first = session
            .watch()
            .expect("a watcher's first registration works");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || session.run(first, &stopped));
        Self { stop, thread }
    }

    /// Ends it; call it when the load has ended. What it received, per key and connection.
    #[track_caller]
    pub fn stop(self) -> Vec<WatchedKey> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("a watcher does not panic")
    }
}

struct Session {
    client: StoreClient,
    shape: Shape,
    keys: usize,
    history: Arc<History>,
}

impl Session {
    /// Registers for every key. Returns the times of confirmation, or `None` when one fails.
    fn watch(&mut self) -> Option<Vec<u64>> {
        let timeout = Duration::from_secs(3);
        (0..self.keys)
            .map(|key| {
                let request = Request::keynotify(self.shape.key(key));
                match self.client.try_call(&request, timeout) {
                    CallOutcome::Answered(reply) if reply.payload == b"+OK\r\n" => {
                        Some(self.history.now())
                    }
                    _ => None,
                }
            })
            .collect()
    }

    fn run(&mut self, first: Vec<u64>, stop: &AtomicBool) -> Vec<WatchedKey> {
        let mut all = Vec::new();
        let mut confirmed = Some(first);
        loop {
            let Some(from) = confirmed.take() else {
                if stop.load(Ordering::Relaxed) {
                    return all;
                }
                self.client.notifications.clear();
                confirmed = self.watch();
                continue;
            };
            let cut = self.listen(stop);
            all.extend(self.segments(&from, cut));
            if !cut {
                return all;
            }
        }
    }

    /// Listens until it is to stop (false) or the connection has ended (true).
    fn listen(&mut self, stop: &AtomicBool) -> bool {
        loop {
            let ending = stop.load(Ordering::Relaxed);
            match self.client.listen(Duration::from_millis(300), |_| false) {
                Ok(()) => {}
                Err(crate::connection::Fault::Timeout) if ending => {
                    // Whatever was committed before is sent before this answer.
                    let marker = Request::get(self.shape.key(0));
                    let outcome = self.client.try_call(&marker, Duration::from_secs(5));
                    return !matches!(outcome, CallOutcome::Answered(_));
                }
                Err(crate::connection::Fault::Timeout) => {}
                Err(_) => {
                    self.client.fail_over();
                    return true;
                }
            }
        }
    }

    fn segments(&mut self, from: &[u64], cut: bool) -> Vec<WatchedKey> {
        let to = self.history.now();
        let received = std::mem::take(&mut self.client.notifications);
        from.iter()
            .enumerate()
            .map(|(key, from)| WatchedKey {
                key,
                from: *from,
                to,
                cut,
                received: received
                    .iter()
                    .filter(|notification| notification.key == self.shape.key(key).as_bytes())
                    .cloned()
                    .collect(),
            })
            .collect()
    }
}
