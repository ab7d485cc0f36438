//! Replies for which the client's turn has no time left: the client chooses the topic of each answer, and looking up a
//! thousand topics takes long.

use std::collections::VecDeque;

use super::StoreRequests;
use crate::base::limits;
use crate::connection::context::Context;
use crate::mailbox::RequestId;
use crate::store::Reply;

/// Replies that are answered in later turns, in their order. Their requests stay open meanwhile.
#[derive(Default)]
pub(super) struct DueReplies {
    replies: VecDeque<(RequestId, Reply)>,
    bytes: usize,
}

impl DueReplies {
    fn push(&mut self, request_id: RequestId, reply: &Reply) {
        self.bytes += memory(reply);
        self.replies.push_back((request_id, reply.clone()));
    }

    fn pop(&mut self) -> Option<(RequestId, Reply)> {
        let next = self.replies.pop_front()?;
        self.bytes -= memory(&next.1);
        Some(next)
    }

    /// Bytes that they take, about.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }
}

fn memory(reply: &Reply) -> usize {
    size_of::<(RequestId, Reply)>() + reply.content_bytes()
}

impl StoreRequests {
    /// The machine or the reader has the reply.
    pub(in crate::connection) fn handle_store_reply(
        &mut self,
        context: &mut Context,
        request_id: RequestId,
        reply: &Reply,
    ) {
        match context.work < limits::TURN_WORK && !self.has_due() {
            true => self.answer_reply(context, request_id, reply),
            false => self.due.push(request_id, reply),
        }
    }

    /// Whether replies are left for the next turn.
    pub(in crate::connection) fn has_due(&self) -> bool {
        !self.due.replies.is_empty()
    }

    /// Answers those that are left of former turns, as many as one turn may; at least one.
    pub(in crate::connection) fn answer_due(&mut self, context: &mut Context) {
        while let Some((request_id, reply)) = self.due.pop() {
            self.answer_reply(context, request_id, &reply);
            if context.work >= limits::TURN_WORK {
                break;
            }
        }
    }
}
