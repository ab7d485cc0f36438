//! The rate of a client's messages, and how long those above it wait when the client leaves.

use std::time::{Duration, Instant};

use super::rate::ClientRate;

/// How long the connection of a client that has sent DISCONNECT, or has closed its stream, goes on because PUBLISH
/// packets before that are above the client's rate. Its will waits as long, and a node has room for so many.
pub(super) const LEAVING_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 30 });

/// The rate of a client's PUBLISH packets. Those above it wait, and what else the client sends is handled meanwhile.
#[derive(Debug)]
pub(super) struct PublishRate {
    pub(super) rate: ClientRate,
    /// Packets that were taken.
    taken: u64,
    /// The last packet that was offered had to wait for the rate.
    was_exceeded: bool,
    /// Until when packets wait of a client that leaves.
    pub(super) leaves_by: Option<Instant>,
}

impl PublishRate {
    /// So many messages per second; 0 is no bound.
    pub(super) fn new(messages_per_s: u32) -> Option<Box<PublishRate>> {
        let rate = ClientRate::new((messages_per_s, 0))?;
        Some(Box::new(PublishRate {
            rate,
            taken: 0,
            was_exceeded: false,
            leaves_by: None,
        }))
    }

    /// When the next packet may be taken, if not now.
    pub(super) fn paused_until(&mut self) -> Option<Instant> {
        self.rate.paused_until(Instant::now())
    }

    /// From now on packets above the rate wait for a while and no longer.
    pub(super) fn leave(&mut self) {
        let leaves_by = || Instant::now() + LEAVING_TIMEOUT;
        self.leaves_by.get_or_insert_with(leaves_by);
    }

    /// Whether the client leaves, and has packets that have waited long enough.
    pub(super) fn has_waited(&mut self) -> bool {
        self.was_exceeded && self.leaves_by.is_some_and(|by| Instant::now() >= by)
    }

    pub(super) fn is_exceeded(&mut self) -> bool {
        self.was_exceeded = self.paused_until().is_some();
        self.was_exceeded
    }

    pub(super) fn count(&mut self) {
        self.taken += 1;
        self.rate.passed(self.taken, 0, Instant::now());
    }
}
