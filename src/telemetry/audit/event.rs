//! What an audit event is, and how it is written.

use std::net::SocketAddr;

use serde::ser::{Serialize, SerializeMap, Serializer};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Longest text of a field, bytes; what is longer is cut, so that a line stays short whatever a client sends.
const LONGEST_TEXT_BYTES: usize = 1_024;

/// Lines of one kind about strangers' refusals that are written within one second. A flood of them must not fill the
/// disk, nor take the place of other kinds.
const MOST_REFUSED_PER_SECOND: u32 = 1_000;

/// Lines of one kind about clients that were let in. More than a node's clients need when all of them come back at
/// once; but who may log in at all can do it in a loop.
const MOST_ACCEPTED_PER_SECOND: u32 = 5_000;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal,)+) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl Kind {
            /// Every kind.
            #[cfg(test)]
            const ALL: &'static [Kind] = &[$(Kind::$kind,)+];

            /// The value of `event`.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// The audit log was opened: a node starts.
    Opened = "opened",
    /// A client asked to connect: who it is, or why it was refused.
    LogIn = "log_in",
    /// A client authenticated again on its connection.
    Reauthentication = "reauthentication",
    /// A client did what the rules do not allow it.
    Denial = "denial",
    /// Connections were ended, because what their clients' identities rest on has changed, or because of a ban.
    Revocation = "revocation",
    /// Somebody who connected to the port between nodes has not proved to be one.
    Peer = "peer",
    /// A request to the HTTP port that was refused because of who asked.
    HttpRefusal = "http_refusal",
    /// An administrative request over HTTP, with its status.
    HttpRequest = "http_request",
    /// A back end of the hub asked for a change of an identity.
    HubRequest = "hub_request",
    /// A user was added, changed or removed.
    User = "user",
    /// A ban was set or lifted.
    Ban = "ban",
    /// The rules of what principals may do were replaced.
    Rules = "rules",
    /// A token was made or removed.
    Token = "token",
    /// An event subscription was put, ended, paused, resumed, or its dead letters were settled.
    EventSubscription = "event_subscription",
    /// A member was added or removed, or leadership handed over.
    Membership = "membership",
    /// A certificate, its key, or a list of revoked certificates was read again.
    Certificates = "certificates",
}

impl Kind {
    /// How many such events are written within one second, where clients and strangers can cause as many as they like.
    /// `None`: what operators and the cluster do is always written.
    pub(super) fn most_per_second(self, outcome: Outcome) -> Option<u32> {
        let by_clients = matches!(
            self,
            Kind::LogIn
                | Kind::Reauthentication
                | Kind::Denial
                | Kind::Peer
                | Kind::HttpRefusal
                | Kind::HubRequest
                // One for each connection that rests on a certificate or a key.
                | Kind::Revocation
        );
        by_clients.then_some(match outcome {
            Outcome::Accepted => MOST_ACCEPTED_PER_SECOND,
            Outcome::Refused | Outcome::Failed => MOST_REFUSED_PER_SECOND,
        })
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was done.
    Accepted,
    /// It was refused; the reason says why.
    Refused,
    /// It was allowed and did not succeed.
    Failed,
}

impl Outcome {
    /// The value of `result`.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Accepted => "accepted",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
    }
}

/// One event. What is absent is not written.
///
/// Invariant: nothing secret is put into one: no password, token, key or message.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What happened.
    pub kind: Kind,
    /// What came of it.
    pub outcome: Outcome,
    /// Name of the principal that did it.
    pub principal: Option<&'a str>,
    /// How the principal proved who it is.
    pub method: Option<&'a str>,
    /// Where it came from.
    pub address: Option<SocketAddr>,
    /// The listener that it came to.
    pub listener: Option<&'a str>,
    /// The client identifier.
    pub client_id: Option<&'a str>,
    /// The true reason of a refusal, which the client may not have been told.
    pub reason: Option<&'a str>,
    /// What else belongs to it: the name of the user that was changed, the route, the topic.
    pub details: &'a [(&'static str, &'a str)],
}

