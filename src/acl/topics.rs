//! Topic patterns of rules: which of them cover a name, and what they have in common with a filter.

use smallvec::SmallVec;

use super::document::Effect;
use super::facts::Facts;
use super::template::{Filled, Template, plainly};
use crate::codec::QoS;
use crate::store::glob::Glob;
use crate::topic::Trie;

/// What is common to two valid, unshared filters: the filter of all names that both match. `None` when there is none.
pub(super) fn meet(one: &str, other: &str) -> Option<String> {
    // A leading wildcard does not match a name that begins with $ `[MQTT-4.7.2-1]`.
    let leads = |filter: &str| filter.starts_with(['+', '#']);
    if leads(one) && other.starts_with('$') || leads(other) && one.starts_with('$') {
        return None;
    }
    let mut met: SmallVec<[&str; 16]> = SmallVec::new();
    let (mut ones, mut others) = (one.split('/'), other.split('/'));
    loop {
        match (ones.next(), others.next()) {
            (None, None) | (None, Some("#")) | (Some("#"), None) => break,
            (Some("#"), Some(level)) => {
                met.push(level);
                met.extend(others);
                break;
            }
            (Some(level), Some("#")) => {
                met.push(level);
                met.extend(ones);
                break;
            }
            (Some("+"), Some(level)) | (Some(level), Some("+")) => met.push(level),
            (Some(level), Some(same)) if level == same => met.push(level),
            _ => return None,
        }
    }
    Some(met.join("/"))
}

/// Whether every name that `filter` matches is matched by `wide`, too. Both are valid and unshared.
pub(super) fn covers(wide: &str, filter: &str) -> bool {
    if wide.starts_with(['+', '#']) && filter.starts_with('$') {
        return false;
    }
    let (mut wides, mut levels) = (wide.split('/'), filter.split('/'));
    loop {
        match (wides.next(), levels.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(level)) if level != "#" => {}
            (Some(wide), Some(level)) if wide == level => {}
            _ => return false,
        }
    }
}

/// What a pattern covers beside its topics.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// The highest QoS that an allowed pattern covers.
    pub(super) max_qos: QoS,
    /// Whether an allowed pattern covers messages that are to be retained.
    pub(super) retain: bool,
    /// Of subscriptions: only shared ones with such a name.
    pub(super) share_names: Option<Vec<Glob>>,
}

/// One pattern of one rule.
#[derive(Debug)]
pub(super) struct TopicRule {
    /// The rule's place.
    pub(super) rule: u32,
    pub(super) effect: Effect,
    pub(super) filter: Template,
    pub(super) bounds: std::sync::Arc<Bounds>,
}

/// The patterns of one action, in the order of their rules.
#[derive(Debug, Default)]
pub(super) struct TopicRules {
    pub(super) all: Vec<TopicRule>,
    /// Places of those without placeholders, by filter.
    fixed: Trie<u32, ()>,
    /// Places of the others.
    templates: Vec<u32>,
}

/// The patterns with placeholders of one client: places and filters, in order.
pub(super) type FilledRules = Box<[(u32, Box<str>)]>;

impl TopicRules {
    /// Adds a pattern behind the others.
    pub(super) fn push(&mut self, rule: TopicRule) {
        let at = self.all.len() as u32;
        match rule.filter.fixed() {
            Some(filter) => {
                self.fixed.insert(filter, at, ());
            }
            None => self.templates.push(at),
        }
        self.all.push(rule);
    }

    /// The filters that a client makes of the patterns with placeholders; `applies` tells which rules it meets.
    pub(super) fn fill(&self, facts: &Facts, applies: impl Fn(u32) -> bool) -> FilledRules {
        let mut filled = Vec::new();
        for at in &self.templates {
            let rule = &self.all[*at as usize];
            if !applies(rule.rule) {
                continue;
            }
            match rule.filter.fill(facts, plainly) {
                Filled::Text(text) => filled.push((*at, text.into())),
                Filled::Unusable(before) if rule.effect == Effect::Deny => {
                    // Everything from the value's level on.
                    let level = before.rfind('/').map_or(0, |slash| slash + 1);
                    filled.push((*at, [&before[..level], "#"].concat().into()));
                }
                Filled::Unusable(_) | Filled::Missing => {}
            }
        }
        filled.into()
    }

    /// The patterns that cover a topic name, of rules that the client meets, in order.
    pub(super) fn covering(
        &self,
        filled: &FilledRules,
        topic: &str,
        applies: impl Fn(u32) -> bool,
    ) -> SmallVec<[u32; 8]> {
        let mut found: SmallVec<[u32; 8]> = SmallVec::new();
        self.fixed.for_each_match(topic, |at, ()| {
            if applies(self.all[*at as usize].rule) {
                found.push(*at);
            }
        });
        let matching = filled
            .iter()
            .filter(|(_, filter)| crate::topic::matches(filter, topic));
        found.extend(matching.map(|(at, _)| *at));
        found.sort_unstable();
        found
    }

    /// Every pattern of rules that the client meets, with its filter, in order.
    pub(super) fn applying<'a>(
        &'a self,
        filled: &'a FilledRules,
        applies: impl Fn(u32) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a TopicRule, &'a str)> {
        let mut filled = filled.iter().peekable();
        self.all.iter().enumerate().filter_map(move |(at, rule)| {
            if let Some(filter) = rule.filter.fixed() {
                return applies(rule.rule).then_some((rule, filter));
            }
            // Those that the client meets were filled.
            let (_, filter) = filled.next_if(|(place, _)| *place as usize == at)?;
            Some((rule, &**filter))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topic::{check_filter, matches};

    #[test]
    fn filters_meet_in_a_filter() {
        for (one, other, met) in [
            ("a/#", "a", Some("a")),
            ("a/#", "a/+/c", Some("a/+/c")),
            ("+/b", "a/+", Some("a/b")),
            ("#", "+/#", Some("+/#")),
            ("a/+", "a", None),
            ("a/b", "a/c", None),
            ("#", "$SYS/#", None),
            ("$SYS/#", "$SYS/broker/+", Some("$SYS/broker/+")),
        ] {
            assert_eq!(meet(one, other).as_deref(), met, "{one} {other}");
            assert_eq!(meet(other, one).as_deref(), met, "{other} {one}");
        }
        assert!(covers("a/#", "a") && covers("#", "a/#") && covers("+/+", "a/+"));
        assert!(!covers("a", "a/#") && !covers("+", "#") && !covers("#", "$SYS"));
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop::sample::select(vec!["a", "b", "+", "", "$s"]);
        (prop::collection::vec(level, 0..4), any::<bool>()).prop_map(|(mut levels, below)| {
            if below || levels.is_empty() {
                levels.push("#");
            }
            levels.join("/")
        })
    }

    fn name() -> impl Strategy<Value = String> {
        let level = prop::sample::select(vec!["a", "b", "", "$s", "x"]);
        prop::collection::vec(level, 1..5).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #[test]
        fn what_two_filters_have_in_common(one in filter(), other in filter(), name in name()) {
            prop_assume!(check_filter(&one).is_ok() && check_filter(&other).is_ok() && !name.is_empty());
            let both = matches(&one, &name) && matches(&other, &name);
            let met = meet(&one, &other);
            prop_assert_eq!(met.is_some_and(|met| matches(&met, &name)), both);
            if covers(&one, &other) && matches(&other, &name) {
                prop_assert!(matches(&one, &name));
            }
        }
    }
}
