//! Retained messages for new subscriptions, read page by page as the client takes them.
//!
//! What goes through the session's queue was put there when the subscription was made; here is the rest. A retained
//! message that is newer than the subscription was delivered when it was published, so it is passed over.

use super::Connection;
use crate::machine::read;
use crate::mqtt::codec::QoS;
use crate::mqtt::sys;
use crate::proto::state;
use crate::router::forward::Message;
use crate::session::delivery::remaining_s;
use crate::time::Millis;

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

impl Connection {
    /// Reads and sends the next page, when the client has taken the one before; tells whether anything was sent.
    pub(super) fn feed_retained(&mut self) -> bool {
        let Some(mut feed) = self.feeds.pop_front() else {
            return false;
        };
        if feed.from.is_empty() {
            let identifier = (feed.identifier != 0).then_some(feed.identifier);
            for (topic, value) in self.broker.sys.matching(&feed.filter) {
                let message = sys::message(topic, &value);
                self.broker
                    .router
                    .deliver_to(&self.mailbox, &message, identifier);
            }
        }
        let backing = self.broker.backing.clone();
        let mut page: Vec<(String, state::Retained)> = Vec::new();
        let mut bytes = 0;
        let mut looked = 0;
        let mut more = None;
        read::retained(&*backing, &feed.filter, &feed.from, |topic, row| {
            if looked >= PAGE || bytes >= PAGE_BYTES {
                more = Some(topic.as_bytes().to_vec());
                return false;
            }
            looked += 1;
            let own = feed.no_local && row.publisher == self.session.0;
            let queued = self.durable && QoS::from_number(row.qos).min(feed.qos) != QoS::AtMostOnce;
            if row.index <= feed.index && !own && !queued {
                bytes += topic.len() + row.payload.len() + row.properties.len();
                page.push((topic.to_owned(), row));
            }
            true
        });
        for (topic, row) in &page {
            self.send_retained(&feed, topic, row);
        }
        if let Some(from) = more {
            feed.from = from;
            self.feeds.push_front(feed);
        }
        self.mailbox.is_filled() || !self.feeds.is_empty()
    }

    fn send_retained(&mut self, feed: &Feed, topic: &str, row: &state::Retained) {
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
        let identifier = (feed.identifier != 0).then_some(feed.identifier);
        self.broker
            .router
            .deliver_to(&self.mailbox, &message, identifier);
    }
}
