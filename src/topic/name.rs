//! Topic names.

use super::MAX_TOPIC_BYTES;

/// Why a text is no topic name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty `[MQTT-4.7.3-1]`.
    #[error("the topic name is empty")]
    Empty,
    /// It has more than 65,535 bytes `[MQTT-4.7.3-3]`.
    #[error("the topic name is longer than 65535 bytes")]
    TooLong,
    /// It holds U+0000 `[MQTT-4.7.3-2]`.
    #[error("the topic name holds a NUL")]
    Nul,
    /// It holds `+` or `#` `[MQTT-4.7.0-1]`, `[MQTT-3.3.2-2]`.
    #[error("the topic name holds a wildcard")]
    Wildcard,
}

/// Checks a topic name. That it is UTF-8 is in its type.
///
/// # Errors
/// The first rule it breaks.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_TOPIC_BYTES {
        return Err(NameError::TooLong);
    }
    for byte in name.bytes() {
        match byte {
            0 => return Err(NameError::Nul),
            b'+' | b'#' => return Err(NameError::Wildcard),
            _ => {}
        }
    }
    Ok(())
}

/// What the topics begin with that the broker alone publishes to. What devices and modules send below the last one are
/// requests, which are not published to anybody.
const OWN: [&str; 3] = ["$SYS/", "$events/", "$iothub/"];

/// Whether the broker alone publishes to a topic.
pub fn is_own(topic: &str) -> bool {
    topic.starts_with('$') && OWN.iter().any(|own| topic.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_has_topics_of_its_own() {
        for (topic, expected) in [
            ("$SYS/broker/uptime", true),
            ("$events/v1/clients/a/deleted", true),
            ("$events", false),
            ("$iothub/twin/res/200/?$rid=1", true),
            ("$iothub", false),
            ("$other/x", false),
            ("events/v1", false),
        ] {
            assert_eq!(is_own(topic), expected, "{topic}");
        }
    }

    #[test]
    fn mqtt_4_7_0_1_and_4_7_3_names() {
        for name in [
            "a",
            "/",
            "//",
            " ",
            "$SYS/x",
            "a b/é/",
            "$share/g/t",
            "sensor/温度",
        ] {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
        assert_eq!(check_name(""), Err(NameError::Empty));
        assert_eq!(check_name("a\0"), Err(NameError::Nul));
        for name in ["+", "#", "a/+", "a/#", "a+b", "a#"] {
            assert_eq!(check_name(name), Err(NameError::Wildcard), "{name:?}");
        }
        assert_eq!(check_name(&"a".repeat(65_535)), Ok(()));
        assert_eq!(check_name(&"a".repeat(65_536)), Err(NameError::TooLong));
    }
}
