//! Who waits for a command, and what it is told.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::base::ids::SessionId;
use crate::machine::effect::Reply;
use crate::mailbox::{DeferredAck, End, Item, Mailbox, RequestId, WakeList};
use crate::router::Throttled;

/// Who gets the reply to a command.
pub enum ReplyTo {
    /// A connection.
    Connection(Arc<Mailbox>, RequestId),
    /// Another task of this node; it may have gone away.
    Task(oneshot::Sender<Reply>),
    /// Nobody.
    Nobody,
}

impl ReplyTo {
    /// Defers the acknowledgement of a PUBLISH that is about to get its reply, until slow subscribers of this node have
    /// read enough. Does nothing when `publisher` is the session of another connection.
    pub(super) fn defer_ack(
        &self,
        publisher: SessionId,
        throttled: Throttled,
        wake: &mut WakeList,
    ) {
        let ReplyTo::Connection(mailbox, request_id) = self else {
            return;
        };
        if mailbox.session() != Some(publisher) {
            return;
        }
        for (slow, end) in throttled {
            // The item goes first, because the acknowledgement may be released at once.
            if mailbox.push_item(Item::AckDeferred(*request_id)) {
                wake.add(mailbox);
            }
            let ack = DeferredAck::Local(mailbox.clone(), *request_id);
            if !slow.defer_ack(end, ack.clone(), wake) {
                ack.release(wake);
            }
        }
    }

    /// The reply will not come, and nobody knows whether the command was applied: it may have been, inside a snapshot.
    /// The connection ends; its client sends again what was not acknowledged, and the session's state and the
    /// remembered replies see to it that nothing is done twice.
    pub(super) fn lose(self, wake: &mut WakeList) {
        if let ReplyTo::Connection(mailbox, _) = self
            && mailbox.push_item(Item::End(End::Unavailable))
        {
            wake.add(&mailbox);
        }
    }

    pub(super) fn complete(self, reply: Reply, wake: &mut WakeList) {
        match self {
            ReplyTo::Connection(mailbox, request_id) => {
                if mailbox.push_item(Item::Reply(request_id, reply)) {
                    wake.add(&mailbox);
                }
            }
            // The receiver may have given up waiting; the command was applied all the same.
            ReplyTo::Task(sender) => drop(sender.send(reply)),
            ReplyTo::Nobody => {}
        }
    }
}
