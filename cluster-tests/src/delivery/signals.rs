//! What a load and the threads of its clients tell each other.

use crate::record::At;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

/// Shared by all clients of a load.
#[derive(Debug)]
pub(super) struct Signals {
    began: Instant,
    /// Publishers send nothing new and end when nothing is in flight.
    pub publishers_end: AtomicBool,
    /// Publishers give up even where something is in flight.
    pub publishers_abandon: AtomicBool,
    pub subscribers_abandon: AtomicBool,
    /// Messages acknowledged so far.
    pub accepted: AtomicUsize,
}

impl Signals {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            publishers_end: AtomicBool::new(false),
            publishers_abandon: AtomicBool::new(false),
            subscribers_abandon: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
        }
    }

    /// The time that all clients write down.
    pub fn now(&self) -> At {
        u64::try_from(self.began.elapsed().as_millis()).expect("a test is shorter than an aeon")
    }
}

/// Shared by a load and one of its subscribers.
#[derive(Debug, Default)]
pub(super) struct SubscriberSignals {
    /// Its subscription is acknowledged.
    pub subscribed: AtomicBool,
    /// One that is away comes back.
    pub wake: AtomicBool,
    /// Nothing more will come: it leaves when it has acknowledged everything.
    pub end: AtomicBool,
    /// It has left in order.
    pub ended: AtomicBool,
    /// Index of the node that it is connected to.
    pub node: AtomicUsize,
}
