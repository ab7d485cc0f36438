//! The end of a connection, as the log is told.
//!
//! Invariant: a connection whose session was opened tells the log that it has ended and why, whatever ends it, a fault
//! of its own task included.

use tokio::sync::oneshot;

use super::Connection;
use crate::base::proto::command::{self, command::Kind};
use crate::codec::{Disconnect, ReasonCode, encode};
use crate::connection::end::Ended;
use crate::connection::event_weight::event_weight;
use crate::events::Kind as EventKind;
use crate::machine::effect::Reply;
use crate::replica::reply_to::ReplyTo;

impl Drop for Connection {
    /// A fault in the connection's own task has ended it. The log has to know, or the session would belong to nobody
    /// for as long as the node lives.
    fn drop(&mut self) {
        if !self.is_closed && std::thread::panicking() {
            let broker = self.context.broker.clone();
            self.propose_end(&Ended::fault(), ReplyTo::Nobody, 0);
            broker.unregister(self.context.mailbox.connection);
        }
    }
}

impl Connection {
    /// Tells the machine that the connection has ended; acknowledgements go first. The reply comes when the log knows.
    pub(in crate::connection) fn close(&mut self, ended: &Ended) -> oneshot::Receiver<Reply> {
        if ended.reason.is_some() && !ended.is_for_memory() {
            // It counts as sent.
            let out = self.context.output.packets();
            self.outbound.send_rest(out, usize::MAX);
            self.count_sent();
            self.note_rest();
        }
        self.propose_acknowledgements();
        let (reply_to, is_known) = oneshot::channel();
        let will = match ended.discard_will {
            true => 0,
            false => self.context.will_weight(),
        };
        let (broker, options) = (&self.context.broker, &self.context.options);
        let weight = will + event_weight(broker, options, EventKind::Disconnected);
        self.propose_end(ended, ReplyTo::Task(reply_to), weight);
        self.context.mailbox.begin_hand_over();
        self.context.mailbox.handed_over();
        is_known
    }

    /// Whether another connection is about to take the session over.
    pub(in crate::connection) fn is_handing_over(&self) -> bool {
        self.context.mailbox.is_asked_for_hand_over()
    }

    /// The client is read for those who have asked.
    pub(in crate::connection) fn begin_hand_over(&self) {
        self.context.mailbox.begin_hand_over();
    }

    /// What the client has sent is handled: proposes what follows.
    pub(in crate::connection) fn hand_over(&mut self) {
        self.propose_acknowledgements();
        self.context.mailbox.handed_over();
    }

    /// Sends what is left to acknowledge, and DISCONNECT where the version has one. What is answered by something that
    /// was in the mailbox is not acknowledged: the client asks again.
    pub(in crate::connection) fn disconnect(&mut self, reason: ReasonCode, text: &str) {
        let context = &mut self.context;
        context.output.end_acknowledgements();
        let mut packet = Disconnect::new(reason);
        packet.reason_string = Some(text);
        let (version, limits) = (context.options.version, context.options.limits);
        // Before 5.0 there is no such packet: the socket is closed.
        let packets = &mut context.output.packets().bytes;
        let _ = encode::disconnect(packets, version, &packet, limits);
    }

    /// Beside its bytes the end counts `weight`.
    fn propose_end(&mut self, ended: &Ended, reply_to: ReplyTo, weight: usize) {
        self.is_closed = true;
        let context = &self.context;
        let close = command::CloseSession {
            client_id: context.options.client_id.to_string(),
            connection: context.mailbox.connection.0,
            expiry_interval_s: Some(context.options.session_expiry),
            discard_will: ended.discard_will,
            sent_through: self.outbound.sent_through().0,
            reason: ended.event as u32,
        };
        let proposer = &context.broker.services.proposer;
        proposer.submit_always(Kind::CloseSession(close), reply_to, weight);
    }
}
