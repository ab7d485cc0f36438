//! Many publishers and subscribers at once.

use super::failover_client::FailoverClient;
use super::publisher::{Publisher, PublisherShape};
use super::signals::{Signals, SubscriberSignals};
use super::subscriber::Subscriber;
use crate::check::delivery;
use crate::random::Random;
use crate::record::{At, PublisherRecord, Record, SubscriberRecord, SubscriberShape};
use crate::wait;
use crate::wire::V5;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long all subscribers may take to subscribe.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(60);

/// How long subscribers wait for a missing message without receiving any, after the publishers have ended.
const DRAINED_WITHIN: Duration = Duration::from_secs(20);

/// How long nothing more must come before the subscribers leave, so that a duplicate is seen.
const QUIET: Duration = Duration::from_millis(500);

/// What a load consists of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The beginning of every topic and client id, so that loads of one broker do not share any.
    pub name: String,
    pub seed: u64,
    pub publishers: usize,
    pub topics: usize,
    /// Messages in flight per publisher, at most.
    pub window: usize,
    /// Time between two messages of a publisher; it bounds their number.
    pub pause: Duration,
    pub subscribers: Vec<SubscriberShape>,
    /// How often clients leave their own connections, per thousand messages.
    pub cuts: u64,
}

impl Shape {
    /// Four publishers on three topics; subscribers of every kind: wide and narrow windows, QoS 1 and 2, MQTT 3.1.1,
    /// one that is away until the end, and two shared subscriptions.
    pub fn new(name: &str, seed: u64) -> Self {
        use crate::record::Interest;
        let own = |kind: &str| SubscriberShape::new(format!("{name}-{kind}"));
        let mut subscribers = vec![
            own("wide"),
            SubscriberShape {
                receive_maximum: 3,
                interest: Interest::Topic(0),
                ..own("narrow")
            },
            SubscriberShape {
                qos: 1,
                receive_maximum: 5,
                ..own("once-or-more")
            },
            SubscriberShape {
                level: crate::wire::V311,
                interest: Interest::Topic(1),
                ..own("older")
            },
            SubscriberShape {
                away: true,
                interest: Interest::Topic(2),
                ..own("away")
            },
        ];
        for member in 0..3 {
            subscribers.push(SubscriberShape {
                group: Some("group".into()),
                receive_maximum: 8,
                ..own(&format!("member-{member}"))
            });
        }
        Self {
            name: name.to_owned(),
            seed,
            publishers: 4,
            topics: 3,
            window: 8,
            pause: Duration::from_millis(5),
            subscribers,
            cuts: 0,
        }
    }
}

struct Listener {
    record: Arc<Mutex<SubscriberRecord>>,
    own_signals: Arc<SubscriberSignals>,
    thread: JoinHandle<()>,
}

impl Listener {
    fn name(&self) -> String {
        locked(&self.record).shape.client_id.clone()
    }
}

/// A running load; [`Load::stop`] ends it.
pub struct Load {
    signals: Arc<Signals>,
    publishers: Vec<(Arc<Mutex<PublisherRecord>>, JoinHandle<()>)>,
    subscribers: Vec<Listener>,
}

fn locked<T>(shared: &Arc<Mutex<T>>) -> MutexGuard<'_, T> {
    shared.lock().expect("no holder of the lock panics")
}

impl Load {
    /// Subscribes all subscribers, those that are away included, then starts to publish.
    #[track_caller]
    pub fn start(nodes: &[SocketAddr], shape: &Shape) -> Self {
        let signals = Arc::new(Signals::new());
        let subscribers: Vec<Listener> = (0..shape.subscribers.len())
            .map(|index| listen(nodes, shape, index, &signals))
            .collect();
        wait::until_ok("all subscriptions", SUBSCRIBED_WITHIN, || {
            let is_open = |one: &&Listener| !one.own_signals.subscribed.load(Ordering::Relaxed);
            match subscribers.iter().find(is_open) {
                None => Ok(()),
                Some(one) => Err(format!("{} is not subscribed", one.name())),
            }
        });
        let publishers = (0..shape.publishers)
            .map(|number| publish(nodes, shape, number, &signals))
            .collect();
        Self {
            signals,
            publishers,
            subscribers,
        }
    }

    /// The time on the clock of its records.
    pub fn now(&self) -> At {
        self.signals.now()
    }

    /// Messages acknowledged so far.
    pub fn accepted(&self) -> usize {
        self.signals.accepted.load(Ordering::Relaxed)
    }

    /// Waits until that many more messages were acknowledged.
    #[track_caller]
    pub fn wait_progress(&self, count: usize, within: Duration) {
        let goal = self.accepted() + count;
        let what = format!("{count} messages to be acknowledged");
        wait::until_ok(&what, within, || {
            let missing = goal.saturating_sub(self.accepted());
            match missing {
                0 => Ok(()),
                missing => Err(format!("{missing} are missing")),
            }
        });
    }

