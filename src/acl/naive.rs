//! The rules, read word for word: what the compiled form is compared with.
//!
//! It goes through the document for each question, and knows nothing of tries, bits and places.

use core::net::IpAddr;

use super::document::{
    BrokerMethod, BrokerResource, Document, Effect, HttpMethod, KeyType, PrincipalsText, RuleText,
    StoreMethod,
};
use super::facts::Facts;
use super::rights::{KeyAccess, Publication};
use crate::store::glob::Glob;
use crate::topic::matches;

/// A pattern with the client's values; `None` when it is not about the client, `Err` when a value may not stand there.
fn fill(text: &str, facts: &Facts, escape: bool) -> Result<Option<String>, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("{principal.") {
        filled.push_str(&rest[..at]);
        let end = at + rest[at..].find('}').expect("documents are checked");
        let name = &rest[at + "{principal.".len()..end];
        let value = match name {
            "name" if facts.name.is_empty() => None,
            "name" => Some(facts.name.to_string()),
            "client_id" => Some(facts.client_id.to_string()),
            name => {
                let name = name.trim_start_matches("attributes.");
                facts.attributes.get(name).map(|value| value.to_string())
            }
        };
        let Some(value) = value else {
            return Ok(None);
        };
        let is_bad = value.is_empty() || value.chars().any(|c| "/+#\0".contains(c));
        if is_bad || (filled.is_empty() && value.starts_with('$')) {
            return Err(filled);
        }
        for character in value.chars() {
            match escape && "*?[".contains(character) {
                true => filled.push_str(&format!("[{character}]")),
                false => filled.push(character),
            }
        }
        rest = &rest[end + 1..];
    }
    filled.push_str(rest);
    Ok(Some(filled))
}

fn glob(pattern: &str, text: &str) -> bool {
    let glob = Glob::new(pattern.as_bytes());
    glob.is_ok_and(|glob| glob.matches(text, &mut 0))
}

/// An address as 128 bits: one of IPv4 as IPv6 writes it.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Whether the first bits of both are the same. A network that is wider than IPv4 has no address of IPv4.
fn is_in(network: &str, address: IpAddr) -> bool {
    let (start, length) = network.split_once('/').unwrap_or((network, ""));
    let start: IpAddr = start.parse().expect("documents are checked");
    let length = match (start, length.parse::<u32>()) {
        (_, Err(_)) => 128,
        (IpAddr::V4(_), Ok(length)) => 96 + length,
        (IpAddr::V6(_), Ok(length)) => length,
    };
    let is_ipv4 = address.to_canonical().is_ipv4();
    let common = (bits(start) ^ bits(address)).leading_zeros();
    common >= length && (length >= 96 || !is_ipv4)
}

fn meets(principals: &PrincipalsText, facts: &Facts) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| match list {
        None => true,
        Some(list) => list.iter().any(|known| known == value),
    };
    let groups = match &principals.groups {
        None => true,
        Some(groups) => groups
            .iter()
            .any(|group| facts.groups.iter().any(|own| **own == **group)),
    };
    let client_ids = match &principals.client_ids {
        None => true,
        Some(ids) => ids.iter().any(|id| glob(id, &facts.client_id)),
    };
    let attributes = match &principals.attributes {
        None => true,
        Some(sets) => sets.iter().any(|set| {
            set.iter().all(|(name, value)| {
                facts
                    .attributes
                    .get(&**name)
                    .is_some_and(|own| **own == **value)
            })
        }),
    };
    let networks = match (&principals.networks, facts.address) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(networks), Some(address)) => networks.iter().any(|net| is_in(net, address)),
    };
    has(&principals.names, &facts.name)
        && groups
        && client_ids
        && attributes
        && networks
        && has(&principals.listeners, &facts.listener)
        && has(&principals.methods, facts.method)
}

fn topic_matches(pattern: &str, facts: &Facts, effect: Effect, topic: &str) -> bool {
    match fill(pattern, facts, false) {
        Ok(Some(filter)) => matches(&filter, topic),
        Ok(None) => false,
        Err(before) => {
            let level = before.rfind('/').map_or("", |at| &before[..=at]);
            effect == Effect::Deny && matches(&format!("{level}#"), topic)
        }
    }
}

fn decide(document: &Document, facts: &Facts, speaks: impl Fn(&RuleText) -> bool) -> bool {
    let rule = document
        .rules
        .iter()
        .find(|rule| meets(&rule.principals, facts) && speaks(rule));
    rule.map_or(document.default, |rule| rule.effect) == Effect::Allow
}

fn has_topic(resource: &BrokerResource, facts: &Facts, effect: Effect, topic: &str) -> bool {
    let all = ["#".to_owned(), "$SYS/#".to_owned()];
    let topics = resource.topics.as_deref().unwrap_or(&all);
    topics
        .iter()
        .any(|pattern| topic_matches(pattern, facts, effect, topic))
}

