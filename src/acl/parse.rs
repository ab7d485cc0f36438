//! From the text of rules to [`Rules`]: every pattern is checked, and every error says where it is.

use std::str::FromStr as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::{IpNet, Ipv4Net};

use super::document::{
    BrokerMethod, BrokerResource, Document, Effect, HttpResource, KeyType, LimitsText, MAX_BYTES,
    MAX_LIMITS, MAX_PATTERN_BYTES, MAX_PATTERNS, MAX_RULES, PrincipalsText, RuleText,
    StoreResource,
};
use super::keys::{KeyMatch, KeyPattern, KeyRule, KeyTemplate, TextPattern};
use super::principals::Principals;
use super::problem::{HTTP_METHODS, METHODS, Problem, RulesError, wrong};
use super::routes::{ROOT, RouteRule};
use super::rules::{ConnectRule, Rule, Rules};
use super::template::Template;
use super::topics::{Bounds, TopicRule};
use crate::auth::Method;
use crate::base::object::Object;
use crate::codec::QoS;
use crate::store::glob::Glob;
use crate::topic::{FilterError, check_filter};

/// What a resource without topics covers: everything, and the broker's own topics.
const ALL_TOPICS: [&str; 2] = ["#", "$SYS/#"];

/// Bits before an IPv4 address that is written as an IPv6 one.
const MAPPED_BITS: u8 = 96;

impl Document {
    /// Reads a document without looking at its patterns.
    ///
    /// # Errors
    /// It is too long, or not in the form of one.
    pub fn read(text: &[u8]) -> Result<Document, RulesError> {
        if text.len() > MAX_BYTES {
            return Err(RulesError::TooLong(text.len()));
        }
        let Object(document) = serde_json::from_slice(text)?;
        Ok(document)
    }
}

impl Rules {
    /// Reads and compiles a document, whose entry has this version.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn parse(text: &[u8], version: u64) -> Result<Rules, RulesError> {
        Rules::compile(&Document::read(text)?, version)
    }

    /// The same for a document that is in force already: what earlier versions have taken is taken.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn stored(text: &[u8], version: u64) -> Result<Rules, RulesError> {
        Rules::compile_by(&serde_json::from_slice(text)?, version, true)
    }

    /// Compiles a document.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn compile(document: &Document, version: u64) -> Result<Rules, RulesError> {
        Rules::compile_by(document, version, false)
    }

    fn compile_by(document: &Document, version: u64, is_stored: bool) -> Result<Rules, RulesError> {
        bound("rules", document.rules.len(), MAX_RULES)?;
        bound("limits", document.limits.len(), MAX_LIMITS)?;
        let mut compiling = Compiling {
            rules: Rules {
                version,
                default: document.default,
                ..Rules::open()
            },
            patterns: 0,
            is_stored,
        };
        for (place, rule) in document.rules.iter().enumerate() {
            let at = format!("rules[{place}]");
            let principals = compiling.principals(&format!("{at}.principals"), &rule.principals)?;
            compiling.rules.rules.push(Rule {
                effect: rule.effect,
                principals,
            });
            compiling.check_principals(&at, rule)?;
            let rule_of = RuleOf {
                place: place as u32,
                effect: rule.effect,
            };
            for (number, resource) in rule.broker_resources.iter().enumerate() {
                let at = format!("{at}.broker_resources[{number}]");
                compiling.broker_resource(&at, rule_of, resource)?;
            }
            for (number, resource) in rule.state_store_resources.iter().enumerate() {
                let at = format!("{at}.state_store_resources[{number}]");
                compiling.store_resource(&at, rule_of, resource)?;
            }
            for (number, resource) in rule.http_resources.iter().enumerate() {
                let at = format!("{at}.http_resources[{number}]");
                compiling.http_resource(&at, rule_of, resource)?;
            }
        }
        for (place, limits) in document.limits.iter().enumerate() {
            compiling.limits(&format!("limits[{place}]"), limits)?;
        }
        Ok(compiling.rules)
    }
}

fn bound(what: &'static str, count: usize, most: usize) -> Result<(), RulesError> {
    match count > most {
        true => Err(RulesError::TooMany { what, count, most }),
        false => Ok(()),
    }
}

