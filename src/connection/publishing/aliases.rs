//! Topic aliases of the client `[MQTT-3.3.2-12]`.

use std::num::NonZeroU16;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::codec::ReasonCode;
use crate::connection::end::Ended;
use crate::telemetry::labels::DisconnectReason;

/// What an alias takes beside its topic, bytes.
const ALIAS_BYTES: usize = 48;

/// The topics that the client has given a number.
#[derive(Debug, Default)]
pub(super) struct TopicAliases {
    /// Boxed, because most clients give none.
    topics: Option<Box<FxHashMap<NonZeroU16, Arc<str>>>>,
    /// Bytes that they take.
    bytes: usize,
}

impl TopicAliases {
    /// The topic of a PUBLISH with this alias, which gives the alias a topic if `topic` is not empty.
    ///
    /// # Errors
    /// The alias is above the announced maximum, or has no topic.
    pub(super) fn resolve(
        &mut self,
        maximum: u16,
        alias: NonZeroU16,
        topic: &str,
    ) -> Result<Arc<str>, Ended> {
        if alias.get() > maximum {
            // [MQTT-3.2.2-17]
            return Err(Ended::disconnect(
                DisconnectReason::Protocol,
                ReasonCode::TopicAliasInvalid,
                "the topic alias is above the announced maximum",
            ));
        }
        if topic.is_empty() {
            let known = self.topics.as_ref().and_then(|topics| topics.get(&alias));
            return known
                .cloned()
                .ok_or(Ended::protocol("the topic alias was never set"));
        }
        let topic: Arc<str> = topic.into();
        let topics = self.topics.get_or_insert_default();
        self.bytes += topic.len() + ALIAS_BYTES;
        if let Some(before) = topics.insert(alias, topic.clone()) {
            self.bytes -= before.len() + ALIAS_BYTES;
        }
        Ok(topic)
    }

    /// Memory that they take, about.
    pub(super) fn memory(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(number: u16) -> NonZeroU16 {
        NonZeroU16::new(number).expect("tests use aliases above 0")
    }

    #[test]
    fn mqtt_3_3_2_12_an_alias_means_the_topic_it_was_sent_with_last() {
        let mut aliases = TopicAliases::default();
        assert!(aliases.resolve(2, alias(1), "").is_err(), "never set");
        assert_eq!(&*aliases.resolve(2, alias(1), "a").expect("set"), "a");
        assert_eq!(&*aliases.resolve(2, alias(1), "").expect("known"), "a");
        assert_eq!(&*aliases.resolve(2, alias(1), "b").expect("set"), "b");
        assert_eq!(&*aliases.resolve(2, alias(1), "").expect("known"), "b");
    }

    #[test]
    fn mqtt_3_2_2_17_an_alias_above_the_maximum_ends_the_connection() {
        let ended = TopicAliases::default().resolve(2, alias(3), "a");
        let reason = ended.expect_err("above the maximum").reason;
        assert_eq!(reason, Some(ReasonCode::TopicAliasInvalid));
    }
}
