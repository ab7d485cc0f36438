//! From the text of rules to [`Rules`]: every pattern is checked, and every error says where it is.

use std::str::FromStr as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::{IpNet, Ipv4Net};

use super::document::{
    BrokerMethod, BrokerResource, Document, Effect, KeyType, LimitsText, MAX_BYTES, MAX_LIMITS,
    MAX_PATTERN_BYTES, MAX_PATTERNS, MAX_RULES, PrincipalsText, StoreResource,
};
use super::keys::{KeyMatch, KeyPattern, KeyRule, KeyTemplate, TextPattern};
use super::principals::Principals;
use super::rules::{ConnectRule, Rule, Rules};
use super::template::{Template, TemplateError};
use super::topics::{Bounds, TopicRule};
use crate::auth::Method;
use crate::codec::QoS;
use crate::store::glob::Glob;
use crate::topic::{FilterError, check_filter};

/// What a resource without topics covers: everything, and the broker's own topics.
const ALL_TOPICS: [&str; 2] = ["#", "$SYS/#"];

/// Bits before an IPv4 address that is written as an IPv6 one.
const MAPPED_BITS: u8 = 96;

/// How a client's name may be proved.
const METHODS: [&str; 6] = [
    Method::Anonymous.as_str(),
    Method::Password.as_str(),
    Method::Scram.as_str(),
    Method::Jwt.as_str(),
    Method::Certificate.as_str(),
    Method::Http.as_str(),
];

/// Why a text is not taken as rules.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// It is too long.
    #[error("the rules have {0} bytes, and may have {MAX_BYTES}")]
    TooLong(usize),
    /// It is no JSON, or has fields that rules do not have.
    #[error("the rules can't be read: {0}")]
    Json(#[from] serde_json::Error),
    /// There are too many of something.
    #[error("there are {count} {what}, and may be {most}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// Something in it is wrong.
    #[error("{at}: {problem}")]
    Wrong {
        /// Where, as a path of fields: `rules[3].broker_resources[0].topics[2]`.
        at: String,
        /// What.
        problem: Problem,
    },
}

/// What is wrong at one place of the rules.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A list without members would be about nobody, or cover nothing.
    #[error("the list is empty, so nothing meets it; leave it out")]
    Empty,
    /// A pattern or name is too long.
    #[error("longer than {MAX_PATTERN_BYTES} bytes")]
    TooLong,
    /// A topic pattern is no topic filter.
    #[error("{0}")]
    Filter(#[from] FilterError),
    /// A shared filter has its own field.
    #[error("a pattern is what follows the share name; use share_names")]
    Shared,
    /// A placeholder is wrong.
    #[error("{0}")]
    Template(#[from] TemplateError),
    /// A glob is wrong.
    #[error("not a pattern: a class has no end")]
    Glob,
    /// A key is not in base64.
    #[error("not base64")]
    Base64,
    /// A network is wrong.
    #[error("not an address or network, such as 10.0.0.0/8")]
    Network,
    /// There is no such method of authentication.
    #[error("no method of authentication; there are {}", METHODS.join(", "))]
    Method,
    /// There is no such QoS.
    #[error("QoS is 0, 1 or 2")]
    Qos,
    /// A field does not belong to the method.
    #[error("it means nothing for this method")]
    NotOfMethod,
    /// A denial has no bounds.
    #[error("it bounds what is allowed, and means nothing in a rule that denies")]
    NotOfDenial,
    /// A rule has nothing that it is about.
    #[error("the rule names no resource")]
    NoResource,
}

fn wrong(at: &str, problem: impl Into<Problem>) -> RulesError {
    RulesError::Wrong {
        at: at.to_owned(),
        problem: problem.into(),
    }
}

impl Document {
    /// Reads a document without looking at its patterns.
    ///
    /// # Errors
    /// It is too long, or not in the form of one.
    pub fn read(text: &[u8]) -> Result<Document, RulesError> {
        if text.len() > MAX_BYTES {
            return Err(RulesError::TooLong(text.len()));
        }
        Ok(serde_json::from_slice(text)?)
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
        Rules::compile_by(&Document::read(text)?, version, true)
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
            if rule.broker_resources.is_empty() && rule.state_store_resources.is_empty() {
                return Err(wrong(&at, Problem::NoResource));
            }
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

    fn limits(&mut self, at: &str, text: &LimitsText) -> Result<(), RulesError> {
        let principals = self.principals(&format!("{at}.principals"), &text.principals)?;
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
