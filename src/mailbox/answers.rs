//! Answers of reads on their way to the client. What a client asks for is longer than its requests, so it is read only
//! while little of what was read for it before waits.
//!
//! Invariant: what waits of them is at most half of [`OutboxLimits::bytes`], or one answer. So a client that reads never
//! ends because of what it has asked for, and one that does not read has little read for it.
//! Invariant: when one is refused, all that were asked for behind it are, until the connection ends that: so they are
//! answered in their order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Mailbox;
#[cfg(doc)]
use super::back_pressure::OutboxLimits;

/// What a mailbox knows of them.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Bytes that are on their way.
    bytes: AtomicUsize,
    are_refused: AtomicBool,
}

impl Mailbox {
    /// Whether an answer of so many bytes may be added to those that are on their way; if so, it is. If not, others are
    /// refused as well.
    pub fn begin_answer(&self, bytes: usize) -> bool {
        let most = self.limits.bytes / 2;
        let add = |waiting: usize| {
            let all = waiting.saturating_add(bytes);
            (waiting == 0 || all <= most).then_some(all)
        };
        let (known, order) = (&self.answers, Ordering::Relaxed);
        let is_added =
            !self.refuses_answers() && known.bytes.fetch_update(order, order, add).is_ok();
        if !is_added {
            known.are_refused.store(true, Ordering::Release);
        }
        is_added
    }

    /// Whether answers are refused.
    pub fn refuses_answers(&self) -> bool {
        self.answers.are_refused.load(Ordering::Acquire)
    }

    /// Everything that was asked for is refused: the connection may ask again.
    pub fn end_refusal(&self) {
        self.answers.are_refused.store(false, Ordering::Release);
    }

    /// Answers of so many bytes have left.
    pub fn end_answers(&self, bytes: usize) {
        if bytes > 0 {
            self.answers.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
