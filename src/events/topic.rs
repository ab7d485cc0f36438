//! Where events are published over MQTT: below `$events/v1/`, each name as one level.

use crate::base::proto::state;

use super::kind::{HubOperation, Kind};

/// What the topics begin with. Clients can't publish there ([`crate::topic::is_own`]).
/// What the topics of all events begin with.
pub const PREFIX: &str = "$events/";

/// What a topic may have (MQTT 5, 1.5.4).
const MOST_BYTES: usize = 65_535;

/// The properties of a published event as they are forwarded: Payload Format Indicator 1, Content Type
/// `application/cloudevents+json; charset=utf-8` (the CloudEvents binding for MQTT, 3.2).
pub const PROPERTIES: &[u8] = b"\x01\x01\x03\x00\x2bapplication/cloudevents+json; charset=utf-8";

/// The topic of an event; `None` when it would be longer than a topic may be, or a newer version has written the event.
pub fn topic(event: &state::Event) -> Option<String> {
    let mut topic = format!("{PREFIX}v1/");
    let kind = Kind::of(event)?;
    match kind {
        Kind::Hub => {
            topic.push_str("hub/");
            topic.push_str(HubOperation::of(event)?.as_str());
            push_level(&mut topic, &event.name);
            if !event.session.is_empty() {
                push_level(&mut topic, &event.session);
            }
        }
        Kind::Connected | Kind::Disconnected => {
            topic.push_str("clients");
            push_level(&mut topic, &event.name);
            topic.push_str("/sessions");
            push_level(&mut topic, &event.session);
        }
        Kind::ClientUpdated | Kind::ClientDeleted => {
            topic.push_str("clients");
            push_level(&mut topic, &event.name);
        }
    }
    topic.push_str(match kind {
        Kind::Connected => "/connected",
        Kind::Disconnected => "/disconnected",
        Kind::ClientUpdated => "/updated",
        Kind::ClientDeleted => "/deleted",
        Kind::Hub => "",
    });
    (topic.len() <= MOST_BYTES).then_some(topic)
}

/// Adds a name as one level: percent-encoded outside the unreserved characters of RFC 3986.
fn push_level(topic: &mut String, name: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    topic.push('/');
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            topic.push(char::from(byte));
        } else {
            topic.push('%');
            topic.push(char::from(DIGITS[usize::from(byte >> 4)]));
            topic.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic_of(kind: Kind, name: &str, session: &str) -> Option<String> {
        topic(&state::Event {
            kind: kind as u32,
            name: name.to_owned(),
            session: session.to_owned(),
            operation: HubOperation::UpdateTwin as u32,
            ..Default::default()
        })
    }

    #[test]
    fn each_name_is_one_level() {
        for (kind, name, session, expected) in [
            (
                Kind::Connected,
                "devA/m1",
                "a+#",
                "$events/v1/clients/devA%2Fm1/sessions/a%2B%23/connected",
            ),
            (
                Kind::Disconnected,
                "ä",
                "-._~",
                "$events/v1/clients/%C3%A4/sessions/-._~/disconnected",
            ),
            (Kind::ClientUpdated, "d", "", "$events/v1/clients/d/updated"),
            (
                Kind::ClientDeleted,
                "d/m",
                "",
                "$events/v1/clients/d%2Fm/deleted",
            ),
            (Kind::Hub, "d", "", "$events/v1/hub/updateTwin/d"),
            (Kind::Hub, "d", "m", "$events/v1/hub/updateTwin/d/m"),
        ] {
            assert_eq!(topic_of(kind, name, session).as_deref(), Some(expected));
            assert!(crate::topic::is_own(expected));
        }
    }

    #[test]
    fn a_topic_that_is_too_long_is_none() {
        let rest = "$events/v1/clients//deleted".len();
        let longest = "a".repeat(MOST_BYTES - rest);
        assert!(topic_of(Kind::ClientDeleted, &longest, "").is_some());
        let longer = longest + "a";
        assert_eq!(topic_of(Kind::ClientDeleted, &longer, ""), None);
    }

    #[test]
    fn the_content_type_has_its_length() {
        let text = &PROPERTIES[5..];
        assert_eq!(text.len(), usize::from(PROPERTIES[4]));
        assert!(text.starts_with(b"application/cloudevents+json"));
    }
}
