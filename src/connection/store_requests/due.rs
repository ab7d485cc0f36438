//! Replies for which the client's turn has no time left: the client chooses the topic of each answer, and looking up a
//! thousand topics takes long.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::machine::effect::Change;
use crate::mailbox::RequestId;
use crate::store::Reply;

/// What a client is told in a later turn.
#[derive(Debug)]
pub(super) enum Due {
    /// The machine or the reader has this reply. The request stays open meanwhile.
    Reply(RequestId, Reply),
    /// A key has changed that the client watches, behind such a reply.
    Notify { key: Bytes, change: Change },
}

impl Due {
    /// Memory that it takes, about.
    fn bytes(&self) -> usize {
        let content = match self {
            Due::Reply(_, reply) => reply.content_bytes(),
            Due::Notify { key, change } => key.len() + change.bytes(),
        };
        size_of::<Due>() + content
    }
}

/// All of that, in its order.
#[derive(Default)]
pub(super) struct DueReplies {
    waiting: VecDeque<Due>,
    bytes: usize,
}

impl DueReplies {
    pub(super) fn push(&mut self, due: Due) {
        self.bytes += due.bytes();
        self.waiting.push_back(due);
    }

    pub(super) fn pop(&mut self) -> Option<Due> {
        let next = self.waiting.pop_front()?;
        self.bytes -= next.bytes();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(next)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that they take, about.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }
}
