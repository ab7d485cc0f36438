//! Compiled rules, shared by all clients of a node.

use super::document::Effect;
use super::facts::Facts;
use super::keys::{KeyRule, TextPattern};
use super::limits::Limits;
use super::principals::Principals;
use super::routes::{Request, RouteRule, RouteVerdict};
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
    /// In the order of their rules.
    pub(super) routes: Vec<RouteRule>,
    pub(super) limits: Vec<(Principals, Limits)>,
    /// The stored rules can't be read.
    pub(super) is_unreadable: bool,
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
            routes: Vec::new(),
            limits: Vec::new(),
            is_unreadable: false,
        }
    }

    /// What holds where the stored rules can't be read: nobody may do anything.
    pub fn closed(version: u64) -> Rules {
        Rules {
            version,
            default: Effect::Deny,
            is_unreadable: true,
            ..Rules::open()
        }
    }

    /// The version of the directory entry that they were made of; 0 when there is none.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether every client may do everything, so that nothing needs to be judged: what rules there are is about HTTP.
    pub fn are_open(&self) -> bool {
        // Those of publications are among those of wills.
        self.default == Effect::Allow
            && self.connects.is_empty()
            && self.wills.all.is_empty()
            && self.subscribes.all.is_empty()
            && self.keys.is_empty()
    }

    /// What they say of a request over HTTP, whose method and path are given as they were sent; `facts` has name,
    /// method and address of who asks. `None`: no rule speaks. `default` is about clients, and says nothing here.
    pub fn route(&self, facts: &Facts, method: &str, path: &str) -> Option<RouteVerdict> {
        if self.is_unreadable {
            return Some(RouteVerdict {
                is_allowed: false,
                rule: None,
            });
        }
        if self.routes.is_empty() {
            return None;
        }
        let request = Request::new(method, path);
        let speaks = |route: &&RouteRule| {
            let rule = &self.rules[route.rule as usize];
            rule.principals.are_met_over_http(facts) && route.covers(&request, facts, rule.effect)
        };
        let found = self.routes.iter().find(speaks)?;
        Some(RouteVerdict {
            is_allowed: self.rules[found.rule as usize].effect == Effect::Allow,
            rule: Some(found.rule),
        })
    }

    /// The limits of a client. Of each limit, the first entry that it meets and that names it decides.
    pub fn limits(&self, facts: &Facts) -> Limits {
        let met = self.limits.iter();
        met.filter(|(principals, _)| principals.are_met_by(facts))
            .fold(Limits::default(), |found, (_, limits)| found.or(*limits))
    }
}
