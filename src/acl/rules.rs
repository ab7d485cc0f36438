//! Compiled rules, shared by all clients of a node.

use super::document::Effect;
use super::facts::Facts;
use super::keys::{KeyRule, TextPattern};
use super::limits::Limits;
use super::principals::Principals;
use super::topics::TopicRules;

/// One rule without its resources.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) effect: Effect,
    pub(super) principals: Principals,
}

/// Who may connect, with which client identifiers.
#[derive(Debug)]
pub(super) struct ConnectRule {
    /// The rule's place.
    pub(super) rule: u32,
    /// Absent: with any.
    pub(super) client_ids: Option<Vec<TextPattern>>,
}

/// Compiled rules.
#[derive(Debug)]
pub struct Rules {
    pub(super) version: u64,
    pub(super) default: Effect,
    pub(super) rules: Vec<Rule>,
    pub(super) connects: Vec<ConnectRule>,
    pub(super) publishes: TopicRules,
    /// Those of publications among them.
    pub(super) wills: TopicRules,
    pub(super) subscribes: TopicRules,
    pub(super) keys: Vec<KeyRule>,
    pub(super) limits: Vec<(Principals, Limits)>,
}

impl Rules {
    /// What holds where an operator has written no rules: everybody may do everything.
    pub fn open() -> Rules {
        Rules {
            version: 0,
            default: Effect::Allow,
            rules: Vec::new(),
            connects: Vec::new(),
            publishes: TopicRules::default(),
            wills: TopicRules::default(),
            subscribes: TopicRules::default(),
            keys: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// What holds where the stored rules can't be read: nobody may do anything.
    pub fn closed(version: u64) -> Rules {
        Rules {
            version,
            default: Effect::Deny,
            ..Rules::open()
        }
    }

    /// The version of the directory entry that they were made of; 0 when there is none.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether everybody may do everything, so that nothing needs to be judged.
    pub fn are_open(&self) -> bool {
        self.default == Effect::Allow && self.rules.is_empty()
    }

    /// The limits of a client. Of each limit, the first entry that it meets and that names it decides.
    pub fn limits(&self, facts: &Facts) -> Limits {
        let met = self.limits.iter();
        met.filter(|(principals, _)| principals.are_met_by(facts))
            .fold(Limits::default(), |found, (_, limits)| found.or(*limits))
    }
}