    /// The node that most subscribers are connected to, of those that `allowed` picks.
    pub fn busiest_node(&self, nodes: usize, allowed: impl Fn(usize) -> bool) -> usize {
        let connected = |node: usize| {
            self.subscribers
                .iter()
                .filter(|listener| listener.own_signals.node.load(Ordering::Relaxed) == node)
                .count()
        };
        (0..nodes)
            .filter(|node| allowed(*node))
            .max_by_key(|node| connected(*node))
            .expect("some node is allowed")
    }

    /// What was recorded so far.
    pub fn record(&self) -> Record {
        Record {
            publishers: self
                .publishers
                .iter()
                .map(|(record, _)| locked(record).clone())
                .collect(),
            subscribers: self
                .subscribers
                .iter()
                .map(|listener| locked(&listener.record).clone())
                .collect(),
        }
    }

    /// Ends the publishers, waits until everything has arrived or nothing more comes, and returns the record.
    #[track_caller]
    pub fn stop(self) -> Record {
        self.stop_when(|record| delivery::lost(record).is_empty())
    }

    /// The same for a load whose messages others publish: `complete` says whether they have arrived.
    #[track_caller]
    pub fn stop_when(self, complete: impl Fn(&Record) -> bool) -> Record {
        self.signals.publishers_end.store(true, Ordering::Relaxed);
        // A publisher that cannot end records what it waits for.
        let deadline = Instant::now() + DRAINED_WITHIN;
        while !self
            .publishers
            .iter()
            .all(|(_, thread)| thread.is_finished())
        {
            if Instant::now() > deadline {
                self.signals
                    .publishers_abandon
                    .store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for listener in &self.subscribers {
            listener.own_signals.wake.store(true, Ordering::Relaxed);
        }
        self.wait_drained(complete);
        for listener in &self.subscribers {
            listener.own_signals.end.store(true, Ordering::Relaxed);
        }
        let deadline = Instant::now() + DRAINED_WITHIN;
        let ended = |listener: &Listener| listener.thread.is_finished();
        while !self.subscribers.iter().all(ended) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.signals
            .subscribers_abandon
            .store(true, Ordering::Relaxed);
        let record = self.record();
        for (_, thread) in self.publishers {
            thread.join().expect("a publisher does not panic");
        }
        for listener in self.subscribers {
            let name = listener.name();
            listener.thread.join().expect("a subscriber does not panic");
            let ended = listener.own_signals.ended.load(Ordering::Relaxed);
            assert!(ended, "{name} found no node to leave in order");
        }
        record
    }

    /// Waits until everything acknowledged has arrived and nothing more comes. When something stays missing, the wait
    /// ends after [`DRAINED_WITHIN`] of silence, and the checks name it.
    fn wait_drained(&self, complete: impl Fn(&Record) -> bool) {
        let began = self.signals.now();
        loop {
            let record = self.record();
            let latest =
                |subscriber: &SubscriberRecord| subscriber.events.last().map(|last| last.0);
            let last = record.subscribers.iter().filter_map(latest).max();
            let silence = self.signals.now() - last.unwrap_or(0).max(began);
            let silence = Duration::from_millis(silence);
            if silence > DRAINED_WITHIN || (silence > QUIET && complete(&record)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn listen(nodes: &[SocketAddr], shape: &Shape, index: usize, signals: &Arc<Signals>) -> Listener {
    let own = &shape.subscribers[index];
    let number = u32::try_from(index).expect("a load has few subscribers") + 1;
    let record = Arc::new(Mutex::new(SubscriberRecord {
        shape: own.clone(),
        identifier: (own.level == V5).then_some(number),
        first_uncertain: false,
        events: Vec::new(),
    }));
    let own_signals = Arc::new(SubscriberSignals::default());
    let subscriber = Subscriber {
        nodes: FailoverClient::new(nodes, index),
        prefix: shape.name.clone(),
        cuts: shape.cuts,
        random: Random::new(
            shape
                .seed
                .wrapping_mul(2_000_003)
                .wrapping_add(index as u64),
        ),
        record: record.clone(),
        own_signals: own_signals.clone(),
        signals: signals.clone(),
        owed: VecDeque::new(),
    };
    Listener {
        record,
        own_signals,
        thread: std::thread::spawn(move || subscriber.run()),
    }
}

fn publish(
    nodes: &[SocketAddr],
    shape: &Shape,
    number: usize,
    signals: &Arc<Signals>,
) -> (Arc<Mutex<PublisherRecord>>, JoinHandle<()>) {
    let own = PublisherShape {
        client_id: format!("{}-publisher-{number}", shape.name),
        number,
        prefix: shape.name.clone(),
        topics: shape.topics,
        window: shape.window,
        pause: shape.pause,
        cuts: shape.cuts,
        seed: shape
            .seed
            .wrapping_mul(1_000_003)
            .wrapping_add(number as u64),
    };
    let record = Arc::new(Mutex::new(PublisherRecord {
        client_id: own.client_id.clone(),
        ..PublisherRecord::default()
    }));
    let publisher = Publisher::new(
        own,
        FailoverClient::new(nodes, number),
        record.clone(),
        signals.clone(),
    );
    (record, std::thread::spawn(move || publisher.run()))
}
