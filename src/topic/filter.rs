//! Topic filters, shared ones included, and the definition of a match.

use super::{MAX_FILTER_LEVELS, MAX_TOPIC_BYTES};

/// Why a text is no topic filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The filter, or the part of it after the share name, is empty `[MQTT-4.7.3-1]`.
    #[error("the topic filter is empty")]
    Empty,
    /// It has more than 65,535 bytes `[MQTT-4.7.3-3]`.
    #[error("the topic filter is longer than 65535 bytes")]
    TooLong,
    /// It has more levels than this server takes ([`MAX_FILTER_LEVELS`]).
    #[error("the topic filter has too many levels")]
    TooManyLevels,
    /// It holds U+0000 `[MQTT-4.7.3-2]`.
    #[error("the topic filter holds a NUL")]
    Nul,
    /// `#` is not a whole level, or not the last one `[MQTT-4.7.1-1]`.
    #[error("# must be the whole last level of the topic filter")]
    MultiLevelWildcard,
    /// `+` is not a whole level `[MQTT-4.7.1-2]`.
    #[error("+ must be a whole level of the topic filter")]
    SingleLevelWildcard,
    /// After `$share/` there is no share name `[MQTT-4.8.2-1]`.
    #[error("the share name is empty")]
    EmptyShareName,
    /// The share name holds a wildcard, or no filter follows it `[MQTT-4.8.2-2]`.
    #[error("the share name holds a wildcard or no topic filter follows it")]
    ShareName,
}

/// A checked topic filter of a SUBSCRIBE, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter<'a> {
    /// The share name, when the subscription is shared.
    pub share: Option<&'a str>,
    /// What topic names are matched with: the whole filter, or what follows the share name.
    pub inner: &'a str,
    /// Whether `inner` has a wildcard.
    pub has_wildcard: bool,
}

impl<'a> Filter<'a> {
    /// Checks a filter and takes `$share/{name}/{filter}` apart (MQTT 5, 4.8.2).
    ///
    /// # Errors
    /// The first rule it breaks.
    pub fn parse(filter: &'a str) -> Result<Self, FilterError> {
        if filter.len() > MAX_TOPIC_BYTES {
            return Err(FilterError::TooLong);
        }
        let (share, inner) = match filter.strip_prefix("$share/") {
            None => (None, filter),
            Some(rest) => {
                let (share, inner) = rest.split_once('/').unwrap_or((rest, ""));
                if share.is_empty() {
                    return Err(FilterError::EmptyShareName);
                }
                if share.contains(['+', '#']) || share.len() == rest.len() {
                    return Err(FilterError::ShareName);
                }
                if share.contains('\0') {
                    return Err(FilterError::Nul);
                }
                (Some(share), inner)
            }
        };
        Ok(Filter {
            share,
            inner,
            has_wildcard: check_filter(inner)?,
        })
    }
}

/// Checks a filter that isn't shared; gives whether it has a wildcard.
///
/// # Errors
/// The first rule it breaks.
pub fn check_filter(filter: &str) -> Result<bool, FilterError> {
    if filter.is_empty() {
        return Err(FilterError::Empty);
    }
    if filter.len() > MAX_TOPIC_BYTES {
        return Err(FilterError::TooLong);
    }
    let mut has_wildcard = false;
    let mut levels = filter.split('/').peekable();
    let mut count = 0;
    while let Some(level) = levels.next() {
        count += 1;
        match level {
            "+" => has_wildcard = true,
            "#" if levels.peek().is_none() => has_wildcard = true,
            _ => check_level(level)?,
        }
    }
    if count > MAX_FILTER_LEVELS {
        return Err(FilterError::TooManyLevels);
    }
    Ok(has_wildcard)
}

