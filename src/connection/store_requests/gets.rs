//! GET: many of a connection at a time, as long as the client takes what is read for it. Those that are read are
//! answered in their order.

use std::collections::VecDeque;

use super::request::StoreRequest;
use crate::connection::context::Context;
use crate::connection::requests::Request;
use crate::mailbox::RequestId;
use crate::replica::reader::Query;
use crate::store::Reply;

/// Values that are read at once when some had to wait: at least one of them is answered, and small ones all.
const AT_ONCE: usize = 64;

/// The GETs of a connection.
#[derive(Default)]
pub(super) struct Gets {
    /// Those that are not answered, in their order.
    open: VecDeque<RequestId>,
    /// How many of them, from the first one on, the reader has been asked for.
    asked: usize,
    /// How many of these it has refused: no other one is read before all of them are.
    refused: usize,
    /// Bytes of answers since everything had left the last time: some of them may still be in the mailbox.
    answered: usize,
    /// Bytes of those before.
    leaving: usize,
}

impl Gets {
    /// Has a key read, when it is its turn.
    pub(super) fn begin(&mut self, context: &mut Context, request: StoreRequest) {
        let request_id = context.requests.insert(Request::Store(Box::new(request)));
        self.open.push_back(request_id);
        if self.refused == 0 && self.asked + 1 == self.open.len() {
            self.ask_next(context);
        }
    }

    /// There was no room for an answer.
    pub(super) fn handle_refused(&mut self, context: &Context) {
        self.refused += 1;
        self.end_refusal(context);
    }

    /// The client is sent this answer.
    pub(super) fn answered(
        &mut self,
        context: &Context,
        request_id: RequestId,
        request: &StoreRequest,
        reply: &Reply,
    ) {
        self.answered += request.beside() + reply.content_bytes();
        // Usually it is the first.
        let Some(at) = self.open.iter().position(|id| *id == request_id) else {
            return;
        };
        self.open.remove(at);
        self.asked -= 1;
        self.end_refusal(context);
        if self.open.is_empty() {
            self.open = VecDeque::new();
        }
    }

    /// When all that were asked for are refused, the first of them may be asked for again.
    fn end_refusal(&mut self, context: &Context) {
        if self.refused > 0 && self.refused == self.asked {
            (self.refused, self.asked) = (0, 0);
            context.mailbox.answers.end_refusal();
        }
    }

    /// Everything that was taken out of the mailbox has left.
    pub(super) fn handle_sent(&mut self, context: &mut Context) {
        context.mailbox.answers.end(self.leaving);
        self.leaving = std::mem::take(&mut self.answered);
        while self.refused == 0 && self.asked < self.open.len().min(AT_ONCE) {
            self.ask_next(context);
        }
    }

    fn ask_next(&mut self, context: &mut Context) {
        let request_id = self.open[self.asked];
        self.asked += 1;
        if let Some(Request::Store(request)) = context.requests.get(request_id) {
            let query = Query::Get(request.key.clone(), request.beside());
            let reader = &context.broker.services.reader;
            reader.submit(query, &context.mailbox, request_id);
        }
    }

    /// Memory that they take.
    pub(super) fn memory(&self) -> usize {
        self.open.capacity() * size_of::<RequestId>()
    }
}
