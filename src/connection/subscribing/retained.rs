//! Retained messages for a new subscription, read page by page as the client takes them.
//!
//! Messages of a durable session with QoS 1 and 2 went into its queue when the subscription was made; a reader sends
//! the others. It skips retained messages that are newer than the subscription: they were delivered when they were
//! published.

use crate::base::ids::{LogIndex, SessionId};
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::codec::QoS;
use crate::connection::broker::Broker;
use crate::connection::sys;
use crate::machine::read;
use crate::mailbox::{Filling, Mailbox};
use crate::router::{Message, Router};
use crate::session::delivery::{remaining_s, sends_retained};
use crate::topic::Filter;

/// Messages that one page looks at.
const PAGE_MESSAGES: usize = 64;

/// Bytes after which a page ends.
const PAGE_BYTES: usize = 64 << 10;

/// What a client has subscribed to.
#[derive(Clone, Debug)]
pub(super) struct Subscription {
    pub(super) filter: Box<str>,
    /// Maximum QoS, as granted.
    pub(super) qos: QoS,
    pub(super) no_local: bool,
    pub(super) retain_handling: u8,
    /// Subscription identifier, 0 when there is none.
    pub(super) identifier: u32,
}

/// Who gets the messages.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) broker: &'a Broker,
    pub(super) mailbox: &'a Mailbox,
    pub(super) session: SessionId,
    /// The session's messages with QoS 1 and 2 go through its queue.
    pub(super) is_durable: bool,
}

/// Reads the retained messages of one subscription.
#[derive(Clone, Debug)]
pub(super) struct RetainedReader {
    subscription: Subscription,
    /// The log entry that made the subscription.
    index: LogIndex,
    /// The topic to go on from; empty at the beginning.
    from: Vec<u8>,
}

impl RetainedReader {
    /// A reader that begins with the first topic.
    pub(super) fn new(subscription: Subscription) -> RetainedReader {
        RetainedReader {
            subscription,
            index: LogIndex::default(),
            from: Vec::new(),
        }
    }

    /// The filter subscribed to.
    pub(super) fn filter(&self) -> &str {
        &self.subscription.filter
    }

    /// The subscription was made by this log entry; tells whether retained messages are to be read for it.
    pub(super) fn start(&mut self, index: LogIndex, is_new: bool) -> bool {
        self.index = index;
        let Subscription {
            filter,
            retain_handling,
            ..
        } = &self.subscription;
        let is_shared = Filter::parse(filter).is_ok_and(|filter| filter.share.is_some());
        sends_retained(*retain_handling, is_new, is_shared)
    }

    /// Puts the next page into the mailbox; tells whether there is more.
    pub(super) fn read_page(&mut self, to: Reading<'_>, filling: &mut Filling<'_>) -> bool {
        if self.from.is_empty() {
            for (topic, value) in to.broker.sys.matching(&self.subscription.filter) {
                let message = sys::message(topic, &value);
                Router::put(filling, to.mailbox, &message, self.identifier());
            }
        }
        let mut bytes = 0;
        let mut messages = 0;
        let mut next = None;
        let backing = &*to.broker.services.backing;
        read::retained(
            backing,
            &self.subscription.filter,
            &self.from,
            |topic, row| {
                if messages >= PAGE_MESSAGES || bytes >= PAGE_BYTES {
                    next = Some(topic.as_bytes().to_vec());
                    return false;
                }
                messages += 1;
                if self.is_due(&row, to) {
                    bytes += topic.len() + row.payload.len() + row.properties.len();
                    self.put(topic, &row, to, filling);
                }
                true
            },
        );
        let has_more = next.is_some();
        self.from = next.unwrap_or_default();
        has_more
    }

    fn identifier(&self) -> Option<u32> {
        Some(self.subscription.identifier).filter(|identifier| *identifier != 0)
    }

    fn qos(&self, row: &state::Retained) -> QoS {
        QoS::from_number(row.qos).min(self.subscription.qos)
    }

    fn is_due(&self, row: &state::Retained, to: Reading<'_>) -> bool {
        let is_own = self.subscription.no_local && row.publisher == to.session.0;
        let is_queued = to.is_durable && self.qos(row) != QoS::AtMostOnce;
        row.index <= self.index.0 && !is_own && !is_queued
    }

    fn put(&self, topic: &str, row: &state::Retained, to: Reading<'_>, filling: &mut Filling<'_>) {
        let expiry = match row.expires_at_ms {
            None => None,
            Some(at) => match remaining_s(Millis(at), to.broker.services.clock.now()) {
                None => return,
                left => left,
            },
        };
        let message = Message {
            publisher: None,
            qos: self.qos(row),
            retain: true,
            topic,
            properties: &row.properties,
            expiry,
            direct: true,
            payload: &row.payload,
        };
        Router::put(filling, to.mailbox, &message, self.identifier());
    }
}