fn check_level(level: &str) -> Result<(), FilterError> {
    for byte in level.bytes() {
        match byte {
            0 => return Err(FilterError::Nul),
            b'#' => return Err(FilterError::MultiLevelWildcard),
            b'+' => return Err(FilterError::SingleLevelWildcard),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a valid, unshared `filter` matches a valid topic `name` (MQTT 5, 4.7).
pub fn matches(filter: &str, name: &str) -> bool {
    // `[MQTT-4.7.2-1]`
    if name.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut names = name.split('/');
    for level in filter.split('/') {
        match (level, names.next()) {
            // Also the parent: "a/#" matches "a".
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (level, Some(name)) if level == name => {}
            _ => return false,
        }
    }
    names.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mqtt_4_7_1_1_multi_level_wildcard_is_the_whole_last_level() {
        for filter in ["#", "a/#", "a/+/#", "/#", "+/#"] {
            assert_eq!(check_filter(filter), Ok(true), "{filter:?}");
        }
        for filter in ["a#", "a/b#", "#/a", "a/#/b", "##", "#a", "+#"] {
            assert!(
                matches!(
                    check_filter(filter),
                    Err(FilterError::MultiLevelWildcard | FilterError::SingleLevelWildcard)
                ),
                "{filter:?}"
            );
        }
    }

    #[test]
    fn mqtt_4_7_1_2_single_level_wildcard_is_a_whole_level() {
        for filter in ["+", "+/a", "a/+", "a/+/b", "+/+", "/+"] {
            assert_eq!(check_filter(filter), Ok(true), "{filter:?}");
        }
        for filter in ["a+", "+a", "a/b+", "a/+b/c", "++"] {
            assert_eq!(
                check_filter(filter),
                Err(FilterError::SingleLevelWildcard),
                "{filter:?}"
            );
        }
    }

    #[test]
    fn mqtt_4_7_3_filters_are_bounded_and_hold_no_nul() {
        assert_eq!(check_filter(""), Err(FilterError::Empty));
        assert_eq!(check_filter("a\0"), Err(FilterError::Nul));
        assert_eq!(check_filter("a/b"), Ok(false));
        assert_eq!(check_filter(&"a".repeat(65_536)), Err(FilterError::TooLong));
        assert_eq!(check_filter(&"/".repeat(MAX_FILTER_LEVELS - 1)), Ok(false));
        assert_eq!(
            check_filter(&"/".repeat(MAX_FILTER_LEVELS)),
            Err(FilterError::TooManyLevels)
        );
    }

    #[test]
    fn mqtt_4_8_2_1_shared_filters_have_a_share_name() {
        let shared = Filter::parse("$share/group/a/+").unwrap();
        assert_eq!(
            (shared.share, shared.inner, shared.has_wildcard),
            (Some("group"), "a/+", true)
        );
        assert_eq!(Filter::parse("$share/g//").unwrap().inner, "/");
        assert_eq!(Filter::parse("$share//a"), Err(FilterError::EmptyShareName));
        assert_eq!(Filter::parse("$share/"), Err(FilterError::EmptyShareName));
        for plain in ["$share", "$shared/g/a", "a/$share/b"] {
            assert_eq!(Filter::parse(plain).unwrap().share, None, "{plain:?}");
        }
    }

    #[test]
    fn mqtt_4_8_2_2_share_names_have_no_wildcard_and_a_filter_follows() {
        for filter in [
            "$share/+/a",
            "$share/g#/a",
            "$share/a+b/a",
            "$share/#",
            "$share/g",
        ] {
            assert_eq!(
                Filter::parse(filter),
                Err(FilterError::ShareName),
                "{filter:?}"
            );
        }
        assert_eq!(Filter::parse("$share/g/"), Err(FilterError::Empty));
        assert_eq!(Filter::parse("$share/g\0/a"), Err(FilterError::Nul));
        assert_eq!(
            Filter::parse("$share/g/a#"),
            Err(FilterError::MultiLevelWildcard)
        );
    }

    #[test]
    fn matches_of_the_standard() {
        for (filter, name) in [
            ("sport/tennis/player1/#", "sport/tennis/player1"),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/score/wimbledon",
            ),
            ("sport/#", "sport"),
            ("#", "a/b"),
            ("sport/tennis/+", "sport/tennis/player1"),
            ("sport/+", "sport/"),
            ("+/+", "/finance"),
            ("/+", "/finance"),
            ("$SYS/#", "$SYS/x"),
            ("$SYS/#", "$SYS"),
            ("$SYS/monitor/+", "$SYS/monitor/Clients"),
            ("ACCOUNTS", "ACCOUNTS"),
        ] {
            assert!(matches(filter, name), "{filter} {name}");
        }
        for (filter, name) in [
            ("sport/tennis/+", "sport/tennis/player1/ranking"),
            ("sport/+", "sport"),
            ("+", "/finance"),
            ("ACCOUNTS", "Accounts"),
            ("/A", "A"),
            ("A/", "A"),
            ("a/b", "a/b/c"),
        ] {
            assert!(!matches(filter, name), "{filter} {name}");
        }
    }

    #[test]
    fn mqtt_4_7_2_1_a_leading_wildcard_does_not_match_dollar_topics() {
        for filter in ["#", "+", "+/#", "+/x", "+/monitor/Clients"] {
            for name in ["$SYS", "$SYS/x", "$SYS/monitor/Clients"] {
                assert!(!matches(filter, name), "{filter} {name}");
            }
        }
        assert!(matches("a/+", "a/$b"), "only the first character counts");
    }

    #[test]
    fn mqtt_4_7_3_4_nothing_is_normalized() {
        assert!(!matches("caf\u{e9}", "cafe\u{301}"));
        assert!(!matches("a//b", "a/b"));
    }
}
