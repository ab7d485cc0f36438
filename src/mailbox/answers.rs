//! Answers to the client's own requests, on their way to it. What a client asks for is longer than its requests, so it
//! is read only while little of what was read for it before waits.
//!
//! Invariant: what waits of those of GETs is at most half of what may wait for the client (`mqtt.outbox_max_bytes`), or
//! one answer. So a client that reads never ends because of what it has asked for, and one that does not read has
//! little read for it.
//! Invariant: when one is refused, all that were asked for behind it are, until the connection ends that: so they are
//! answered in their order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The answers for one connection.
#[derive(Debug)]
pub struct Answers {
    /// Bytes that may be on their way of GETs.
    most: usize,
    /// Bytes that are, those that are not in the mailbox yet included.
    bytes: AtomicUsize,
    /// Bytes of all answers that may be in the mailbox or in what was taken out of it.
    published: AtomicUsize,
    are_refused: AtomicBool,
}

impl Answers {
    /// None, to a client for which `outbox_bytes` may wait.
    pub(super) fn new(outbox_bytes: usize) -> Answers {
        Answers {
            most: outbox_bytes / 2,
            bytes: AtomicUsize::new(0),
            published: AtomicUsize::new(0),
            are_refused: AtomicBool::new(false),
        }
    }

    /// Whether an answer of so many bytes may be added to those that are on their way; if so, it is. If not, others are
    /// refused as well.
    pub fn begin(&self, bytes: usize) -> bool {
        let add = |waiting: usize| {
            let all = waiting.saturating_add(bytes);
            (waiting == 0 || all <= self.most).then_some(all)
        };
        let order = Ordering::Relaxed;
        let is_added = !self.are_refused() && self.bytes.fetch_update(order, order, add).is_ok();
        if !is_added {
            self.are_refused.store(true, Ordering::Release);
        }
        is_added
    }

    /// Notes how many bytes of answers may wait for the client, before the last of them is put in.
    pub fn publish(&self, bytes: usize) {
        self.published.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of answers that may wait for the client.
    pub(super) fn published(&self) -> usize {
        self.published.load(Ordering::Relaxed)
    }

    /// Whether answers are refused.
    pub fn are_refused(&self) -> bool {
        self.are_refused.load(Ordering::Acquire)
    }

    /// Everything that was asked for is refused: the connection may ask again.
    pub fn end_refusal(&self) {
        self.are_refused.store(false, Ordering::Release);
    }

    /// Answers of so many bytes have left.
    pub fn end(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_may_wait_is_answered_or_one() {
        let answers = Answers::new(100);
        assert!(answers.begin(1_000), "the first one always");
        assert!(!answers.begin(1) && answers.are_refused());
        answers.end(1_000);
        assert!(!answers.begin(1), "what is behind it is refused, too");
        answers.end_refusal();
        assert!(answers.begin(25) && answers.begin(25) && !answers.begin(1));
    }
}