/// The rule whose resources are compiled.
#[derive(Clone, Copy)]
struct RuleOf {
    place: u32,
    effect: Effect,
}

struct Compiling {
    rules: Rules,
    /// Patterns so far.
    patterns: usize,
    /// It was checked when it was written, perhaps by a version that was less strict.
    is_stored: bool,
}

impl Compiling {
    /// Checks a list, compiles each of its members, and counts them.
    fn list<S, T>(
        &mut self,
        at: &str,
        list: &[S],
        compile: impl Fn(&S) -> Result<T, Problem>,
    ) -> Result<Vec<T>, RulesError> {
        if list.is_empty() {
            return Err(wrong(at, Problem::Empty));
        }
        self.patterns += list.len();
        bound("patterns and names", self.patterns, MAX_PATTERNS)?;
        let compiled = list.iter().enumerate();
        compiled
            .map(|(number, text)| {
                compile(text).map_err(|problem| wrong(&format!("{at}[{number}]"), problem))
            })
            .collect()
    }

    fn optional<S, T>(
        &mut self,
        at: &str,
        field: &str,
        list: &Option<Vec<S>>,
        compile: impl Fn(&S) -> Result<T, Problem>,
    ) -> Result<Option<Vec<T>>, RulesError> {
        let Some(list) = list else {
            return Ok(None);
        };
        self.list(&format!("{at}.{field}"), list, compile).map(Some)
    }

    fn principals(&mut self, at: &str, text: &PrincipalsText) -> Result<Principals, RulesError> {
        let name = |name: &String| bounded(name).map(str::to_owned);
        Ok(Principals {
            names: self.optional(at, "names", &text.names, name)?,
            groups: self.optional(at, "groups", &text.groups, name)?,
            client_ids: self.optional(at, "client_ids", &text.client_ids, |text| glob(text))?,
            attributes: self.optional(at, "attributes", &text.attributes, |set| {
                match set.is_empty() {
                    true => Err(Problem::Empty),
                    false => Ok(set.clone()),
                }
            })?,
            networks: self.optional(at, "networks", &text.networks, |text| network(text))?,
            listeners: self.optional(at, "listeners", &text.listeners, name)?,
            methods: match self.is_stored {
                true => self.optional(at, "methods", &text.methods, name)?,
                false => self.optional(at, "methods", &text.methods, |text| method(text))?,
            },
        })
    }

    /// A rule must be about something, and whom it is about must be able to ask for that.
    fn check_principals(&self, at: &str, rule: &RuleText) -> Result<(), RulesError> {
        let of_clients =
            !rule.broker_resources.is_empty() || !rule.state_store_resources.is_empty();
        let of_http = !rule.http_resources.is_empty();
        if !of_clients && !of_http {
            return Err(wrong(at, Problem::NoResource));
        }
        let at = format!("{at}.principals");
        if of_clients {
            self.check_client_methods(&at, &rule.principals)?;
        }
        if !of_http {
            return Ok(());
        }
        let principals = &rule.principals;
        for (field, is_there) in [
            ("groups", principals.groups.is_some()),
            ("client_ids", principals.client_ids.is_some()),
            ("attributes", principals.attributes.is_some()),
            ("listeners", principals.listeners.is_some()),
        ] {
            if is_there {
                return Err(wrong(&format!("{at}.{field}"), Problem::NotOverHttp));
            }
        }
        let is_known = |method: &String| HTTP_METHODS.contains(&method.as_str());
        match &principals.methods {
            Some(methods) if !methods.iter().any(is_known) => {
                Err(wrong(&format!("{at}.methods"), Problem::NotAnHttpMethod))
            }
            _ => Ok(()),
        }
    }

    /// Clients of listeners must be able to meet the methods.
    fn check_client_methods(&self, at: &str, text: &PrincipalsText) -> Result<(), RulesError> {
        let is_token = |method: &String| *method == Method::Token.as_str();
        match &text.methods {
            Some(methods) if !self.is_stored && methods.iter().all(is_token) => {
                Err(wrong(&format!("{at}.methods"), Problem::NotAClientMethod))
            }
            _ => Ok(()),
        }
    }

