//! What an operator has asked for, as enums, and whether it makes sense.
//!
//! Invariant: what [`check`] lets pass can be sent to, as far as that shows without a network.

use super::kind::{CLIENT_TYPES, is_type};
use crate::base::proto::state::EventSubscriptionOptions;

/// Longest name of an event subscription.
const LONGEST_NAME: usize = 64;

/// Most headers of requests.
const MOST_HEADERS: usize = 10;

/// Longest value of such a header, bytes.
const LONGEST_HEADER_VALUE: usize = 4_096;

/// Longest URL, and longest of the other texts, bytes.
const LONGEST_TEXT: usize = 4_096;

/// Most keys that requests are signed with at once: the old one and the new one.
const MOST_SIGNING_KEYS: usize = 2;

macro_rules! choice {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $of:literal])+ $variant:ident = $number:literal, $text:literal;)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[doc = $of])+ $variant = $number,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// As an operator writes it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }

            /// As it stands in a row.
            pub fn number(self) -> u32 {
                self as u32
            }

            /// The inverse of `number`; the first one for what it never gives.
            pub fn of(number: u32) -> Self {
                let of = |one: &&$name| one.number() == number;
                *$name::ALL.iter().find(of).unwrap_or(&$name::ALL[0])
            }

            /// The inverse of `as_str`.
            pub fn parse(text: &str) -> Option<Self> {
                $name::ALL.iter().find(|one| one.as_str() == text).copied()
            }
        }
    };
}

choice! {
    /// The schema of an event subscription. The numbers are on disk.
    Schema {
        /// CloudEvents 1.0.
        CloudEvents = 1, "cloudevents";
        /// That of Event Grid.
        EventGrid = 2, "eventgrid";
    }
}

choice! {
    /// How CloudEvents stand in a request; the schema of Event Grid knows lists only. The numbers are on disk.
    Mode {
        /// A list of events.
        Batch = 1, "batch";
        /// One event.
        Structured = 2, "structured";
        /// One event, its attributes in headers.
        Binary = 3, "binary";
    }
}

choice! {
    /// Whether an endpoint must have said that it wants events. The numbers are on disk.
    Handshake {
        /// It must.
        Required = 1, "required";
        /// It is not asked.
        Off = 2, "off";
    }
}

/// What becomes of an event subscription's events. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They are delivered.
    Active = 1,
    /// They wait for an operator, who has said so.
    Paused = 2,
    /// They wait for an operator: the endpoint has said that it is gone.
    Gone = 3,
}

impl State {
    /// As it stands in a row.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The inverse of `number`; active for what it never gives.
    pub fn of(number: u32) -> State {
        match number {
            2 => State::Paused,
            3 => State::Gone,
            _ => State::Active,
        }
    }
}

/// What is wrong with options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The name.
    #[error("a name is 1 to {LONGEST_NAME} letters, digits or dashes")]
    Name,
    /// A text that is too long.
    #[error("{0} is longer than {LONGEST_TEXT} bytes")]
    TooLong(&'static str),
    /// A type that there is not.
    #[error("there is no type {0:?}; there are {types}", types = CLIENT_TYPES.join(", "))]
    Type(String),
    /// A number out of its range.
    #[error("{name} is {least} to {most}")]
    Range {
        /// The field.
        name: &'static str,
        /// Its smallest value.
        least: u32,
        /// Its largest value.
        most: u32,
    },
    /// Too many of something.
    #[error("there are at most {1} {0}")]
    TooMany(&'static str, usize),
    /// A header that can't be sent, or that is not for others to set.
    #[error("the header {0:?} can't be set")]
    Header(String),
    /// The name of a secret.
    #[error("the name of a secret is letters, digits, dashes or underscores: {0:?}")]
    Secret(String),
    /// A mode that the schema does not have.
    #[error("the schema eventgrid knows the mode batch only")]
    Mode,
}

/// Headers that say what a request is, or who sends it.
const RESERVED: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "transfer-encoding",
    "authorization",
    "user-agent",
    "expect",
    "upgrade",
];

/// What headers that a schema or a signature defines begin with.
const RESERVED_PREFIXES: [&str; 4] = ["webhook-", "ce-", "aeg-", "proxy-"];

fn is_header_name(name: &str) -> bool {
    // RFC 9110 §5.6.2.
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let name = name.to_ascii_lowercase();
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.bytes().all(is_token)
        && !RESERVED.contains(&name.as_str())
        && !RESERVED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn is_header_value(value: &str) -> bool {
    value.len() <= LONGEST_HEADER_VALUE
        && value
            .bytes()
            .all(|byte| byte == b'\t' || (b' '..0x7f).contains(&byte))
}

/// Whether a text can be the name of an event subscription.
pub fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether a text can be the name of a secret.
pub fn is_secret_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_fine)
}

