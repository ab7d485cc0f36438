//! Keeps the memory of the node for its clients below its bound: when it is used up, the connections that have the most
//! of it end.
//!
//! Invariant: as few connections end as it takes to have an eighth of the memory free again. Those that end already
//! count as gone. A connection that has no more than [`SMALL_BYTES`] stays: it is not what has used the memory up, and
//! while it is, nobody else may come.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::broker::Broker;
use crate::mailbox::{End, Mailbox};

/// How often the memory is looked at. Between two looks it can grow by what the network brings in that time.
const INTERVAL: Duration = Duration::from_millis(100);

/// What any connection may have, bytes.
const SMALL_BYTES: usize = 64 << 10;

/// Runs until the node stops.
pub(crate) async fn run(broker: Arc<Broker>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let excess = broker.settings.outbox.memory.excess();
        if excess > 0 {
            let ended = end_largest(&broker.services.router.mailboxes(), excess);
            if ended > 0 {
                tracing::warn!(
                    ended,
                    excess,
                    "the memory for clients is used up: connections that have the most of it end"
                );
            }
        }
    }
}

/// Ends connections, the largest first, until they have `excess` bytes together. Returns how many were ended now.
fn end_largest(mailboxes: &[Arc<Mailbox>], excess: usize) -> usize {
    let sized = mailboxes.iter().map(|mailbox| (mailbox.memory(), mailbox));
    let mut sized: Vec<_> = sized.filter(|(bytes, _)| *bytes > SMALL_BYTES).collect();
    sized.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let mut freed = 0;
    let mut ended = 0;
    let (ending, others): (Vec<_>, Vec<_>) = sized
        .into_iter()
        .partition(|(_, mailbox)| mailbox.is_ending());
    for (bytes, mailbox) in ending.into_iter().chain(others) {
        if freed >= excess {
            break;
        }
        freed += bytes;
        if mailbox.end(End::NodeMemory) {
            mailbox.wake();
            ended += 1;
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ConnectionId;
    use crate::codec::Version;
    use crate::mailbox::back_pressure::OutboxLimits;

    #[test]
    fn the_largest_end_first_and_no_more_than_needed() {
        let limits = OutboxLimits::of(1 << 20);
        let mailboxes: Vec<_> = [10_000, 500_000, 0, 200_000, 300_000]
            .into_iter()
            .enumerate()
            .map(|(number, bytes)| {
                let connection = ConnectionId(number as u64 + 1);
                let mailbox = Mailbox::new(connection, Version::V5, u32::MAX, 0, limits.clone());
                mailbox.keep(bytes);
                mailbox
            })
            .collect();
        let ending = || -> Vec<bool> { mailboxes.iter().map(|one| one.is_ending()).collect() };
        assert_eq!(end_largest(&mailboxes, 600_000), 2);
        assert_eq!(ending(), [false, true, false, false, true]);
        assert_eq!(end_largest(&mailboxes, 600_000), 0, "they end already");
        assert_eq!(end_largest(&mailboxes, 900_000), 1);
        assert_eq!(ending(), [false, true, false, true, true]);
        assert_eq!(
            end_largest(&mailboxes, usize::MAX),
            0,
            "the small ones stay"
        );
    }
}
