//! The topics of the hub: which of them a device or a module has, and what it asks for by publishing to one.
//!
//! Invariant: what is published below [`PREFIX`] never goes through routing, because every client uses the same topics.

use crate::machine::hub::{DESIRED_FILTER, PREFIX};
use crate::registry::IdentityId;

/// Where an identity asks for its twin.
const GET: &str = "$iothub/twin/GET/";

/// Where it writes its reported properties.
const PATCH: &str = "$iothub/twin/PATCH/properties/reported/";

/// Where it answers direct methods, which nobody calls.
const METHOD_ANSWERS: &str = "$iothub/methods/res/";

/// What an identity subscribes to for answers, for notifications, and for direct methods.
const SUBSCRIPTIONS: [&str; 3] = [
    "$iothub/twin/res/#",
    DESIRED_FILTER,
    "$iothub/methods/POST/#",
];

/// Longest `$rid`, bytes: an answer's topic has room for it, and no client's has a hundredth of it.
const LONGEST_REQUEST_ID_BYTES: usize = 1_024;

/// What a client asks for with a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publication<'a> {
    /// Its twin.
    Get(TwinRequest<'a>),
    /// A change of its reported properties.
    Patch(TwinRequest<'a>),
    /// Nothing: it is acknowledged and dropped.
    Nothing,
    /// A message of its own.
    Telemetry,
    /// A topic of the hub that there is not.
    Unknown,
    /// A topic of somebody else.
    Foreign,
}

/// What the topic of a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TwinRequest<'a> {
    /// `$rid`, which is echoed byte by byte.
    pub(super) id: &'a str,
    /// `$version` as it stands there.
    pub(super) version: Option<&'a str>,
}

impl<'a> TwinRequest<'a> {
    /// The properties behind a topic's beginning; `None` when there is something else.
    fn read(rest: &'a str) -> Option<TwinRequest<'a>> {
        let properties = match rest {
            "" => "",
            rest => rest.strip_prefix('?')?,
        };
        let value = |name| {
            let mut pairs = properties
                .split('&')
                .filter_map(|pair| pair.split_once('='));
            pairs.find(|(of, _)| *of == name).map(|(_, value)| value)
        };
        let id = value("$rid").unwrap_or_default();
        let version = value("$version");
        (id.len() <= LONGEST_REQUEST_ID_BYTES).then_some(TwinRequest { id, version })
    }
}

/// The topics of one identity.
#[derive(Debug)]
pub(super) struct OwnTopics {
    /// What the topics of its messages begin with.
    messages: Box<str>,
    /// Filters of messages to it.
    filters: Box<[Box<str>]>,
}

impl OwnTopics {
    /// Those of an identity.
    pub(super) fn new(identity: &IdentityId) -> OwnTopics {
        let device = identity.device_id();
        match identity.module_id() {
            None => OwnTopics {
                messages: format!("devices/{device}/messages/events/").into(),
                filters: [format!("devices/{device}/messages/devicebound/#").into()].into(),
            },
            Some(module) => {
                let own = format!("devices/{device}/modules/{module}/");
                OwnTopics {
                    messages: format!("{own}messages/events/").into(),
                    filters: [format!("{own}inputs/#").into(), format!("{own}#").into()].into(),
                }
            }
        }
    }

    /// Whether the identity's messages are published to this topic.
    pub(super) fn is_telemetry(&self, topic: &str) -> bool {
        topic.starts_with(&*self.messages)
    }

    /// What is asked for with a PUBLISH to this topic.
    pub(super) fn publication<'a>(&self, topic: &'a str) -> Publication<'a> {
        if self.is_telemetry(topic) {
            return Publication::Telemetry;
        }
        if !topic.starts_with(PREFIX) {
            return Publication::Foreign;
        }
        if topic.starts_with(METHOD_ANSWERS) {
            return Publication::Nothing;
        }
        if let Some(rest) = topic.strip_prefix(GET) {
            return TwinRequest::read(rest).map_or(Publication::Unknown, Publication::Get);
        }
        match topic.strip_prefix(PATCH).map(TwinRequest::read) {
            Some(Some(request)) => Publication::Patch(request),
            _ => Publication::Unknown,
        }
    }

    /// Whether the identity may subscribe to exactly this filter; if so, whether it is not to get its own messages by
    /// it.
    pub(super) fn subscription(&self, filter: &str) -> Option<bool> {
        if SUBSCRIPTIONS.contains(&filter) {
            return Some(false);
        }
        self.filters
            .iter()
            .any(|own| **own == *filter)
            .then_some(true)
    }
}

