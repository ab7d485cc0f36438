//! What is wrong with a text that is no rules.

use super::document::{MAX_BYTES, MAX_PATTERN_BYTES};
use super::template::TemplateError;
use crate::auth::Method;
use crate::topic::FilterError;

/// How a name may be proved, by a client or over HTTP.
pub(super) const METHODS: [&str; 7] = [
    Method::Anonymous.as_str(),
    Method::Password.as_str(),
    Method::Scram.as_str(),
    Method::Jwt.as_str(),
    Method::Certificate.as_str(),
    Method::Http.as_str(),
    Method::Token.as_str(),
];

/// How the name of who asks over HTTP may be proved.
pub(super) const HTTP_METHODS: [&str; 3] = [
    Method::Token.as_str(),
    Method::Certificate.as_str(),
    Method::Anonymous.as_str(),
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
    /// Who asks over HTTP has no such thing.
    #[error("nobody who asks over HTTP has that: the rule's http_resources would be about nobody")]
    NotOverHttp,
    /// Who asks over HTTP is known otherwise.
    #[error(
        "nobody who asks over HTTP is known by that: http_resources go with {}",
        HTTP_METHODS.join(", ")
    )]
    NotAnHttpMethod,
    /// No client of a listener is known so.
    #[error(
        "no client of a listener has a token of the HTTP port: it goes with http_resources alone"
    )]
    NotAClientMethod,
    /// No route that is judged has such a path.
    #[error("no path of a route that is judged: those begin with /v1/")]
    Path,
    /// Who asks over HTTP has no client identifier and no attributes.
    #[error("over HTTP there is no placeholder but {{principal.name}}")]
    NamePlaceholder,
    /// A rule has nothing that it is about.
    #[error("the rule names no resource")]
    NoResource,
}

pub(super) fn wrong(at: &str, problem: impl Into<Problem>) -> RulesError {
    RulesError::Wrong {
        at: at.to_owned(),
        problem: problem.into(),
    }
}