    fn broker_resource(
        &mut self,
        at: &str,
        rule: RuleOf,
        resource: &BrokerResource,
    ) -> Result<(), RulesError> {
        use BrokerMethod::{Connect, Publish, Subscribe, Will};
        let method = resource.method;
        check_fields(at, rule, resource)?;
        if method == Connect {
            let client_ids = self.optional(at, "client_ids", &resource.client_ids, |text| {
                text_pattern(text)
            })?;
            self.rules.connects.push(ConnectRule {
                rule: rule.place,
                client_ids,
            });
            return Ok(());
        }
        let all = ALL_TOPICS.map(str::to_owned);
        let topics = resource.topics.as_deref().unwrap_or(&all);
        let filters = self.list(&format!("{at}.topics"), topics, |text| topic_pattern(text))?;
        let max_qos = match resource.max_qos {
            None | Some(2) => QoS::ExactlyOnce,
            Some(1) => QoS::AtLeastOnce,
            Some(0) => QoS::AtMostOnce,
            Some(_) => return Err(wrong(&format!("{at}.max_qos"), Problem::Qos)),
        };
        let share_names =
            self.optional(at, "share_names", &resource.share_names, |text| glob(text))?;
        let bounds = Arc::new(Bounds {
            max_qos,
            retain: resource.retain.unwrap_or(true),
            share_names,
        });
        for filter in filters {
            let new = || TopicRule {
                rule: rule.place,
                effect: rule.effect,
                filter: filter.clone(),
                bounds: bounds.clone(),
            };
            match method {
                Publish => {
                    self.rules.publishes.push(new());
                    self.rules.wills.push(new());
                }
                Will => self.rules.wills.push(new()),
                Subscribe => self.rules.subscribes.push(new()),
                Connect => {}
            }
        }
        Ok(())
    }

    fn store_resource(
        &mut self,
        at: &str,
        rule: RuleOf,
        resource: &StoreResource,
    ) -> Result<(), RulesError> {
        let key_type = resource.key_type;
        let compile = |text: &String| key_pattern(key_type, text);
        let patterns = self.list(&format!("{at}.keys"), &resource.keys, compile)?;
        let rules = patterns.into_iter().map(|pattern| KeyRule {
            rule: rule.place,
            method: resource.method,
            pattern,
        });
        self.rules.keys.extend(rules);
        Ok(())
    }

    fn http_resource(
        &mut self,
        at: &str,
        rule: RuleOf,
        resource: &HttpResource,
    ) -> Result<(), RulesError> {
        let methods = self.optional(at, "methods", &resource.methods, |method| Ok(*method))?;
        let paths = self.optional(at, "paths", &resource.paths, |text| path_pattern(text))?;
        self.rules.routes.push(RouteRule {
            rule: rule.place,
            methods,
            paths,
        });
        Ok(())
    }

    fn limits(&mut self, at: &str, text: &LimitsText) -> Result<(), RulesError> {
        let principals_at = format!("{at}.principals");
        let principals = self.principals(&principals_at, &text.principals)?;
        self.check_client_methods(&principals_at, &text.principals)?;
        if text.limits.max_qos.is_some_and(|qos| qos > 2) {
            return Err(wrong(&format!("{at}.limits.max_qos"), Problem::Qos));
        }
        self.rules.limits.push((principals, text.limits));
        Ok(())
    }
}

/// Every field of a resource must mean something for its method.
fn check_fields(at: &str, rule: RuleOf, resource: &BrokerResource) -> Result<(), RulesError> {
    use BrokerMethod::{Connect, Publish, Subscribe, Will};
    let method = resource.method;
    let is = |methods: &[BrokerMethod]| methods.contains(&method);
    for (field, is_there, methods) in [
        ("client_ids", resource.client_ids.is_some(), &[Connect][..]),
        (
            "topics",
            resource.topics.is_some(),
            &[Publish, Subscribe, Will],
        ),
        (
            "max_qos",
            resource.max_qos.is_some(),
            &[Publish, Subscribe, Will],
        ),
        ("retain", resource.retain.is_some(), &[Publish, Will]),
        ("share_names", resource.share_names.is_some(), &[Subscribe]),
    ] {
        let at = format!("{at}.{field}");
        if is_there && !is(methods) {
            return Err(wrong(&at, Problem::NotOfMethod));
        }
        let is_bound = matches!(field, "max_qos" | "retain");
        if is_there && is_bound && rule.effect == Effect::Deny {
            return Err(wrong(&at, Problem::NotOfDenial));
        }
    }
    Ok(())
}

