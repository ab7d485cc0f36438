//! Who asks: tokens of shared policies (SAS).
//!
//! Invariant: all refusals look alike, so nobody finds out which policies there are.
//! Invariant: tokens are judged by log time alone, and by nothing older: a node that has just started knows the log
//! time of what it has applied, and a token that has expired since then would pass.

use axum::http::{HeaderMap, header};

use super::error::{Code, Refusal};
use crate::base::time::Millis;
use crate::login::hub::HubCredentials;
use crate::registry::policies::{Permission, Policy};
use crate::registry::sas;
use crate::replica::clock::Clock;

/// The log time by which tokens are judged. A node that serves knows it.
///
/// # Errors
/// This node does not know it: it has just started, or has no contact.
pub(super) fn log_time(is_serving: bool, clock: &Clock) -> Result<Millis, Refusal> {
    let text = "this node does not know the cluster's time yet, or has no contact with the leader";
    let known = clock.live().or_else(|| is_serving.then(|| clock.now()));
    known.ok_or_else(|| Refusal::new(Code::Unavailable, text))
}

/// Judges whether the token of a request lets its holder ask for a path, whose parts are given as they are decoded, at
/// a log time. `permission` is what the policy must have; `None` where any policy will do. Returns the policy's name.
pub(super) fn check(
    credentials: &HubCredentials,
    headers: &HeaderMap,
    parts: &[String],
    permission: Option<Permission>,
    now: Millis,
) -> Result<String, Refusal> {
    let refusal = || {
        let text = "the token is missing or malformed, has expired, or does not permit this";
        Refusal::new(Code::Unauthorized, text)
    };
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let value = shown.next().filter(|_| shown.next().is_none());
    let text = value.and_then(|value| value.to_str().ok());
    let token = text.and_then(|text| sas::read(text).ok());
    let token = token.ok_or_else(refusal)?;
    let signer = credentials.policies.signer(&token, &credentials.made_up);
    let path: Vec<&str> = parts.iter().map(String::as_str).collect();
    let holds = token.check(&credentials.hosts, &path, now).is_ok();
    let permits = |policy: &Policy| permission.is_none_or(|permission| policy.permits(permission));
    match holds && signer.is_some_and(permits) {
        true => Ok(token.policy().unwrap_or_default().to_owned()),
        false => Err(refusal()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::NodeId;
    use crate::base::time::wall_now;

    #[test]
    fn what_was_applied_before_a_restart_is_no_time() {
        let clock = Clock::new(NodeId(1));
        let refused = |clock: &Clock| log_time(false, clock).map_err(|refusal| refusal.code);
        assert_eq!(refused(&clock), Err(Code::Unavailable));
        // The log is applied again; the last entry may be a day old.
        let applied = Millis(wall_now().0 - 86_400_000);
        clock.observe(applied);
        assert!(clock.now() >= applied);
        assert_eq!(refused(&clock), Err(Code::Unavailable));
        // The leader has told it.
        clock.follow(1, Some(wall_now()), None);
        assert!(refused(&clock).is_ok_and(|now| now >= Millis(applied.0 + 86_400_000)));
    }
}
