//! How often this node tries endpoints for operators: no more often than an endpoint takes requests. What the leader
//! sends meanwhile comes on top, and what operators ask other nodes for.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::time::Elapsed;
use crate::http::AdminError;

/// How often this node tries each endpoint with an event.
pub(super) static EVENTS: Pace = Pace::new();

/// How often it asks each for its consent: an answer is an entry of the log.
pub(super) static CONSENTS: Pace = Pace::new();
pub(super) const CONSENTS_PER_MINUTE: u32 = 60;

/// When each event subscription may be tried again, by its name.
///
/// Invariant: it has those alone whose time has not come, so no more than operators try within the longest pause.
pub(super) struct Pace(Mutex<BTreeMap<String, Elapsed>>);

impl Pace {
    const fn new() -> Pace {
        Pace(Mutex::new(BTreeMap::new()))
    }

    /// Takes the turn of an event subscription whose endpoint takes so many requests per minute.
    ///
    /// # Errors
    /// It is not its turn yet.
    pub(super) fn take(&self, name: &str, per_minute: u32, now: Elapsed) -> Result<(), AdminError> {
        let mut next = self.0.lock();
        next.retain(|_, at| *at > now);
        if let Some(at) = next.get(name) {
            let wait_s = at.since(now).as_secs() + 1;
            return Err(AdminError::Conflict(format!(
                "the endpoint takes {per_minute} requests a minute: try again in {wait_s} s"
            )));
        }
        let pause = Duration::from_secs(60) / per_minute.max(1);
        next.insert(name.to_owned(), now.plus(pause));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_tried_no_more_often_than_it_takes_requests() {
        let pace = Pace::new();
        let at = |ms| Elapsed::from_duration(Duration::from_millis(ms));
        let is_tried = |name, rate, ms| pace.take(name, rate, at(ms)).is_ok();
        assert!(is_tried("a", 1, 0));
        let refused = pace.take("a", 1, at(10_000)).expect_err("too soon");
        assert!(refused.to_string().contains("in 51 s"), "{refused}");
        assert!(is_tried("b", 6_000, 10_000), "another one");
        assert!(is_tried("b", 6_000, 10_010));
        assert!(!is_tried("a", 1, 59_999) && is_tried("a", 1, 60_000));
        assert_eq!(pace.0.lock().len(), 1);
    }
}