/// Whether a client may connect.
pub(super) fn may_connect(document: &Document, facts: &Facts) -> bool {
    decide(document, facts, |rule| {
        rule.broker_resources.iter().any(|resource| {
            let ids = resource.client_ids.as_deref();
            let matches = |id: &String| match fill(id, facts, true) {
                Ok(Some(id)) => glob(&id, &facts.client_id),
                Ok(None) => false,
                Err(_) => rule.effect == Effect::Deny,
            };
            resource.method == BrokerMethod::Connect
                && ids.is_none_or(|ids| ids.iter().any(matches))
        })
    })
}

/// Whether it may publish a message, or have it as its will.
pub(super) fn may_publish(
    document: &Document,
    facts: &Facts,
    topic: &str,
    publication: Publication,
    is_will: bool,
) -> bool {
    decide(document, facts, |rule| {
        rule.broker_resources.iter().any(|resource| {
            let is_about = resource.method == BrokerMethod::Publish
                || is_will && resource.method == BrokerMethod::Will;
            let is_within = publication.qos as u8 <= resource.max_qos.unwrap_or(2)
                && (!publication.retain || resource.retain.unwrap_or(true));
            is_about && is_within && has_topic(resource, facts, rule.effect, topic)
        })
    })
}

/// Whether it may get the messages of a topic, as a member of a group with this share name if there is one. The answers
/// of the state store are left out.
pub(super) fn may_receive(
    document: &Document,
    facts: &Facts,
    topic: &str,
    share: Option<&str>,
) -> bool {
    decide(document, facts, |rule| {
        rule.broker_resources.iter().any(|resource| {
            let is_about = match (&resource.share_names, share) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(names), Some(share)) => names.iter().any(|name| glob(name, share)),
            };
            let is_about = is_about && resource.method == BrokerMethod::Subscribe;
            is_about && has_topic(resource, facts, rule.effect, topic)
        })
    })
}

/// Whether it may do this with a key.
pub(super) fn may_access(document: &Document, facts: &Facts, access: KeyAccess, key: &str) -> bool {
    decide(document, facts, |rule| {
        rule.state_store_resources.iter().any(|resource| {
            let is_about = match access {
                KeyAccess::Read => resource.method != StoreMethod::Write,
                KeyAccess::Write => resource.method != StoreMethod::Read,
            };
            let is_glob = resource.key_type == KeyType::Pattern;
            let covers = |pattern: &String| match fill(pattern, facts, is_glob) {
                Ok(None) => false,
                Err(_) => rule.effect == Effect::Deny,
                Ok(Some(pattern)) => match resource.key_type {
                    KeyType::Pattern => glob(&pattern, key),
                    KeyType::Prefix => key.starts_with(&pattern),
                    KeyType::String | KeyType::Binary => key == pattern,
                },
            };
            is_about && resource.keys.iter().any(covers)
        })
    })
}

/// A path, each part of it decoded once; `None` where a part is no text or has a `/` of its own.
fn decoded(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        let mut bytes = Vec::new();
        let mut rest = part.as_bytes();
        while let Some((first, after)) = rest.split_first() {
            let digits = after.get(..2).filter(|digits| {
                *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit) && !digits.is_empty()
            });
            let digits = digits.map(|digits| String::from_utf8_lossy(digits).into_owned());
            match digits.and_then(|digits| u8::from_str_radix(&digits, 16).ok()) {
                Some(byte) => {
                    bytes.push(byte);
                    rest = &after[2..];
                }
                None => {
                    bytes.push(*first);
                    rest = after;
                }
            }
        }
        let part = String::from_utf8(bytes).ok()?;
        if part.contains('/') {
            return None;
        }
        parts.push(part);
    }
    Some(parts.join("/"))
}

/// What is said of a request over HTTP; `None`: nothing.
pub(super) fn route(document: &Document, facts: &Facts, method: &str, path: &str) -> Option<bool> {
    let word = |method: &HttpMethod| match method {
        HttpMethod::Get => vec!["GET", "HEAD"],
        HttpMethod::Post => vec!["POST"],
        HttpMethod::Put => vec!["PUT"],
        HttpMethod::Delete => vec!["DELETE"],
    };
    let is_known = ["GET", "HEAD", "POST", "PUT", "DELETE"].contains(&method);
    let rule = document.rules.iter().find(|rule| {
        let is_denial = rule.effect == Effect::Deny;
        let principals = &rule.principals;
        let is_for_clients = principals.groups.is_some()
            || principals.client_ids.is_some()
            || principals.attributes.is_some()
            || principals.listeners.is_some();
        let covers = |pattern: &String| match (decoded(path), fill(pattern, facts, true)) {
            (_, Ok(None)) => false,
            (None, _) | (_, Err(_)) => is_denial,
            (Some(path), Ok(Some(pattern))) => glob(&pattern, &path),
        };
        let speaks = rule.http_resources.iter().any(|resource| {
            let has_method = resource
                .methods
                .as_ref()
                .is_none_or(|methods| match is_known {
                    true => methods.iter().any(|own| word(own).contains(&method)),
                    false => is_denial,
                });
            let has_path = resource
                .paths
                .as_ref()
                .is_none_or(|paths| paths.iter().any(covers));
            has_method && has_path
        });
        !is_for_clients && meets(principals, facts) && speaks
    });
    rule.map(|rule| rule.effect == Effect::Allow)
}
