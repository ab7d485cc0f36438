//! The text of the rules, as an operator writes it: JSON.
//!
//! Unknown fields are errors: a misspelt one would leave a rule wider than it was meant to be. Fields have the names of
//! Azure IoT Operations beside their own, so its rules can be taken over as they are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits::Limits;

/// Bytes of a document: it travels in one log entry, and every node keeps it.
pub(super) const MAX_BYTES: usize = 512 << 10;

/// Rules of a document: each client has a bit for each of them.
pub(super) const MAX_RULES: usize = 1024;

/// Patterns of a document, over all rules and resources: a SUBSCRIBE compares each of its filters with all of them.
pub(super) const MAX_PATTERNS: usize = 8192;

/// Bytes of one pattern or name.
pub(super) const MAX_PATTERN_BYTES: usize = 1024;

/// Entries of the section of limits.
pub(super) const MAX_LIMITS: usize = 256;

/// What a rule says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It may be done.
    #[default]
    Allow,
    /// It may not be done.
    Deny,
}

fn denied() -> Effect {
    Effect::Deny
}

fn is_allow(effect: &Effect) -> bool {
    *effect == Effect::Allow
}

/// All rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What holds where no rule speaks.
    #[serde(default = "denied")]
    pub default: Effect,
    /// In order: the first one that speaks decides.
    #[serde(default)]
    pub rules: Vec<RuleText>,
    /// Limits of principals. Of each limit, the first entry that is met and names it decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitsText>,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleText {
    /// What the rule is for; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it says; absent: allow.
    #[serde(default, skip_serializing_if = "is_allow")]
    pub effect: Effect,
    /// Whom it is about.
    #[serde(default)]
    pub principals: PrincipalsText,
    /// Connecting, publishing and subscribing.
    #[serde(
        default,
        alias = "brokerResources",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub broker_resources: Vec<BrokerResource>,
    /// Keys of the state store.
    #[serde(
        default,
        alias = "stateStoreResources",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub state_store_resources: Vec<StoreResource>,
    /// Routes of the HTTP port.
    #[serde(
        default,
        alias = "httpResources",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub http_resources: Vec<HttpResource>,
}

/// Whom a rule is about: who meets every list that is there. Nothing is there: everybody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrincipalsText {
    /// The principal has one of these names.
    #[serde(alias = "usernames", skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// The principal is in one of these groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// One of these globs matches the client identifier.
    #[serde(alias = "clientIds", skip_serializing_if = "Option::is_none")]
    pub client_ids: Option<Vec<String>>,
    /// The principal has all attributes of one of these sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Vec<BTreeMap<String, String>>>,
    /// The client's address is in one of these networks (`10.0.0.0/8`, or one address).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// The client has come through one of these listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listeners: Option<Vec<String>>,
    /// The principal has proved its name in one of these ways; `anonymous` where nobody has asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<String>>,
}

/// What a client does at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerMethod {
    /// CONNECT, with one of the client identifiers.
    #[serde(alias = "Connect")]
    Connect,
    /// PUBLISH to one of the topics. It is judged for wills, too.
    #[serde(alias = "Publish")]
    Publish,
    /// SUBSCRIBE to one of the topics, and their messages.
    #[serde(alias = "Subscribe")]
    Subscribe,
    /// A will with one of the topics, and nothing else.
    #[serde(alias = "Will")]
    Will,
}

/// A resource of the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerResource {
    /// What is done.
    pub method: BrokerMethod,
    /// Of connecting: globs of client identifiers. Absent: any.
    #[serde(default, alias = "clientIds", skip_serializing_if = "Option::is_none")]
    pub client_ids: Option<Vec<String>>,
    /// Of the others: topic filters, with placeholders. Absent: `#` and `$SYS/#`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topics: Option<Vec<String>>,
    /// Of an allowed publication or subscription: the highest QoS. Absent: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_qos: Option<u8>,
    /// Of an allowed publication: whether the message may be retained. Absent: it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<bool>,
    /// Of a subscription: only shared ones, whose share name one of these globs matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_names: Option<Vec<String>>,
}

impl BrokerResource {
    /// A method over topics, without limits.
    pub(super) fn of(method: BrokerMethod, topics: Vec<String>) -> BrokerResource {
        BrokerResource {
            method,
            topics: Some(topics),
            client_ids: None,
            max_qos: None,
            retain: None,
            share_names: None,
        }
    }
}

/// What a client does with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreMethod {
    /// GET, KEYNOTIFY, and being listed by SCAN.
    #[serde(alias = "Read")]
    Read,
    /// SET, DEL and VDEL.
    #[serde(alias = "Write")]
    Write,
    /// Both.
    #[serde(alias = "ReadWrite")]
    ReadWrite,
}

/// How keys are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyType {
    /// Globs, as SCAN takes them.
    #[default]
    #[serde(alias = "Pattern")]
    Pattern,
    /// Exactly these keys.
    #[serde(alias = "String")]
    String,
    /// Every key that begins so.
    #[serde(alias = "Prefix")]
    Prefix,
    /// Exactly these keys, in base64.
    #[serde(alias = "Binary")]
    Binary,
}

/// A resource of the state store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreResource {
    /// What is done.
    pub method: StoreMethod,
    /// How `keys` are written.
    #[serde(default, alias = "keyType")]
    pub key_type: KeyType,
    /// Which keys, with placeholders unless they are in base64.
    pub keys: Vec<String>,
}

/// What is asked over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// GET, and HEAD, which the same routes answer.
    #[serde(alias = "get")]
    Get,
    /// POST.
    #[serde(alias = "post")]
    Post,
    /// PUT.
    #[serde(alias = "put")]
    Put,
    /// DELETE.
    #[serde(alias = "delete")]
    Delete,
}

/// Routes of the HTTP port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpResource {
    /// What is asked. Absent: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub methods: Option<Vec<HttpMethod>>,
    /// Globs of paths, with placeholders. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
}

/// Limits of principals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsText {
    /// Whose they are.
    #[serde(default)]
    pub principals: PrincipalsText,
    /// What they are.
    pub limits: Limits,
}
