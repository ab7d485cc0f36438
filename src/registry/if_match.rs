//! The header `If-Match` of conditional requests.

use crate::base::proto::command;

/// Numbers of `command.IfMatch`.
mod kind {
    pub const ABSENT: u32 = 0;
    pub const ANY: u32 = 1;
    pub const ONE_OF: u32 = 2;
}

/// What a request asks of what it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// The header is not there.
    Absent,
    /// `*`, which the client libraries write with quotes.
    Any,
    /// One of these etags, as the counters that they stand for. One that is no etag matches nothing and is left out.
    OneOf(Vec<u64>),
}

impl IfMatch {
    /// Reads the value of the header, if it is there. `counter` tells which counter an etag stands for. All of a list
    /// counts: whoever reads requests bounds their headers.
    pub fn parse(header: Option<&str>, counter: impl Fn(&str) -> Option<u64>) -> IfMatch {
        let Some(header) = header else {
            return IfMatch::Absent;
        };
        if matches!(header.trim(), "*" | "\"*\"") {
            return IfMatch::Any;
        }
        let etags = header.split(',').map(str::trim);
        let etags = etags.map(|etag| etag.strip_prefix("W/").unwrap_or(etag));
        let etags = etags.map(|etag| {
            let unquoted = etag.strip_prefix('"');
            let unquoted = unquoted.and_then(|etag| etag.strip_suffix('"'));
            unquoted.unwrap_or(etag)
        });
        IfMatch::OneOf(etags.filter_map(counter).collect())
    }

    /// As a command holds it. What no version has written matches nothing.
    pub fn of_command(command: Option<command::IfMatch>) -> IfMatch {
        let command = command.unwrap_or_default();
        match command.kind {
            kind::ABSENT => IfMatch::Absent,
            kind::ANY => IfMatch::Any,
            kind::ONE_OF => IfMatch::OneOf(command.etags),
            _ => IfMatch::OneOf(Vec::new()),
        }
    }

    /// For a command.
    pub fn into_command(self) -> command::IfMatch {
        let (kind, etags) = match self {
            IfMatch::Absent => (kind::ABSENT, Vec::new()),
            IfMatch::Any => (kind::ANY, Vec::new()),
            IfMatch::OneOf(etags) => (kind::ONE_OF, etags),
        };
        command::IfMatch { kind, etags }
    }

    /// Whether what has this etag may be changed, where no header asks for nothing.
    pub fn allows(&self, etag: u64) -> bool {
        match self {
            IfMatch::Absent | IfMatch::Any => true,
            IfMatch::OneOf(etags) => etags.contains(&etag),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str) -> IfMatch {
        IfMatch::parse(Some(header), |etag| etag.parse().ok())
    }

    #[test]
    fn every_form_of_the_header() {
        assert_eq!(IfMatch::parse(None, |_| None), IfMatch::Absent);
        for any in ["*", "\"*\"", " * "] {
            assert_eq!(parse(any), IfMatch::Any, "{any}");
        }
        for one in ["7", "\"7\"", "W/\"7\"", " \"7\" "] {
            assert_eq!(parse(one), IfMatch::OneOf(vec![7]), "{one}");
        }
        let all = IfMatch::OneOf(vec![7, 8, 9]);
        assert_eq!(parse("\"7\", W/\"8\",9, \"x\""), all);
        let many: Vec<String> = (0..1_000).map(|etag: u64| format!("\"{etag}\"")).collect();
        assert!(parse(&many.join(", ")).allows(999), "the last one counts");
        for none in ["", "\"\"", "x", "\"7", "7\"", "*, 7x", "W/*"] {
            assert_eq!(parse(none), IfMatch::OneOf(Vec::new()), "{none}");
        }
    }

    #[test]
    fn a_command_holds_it_as_it_is() {
        for header in [
            IfMatch::Absent,
            IfMatch::Any,
            IfMatch::OneOf(vec![1, 2]),
            IfMatch::OneOf(Vec::new()),
        ] {
            let command = header.clone().into_command();
            assert_eq!(IfMatch::of_command(Some(command)), header);
        }
        let unknown = command::IfMatch {
            kind: 9,
            etags: vec![1],
        };
        assert!(!IfMatch::of_command(Some(unknown)).allows(1));
    }

    #[test]
    fn an_etag_is_one_of_them_or_not() {
        assert!(IfMatch::Absent.allows(7) && IfMatch::Any.allows(7));
        assert!(parse("6, 7").allows(7) && !parse("6").allows(7) && !parse("").allows(7));
    }
}
