//! Retained messages for new subscriptions, read page by page as the client takes them.
//!
//! What goes through the session's queue was put there when the subscription was made; here is the rest. A retained
//! message that is newer than the subscription was delivered when it was published, so it is passed over.

use super::Connection;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::codec::QoS;
use crate::connection::sys;
use crate::machine::read;
use crate::mailbox::Filling;
use crate::router::{Message, Router};
use crate::session::delivery::remaining_s;

/// Messages that are read at once.
const PAGE: usize = 64;

/// Bytes after which a page ends.
const PAGE_BYTES: usize = 64 << 10;

/// What is still to be sent for one subscription.
#[derive(Clone, Debug)]
pub struct Feed {
    /// Its filter; shared ones get no retained messages.
    pub filter: Box<str>,
    /// Maximum QoS, as granted.
    pub qos: QoS,
    /// No Local.
    pub no_local: bool,
    /// Retain Handling.
    pub retain_handling: u8,
    /// Subscription identifier, 0 when there is none.
    pub identifier: u32,
    /// The log entry that made the subscription.
    pub index: u64,
    /// The topic to go on from.
    pub from: Vec<u8>,
}

impl Feed {
    fn identifier(&self) -> Option<u32> {
        (self.identifier != 0).then_some(self.identifier)
    }
}

impl Connection {
    /// Reads and sends the next page, when the client has taken the one before; tells whether anything was sent.
    pub(super) fn feed_retained(&mut self) -> bool {
        let Some(mut feed) = self.feeds.pop_front() else {
            return false;
        };
        let mailbox = self.mailbox.clone();
        // What replaces a message while its page is read waits until the page is in the mailbox: no client gets an older
        // value after a newer one.
        mailbox.fill(|filling| {
            if feed.from.is_empty() {
                for (topic, value) in self.broker.sys.matching(&feed.filter) {
                    let message = sys::message(topic, &value);
                    Router::put(filling, &mailbox, &message, feed.identifier());
                }
            }
            if let Some(from) = self.put_page(&feed, filling) {
                feed.from = from;
                self.feeds.push_front(feed);
            }
        });
        self.mailbox.is_filled()
    }

    /// Puts a page into the mailbox; the topic to go on from, when there is more.
    fn put_page(&self, feed: &Feed, filling: &mut Filling<'_>) -> Option<Vec<u8>> {
        let mut bytes = 0;
        let mut looked = 0;
        let mut more = None;
        read::retained(
            &*self.broker.backing,
            &feed.filter,
            &feed.from,
            |topic, row| {
                if looked >= PAGE || bytes >= PAGE_BYTES {
                    more = Some(topic.as_bytes().to_vec());
                    return false;
                }
                looked += 1;
                let own = feed.no_local && row.publisher == self.session.0;
                let queued =
                    self.durable && QoS::from_number(row.qos).min(feed.qos) != QoS::AtMostOnce;
                if row.index <= feed.index && !own && !queued {
                    bytes += topic.len() + row.payload.len() + row.properties.len();
                    self.put_retained(feed, topic, &row, filling);
                }
                true
            },
        );
        more
    }

    fn put_retained(
        &self,
        feed: &Feed,
        topic: &str,
        row: &state::Retained,
        filling: &mut Filling<'_>,
    ) {
        let expiry = match row.expires_at_ms {
            None => None,
            Some(at) => match remaining_s(Millis(at), self.broker.clock.now()) {
                None => return,
                left => left,
            },
        };
        let message = Message {
            publisher: None,
            qos: QoS::from_number(row.qos).min(feed.qos),
            retain: true,
            topic,
            properties: &row.properties,
            expiry,
            direct: true,
            payload: &row.payload,
        };
        Router::put(filling, &self.mailbox, &message, feed.identifier());
    }
}
