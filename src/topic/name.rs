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

#[cfg(test)]
mod tests {
    use super::*;

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