/// Whether options make sense.
///
/// # Errors
/// The first thing that does not.
pub fn check(name: &str, options: &EventSubscriptionOptions) -> Result<(), OptionsError> {
    if !is_name(name) {
        return Err(OptionsError::Name);
    }
    for (name, text) in [
        ("url", &options.url),
        ("subject_begins_with", &options.subject_begins_with),
        ("subject_ends_with", &options.subject_ends_with),
        ("ca_file", &options.ca_file),
        ("origin", &options.origin),
    ] {
        if text.len() > LONGEST_TEXT {
            return Err(OptionsError::TooLong(name));
        }
    }
    if let Some(unknown) = options.types.iter().find(|text| !is_type(text)) {
        return Err(OptionsError::Type(unknown.clone()));
    }
    for (name, value, least, most) in [
        ("ttl_min", options.ttl_min, 1, 1_440),
        ("max_attempts", options.max_attempts, 1, 30),
        ("max_events", options.max_events, 1, 5_000),
        ("max_bytes", options.max_bytes, 1_024, 1_048_576),
        ("rate_per_min", options.rate_per_min, 1, 60_000),
        ("timeout_s", options.timeout_s, 1, 300),
    ] {
        if !(least..=most).contains(&value) {
            return Err(OptionsError::Range { name, least, most });
        }
    }
    if Schema::of(options.schema) == Schema::EventGrid && Mode::of(options.mode) != Mode::Batch {
        return Err(OptionsError::Mode);
    }
    check_headers(options)?;
    check_secrets(options)
}

fn check_headers(options: &EventSubscriptionOptions) -> Result<(), OptionsError> {
    if options.headers.len() > MOST_HEADERS {
        return Err(OptionsError::TooMany("headers", MOST_HEADERS));
    }
    let is_fine = |name: &str, value: &str| is_header_name(name) && is_header_value(value);
    let mut headers = options.headers.iter();
    match headers.find(|header| !is_fine(&header.name, &header.value)) {
        Some(header) => Err(OptionsError::Header(header.name.clone())),
        None => Ok(()),
    }
}

fn check_secrets(options: &EventSubscriptionOptions) -> Result<(), OptionsError> {
    if options.signing_keys.len() > MOST_SIGNING_KEYS {
        return Err(OptionsError::TooMany("signing keys", MOST_SIGNING_KEYS));
    }
    let token = Some(&options.token).filter(|token| !token.is_empty());
    let mut secrets = options.signing_keys.iter().chain(token);
    match secrets.find(|name| !is_secret_name(name)) {
        Some(name) => Err(OptionsError::Secret(name.clone())),
        None => Ok(()),
    }
}

/// Options with which everything is as it is when an operator says nothing.
pub fn defaults() -> EventSubscriptionOptions {
    EventSubscriptionOptions {
        schema: Schema::CloudEvents.number(),
        mode: Mode::Batch.number(),
        handshake: Handshake::Required.number(),
        ttl_min: 1_440,
        max_attempts: 30,
        max_events: 100,
        max_bytes: 262_144,
        rate_per_min: 6_000,
        timeout_s: 30,
        ..EventSubscriptionOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::proto::state::EventHeader;

    fn header(name: &str, value: &str) -> EventHeader {
        EventHeader {
            name: name.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(check("config", &defaults()), Ok(()));
        for name in ["", "a b", "ä", "a_b", &"a".repeat(65)] {
            assert_eq!(check(name, &defaults()), Err(OptionsError::Name));
        }
        let wrong: [fn(&mut EventSubscriptionOptions); 14] = [
            |options| options.url = "x".repeat(4_097),
            |options| options.types = vec!["Connected".to_owned()],
            |options| options.ttl_min = 1_441,
            |options| options.max_attempts = 0,
            |options| options.max_events = 0,
            |options| options.max_bytes = 1,
            |options| options.rate_per_min = 0,
            |options| options.timeout_s = 301,
            |options| options.token = "a=b".to_owned(),
            |options| options.signing_keys = vec!["a".to_owned(); 3],
            |options| options.headers = vec![header("x", "y"); 11],
            |options| options.headers = vec![header("Host", "y")],
            |options| options.headers = vec![header("x", "a\r\nHost: b")],
            |options| {
                options.schema = Schema::EventGrid.number();
                options.mode = Mode::Binary.number();
            },
        ];
        for spoil in wrong {
            let mut options = defaults();
            spoil(&mut options);
            assert!(check("config", &options).is_err(), "{options:?}");
        }
    }

    #[test]
    fn headers_are_tokens_with_printable_values_and_not_ours() {
        for (name, value, is_fine) in [
            ("X-Api-Key", "a b\tc", true),
            ("x", "", true),
            ("x y", "", false),
            ("", "", false),
            ("x:", "", false),
            ("Webhook-Id", "", false),
            ("ce-id", "", false),
            ("Authorization", "", false),
            ("x", "ü", false),
            ("x", "\n", false),
        ] {
            assert_eq!(
                is_header_name(name) && is_header_value(value),
                is_fine,
                "{name}: {value:?}"
            );
        }
    }

    #[test]
    fn choices_are_found_by_number_and_by_text() {
        for mode in Mode::ALL {
            assert_eq!(Mode::of(mode.number()), *mode);
            assert_eq!(Mode::parse(mode.as_str()), Some(*mode));
        }
        assert_eq!(Schema::of(0), Schema::CloudEvents);
        assert_eq!(State::of(9), State::Active);
        assert_eq!(Handshake::parse("maybe"), None);
    }
}
