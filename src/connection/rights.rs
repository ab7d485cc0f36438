//! What the client of a connection may do, and what it did before.
//!
//! Invariant: a judgement is made by the rules as they are when it is made, and by the client's last proof. Each one
//! loads the number of changes of the rules; what was judged at another number is forgotten. Invariant: a connection is
//! judged as a whole ([`ClientRights::take_change`]) after each change, whether its client reads or not. Invariant:
//! what is remembered takes at most [`KEPT_BYTES`]: topics beyond that are judged anew each time.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::denials::Denials;
use super::hub::identity::HubIdentity;
use super::places::PrincipalPlace;
use crate::acl::{Client, Facts, KeyAccess, Publication, PublishRights, Rights};
use crate::auth::Principal;
use crate::codec::{Publish, QoS, Will};
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

/// What the rules have to say of a will.
#[derive(Debug)]
struct KeptWill {
    topic: Box<str>,
    publication: Publication,
}

/// What the client of a connection may do.
#[derive(Debug)]
pub(super) struct ClientRights {
    client: Arc<Client>,
    /// The number of changes of the rules at which everything here was found out.
    changes: u64,
    rights: Arc<Rights>,
    /// The number at which the connection as a whole was judged; none at first, and after a re-authentication that has
    /// changed something.
    judged: Option<u64>,
    will: Option<Box<KeptWill>>,
    /// Boxed, because most clients have none where there are no rules.
    known: Option<Box<Known>>,
    /// The client's place among the connections of its principal, if those are bounded. It is free again when the
    /// connection is gone.
    place: Option<PrincipalPlace>,
    /// The device or the module that the client is, if it is one: it is confined to its own topics.
    hub: Option<Arc<HubIdentity>>,
    denials: Denials,
    /// Messages that the client was sent since the beginning.
    pub(super) sent: u64,
}

impl ClientRights {
    /// Those of a client, now.
    #[cfg(test)]
    pub(super) fn new(client: Arc<Client>) -> ClientRights {
        ClientRights::of(client, None)
    }

    /// Those of a client, now, which may be a device or a module.
    pub(super) fn of(client: Arc<Client>, hub: Option<Arc<HubIdentity>>) -> ClientRights {
        ClientRights {
            hub,
            changes: client.changes(),
            rights: client.rights(),
            client,
            judged: None,
            will: None,
            known: None,
            place: None,
            denials: Denials::default(),
            sent: 0,
        }
    }

    /// The client has a place among the connections of its principal.
    pub(super) fn keep(&mut self, place: PrincipalPlace) {
        self.place = Some(place);
    }

    /// The client's place, for as long as its connection takes to end.
    pub(super) fn take_place(&mut self) -> Option<PrincipalPlace> {
        self.place.take()
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

    /// The number of changes of the rules at which the client is judged now.
    pub(super) fn changes(&mut self) -> u64 {
        self.now();
        self.changes
    }

    /// Whether the connection is to be judged as a whole, once per change: of the rules, or of what its client has
    /// proved.
    #[inline]
    pub(super) fn take_change(&mut self) -> bool {
        let changes = Some(self.client.changes());
        let has_changed = self.judged != changes;
        self.judged = changes;
        has_changed
    }

    /// The client has proved anew who it is. Returns whether it may be judged otherwise than before.
    pub(super) fn identify(&mut self, principal: &Principal) -> bool {
        let facts = Facts {
            name: principal.name.clone(),
            method: principal.method.as_str(),
            groups: principal.groups.clone(),
            attributes: principal.attributes.clone(),
            ..(*self.client.facts()).clone()
        };
        if !self.client.identify(facts) {
            return false;
        }
        self.renew(self.client.changes());
        self.judged = None;
        true
    }

    /// The client has a will.
    pub(super) fn keep_will(&mut self, will: &Will<'_>) {
        self.will = Some(Box::new(KeptWill {
            topic: will.topic.into(),
            publication: Publication {
                qos: will.qos,
                retain: will.retain,
            },
        }));
    }

    /// The topic of the client's will and its QoS, if it has one.
    pub(super) fn will(&self) -> Option<(&str, QoS)> {
        let will = self.will.as_deref()?;
        Some((&will.topic, will.publication.qos))
    }

    /// Whether the client may have its will, if it has one.
    pub(super) fn may_have_will(&mut self) -> bool {
        let rights = self.now().clone();
        let may = |will: &KeptWill| rights.will(&will.topic).allow(will.publication);
        self.will.as_deref().is_none_or(may)
    }

    /// How many retained messages the client may have, if it is a device or a module.
    pub(super) fn max_retained(&self) -> Option<u32> {
        Some(self.hub()?.max_retained)
    }

    /// The device or the module that the client is, if it is one.
    pub(super) fn hub(&self) -> Option<&Arc<HubIdentity>> {
        self.hub.as_ref()
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
            self.refuse_subscribe(filter, metrics);
        }
        granted
    }

    /// Counts a filter that the client may not subscribe to.
    pub(super) fn refuse_subscribe(&mut self, filter: &Filter<'_>, metrics: &Metrics) {
        self.deny(Action::Subscribe, Some(filter.inner), metrics);
    }

    /// Whether the client may do this with a key. What it may not is counted.
    pub(super) fn may_access(&mut self, access: KeyAccess, key: &[u8], metrics: &Metrics) -> bool {
        let may = self.now().may_access(access, key);
        if !may {
            let action = match access {
                KeyAccess::Read => Action::Read,
                KeyAccess::Write => Action::Write,
            };
            self.deny(action, None, metrics);
        }
        may
    }

    /// Counts that the client did what it may not; `topic` is what it was about, if that was a topic or a filter.
    #[cold]
    pub(super) fn deny(&mut self, action: Action, topic: Option<&str>, metrics: &Metrics) {
        metrics.not_authorized.of(action).increment();
        self.denials.note(&self.client.facts(), action, topic);
    }

    /// Counts a message to a topic that its client may not publish to.
    #[cold]
    pub(super) fn refuse_publish(&mut self, topic: &str, metrics: &Metrics) {
        self.deny(Action::Publish, Some(topic), metrics);
        let dropped = &metrics.messages_dropped;
        dropped.of(DropReason::NotAuthorized).increment();
    }

    /// Bytes that are kept, about.
    pub(super) fn memory(&self) -> usize {
        self.known.as_ref().map_or(0, |known| known.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{RuleBook, Rules};
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