impl<'a> Event<'a> {
    /// An event of which nothing else is known yet.
    pub fn new(kind: Kind, outcome: Outcome) -> Event<'a> {
        Event {
            kind,
            outcome,
            principal: None,
            method: None,
            address: None,
            listener: None,
            client_id: None,
            reason: None,
            details: &[],
        }
    }
}

/// An event with what the node adds, as it is written.
pub(super) struct Line<'a> {
    pub(super) time: String,
    pub(super) node: u64,
    pub(super) event: &'a Event<'a>,
}

impl Line<'_> {
    /// The JSON object with its line end.
    pub(super) fn text(&self) -> String {
        // Texts and numbers only: there is nothing that JSON could not hold.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

/// The present time, RFC 3339 in UTC.
pub(super) fn now() -> String {
    let mut time = String::with_capacity(32);
    if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
        time.clear();
    }
    time
}

/// As much of a text as a line may have of it.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT_BYTES)]
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let event = self.event;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time", &self.time)?;
        map.serialize_entry("node", &self.node)?;
        map.serialize_entry("event", event.kind.as_str())?;
        map.serialize_entry("result", event.outcome.as_str())?;
        let texts = [
            ("principal", event.principal),
            ("method", event.method),
            ("listener", event.listener),
            ("client_id", event.client_id),
            ("reason", event.reason),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                map.serialize_entry(name, cut(text))?;
            }
        }
        if let Some(address) = event.address {
            map.serialize_entry("address", &address)?;
        }
        for (name, text) in event.details {
            map.serialize_entry(name, cut(text))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn written(event: &Event<'_>) -> String {
        let line = Line {
            time: now(),
            node: 7,
            event,
        };
        line.text()
    }

    #[test]
    fn a_line_is_one_object_whatever_a_client_sends() {
        let long = "ü".repeat(LONGEST_TEXT_BYTES);
        let event = Event {
            principal: Some("a\"\n{\"event\":\"forged\"}"),
            client_id: Some(&long),
            address: Some(([127, 0, 0, 1], 9).into()),
            details: &[("topic", "a/\u{1}b")],
            ..Event::new(Kind::LogIn, Outcome::Refused)
        };
        let text = written(&event);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let object: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(object["event"], "log_in");
        assert_eq!(object["result"], "refused");
        assert_eq!(object["node"], 7);
        assert_eq!(object["principal"], "a\"\n{\"event\":\"forged\"}");
        assert_eq!(object["address"], "127.0.0.1:9");
        assert_eq!(object["topic"], "a/\u{1}b");
        let cut = object["client_id"].as_str().map(str::len);
        assert_eq!(cut, Some(LONGEST_TEXT_BYTES));
        assert!(object.get("reason").is_none());
        assert!(
            object["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z'))
        );
    }

    #[test]
    fn every_kind_has_its_name_and_is_explained() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        for name in &names {
            assert!(
                page.contains(&format!("`{name}`")),
                "{name} is not explained"
            );
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
    }

    #[test]
    fn what_clients_cause_is_bounded_and_changes_are_not() {
        let outcomes = [Outcome::Accepted, Outcome::Refused, Outcome::Failed];
        for kind in [
            Kind::LogIn,
            Kind::Reauthentication,
            Kind::Denial,
            Kind::Revocation,
            Kind::HubRequest,
        ] {
            let bounds = outcomes.map(|outcome| kind.most_per_second(outcome));
            assert!(bounds.iter().all(Option::is_some), "{kind:?}");
        }
        for kind in [Kind::Token, Kind::User, Kind::Ban, Kind::HttpRequest] {
            let bounds = outcomes.map(|outcome| kind.most_per_second(outcome));
            assert_eq!(bounds, [None; 3], "{kind:?}");
        }
    }
}
