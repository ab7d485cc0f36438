//! The syntax of strings: UTF-8, topic names, topic filters, shared filters.
//!
//! Matching a name against a filter is not done here.

use super::error::DecodeError;

/// The start of a shared subscription's filter `[MQTT-4.8.2-1]`.
pub const SHARE_PREFIX: &str = "$share/";

/// Strings of at least this many bytes go through the SIMD validator; shorter ones are faster without.
const SIMD_THRESHOLD: usize = 64;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// True if a byte of the word is one of the wanted ones. A borrow may make the place inexact, never the answer.
#[inline]
fn word_contains<const N: usize>(word: [u8; 8], wanted: [u8; N]) -> bool {
    let mut found = 0;
    for byte in wanted {
        let zero_where_equal = u64::from_ne_bytes(word) ^ (LOW * u64::from(byte));
        found |= zero_where_equal.wrapping_sub(LOW) & !zero_where_equal & HIGH;
    }
    found != 0
}

/// True if a byte of the block is one of the wanted ones. Without an early exit, so that it compiles to vector
/// compares.
#[inline]
fn block_contains<const N: usize>(block: &[u8; 16], wanted: [u8; N]) -> bool {
    let mut found = false;
    for byte in block {
        for candidate in wanted {
            found |= *byte == candidate;
        }
    }
    found
}

/// True if any byte of `bytes` is one of the wanted ones, in blocks whose last one overlaps what was already seen:
/// cheaper than a loop over single bytes.
#[inline]
fn contains_any<const N: usize>(bytes: &[u8], wanted: [u8; N]) -> bool {
    if let Some(last) = bytes.last_chunk::<16>() {
        return bytes
            .as_chunks::<16>()
            .0
            .iter()
            .any(|block| block_contains(block, wanted))
            || block_contains(last, wanted);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        return word_contains(*first, wanted) || word_contains(*last, wanted);
    }
    bytes.iter().any(|byte| wanted.contains(byte))
}

/// The bytes as a string: well-formed UTF-8 (surrogates are not) `[MQTT-1.5.4-1]` without U+0000 `[MQTT-1.5.4-2]`.
/// U+FEFF stays where it is `[MQTT-1.5.4-3]`.
pub fn utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    let text = plain_utf8(bytes)?;
    if contains_any(bytes, [0]) {
        return Err(DecodeError::StringHasNul);
    }
    Ok(text)
}

#[inline]
fn plain_utf8(bytes: &[u8]) -> Result<&str, DecodeError> {
    if bytes.len() >= SIMD_THRESHOLD {
        simdutf8::basic::from_utf8(bytes).map_err(|_| DecodeError::StringNotUtf8)
    } else {
        std::str::from_utf8(bytes).map_err(|_| DecodeError::StringNotUtf8)
    }
}

/// The bytes of a topic name as a string: [`utf8`] and no wildcard `[MQTT-3.3.2-2]`. It may be empty: whether a topic
/// alias stands for it is known only after the properties.
#[inline]
pub(super) fn topic_name_field(bytes: &[u8]) -> Result<&str, DecodeError> {
    let text = plain_utf8(bytes)?;
    if contains_any(bytes, [0, b'+', b'#']) {
        return Err(if bytes.contains(&0) {
            DecodeError::StringHasNul
        } else {
            DecodeError::TopicNameWildcard
        });
    }
    Ok(text)
}

/// True for a topic name one may publish to: at least one character `[MQTT-4.7.3-1]`, at most 65,535 bytes
/// `[MQTT-4.7.3-3]`, no wildcard `[MQTT-4.7.0-1]`, no U+0000 `[MQTT-4.7.3-2]`.
pub fn is_topic_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= super::types::MAX_FIELD_LENGTH
        && !contains_any(name.as_bytes(), [0, b'+', b'#'])
}

/// What is wrong with a topic filter. It is answered per filter: 0x8F in SUBACK and UNSUBACK, 0x80 before MQTT 5.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FilterError {
    /// `[MQTT-4.7.3-1]`
    #[error("topic filter is empty [MQTT-4.7.3-1]")]
    Empty,
    /// `[MQTT-4.7.3-2]`, `[MQTT-4.7.3-3]`
    #[error(
        "topic filter holds U+0000 or is longer than 65535 bytes [MQTT-4.7.3-2] [MQTT-4.7.3-3]"
    )]
    NotAString,
    /// `[MQTT-4.7.1-1]`
    #[error("# is not alone in the last level [MQTT-4.7.1-1]")]
    MultiLevelWildcard,
    /// `[MQTT-4.7.1-2]`
    #[error("+ does not fill its level [MQTT-4.7.1-2]")]
    SingleLevelWildcard,
    /// `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`
    #[error(
        "share name is empty, has a wildcard, or no filter follows it [MQTT-4.8.2-1] [MQTT-4.8.2-2]"
    )]
    Share,
}

/// A topic filter taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopicFilter<'a> {
    /// The share name of `$share/name/filter`.
    pub share: Option<&'a str>,
    /// The filter that names are matched against, without `$share/name/`.
    pub filter: &'a str,
}

