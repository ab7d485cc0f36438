//! Whom a rule is about.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::facts::Facts;
use super::keys::any_glob_matches;
use crate::store::glob::Glob;

/// Whom a rule is about: who meets every list that is there.
#[derive(Clone, Debug, Default)]
pub(super) struct Principals {
    pub(super) names: Option<Vec<String>>,
    pub(super) groups: Option<Vec<String>>,
    pub(super) client_ids: Option<Vec<Glob>>,
    pub(super) attributes: Option<Vec<BTreeMap<String, String>>>,
    pub(super) networks: Option<Vec<IpNet>>,
    pub(super) listeners: Option<Vec<String>>,
    pub(super) methods: Option<Vec<String>>,
}

impl Principals {
    /// Whether somebody who asks over HTTP meets them: what only clients of listeners have is met by nobody there.
    pub(super) fn are_met_over_http(&self, facts: &Facts) -> bool {
        let are_for_clients = self.groups.is_some()
            || self.client_ids.is_some()
            || self.attributes.is_some()
            || self.listeners.is_some();
        !are_for_clients && self.are_met_by(facts)
    }

    /// Whether a client meets them.
    pub(super) fn are_met_by(&self, facts: &Facts) -> bool {
        let Principals {
            names,
            groups,
            client_ids,
            attributes,
            networks,
            listeners,
            methods,
        } = self;
        let has = |list: &[String], value: &str| list.iter().any(|known| known == value);
        let has_all = |wanted: &BTreeMap<String, String>| {
            wanted.iter().all(|(name, value)| {
                let known = facts.attributes.get(name.as_str());
                known.is_some_and(|known| **known == **value)
            })
        };
        let is_in = |networks: &[IpNet]| {
            let address = facts.address.map(|address| address.to_canonical());
            address.is_some_and(|address| networks.iter().any(|net| net.contains(&address)))
        };
        meets(names, |names| has(names, &facts.name))
            && meets(groups, |groups| {
                facts.groups.iter().any(|group| has(groups, group))
            })
            && meets(client_ids, |globs| {
                any_glob_matches(globs, &facts.client_id)
            })
            && meets(attributes, |sets| sets.iter().any(has_all))
            && meets(networks, |networks| is_in(networks))
            && meets(listeners, |listeners| has(listeners, &facts.listener))
            && meets(methods, |methods| has(methods, facts.method))
    }
}

fn meets<T>(list: &Option<Vec<T>>, judge: impl FnOnce(&[T]) -> bool) -> bool {
    list.as_deref().is_none_or(judge)
}
