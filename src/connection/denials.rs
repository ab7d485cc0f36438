//! What a client did that the rules do not allow, for the audit log.
//!
//! Invariant: a connection writes one line in [`INTERVAL`] at most; the next line tells how many were left out.

use std::time::{Duration, Instant};

use crate::acl::Facts;
use crate::telemetry::audit::{self, Event, Kind, Outcome};
use crate::telemetry::cells::Label as _;
use crate::telemetry::labels::Action;

/// A client whose rules are wrong tries again and again.
const INTERVAL: Duration = Duration::from_secs(1);

/// The denials of one connection.
#[derive(Debug, Default)]
pub(super) struct Denials {
    told_at: Option<Instant>,
    untold: u32,
}

impl Denials {
    /// How many denials are told by a line that is written now, this one included; `None` when it has to wait.
    fn count(&mut self, now: Instant) -> Option<u32> {
        self.untold = self.untold.saturating_add(1);
        let is_early = self.told_at.is_some_and(|told| now - told < INTERVAL);
        if is_early {
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }

    /// A client did what it may not; `topic` is what it was about, if that was a topic or a filter.
    #[cold]
    pub(super) fn note(&mut self, facts: &Facts, action: Action, topic: Option<&str>) {
        let Some(count) = self.count(Instant::now()) else {
            return;
        };
        let count = count.to_string();
        let address = facts.address.map(|address| address.to_string());
        let mut details = vec![("action", action.as_str()), ("count", &count)];
        details.extend(topic.map(|topic| ("topic", topic)));
        details.extend(address.as_deref().map(|address| ("address", address)));
        audit::record(&Event {
            principal: Some(&*facts.name).filter(|name| !name.is_empty()),
            method: Some(facts.method),
            listener: Some(&facts.listener),
            client_id: Some(&facts.client_id),
            details: &details,
            ..Event::new(Kind::Denial, Outcome::Refused)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_in_a_second_tells_of_all() {
        let mut denials = Denials::default();
        let now = Instant::now();
        assert_eq!(denials.count(now), Some(1));
        assert_eq!(denials.count(now), None);
        assert_eq!(denials.count(now + INTERVAL / 2), None);
        assert_eq!(denials.count(now + INTERVAL), Some(3));
        assert_eq!(denials.count(now + INTERVAL), None);
    }
}