/// Checks a filter and takes it apart. `$share` alone and `$shared/…` are ordinary filters; `$share/` is not.
pub fn topic_filter(whole: &str) -> Result<TopicFilter<'_>, FilterError> {
    if whole.len() > super::types::MAX_FIELD_LENGTH || contains_any(whole.as_bytes(), [0]) {
        return Err(FilterError::NotAString);
    }
    let Some(shared) = whole.strip_prefix(SHARE_PREFIX) else {
        plain_filter(whole)?;
        return Ok(TopicFilter {
            share: None,
            filter: whole,
        });
    };
    let (share, filter) = shared.split_once('/').ok_or(FilterError::Share)?;
    if share.is_empty() || filter.is_empty() || contains_any(share.as_bytes(), *b"+#") {
        return Err(FilterError::Share);
    }
    plain_filter(filter)?;
    Ok(TopicFilter {
        share: Some(share),
        filter,
    })
}

fn plain_filter(filter: &str) -> Result<(), FilterError> {
    if filter.is_empty() {
        return Err(FilterError::Empty);
    }
    if !contains_any(filter.as_bytes(), *b"+#") {
        return Ok(());
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level.len() > 1 || levels.peek().is_some()) {
            return Err(FilterError::MultiLevelWildcard);
        }
        if level.contains('+') && level.len() > 1 {
            return Err(FilterError::SingleLevelWildcard);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wanted_byte_is_found_at_every_place_of_every_length() {
        for length in 0..40_usize {
            let mut bytes = vec![b'a'; length];
            assert!(!contains_any(&bytes, [0, b'+', b'#']));
            for place in 0..length {
                for wanted in [0, b'+', b'#'] {
                    bytes[place] = wanted;
                    assert!(
                        contains_any(&bytes, [0, b'+', b'#']),
                        "{wanted} at {place} of {length}"
                    );
                }
                for other in [1, b'*', b',', b'"', b'$', 0x80, 0xA3, 0xAB, 0xFF] {
                    bytes[place] = other;
                    assert!(
                        !contains_any(&bytes, [0, b'+', b'#']),
                        "{other} at {place} of {length}"
                    );
                }
                bytes[place] = b'a';
            }
        }
    }

    #[test]
    fn strings_are_utf8_without_surrogates_and_without_nul() {
        // [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.4-3]
        assert_eq!(utf8(b""), Ok(""));
        assert_eq!(
            utf8("temp/\u{fc}/\u{1F600}".as_bytes()),
            Ok("temp/\u{fc}/\u{1F600}")
        );
        assert_eq!(utf8(b"\xEF\xBB\xBFa"), Ok("\u{FEFF}a"));
        assert_eq!(utf8(b"\xED\xA0\x80"), Err(DecodeError::StringNotUtf8));
        assert_eq!(utf8(b"\xC0\x80"), Err(DecodeError::StringNotUtf8));
        assert_eq!(utf8(b"a\0b"), Err(DecodeError::StringHasNul));
        let mut long = vec![b'x'; 200];
        assert!(utf8(&long).is_ok());
        long[150] = 0;
        assert_eq!(utf8(&long), Err(DecodeError::StringHasNul));
        long[150] = 0xFF;
        assert_eq!(utf8(&long), Err(DecodeError::StringNotUtf8));
    }

    #[test]
    fn wildcards_stand_alone_in_their_level() {
        // [MQTT-4.7.1-1] [MQTT-4.7.1-2]
        for good in [
            "#",
            "+",
            "/",
            "a",
            "a/#",
            "+/b",
            "a/+/c",
            "/+",
            "+/+",
            "$SYS/#",
            "a//b",
            "/#",
            "$share",
            "$shared/x",
        ] {
            assert_eq!(
                topic_filter(good),
                Ok(TopicFilter {
                    share: None,
                    filter: good
                }),
                "{good}"
            );
        }
        for (bad, why) in [
            ("", FilterError::Empty),
            ("a#", FilterError::MultiLevelWildcard),
            ("a/#/b", FilterError::MultiLevelWildcard),
            ("#/", FilterError::MultiLevelWildcard),
            ("##", FilterError::MultiLevelWildcard),
            ("a+", FilterError::SingleLevelWildcard),
            ("a/+b/c", FilterError::SingleLevelWildcard),
            ("++", FilterError::SingleLevelWildcard),
            ("a\0", FilterError::NotAString),
        ] {
            assert_eq!(topic_filter(bad), Err(why), "{bad}");
        }
    }

    #[test]
    fn a_shared_filter_has_a_share_name_and_a_filter() {
        // [MQTT-4.8.2-1] [MQTT-4.8.2-2]
        assert_eq!(
            topic_filter("$share/g/a/+"),
            Ok(TopicFilter {
                share: Some("g"),
                filter: "a/+"
            })
        );
        assert_eq!(
            topic_filter("$share/g//"),
            Ok(TopicFilter {
                share: Some("g"),
                filter: "/"
            })
        );
        for bad in [
            "$share/",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/+/a",
            "$share/g#/a",
            "$share/#",
        ] {
            assert_eq!(topic_filter(bad), Err(FilterError::Share), "{bad}");
        }
        assert_eq!(
            topic_filter("$share/g/a#"),
            Err(FilterError::MultiLevelWildcard)
        );
    }

    #[test]
    fn topic_names_have_no_wildcard_and_at_least_one_character() {
        assert!(is_topic_name("/"));
        assert!(is_topic_name("a/b c/\u{e9}"));
        for bad in ["", "a/+", "#", "a\0"] {
            assert!(!is_topic_name(bad), "{bad:?}");
        }
        assert!(!is_topic_name(&"a".repeat(65_536)));
    }
}