/// Whether a filter, its share name left out, is of the hub: other clients may not subscribe to it.
pub(super) fn is_reserved_filter(filter: &str) -> bool {
    filter.starts_with(PREFIX) || filter == "$iothub"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::registry::messages::publisher;

    fn device() -> OwnTopics {
        OwnTopics::new(&IdentityId::device("devA").expect("an id"))
    }

    fn module() -> OwnTopics {
        OwnTopics::new(&IdentityId::module("devA", "modA").expect("an id"))
    }

    fn request<'a>(id: &'a str, version: Option<&'a str>) -> TwinRequest<'a> {
        TwinRequest { id, version }
    }

    #[test]
    fn requests_are_told_by_their_topics() {
        let own = device();
        use Publication::{Foreign, Get, Nothing, Patch, Telemetry, Unknown};
        let long = format!("$iothub/twin/GET/?$rid={}", "r".repeat(1_025));
        for (topic, expected) in [
            ("$iothub/twin/GET/?$rid=7", Get(request("7", None))),
            ("$iothub/twin/GET/", Get(request("", None))),
            ("$iothub/twin/GET/?", Get(request("", None))),
            (
                "$iothub/twin/GET/?x=1&$rid=a/b=c&$rid=2",
                Get(request("a/b=c", None)),
            ),
            (
                "$iothub/twin/PATCH/properties/reported/?$rid=0a&$version=3",
                Patch(request("0a", Some("3"))),
            ),
            (
                "$iothub/twin/PATCH/properties/reported/?$version=x&$rid=",
                Patch(request("", Some("x"))),
            ),
            ("$iothub/methods/res/200/?$rid=1", Nothing),
            ("devices/devA/messages/events/", Telemetry),
            (
                "devices/devA/messages/events/%24.ct=application%2Fjson&k=v",
                Telemetry,
            ),
            ("$iothub/", Unknown),
            ("$iothub/twin/GET", Unknown),
            ("$iothub/twin/GET/x", Unknown),
            ("$iothub/twin/PATCH/properties/desired/?$rid=1", Unknown),
            ("$iothub/twin/PATCH/properties/reported", Unknown),
            ("$iothub/twin/res/200/?$rid=1", Unknown),
            ("$iothub/methods/POST/x/?$rid=1", Unknown),
            (&long, Unknown),
            ("devices/devA/messages/events", Foreign),
            ("devices/devB/messages/events/", Foreign),
            ("devices/devA/modules/modA/messages/events/", Foreign),
            ("devices/devA/messages/devicebound/", Foreign),
            ("$SYS/x", Foreign),
            ("a", Foreign),
        ] {
            assert_eq!(own.publication(topic), expected, "{topic}");
        }
        let topic = "devices/devA/modules/modA/messages/events/x";
        assert_eq!(module().publication(topic), Telemetry);
        assert_eq!(
            module().publication("devices/devA/messages/events/"),
            Foreign
        );
    }

    #[test]
    fn an_identity_subscribes_to_exactly_its_own_filters() {
        for own in [device(), module()] {
            for filter in SUBSCRIPTIONS {
                assert_eq!(own.subscription(filter), Some(false));
            }
        }
        assert_eq!(
            device().subscription("devices/devA/messages/devicebound/#"),
            Some(true)
        );
        assert_eq!(
            module().subscription("devices/devA/modules/modA/#"),
            Some(true)
        );
        assert_eq!(
            module().subscription("devices/devA/modules/modA/inputs/#"),
            Some(true)
        );
        for filter in [
            "#",
            "+/#",
            "$iothub/#",
            "$iothub/twin/res/+",
            "$iothub/twin/res/200/#",
            "$share/g/$iothub/twin/res/#",
            "$SYS/#",
            "devices/devB/messages/devicebound/#",
            "devices/+/messages/devicebound/#",
            "devices/devA/messages/events/#",
            "devices/devA/modules/modA/#",
        ] {
            assert_eq!(device().subscription(filter), None, "{filter}");
        }
        assert_eq!(
            module().subscription("devices/devA/messages/devicebound/#"),
            None
        );
    }

    #[test]
    fn filters_of_the_hub_are_reserved() {
        assert!(is_reserved_filter("$iothub/#") && is_reserved_filter("$iothub"));
        assert!(!is_reserved_filter("#") && !is_reserved_filter("+/twin/res/#"));
    }

    proptest! {
        /// What an identity may publish to is where other clients may not.
        #[test]
        fn every_topic_of_an_identity_is_reserved(
            device in "[A-Za-z0-9:.%_?(),=@'!*-]{1,20}",
            module in proptest::option::of("[A-Za-z0-9:.%_?(),=@'!*-]{1,20}"),
            bag in "[a-z/&=?$]{0,20}",
        ) {
            let id = match &module {
                Some(module) => IdentityId::module(&device, module),
                None => IdentityId::device(&device),
            };
            let own = OwnTopics::new(&id.expect("an id"));
            let topic = format!("{}{bag}", own.messages);
            prop_assert_eq!(publisher(&topic), own.messages.strip_suffix("/messages/events/"));
            prop_assert_eq!(own.publication(&topic), Publication::Telemetry);
        }

        #[test]
        fn no_topic_makes_it_panic(topic in any::<String>(), rest in any::<String>()) {
            for topic in [topic.clone(), format!("{GET}{rest}"), format!("{PATCH}?{rest}")] {
                device().publication(&topic);
                device().subscription(&topic);
                publisher(&topic);
            }
        }
    }
}
