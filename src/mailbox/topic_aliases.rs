//! Topic aliases that the broker assigns towards one client.
//!
//! Invariant: only packets with QoS 0 use them. They leave in the order in which they were put into the mailbox, while
//! packets with QoS 1 and 2 may wait, expire, or be sent again on another connection.
//! Invariant: a packet that may expire assigns none; it uses those that are assigned.

use std::num::NonZeroU16;

use rustc_hash::FxHashMap;

use crate::base::limits;
use crate::codec::TopicAlias;

/// The aliases of one connection.
#[derive(Debug, Default)]
pub(super) struct TopicAliases {
    /// Topic Alias Maximum of the client `[MQTT-3.1.2-26]`, at most [`limits::CLIENT_TOPIC_ALIASES`].
    maximum: u16,
    assigned: FxHashMap<Box<str>, NonZeroU16>,
    /// Bytes of their topics, at most [`limits::CLIENT_TOPIC_ALIAS_BYTES`].
    bytes: usize,
}

impl TopicAliases {
    /// No aliases yet, for a client that announced this Topic Alias Maximum.
    pub(super) fn new(topic_alias_maximum: u16) -> TopicAliases {
        TopicAliases {
            maximum: topic_alias_maximum.min(limits::CLIENT_TOPIC_ALIASES),
            assigned: FxHashMap::default(),
            bytes: 0,
        }
    }

    /// The alias for a packet with this topic; `None` when the packet must carry the topic alone. A new alias is
    /// assigned only by [`TopicAliases::confirm`], because the packet may be refused.
    pub(super) fn get(&self, topic: &str) -> Option<TopicAlias> {
        if self.maximum == 0 {
            return None;
        }
        if let Some(alias) = self.assigned.get(topic) {
            return Some(TopicAlias {
                alias: *alias,
                send_topic: false,
            });
        }
        // The maximum is a u16, and there are at most as many.
        let next = self.assigned.len() as u16 + 1;
        let has_room = self.bytes + topic.len() <= limits::CLIENT_TOPIC_ALIAS_BYTES;
        let alias = NonZeroU16::new(next).filter(|_| next <= self.maximum && has_room)?;
        Some(TopicAlias {
            alias,
            send_topic: true,
        })
    }

    /// The packet that carries this alias together with the topic is in the mailbox.
    pub(super) fn confirm(&mut self, topic: &str, alias: Option<TopicAlias>) {
        if let Some(TopicAlias {
            alias,
            send_topic: true,
        }) = alias
        {
            self.bytes += topic.len();
            self.assigned.insert(topic.into(), alias);
        }
    }
}
