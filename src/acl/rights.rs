//! What one client may do: the rules that it meets, with its values in their placeholders.

use std::sync::Arc;

use super::document::Effect;
use super::facts::Facts;
use super::keys::{KeyMatch, KeyPattern};
use super::rules::Rules;
use super::topics::{Bounds, FilledRules, TopicRules, covers, meet};
use crate::codec::QoS;
use crate::store::topics::is_response_topic_of;
use crate::topic::Filter;

/// What is done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    /// GET, KEYNOTIFY, a notification, a place on a page of SCAN.
    Read,
    /// SET, DEL, VDEL.
    Write,
}

/// A message that a client wants to publish, its topic left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its QoS.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
}

impl Publication {
    /// Every kind of message.
    const ALL: [Publication; 6] = {
        const fn of(qos: QoS, retain: bool) -> Publication {
            Publication { qos, retain }
        }
        [
            of(QoS::AtMostOnce, false),
            of(QoS::AtLeastOnce, false),
            of(QoS::ExactlyOnce, false),
            of(QoS::AtMostOnce, true),
            of(QoS::AtLeastOnce, true),
            of(QoS::ExactlyOnce, true),
        ]
    };

    /// Whether an allowed pattern with these bounds is about it.
    fn is_within(self, bounds: &Bounds) -> bool {
        self.qos <= bounds.max_qos && (bounds.retain || !self.retain)
    }

    fn bit(self) -> u8 {
        1 << (self.qos as u8 + 3 * u8::from(self.retain))
    }
}

/// Which messages a client may publish to one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishRights(u8);

impl PublishRights {
    /// All of them.
    pub const ALL: PublishRights = PublishRights(0x3f);

    /// Whether this message is one of them.
    #[inline]
    pub fn allow(self, publication: Publication) -> bool {
        self.0 & publication.bit() != 0
    }
}

/// By which subscription a message comes to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share<'a> {
    /// One of its own.
    None,
    /// As a member of a group with this share name.
    Of(&'a str),
    /// As a member of a group that it might join; whose name is not known any more.
    Some,
}

/// What one client may do.
#[derive(Debug)]
pub struct Rights {
    rules: Arc<Rules>,
    /// A bit for each rule: whether the client meets its principals.
    met: Box<[u64]>,
    may_connect: bool,
    /// The place of the rule that says so.
    connect_rule: Option<u32>,
    publishes: FilledRules,
    wills: FilledRules,
    subscribes: FilledRules,
    /// What it makes of patterns with placeholders: places and patterns, in order.
    keys: Box<[(u32, KeyMatch)]>,
    uses_store: bool,
    /// Some rule that lets it subscribe has a bound for the QoS.
    bounds_subscriptions: bool,
    client_id: Arc<str>,
}

impl Rights {
    /// Finds out which rules a client meets.
    pub fn new(rules: &Arc<Rules>, facts: &Facts) -> Rights {
        let mut met = vec![0; rules.rules.len().div_ceil(64)];
        for (place, rule) in rules.rules.iter().enumerate() {
            if rule.principals.are_met_by(facts) {
                met[place / 64] |= 1 << (place % 64);
            }
        }
        let applies = |rule: u32| has_bit(&met, rule);
        let effect = |rule: u32| rules.rules[rule as usize].effect;
        let keys = rules.keys.iter().enumerate().filter_map(|(at, key)| {
            let KeyPattern::Template(kind, template) = &key.pattern else {
                return None;
            };
            let applied = applies(key.rule)
                .then_some(())
                .and_then(|()| KeyPattern::fill(*kind, template, facts, effect(key.rule)));
            applied.map(|pattern| (at as u32, pattern))
        });
        let allows_keys = rules
            .keys
            .iter()
            .any(|key| applies(key.rule) && effect(key.rule) == Effect::Allow);
        let connect = rules.connects.iter().find(|connect| {
            let matches = |id: &super::keys::TextPattern| {
                id.matches(&facts.client_id, facts, effect(connect.rule))
            };
            let ids = connect.client_ids.as_deref();
            applies(connect.rule) && ids.is_none_or(|ids| ids.iter().any(matches))
        });
        let decided = connect.map_or(rules.default, |connect| effect(connect.rule));
        Rights {
            may_connect: decided == Effect::Allow,
            connect_rule: connect.map(|connect| connect.rule),
            publishes: rules.publishes.fill(facts, applies),
            wills: rules.wills.fill(facts, applies),
            subscribes: rules.subscribes.fill(facts, applies),
            keys: keys.collect(),
            bounds_subscriptions: rules
                .subscribes
                .all
                .iter()
                .any(|rule| rule.bounds.max_qos < QoS::ExactlyOnce && applies(rule.rule)),
            uses_store: allows_keys || rules.default == Effect::Allow,
            client_id: facts.client_id.clone(),
            rules: rules.clone(),
            met: met.into(),
        }
    }

