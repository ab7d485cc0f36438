//! Replies for which the client's turn has no time left: the client chooses the topic of each answer, and looking up a
//! thousand topics takes long.

use std::collections::VecDeque;

use crate::mailbox::RequestId;
use crate::store::Reply;

/// Replies that are answered in later turns, in their order. Their requests stay open meanwhile.
#[derive(Default)]
pub(super) struct DueReplies {
    replies: VecDeque<(RequestId, Reply)>,
    bytes: usize,
}

impl DueReplies {
    pub(super) fn push(&mut self, request_id: RequestId, reply: &Reply) {
        self.bytes += memory(reply);
        self.replies.push_back((request_id, reply.clone()));
    }

    pub(super) fn pop(&mut self) -> Option<(RequestId, Reply)> {
        let next = self.replies.pop_front()?;
        self.bytes -= memory(&next.1);
        Some(next)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Bytes that they take, about.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }
}

fn memory(reply: &Reply) -> usize {
    size_of::<(RequestId, Reply)>() + reply.content_bytes()
}
