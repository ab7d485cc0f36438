//! How long this node may match messages against its own replica of the subscriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::base::limits;
use crate::mailbox::Mailbox;
use crate::mailbox::wait_list::WaitList;

/// The right of this node to deliver messages past the log: for [`limits::ROUTING_LEASE`] after it last began to
/// confirm its contact with a quorum.
///
/// Invariant: whoever subscribes waits at least that long for a silent node, so no message that such a node accepts
/// later misses the subscriber (P6).
#[derive(Debug)]
pub(crate) struct RoutingLease {
    origin: Instant,
    /// Milliseconds after `origin`.
    until: AtomicU64,
    /// Connections whose client's PUBLISH waits for the lease.
    waiting: WaitList,
}

impl Default for RoutingLease {
    fn default() -> Self {
        RoutingLease {
            origin: Instant::now(),
            until: AtomicU64::new(0),
            waiting: WaitList::default(),
        }
    }
}

impl RoutingLease {
    /// A quorum has answered a question that was asked at `since`.
    pub(crate) fn renew(&self, since: Instant) {
        let until = since + limits::ROUTING_LEASE - self.origin;
        self.until.store(
            u64::try_from(until.as_millis()).unwrap_or(u64::MAX),
            Ordering::Release,
        );
        self.waiting.wake();
    }

    /// Has a connection offer its client's PUBLISH again when the lease is renewed.
    pub(crate) fn wait(&self, mailbox: &Arc<Mailbox>) {
        self.waiting.add(mailbox);
        if self.is_valid() {
            mailbox.offer_again();
        }
    }

    /// Whether the last renewal is recent enough.
    pub(crate) fn is_valid(&self) -> bool {
        self.origin.elapsed().as_millis() < u128::from(self.until.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_lasts_from_the_question_not_from_the_answer() {
        let lease = RoutingLease::default();
        assert!(!lease.is_valid());
        lease.renew(Instant::now());
        assert!(lease.is_valid());
        let lease = RoutingLease {
            origin: Instant::now() - limits::ROUTING_LEASE - Duration::from_secs(1),
            ..RoutingLease::default()
        };
        lease.renew(lease.origin + Duration::from_millis(900));
        assert!(!lease.is_valid(), "asked more than a second ago");
    }
}
