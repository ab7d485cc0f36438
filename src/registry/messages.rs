//! The topics that devices and modules publish their messages to: `devices/D/messages/events/…`, and
//! `devices/D/modules/M/messages/events/…`.

use super::IdentityId;

/// What a topic begins with where its messages are a device's or a module's: `devices/D`, or `devices/D/modules/M`.
///
/// It is so for identities that there may be one day, too, and for the parent level: whoever subscribes to
/// `devices/+/messages/events/#` gets what is published to `devices/D/messages/events` (section 4.7.1.2 of MQTT 5).
pub fn publisher(topic: &str) -> Option<&str> {
    let (device, rest) = topic.strip_prefix("devices/")?.split_once('/')?;
    let mut named = "devices/".len() + device.len();
    if !is_messages(rest) {
        let (module, rest) = rest.strip_prefix("modules/")?.split_once('/')?;
        named += "/modules/".len() + module.len();
        if !is_messages(rest) {
            return None;
        }
    }
    Some(&topic[..named])
}

/// What the topics of an identity begin with.
pub fn of(id: &IdentityId) -> String {
    match id.parts() {
        (device, "") => format!("devices/{device}"),
        (device, module) => format!("devices/{device}/modules/{module}"),
    }
}

fn is_messages(rest: &str) -> bool {
    rest.strip_prefix("messages/events")
        .is_some_and(|bag| bag.is_empty() || bag.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_names_whose_messages_it_has() {
        for (topic, expected) in [
            ("devices/d/messages/events/", Some("devices/d")),
            ("devices/d/messages/events", Some("devices/d")),
            ("devices/d/messages/events/a=b/c", Some("devices/d")),
            ("devices/ö/messages/events/", Some("devices/ö")),
            ("devices//messages/events/", Some("devices/")),
            (
                "devices/modules/modules/m/messages/events/",
                Some("devices/modules/modules/m"),
            ),
            (
                "devices/d/modules/m/messages/events",
                Some("devices/d/modules/m"),
            ),
            ("devices/d/messages/eventsx/", None),
            ("devices/d/messages/devicebound/", None),
            ("devices/d/modules/messages/events/", None),
            ("devices/d", None),
            ("xdevices/d/messages/events/", None),
        ] {
            assert_eq!(publisher(topic), expected, "{topic}");
        }
    }
}