    fn applies(&self) -> impl Fn(u32) -> bool + '_ {
        |rule| has_bit(&self.met, rule)
    }

    /// Whether the client may do everything.
    pub fn are_open(&self) -> bool {
        self.rules.are_open()
    }

    /// Whether it may connect with its client identifier.
    pub fn may_connect(&self) -> bool {
        self.may_connect
    }

    /// The place of the rule that decides that.
    pub fn rule_of_connect(&self) -> Option<u32> {
        self.connect_rule
    }

    /// Which messages it may publish to a topic.
    pub fn publish(&self, topic: &str) -> PublishRights {
        self.of_publications(&self.rules.publishes, &self.publishes, topic)
    }

    /// Which wills it may have with a topic.
    pub fn will(&self, topic: &str) -> PublishRights {
        self.of_publications(&self.rules.wills, &self.wills, topic)
    }

    /// The place of the rule that decides whether it may publish a message to a topic.
    pub fn rule_of_publish(&self, topic: &str, publication: Publication) -> Option<u32> {
        self.rule_of_publication(&self.rules.publishes, &self.publishes, topic, publication)
    }

    /// The place of the rule that decides whether it may have a will with a topic.
    pub fn rule_of_will(&self, topic: &str, publication: Publication) -> Option<u32> {
        self.rule_of_publication(&self.rules.wills, &self.wills, topic, publication)
    }

    fn rule_of_publication(
        &self,
        rules: &TopicRules,
        filled: &FilledRules,
        topic: &str,
        publication: Publication,
    ) -> Option<u32> {
        let covering = rules.covering(filled, topic, self.applies());
        let mut rules = covering.into_iter().map(|at| &rules.all[at as usize]);
        rules
            .find(|rule| rule.effect == Effect::Deny || publication.is_within(&rule.bounds))
            .map(|rule| rule.rule)
    }

    fn of_publications(
        &self,
        rules: &TopicRules,
        filled: &FilledRules,
        topic: &str,
    ) -> PublishRights {
        if self.are_open() {
            return PublishRights::ALL;
        }
        let (mut allowed, mut undecided) = (0, PublishRights::ALL.0);
        for at in rules.covering(filled, topic, self.applies()) {
            let rule = &rules.all[at as usize];
            if rule.effect == Effect::Deny {
                return PublishRights(allowed);
            }
            for publication in Publication::ALL {
                if publication.is_within(&rule.bounds) {
                    allowed |= undecided & publication.bit();
                    undecided &= !publication.bit();
                }
            }
            if undecided == 0 {
                break;
            }
        }
        match self.rules.default {
            Effect::Allow => PublishRights(allowed | undecided),
            Effect::Deny => PublishRights(allowed),
        }
    }

    /// Whether it may get the messages of a topic, by a subscription of this kind.
    pub fn may_receive(&self, topic: &str, share: Share<'_>) -> bool {
        if self.are_open() {
            return true;
        }
        match self.rule_of_receive(topic, share) {
            Some(rule) => self.rules.rules[rule as usize].effect == Effect::Allow,
            None => self.rules.default == Effect::Allow || self.gets_answers_at(topic),
        }
    }

    /// The place of the rule that decides whether it may get the messages of a topic.
    pub fn rule_of_receive(&self, topic: &str, share: Share<'_>) -> Option<u32> {
        let subscribes = &self.rules.subscribes;
        let covering = subscribes.covering(&self.subscribes, topic, self.applies());
        let mut rules = covering.into_iter().map(|at| &subscribes.all[at as usize]);
        let speaks = rules.find(|rule| match (rule.bounds.share_names.as_deref(), share) {
            (None, _) => true,
            (Some(_), Share::None) => false,
            (Some(names), Share::Of(name)) => super::keys::any_glob_matches(names, name),
            (Some(_), Share::Some) => rule.effect == Effect::Allow,
        });
        speaks.map(|rule| rule.rule)
    }

    /// The answers of the state store come to a client where the client libraries of Azure IoT Operations expect them;
    /// who may use the store gets them without a rule for it.
    fn gets_answers_at(&self, topic: &str) -> bool {
        self.uses_store && is_response_topic_of(&self.client_id, topic)
    }

    /// With which QoS at most a valid filter is granted; `None` when it is refused.
    ///
    /// A filter is granted if the client may get some messages that it matches; the others are not delivered. A shared
    /// one is granted only if it may get all of them: a message that its group has given to it must not be lost.
    pub fn subscribe(&self, filter: &Filter<'_>) -> Option<QoS> {
        if self.are_open() {
            return Some(QoS::ExactlyOnce);
        }
        self.judge_subscription(filter).0
    }

    /// The place of the rule that decides that: of the one with the lowest QoS if several let it get some messages, of
    /// the first denial if none does.
    pub fn rule_of_subscribe(&self, filter: &Filter<'_>) -> Option<u32> {
        self.judge_subscription(filter).1
    }

    fn judge_subscription(&self, filter: &Filter<'_>) -> (Option<QoS>, Option<u32>) {
        match filter.share {
            None => self.subscribe_to_some(filter.inner),
            Some(name) => self.subscribe_to_all(filter.inner, name),
        }
    }

    /// Whether it may be granted a filter with a lower QoS than it asks for.
    pub fn bounds_subscriptions(&self) -> bool {
        self.bounds_subscriptions
    }

    fn subscribe_to_some(&self, filter: &str) -> (Option<QoS>, Option<u32>) {
        let mut denied: Vec<&str> = Vec::new();
        let mut denied_by = None;
        let mut granted: Option<(QoS, Option<u32>)> = None;
        let is_left = |part: &str, denied: &[&str]| !denied.iter().any(|wide| covers(wide, part));
        for (rule, pattern) in self
            .rules
            .subscribes
            .applying(&self.subscribes, self.applies())
        {
            if rule.bounds.share_names.is_some() {
                continue;
            }
            let Some(common) = meet(pattern, filter) else {
                continue;
            };
            match rule.effect {
                Effect::Deny => {
                    denied.push(pattern);
                    denied_by = denied_by.or(Some(rule.rule));
                }
                Effect::Allow if is_left(&common, &denied) => {
                    let qos = rule.bounds.max_qos;
                    if granted.is_none_or(|(lowest, _)| qos < lowest) {
                        granted = Some((qos, Some(rule.rule)));
                    }
                }
                Effect::Allow => {}
            }
        }
        let is_default = self.rules.default == Effect::Allow || self.gets_answers_at(filter);
        if granted.is_none() && is_default && is_left(filter, &denied) {
            granted = Some((QoS::ExactlyOnce, None));
        }
        match granted {
            Some((qos, rule)) => (Some(qos), rule),
            None => (None, denied_by),
        }
    }

    fn subscribe_to_all(&self, filter: &str, share_name: &str) -> (Option<QoS>, Option<u32>) {
        for (rule, pattern) in self
            .rules
            .subscribes
            .applying(&self.subscribes, self.applies())
        {
            let names = rule.bounds.share_names.as_deref();
            if names.is_some_and(|names| !super::keys::any_glob_matches(names, share_name)) {
                continue;
            }
            match rule.effect {
                // It may be about one topic of many.
                Effect::Deny if meet(pattern, filter).is_some() => return (None, Some(rule.rule)),
                Effect::Allow if covers(pattern, filter) => {
                    return (Some(rule.bounds.max_qos), Some(rule.rule));
                }
                _ => {}
            }
        }
        let is_default = self.rules.default == Effect::Allow || self.gets_answers_at(filter);
        (is_default.then_some(QoS::ExactlyOnce), None)
    }

    /// Whether it may do this with a key.
    pub fn may_access(&self, access: KeyAccess, key: &[u8]) -> bool {
        self.are_open() || self.judge(access, key, &mut 0)
    }

    /// Whether it may read a key; adds what is compared for that to `steps`.
    pub fn may_list(&self, key: &[u8], steps: &mut u64) -> bool {
        self.are_open() || self.judge(KeyAccess::Read, key, steps)
    }

    /// The place of the rule that decides whether it may do this with a key.
    pub fn rule_of_access(&self, access: KeyAccess, key: &[u8]) -> Option<u32> {
        self.find_key_rule(access, key, &mut 0)
    }

    fn judge(&self, access: KeyAccess, key: &[u8], steps: &mut u64) -> bool {
        let rule = self.find_key_rule(access, key, steps);
        let effect = rule.map_or(self.rules.default, |rule| {
            self.rules.rules[rule as usize].effect
        });
        effect == Effect::Allow
    }

    fn find_key_rule(&self, access: KeyAccess, key: &[u8], steps: &mut u64) -> Option<u32> {
        let is_about = |at: usize| match access {
            KeyAccess::Read => self.rules.keys[at].is_about_reads(),
            KeyAccess::Write => self.rules.keys[at].is_about_writes(),
        };
        let mut covers = |pattern: &KeyMatch| {
            *steps = steps.saturating_add(1);
            pattern.covers(key, steps)
        };
        let fixed = self.rules.keys.iter().enumerate().find(|(at, rule)| {
            let KeyPattern::Fixed(pattern) = &rule.pattern else {
                return false;
            };
            is_about(*at) && has_bit(&self.met, rule.rule) && covers(pattern)
        });
        let filled = self.keys.iter();
        let mut filled = filled.filter(|(at, _)| is_about(*at as usize));
        let filled = filled.find(|(_, pattern)| covers(pattern));
        let first = fixed
            .map(|(at, _)| at)
            .into_iter()
            .chain(filled.map(|(at, _)| *at as usize))
            .min();
        first.map(|at| self.rules.keys[at].rule)
    }

    /// Whether there are keys that it may read, as far as the rules tell.
    pub fn may_read_some(&self) -> bool {
        let mut keys = self.rules.keys.iter();
        self.rules.default == Effect::Allow
            || keys.any(|key| {
                let effect = self.rules.rules[key.rule as usize].effect;
                key.is_about_reads() && effect == Effect::Allow && has_bit(&self.met, key.rule)
            })
    }
}

fn has_bit(bits: &[u64], place: u32) -> bool {
    let word = bits.get(place as usize / 64).copied().unwrap_or(0);
    word >> (place % 64) & 1 != 0
}
