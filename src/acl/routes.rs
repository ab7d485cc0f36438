//! Routes of the HTTP port, and which of them a rule is about.
//!
//! Invariant: a path is judged as its route's handler reads it, every part decoded once. One that no handler takes, see
//! [`read`], is covered by every denial and by no allowed path, so no way of writing a path gives more than another
//! one.

use super::document::{Effect, HttpMethod};
use super::facts::Facts;
use super::keys::TextPattern;
use crate::registry::percent;

/// What every path begins with that rules are about.
pub(super) const ROOT: &str = "/v1/";

/// Longest path that is compared, bytes. Those of routes with the longest names have less than half of it.
const LONGEST_PATH_BYTES: usize = 512;

/// One resource of one rule.
#[derive(Debug)]
pub(super) struct RouteRule {
    /// The rule's place.
    pub(super) rule: u32,
    /// Absent: any.
    pub(super) methods: Option<Vec<HttpMethod>>,
    /// Absent: any.
    pub(super) paths: Option<Vec<TextPattern>>,
}

/// What the rules say of a request over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteVerdict {
    /// Whether it may be asked, as far as the rules go.
    pub is_allowed: bool,
    /// The place of the rule that says so; `None`: the rules can't be read.
    pub rule: Option<u32>,
}

/// A request over HTTP.
#[derive(Debug)]
pub(super) struct Request {
    /// `None`: no route has such a method.
    method: Option<HttpMethod>,
    /// `None`: no handler takes such a path.
    path: Option<String>,
}

impl Request {
    /// Reads method and path as they were sent.
    pub(super) fn new(method: &str, path: &str) -> Request {
        let method = match method {
            "GET" | "HEAD" => Some(HttpMethod::Get),
            "POST" => Some(HttpMethod::Post),
            "PUT" => Some(HttpMethod::Put),
            "DELETE" => Some(HttpMethod::Delete),
            _ => None,
        };
        Request {
            method,
            path: read(path),
        }
    }
}

/// The path as handlers read it. `None`: it is too long, a part is not UTF-8, or has a `/` that was encoded.
fn read(path: &str) -> Option<String> {
    if path.len() > LONGEST_PATH_BYTES {
        return None;
    }
    let part = |part| percent::decode(part).filter(|part| !part.contains('/'));
    let parts: Option<Vec<String>> = path.split('/').map(part).collect();
    Some(parts?.join("/"))
}

impl RouteRule {
    /// Whether it is about a request of who has this name, in a rule with this effect.
    pub(super) fn covers(&self, request: &Request, facts: &Facts, effect: Effect) -> bool {
        let is_denial = effect == Effect::Deny;
        let has_method = match (&self.methods, request.method) {
            (None, _) => true,
            (Some(methods), Some(method)) => methods.contains(&method),
            (Some(_), None) => is_denial,
        };
        has_method
            && match (&self.paths, &request.path) {
                (None, _) => true,
                (Some(paths), Some(path)) => {
                    paths.iter().any(|glob| glob.matches(path, facts, effect))
                }
                (Some(_), None) => is_denial,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_handlers_read_it() {
        for (sent, expected) in [
            ("/v1/sessions", Some("/v1/sessions")),
            ("/v1/%73ession%73", Some("/v1/sessions")),
            ("/v1/%2573essions", Some("/v1/%73essions")),
            ("/v1/a%zz", Some("/v1/a%zz")),
            ("/v1//sessions/", Some("/v1//sessions/")),
            ("/v1/a%2Fb", None),
            ("/v1/a%2fb", None),
            ("/v1/%ff", None),
            ("/V1/Sessions", Some("/V1/Sessions")),
        ] {
            assert_eq!(read(sent).as_deref(), expected, "{sent}");
        }
        let long = format!("/v1/{}", "a".repeat(LONGEST_PATH_BYTES));
        assert_eq!(read(&long), None);
    }
}