fn bounded(text: &str) -> Result<&str, Problem> {
    match text.len() {
        0 => Err(Problem::Filter(FilterError::Empty)),
        1..=MAX_PATTERN_BYTES => Ok(text),
        _ => Err(Problem::TooLong),
    }
}

fn glob(text: &str) -> Result<Glob, Problem> {
    Glob::new(bounded(text)?.as_bytes()).map_err(|_| Problem::Glob)
}

fn network(text: &str) -> Result<IpNet, Problem> {
    let net = IpNet::from_str(text).or_else(|_| core::net::IpAddr::from_str(text).map(IpNet::from));
    Ok(canonical(net.map_err(|_| Problem::Network)?))
}

/// IPv4 addresses that are written as IPv6 ones are IPv4 addresses: as such they are compared.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(mapped) = net else {
        return net;
    };
    let length = mapped.prefix_len().checked_sub(MAPPED_BITS);
    let network = mapped.addr().to_ipv4_mapped().zip(length);
    let network = network.and_then(|(address, length)| Ipv4Net::new(address, length).ok());
    network.map_or(net, IpNet::V4)
}

/// A word for how a name is proved: a misspelt one would leave a denial without anybody whom it is about.
fn method(text: &str) -> Result<String, Problem> {
    match METHODS.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(Problem::Method),
    }
}

fn topic_pattern(text: &str) -> Result<Template, Problem> {
    let template = Template::parse(bounded(text)?)?;
    if text.starts_with("$share/") {
        return Err(Problem::Shared);
    }
    check_filter(&template.sample())?;
    Ok(template)
}

fn text_pattern(text: &str) -> Result<TextPattern, Problem> {
    let template = Template::parse(bounded(text)?)?;
    match template.fixed() {
        Some(fixed) => Ok(TextPattern::Fixed(glob(fixed)?)),
        None => {
            glob(&template.sample())?;
            Ok(TextPattern::Template(template))
        }
    }
}

/// A glob of paths: one that no route has would leave a denial without anything that it is about.
fn path_pattern(text: &str) -> Result<TextPattern, Problem> {
    let template = Template::parse(bounded(text)?)?;
    if template.asks_for_more_than_a_name() {
        return Err(Problem::NamePlaceholder);
    }
    let sample = glob(&template.sample())?;
    let begins = sample.prefix();
    if !begins.starts_with(ROOT) && (sample.is_literal() || !ROOT.starts_with(begins)) {
        return Err(Problem::Path);
    }
    text_pattern(text)
}

fn key_pattern(key_type: KeyType, text: &str) -> Result<KeyPattern, Problem> {
    let text = bounded(text)?;
    let kind = match key_type {
        KeyType::Binary => {
            let key = STANDARD.decode(text).map_err(|_| Problem::Base64)?;
            return Ok(KeyPattern::Fixed(KeyMatch::Exact(key.into())));
        }
        KeyType::String => KeyTemplate::Exact,
        KeyType::Prefix => KeyTemplate::Prefix,
        KeyType::Pattern => KeyTemplate::Glob,
    };
    let template = Template::parse(text)?;
    if kind == KeyTemplate::Glob {
        glob(&template.sample())?;
    }
    let Some(fixed) = template.fixed() else {
        return Ok(KeyPattern::Template(kind, template));
    };
    let bytes = fixed.as_bytes();
    Ok(KeyPattern::Fixed(match kind {
        KeyTemplate::Exact => KeyMatch::Exact(bytes.into()),
        KeyTemplate::Prefix => KeyMatch::Prefix(bytes.into()),
        KeyTemplate::Glob => KeyMatch::Glob(glob(fixed)?),
    }))
}
