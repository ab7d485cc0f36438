//! How long this node may match messages against its own replica of the subscriptions.

use std::sync::Arc;

use crate::base::lease::Lease;
use crate::base::limits;
use crate::base::time::{Elapsed, elapsed_now};
use crate::mailbox::Mailbox;
use crate::mailbox::wait_list::WaitList;

/// The right of this node to deliver messages past the log: for [`limits::ROUTING_LEASE`] after it last began to
/// confirm its contact with a quorum.
///
/// Invariant: whoever subscribes waits at least that long for a silent node, so no message that such a node accepts
/// later misses the subscriber (P6).
#[derive(Debug, Default)]
pub(crate) struct RoutingLease {
    lease: Lease,
    /// Connections whose client's PUBLISH waits for the lease.
    waiting: WaitList,
}

impl RoutingLease {
    /// A quorum has answered a question that was asked at `asked`.
    pub(crate) fn renew(&self, asked: Elapsed) {
        self.lease.hold_until(asked.plus(limits::ROUTING_LEASE));
        self.waiting.wake();
    }

    /// Has a connection offer its client's PUBLISH again when the lease is renewed.
    pub(crate) fn wait(&self, mailbox: &Arc<Mailbox>) {
        self.waiting.add(mailbox);
        if self.is_valid_at(elapsed_now()) {
            mailbox.offer_again();
        }
    }

    /// Whether the last renewal is recent enough.
    pub(crate) fn is_valid_at(&self, now: Elapsed) -> bool {
        self.lease.holds_at(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_lasts_from_the_question_not_from_the_answer() {
        let lease = RoutingLease::default();
        let asked = Elapsed::default().plus(Duration::from_secs(7));
        assert!(!lease.is_valid_at(asked));
        lease.renew(asked);
        assert!(lease.is_valid_at(asked));
        let last = limits::ROUTING_LEASE - Duration::from_millis(1);
        assert!(lease.is_valid_at(asked.plus(last)));
        assert!(
            !lease.is_valid_at(asked.plus(limits::ROUTING_LEASE)),
            "asked too long ago, whenever the answer came"
        );
    }
}
