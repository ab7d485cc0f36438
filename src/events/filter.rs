//! Which events an event subscription wants.

use super::kind::{CLIENT_TYPES, Kind, event_type};
use super::render::subject;
use crate::base::proto::state::{Event, EventSubscriptionOptions};

/// What an event subscription has said of the events that it wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    types: Vec<String>,
    /// Reasons of disconnections; empty: all. Other events are not concerned.
    reasons: Vec<u32>,
    begins_with: String,
    ends_with: String,
    is_case_sensitive: bool,
}

impl Filter {
    /// What these options say.
    pub fn of(options: &EventSubscriptionOptions) -> Filter {
        Filter {
            types: options.types.clone(),
            reasons: options.reasons.clone(),
            ..Filter::default()
        }
        .by_subject(
            &options.subject_begins_with,
            &options.subject_ends_with,
            options.case_sensitive,
        )
    }

    /// Events of these types whose subjects begin with a text; empty: all.
    pub fn of_types(types: Vec<String>, subject_begins_with: &str) -> Filter {
        let filter = Filter {
            types,
            ..Filter::default()
        };
        filter.by_subject(subject_begins_with, "", true)
    }

    fn by_subject(self, begins_with: &str, ends_with: &str, is_case_sensitive: bool) -> Filter {
        let folded = |text: &str| match is_case_sensitive {
            true => text.to_owned(),
            false => text.to_lowercase(),
        };
        Filter {
            begins_with: folded(begins_with),
            ends_with: folded(ends_with),
            is_case_sensitive,
            ..self
        }
    }

    /// Whether it wants an event. Nobody wants one that this version does not know.
    pub fn matches(&self, event: &Event) -> bool {
        let Some(event_type) = event_type(event) else {
            return false;
        };
        let is_wanted = match self.types.is_empty() {
            true => CLIENT_TYPES.contains(&event_type),
            false => self.types.iter().any(|wanted| wanted == event_type),
        };
        let is_end = event.kind == Kind::Disconnected as u32;
        let has_reason = !is_end || self.reasons.is_empty() || self.reasons.contains(&event.reason);
        is_wanted && has_reason && self.has_subject(event)
    }

    fn has_subject(&self, event: &Event) -> bool {
        if self.begins_with.is_empty() && self.ends_with.is_empty() {
            return true;
        }
        let subject = subject(event);
        let subject = match self.is_case_sensitive {
            true => subject,
            false => subject.to_lowercase(),
        };
        subject.starts_with(&self.begins_with) && subject.ends_with(&self.ends_with)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reason::DisconnectionReason;
    use super::*;

    fn event(kind: Kind, reason: u32) -> Event {
        Event {
            kind: kind as u32,
            name: "devÄ".to_owned(),
            session: "s1".to_owned(),
            operation: 1,
            reason,
            ..Event::default()
        }
    }

    const LOST: u32 = DisconnectionReason::ConnectionLost as u32;
    const TAKEN: u32 = DisconnectionReason::SessionTakenOver as u32;

    #[test]
    fn an_empty_filter_wants_the_events_of_clients() {
        for kind in Kind::ALL {
            let is_wanted = Filter::default().matches(&event(kind, LOST));
            assert_eq!(is_wanted, kind != Kind::Hub);
        }
        assert!(!Filter::default().matches(&Event::default()), "unknown");
    }

    #[test]
    fn types_and_reasons_are_lists() {
        let filter = Filter::of(&EventSubscriptionOptions {
            types: vec![CLIENT_TYPES[1].to_owned()],
            reasons: vec![LOST],
            ..Default::default()
        });
        assert!(filter.matches(&event(Kind::Disconnected, LOST)));
        assert!(!filter.matches(&event(Kind::Disconnected, TAKEN)));
        assert!(!filter.matches(&event(Kind::Connected, 0)));
        let filter = Filter::of(&EventSubscriptionOptions {
            reasons: vec![LOST],
            ..Default::default()
        });
        assert!(filter.matches(&event(Kind::Connected, 0)), "has no reason");
        assert!(!filter.matches(&event(Kind::Disconnected, TAKEN)));
    }

    #[test]
    fn subjects_are_compared_at_both_ends_and_by_case_on_request() {
        let by = |begins: &str, ends: &str, case_sensitive| {
            let filter = Filter::of(&EventSubscriptionOptions {
                subject_begins_with: begins.to_owned(),
                subject_ends_with: ends.to_owned(),
                case_sensitive,
                ..Default::default()
            });
            filter.matches(&event(Kind::Connected, 0))
        };
        assert!(by("clients/devÄ", "", true) && by("", "/S1", false));
        assert!(by("CLIENTS/devä/", "sessions/s1", false));
        assert!(!by("CLIENTS/", "", true) && !by("clients/devB", "", false));
        assert!(!by("clients/", "s2", false));
    }
}
