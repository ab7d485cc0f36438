//! What the client of a connection may do, and what it did before.
//!
//! Invariant: a judgement is made by the rules as they are when it is made. Each one loads the number of their changes;
//! what was judged at another number is forgotten.
//! Invariant: what is remembered takes at most [`KEPT_BYTES`]: topics beyond that are judged anew each time.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::places::PrincipalPlace;
use crate::acl::{Client, KeyAccess, Publication, PublishRights, Rights};
use crate::codec::{Publish, QoS};
use crate::telemetry::labels::{Action, DropReason};
use crate::telemetry::metrics::Metrics;
use crate::topic::Filter;

/// Bytes of topics that a connection remembers with what the client may publish to them.
const KEPT_BYTES: usize = 16 << 10;

/// What a topic takes besides its name, about.
const ENTRY_BYTES: usize = 48;

/// Topics that the client has published to.
#[derive(Debug, Default)]
struct Known {
    /// The last one: most clients publish to one topic at a time, and need no hash.
    last: Box<str>,
    of_last: PublishRights,
    /// The hash is fast and not seeded: topics that a client makes collide are few, and cost its own messages some
    /// microseconds.
    by_topic: FxHashMap<Box<str>, PublishRights>,
    bytes: usize,
}

/// What the client of a connection may do.
#[derive(Debug)]
pub(super) struct ClientRights {
    client: Arc<Client>,
    /// The number of changes of the rules at which everything here was found out.
    changes: u64,
    rights: Arc<Rights>,
    /// Boxed, because most clients have none where there are no rules.
    known: Option<Box<Known>>,
    /// The client's place among the connections of its principal, if those are bounded. It is free again when the
    /// connection is gone.
    place: Option<PrincipalPlace>,
    /// Messages that the client was sent since the beginning.
    pub(super) sent: u64,
}

impl ClientRights {
    /// Those of a client, now.
    pub(super) fn new(client: Arc<Client>) -> ClientRights {
        ClientRights {
            changes: client.changes(),
            rights: client.rights(),
            client,
            known: None,
            place: None,
            sent: 0,
        }
    }

    /// The client has a place among the connections of its principal.
    pub(super) fn keep(&mut self, place: PrincipalPlace) {
        self.place = Some(place);
    }

    /// The client's rights by the rules as they are.
    #[inline]
    pub(super) fn now(&mut self) -> &Arc<Rights> {
        let changes = self.client.changes();
        if changes != self.changes {
            self.renew(changes);
        }
        &self.rights
    }

    /// Who is judged.
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    #[cold]
    fn renew(&mut self, changes: u64) {
        self.changes = changes;
        self.rights = self.client.rights();
        self.known = None;
    }

    /// Whether the client may publish a message to `topic`.
    #[inline]
    pub(super) fn may_publish(&mut self, topic: &str, publish: &Publish<'_>) -> bool {
        if self.now().are_open() {
            return true;
        }
        let publication = Publication {
            qos: publish.qos,
            retain: publish.retain,
        };
        self.of_topic(topic).allow(publication)
    }

    fn of_topic(&mut self, topic: &str) -> PublishRights {
        let known = self.known.get_or_insert_default();
        if *known.last == *topic {
            return known.of_last;
        }
        let found = known.by_topic.get(topic).copied();
        let rights = found.unwrap_or_else(|| self.rights.publish(topic));
        known.of_last = rights;
        known.last = topic.into();
        if found.is_none() {
            let bytes = topic.len() + ENTRY_BYTES;
            if known.bytes + bytes > KEPT_BYTES {
                known.by_topic = FxHashMap::default();
                known.bytes = 0;
            }
            if bytes <= KEPT_BYTES {
                known.bytes += bytes;
                known.by_topic.insert(topic.into(), rights);
            }
        }
        rights
    }

    /// With which QoS at most a filter is granted; `None` when it is refused, which is counted.
    pub(super) fn subscribe(&mut self, filter: &Filter<'_>, metrics: &Metrics) -> Option<QoS> {
        let granted = self.now().subscribe(filter);
        if granted.is_none() {
            metrics.not_authorized.of(Action::Subscribe).increment();
        }
        granted
    }

    /// Whether the client may do this with a key. What it may not is counted.
    pub(super) fn may_access(&mut self, access: KeyAccess, key: &[u8], metrics: &Metrics) -> bool {
        let may = self.now().may_access(access, key);
        if !may {
            let action = match access {
                KeyAccess::Read => Action::Read,
                KeyAccess::Write => Action::Write,
            };
            metrics.not_authorized.of(action).increment();
        }
        may
    }

    /// Bytes that are kept, about.
    pub(super) fn memory(&self) -> usize {
        self.known.as_ref().map_or(0, |known| known.bytes)
    }
}

/// A message that its client may not publish.
#[cold]
pub(super) fn count_refused_publish(metrics: &Metrics) {
    metrics.not_authorized.of(Action::Publish).increment();
    metrics
        .messages_dropped
        .of(DropReason::NotAuthorized)
        .increment();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{Facts, RuleBook, Rules};
    use crate::codec::PublishProperties;

    fn publish(topic: &str) -> Publish<'_> {
        Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            properties: PublishProperties::EMPTY,
            payload: b"",
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_goes_with_the_rules() {
        let rules = |topics: &str| {
            let text = format!(
                r#"{{"rules": [{{"broker_resources": [{{"method": "publish", "topics": ["{topics}"]}}]}}]}}"#
            );
            Rules::parse(text.as_bytes(), 1).expect("rules")
        };
        let book = Arc::new(RuleBook::default());
        let mut rights = ClientRights::new(Arc::new(Client::new(Facts::default(), &book)));
        assert!(rights.may_publish("a/1", &publish("a/1")));
        assert_eq!(rights.memory(), 0);
        book.set(rules("a/+"));
        for number in 0..2_000 {
            for (topic, may) in [
                (format!("a/{number}"), true),
                (format!("b/{number}"), false),
            ] {
                assert_eq!(rights.may_publish(&topic, &publish(&topic)), may);
                assert!(rights.memory() <= KEPT_BYTES);
            }
        }
        assert!(rights.may_publish("a/1999", &publish("a/1999")), "known");
        book.set(rules("b/+"));
        assert!(!rights.may_publish("a/1999", &publish("a/1999")));
        assert!(rights.may_publish("b/1999", &publish("b/1999")));
    }
}
