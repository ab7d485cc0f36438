//! The version of the API that a request is of, and other values of its query string.

use super::error::{Code, Refusal};
use crate::registry::percent;

/// The first value of a name in a query string, decoded.
pub(super) fn value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query.unwrap_or_default().split('&');
    let found = pairs.find_map(|pair| match pair.split_once('=') {
        Some((key, value)) => (key == name).then_some(value),
        None => (pair == name).then_some(""),
    })?;
    percent::decode(&found.replace('+', " "))
}

/// Checks that a request says by which version it goes: a date, whichever.
pub(super) fn check(query: Option<&str>) -> Result<(), Refusal> {
    let version = value(query, "api-version").unwrap_or_default();
    match is_date(version.strip_suffix("-preview").unwrap_or(&version)) {
        true => Ok(()),
        false => Err(Refusal::new(
            Code::InvalidProtocolVersion,
            "api-version is a date, for example 2021-04-12",
        )),
    }
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let has_form = bytes.len() == 10
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    let number = |range: std::ops::Range<usize>| text[range].parse::<u32>().unwrap_or(0);
    has_form && (1..=12).contains(&number(5..7)) && (1..=31).contains(&number(8..10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_date() {
        for query in [
            "api-version=2021-04-12",
            "top=3&api-version=2020-05-31-preview&x",
            "api-version=2016%2D11%2D14",
        ] {
            assert_eq!(check(Some(query)), Ok(()), "{query}");
        }
        for query in [
            None,
            Some(""),
            Some("api-version"),
            Some("api-version="),
            Some("api-version=latest"),
            Some("api-version=2021-13-01"),
            Some("api-version=2021-04-00"),
            Some("api-version=2021-04-12x"),
            Some("api-version=2021/04/12"),
            Some("Api-Version=2021-04-12"),
            Some("api-version=%ff"),
            Some("api-version=2021-0é"),
        ] {
            let refused = check(query).expect_err("no date");
            assert_eq!(refused.code, Code::InvalidProtocolVersion, "{query:?}");
        }
    }

    #[test]
    fn the_first_value_of_a_name_counts() {
        assert_eq!(value(Some("top=1&top=2"), "top").as_deref(), Some("1"));
        assert_eq!(value(Some("a=b"), "top"), None);
        assert_eq!(value(None, "top"), None);
    }
}
