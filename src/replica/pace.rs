//! Apply does not run ahead of the threads that serve clients.
//!
//! What the log tells thousands of connections is handed to them faster than they send it. Those that are woken wait in
//! one queue for those threads. When much has been handed out, a mark goes through the same queue, and before
//! as much more is handed out, apply waits for it. What is late then is apply, which the leader sees
//! ([`super::progress`]).
//!
//! Invariant: apply waits no longer than [`WITHIN`] for a mark, whatever the clients' threads do.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::mailbox::{WakeList, all_woken};

/// Connections, and messages for them, between two marks.
const MUCH: usize = 1_024;

/// How long apply waits for a mark.
const WITHIN: Duration = Duration::from_millis(25);

/// What was handed out, and the mark behind it.
#[derive(Default)]
pub(super) struct Pace {
    /// The clients' threads; without them there is nothing to wait for.
    clients: Option<Handle>,
    handed_out: usize,
    mark: Option<Receiver<()>>,
}

impl Pace {
    /// From here on, apply keeps pace with these threads.
    pub(super) fn keep_with(&mut self, clients: Handle) {
        self.clients = Some(clients);
    }

    /// So much is about to be handed out: waits, if that is much and the former mark has not come through.
    pub(super) fn begin(&mut self, count: usize) {
        self.handed_out += count;
        if self.handed_out >= MUCH {
            self.wait();
        }
    }

    /// Wakes those to whom something was handed out; very many on the clients' threads, a few at a time.
    pub(super) fn wake(&self, mut list: WakeList) {
        let _context = self.clients.as_ref().map(Handle::enter);
        list.wake();
    }

    fn wait(&mut self) {
        if let Some(mark) = self.mark.take() {
            let _ = mark.recv_timeout(WITHIN);
        }
    }

    /// It was handed out, and so many connections were woken for it.
    pub(super) fn end(&mut self, woken: usize) {
        self.handed_out += woken;
        if self.handed_out < MUCH {
            return;
        }
        // One output may be for very many.
        self.wait();
        self.handed_out = 0;
        self.mark = self.clients.as_ref().map(|clients| {
            let (sender, mark) = sync_channel(1);
            clients.spawn(async move {
                all_woken().await;
                sender.send(())
            });
            mark
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::channel;
    use std::time::Instant;

    /// One thread for clients.
    fn clients() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build().expect("a thread")
    }

    #[test]
    fn apply_waits_for_what_clients_threads_have_yet_to_do_and_no_longer_than_said() {
        let runtime = clients();
        let mut pace = Pace::default();
        pace.keep_with(runtime.handle().clone());
        let (go_on, wait) = channel::<()>();
        let (is_blocked, blocked) = channel();
        runtime.spawn(async move {
            let _ = is_blocked.send(());
            let _ = wait.recv();
        });
        blocked.recv().expect("the thread runs");
        pace.begin(0);
        pace.end(MUCH);
        assert!(pace.mark.is_some());
        let began = Instant::now();
        pace.begin(MUCH - 1);
        assert!(pace.mark.is_some(), "that is little, and does not wait");
        pace.begin(1);
        assert!(began.elapsed() >= WITHIN && pace.mark.is_none());
        pace.end(0);
        let mark = pace.mark.take().expect("there is much again");
        assert!(mark.try_recv().is_err(), "the thread is busy");
        drop(go_on);
        mark.recv().expect("it comes through");
    }

    /// One publication may wake ten thousand connections.
    #[test]
    fn apply_waits_for_what_few_outputs_have_woken() {
        let runtime = clients();
        let mut pace = Pace::default();
        pace.keep_with(runtime.handle().clone());
        let (go_on, wait) = channel::<()>();
        runtime.spawn(async move { wait.recv() });
        pace.begin(1);
        pace.end(10_000);
        let began = Instant::now();
        pace.begin(1);
        pace.end(10_000);
        assert!(began.elapsed() >= WITHIN);
        drop(go_on);
    }

    #[test]
    fn little_has_no_mark() {
        let runtime = clients();
        let mut pace = Pace::default();
        pace.keep_with(runtime.handle().clone());
        for _ in 1..MUCH {
            pace.begin(1);
            pace.end(0);
            assert!(pace.mark.is_none());
        }
        pace.begin(1);
        pace.end(0);
        assert!(pace.mark.is_some());
    }
}
