//! How long this node may go by its own replica: match messages against its subscriptions, and judge clients by its
//! rules and its users.

use std::sync::Arc;

use crate::base::lease::Lease;
use crate::base::limits;
use crate::base::time::{Elapsed, elapsed_now};
use crate::mailbox::Mailbox;
use crate::mailbox::wait_list::WaitList;

/// The right of this node to deliver messages past the log, and to propose what its clients send: for
/// [`limits::ROUTING_LEASE`] after it last began to confirm its contact with a quorum.
///
/// Invariant: whoever subscribes waits at least that long for a silent node, so no message that such a node accepts
/// later misses the subscriber (P6). Whoever revokes a user or changes the rules waits as long, so such a node takes
/// nothing for the log either that it would have to refuse if it knew.
#[derive(Debug, Default)]
pub(crate) struct RoutingLease {
    lease: Lease,
    /// Connections whose client's PUBLISH or SUBSCRIBE waits for the lease.
    waiting: WaitList,
}

impl RoutingLease {
    /// A quorum has answered a question that was asked at `asked`.
    pub(crate) fn renew(&self, asked: Elapsed) {
        self.lease.hold_until(asked.plus(limits::ROUTING_LEASE));
        self.waiting.wake();
    }

    /// Has a connection offer its client's packets again when the lease is renewed.
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
