//! The types a configuration value can have, and how each is read from TOML or from text.
//!
//! Reading never panics: whatever is written, the answer is a value or one sentence that says what was expected.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;
use toml::de::DeValue;
use uuid::Uuid;

/// A value as it was written: in a TOML file, or as text in the environment or on the command line.
pub enum Input<'a> {
    /// A parsed TOML value.
    Toml(&'a DeValue<'a>),
    /// Text of an environment variable or a flag.
    Text(&'a str),
}

/// A type that a key can have.
pub trait Setting: Sized {
    /// What the reference page calls this type.
    const KIND: &'static str;

    /// Reads one value; the error says what was expected instead.
    fn read(input: &Input<'_>) -> Result<Self, String>;

    /// The value as it would be written in a TOML file.
    fn show(&self) -> String;

    /// The value as a number, for the range check of its key.
    fn number(&self) -> Option<u64> {
        None
    }
}

/// What was found in place of what was expected, for messages.
fn found(input: &Input<'_>) -> String {
    match input {
        Input::Toml(DeValue::String(text)) => format!("the string {text:?}"),
        Input::Toml(DeValue::Integer(number)) => format!("{number}"),
        Input::Toml(DeValue::Float(number)) => format!("{number}"),
        Input::Toml(DeValue::Boolean(value)) => format!("{value}"),
        Input::Toml(DeValue::Datetime(_)) => "a date".into(),
        Input::Toml(DeValue::Array(_)) => "a list".into(),
        Input::Toml(DeValue::Table(_)) => "a table".into(),
        Input::Text(text) => format!("{text:?}"),
    }
}

fn text<'a>(input: &Input<'a>, expected: &str) -> Result<&'a str, String> {
    match input {
        Input::Toml(DeValue::String(text)) => Ok(text),
        Input::Text(text) => Ok(text),
        other => Err(format!("expected {expected}, found {}", found(other))),
    }
}

fn number(input: &Input<'_>) -> Result<u64, String> {
    let wrong = || format!("expected a whole number, found {}", found(input));
    match input {
        Input::Toml(DeValue::Integer(number)) => {
            u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())
        }
        Input::Text(text) => text.trim().replace('_', "").parse().map_err(|_| wrong()),
        Input::Toml(_) => Err(wrong()),
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Setting for $type {
            const KIND: &'static str = "number";

            fn read(input: &Input<'_>) -> Result<Self, String> {
                let wide = number(input)?;
                <$type>::try_from(wide).map_err(|_| format!("{wide} is more than {}", <$type>::MAX))
            }

            fn show(&self) -> String {
                self.to_string()
            }

            fn number(&self) -> Option<u64> {
                u64::try_from(*self).ok()
            }
        }
    )*};
}
numbers!(u16, u32, u64, usize);

impl Setting for bool {
    const KIND: &'static str = "true or false";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        match input {
            Input::Toml(DeValue::Boolean(value)) => Ok(*value),
            Input::Text("true") => Ok(true),
            Input::Text("false") => Ok(false),
            other => Err(format!("expected true or false, found {}", found(other))),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for PathBuf {
    const KIND: &'static str = "path";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        match text(input, "a path")? {
            "" => Err("expected a path, found an empty string".into()),
            path => Ok(PathBuf::from(path)),
        }
    }

    fn show(&self) -> String {
        quote(&self.to_string_lossy())
    }
}

impl Setting for Option<PathBuf> {
    const KIND: &'static str = "path, empty = none";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        let path = text(input, "a path")?;
        Ok((!path.is_empty()).then(|| PathBuf::from(path)))
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quote(""), Setting::show)
    }
}

impl Setting for String {
    const KIND: &'static str = "text";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        text(input, "text").map(str::to_owned)
    }

    fn show(&self) -> String {
        quote(self)
    }
}

fn quote(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Implements [`Setting`] for a type that is written as one string.
macro_rules! strings {
    ($type:ty, $kind:literal) => {
        impl Setting for $type {
            const KIND: &'static str = $kind;

            fn read(input: &Input<'_>) -> Result<Self, String> {
                text(input, concat!("a string (", $kind, ")"))?.parse()
            }

            fn show(&self) -> String {
                quote(&self.to_string())
            }
        }
    };
}

/// `host:port`: where to listen, or where a peer is reached. The host is an IP address (v6 in brackets) or a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// The host without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 lets the system choose one when listening.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the host is an address that means "every interface" and therefore reaches nobody.
    pub fn is_unspecified(&self) -> bool {
        self.host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_unspecified())
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("expected host:port, found {text:?} ({why})");
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| wrong("the port is missing"))?;
        let port = port
            .parse()
            .map_err(|_| wrong("the port is not a number from 0 to 65535"))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest
                .strip_suffix(']')
                .ok_or_else(|| wrong("the bracket is not closed"))?,
            None if host.contains(':') => return Err(wrong("an IPv6 address needs brackets")),
            None => host,
        };
        if host.is_empty() || host.chars().any(|c| c.is_whitespace() || c == '/') {
            return Err(wrong("the host is not a name or an IP address"));
        }
        Ok(Address {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

strings!(Address, "host:port");

impl Setting for Option<Address> {
    const KIND: &'static str = "host:port, empty = none";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        match text(input, "a string (host:port)")? {
            "" => Ok(None),
            text => text.parse().map(Some),
        }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quote(""), Setting::show)
    }
}

impl Setting for Vec<Address> {
    const KIND: &'static str = "host:port, or a list of them";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        match input {
            Input::Toml(DeValue::Array(items)) => items
                .iter()
                .map(|item| Address::read(&Input::Toml(item.get_ref())))
                .collect(),
            _ => text(input, "a string (host:port) or a list of them")?
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(str::parse)
                .collect(),
        }
    }

    fn show(&self) -> String {
        let items: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", items.join(", "))
    }
}

/// One voter of the cluster: its number and where the other nodes reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The member's `node.id`.
    pub id: u64,
    /// The member's `cluster.advertise`.
    pub address: Address,
}

impl Member {
    fn from_toml(value: &DeValue<'_>) -> Result<Member, String> {
        let expected = "{ id = 1, address = \"host:port\" }";
        let DeValue::Table(table) = value else {
            return Err(format!(
                "expected {expected}, found {}",
                found(&Input::Toml(value))
            ));
        };
        let (mut id, mut address) = (None, None);
        for (key, value) in table.iter() {
            let input = Input::Toml(value.get_ref());
            match key.get_ref().as_ref() {
                "id" => id = Some(u64::read(&input)?),
                "address" => address = Some(Address::read(&input)?),
                other => return Err(format!("expected {expected}, found the key {other:?}")),
            }
        }
        match (id, address) {
            (Some(id), Some(address)) => Ok(Member { id, address }),
            _ => Err(format!("expected {expected}; one of the two is missing")),
        }
    }

    fn from_text(text: &str) -> Result<Member, String> {
        let (id, address) = text
            .split_once('=')
            .ok_or_else(|| format!("expected id=host:port, found {text:?}"))?;
        Ok(Member {
            id: u64::read(&Input::Text(id))?,
            address: address.trim().parse()?,
        })
    }
}

impl Setting for Vec<Member> {
    const KIND: &'static str =
        "list of { id, address }; in the environment and on the command line also id=host:port,…";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        match input {
            Input::Toml(DeValue::Array(items)) => items
                .iter()
                .map(|item| Member::from_toml(item.get_ref()))
                .collect(),
            Input::Text(text) if text.trim_start().starts_with('[') => {
                let value = DeValue::parse(text).map_err(|error| error.message().to_owned())?;
                Self::read(&Input::Toml(value.get_ref()))
            }
            Input::Text(text) => text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(Member::from_text)
                .collect(),
            other => Err(format!("expected a list, found {}", found(other))),
        }
    }

    fn show(&self) -> String {
        let items: Vec<_> = self
            .iter()
            .map(|member| {
                format!(
                    "{{ id = {}, address = {} }}",
                    member.id,
                    member.address.show()
                )
            })
            .collect();
        format!("[{}]", items.join(", "))
    }
}

impl Setting for Option<Uuid> {
    const KIND: &'static str = "UUID, empty = derived";

    fn read(input: &Input<'_>) -> Result<Self, String> {
        match text(input, "a UUID")? {
            "" => Ok(None),
            text => Uuid::parse_str(text)
                .map(Some)
                .map_err(|error| format!("expected a UUID, found {text:?} ({error})")),
        }
    }

    fn show(&self) -> String {
        quote(&self.map(|id| id.to_string()).unwrap_or_default())
    }
}

/// The name people give a cluster: 1 to 64 of `a-z A-Z 0-9 . _ -`, so that it fits logs, labels and file names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ClusterName(String);

impl ClusterName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if (1..=64).contains(&text.len()) && text.chars().all(fits) {
            Ok(ClusterName(text.to_owned()))
        } else {
            Err(format!(
                "expected 1 to 64 letters, digits, dots, dashes or underscores, found {text:?}"
            ))
        }
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

strings!(ClusterName, "name");

/// Implements an enum of fixed words with [`Setting`].
macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $kind:literal, { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum $type {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant),*
        }

        impl $type {
            /// The word that stands for this value.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word),*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($type::$variant),)*
                    other => Err(format!("expected {}, found {other:?}", $kind)),
                }
            }
        }

        strings!($type, $kind);
    };
}

words!(
    /// The least severe log line that is written.
    LogLevel, "error, warn, info, debug or trace", {
        /// Something is lost or about to be.
        Error = "error",
        /// Somebody should look at it.
        Warn = "warn",
        /// What an operator wants to read the next morning.
        Info = "info",
        /// Every connection and every decision.
        Debug = "debug",
        /// Every packet.
        Trace = "trace",
    }
);

words!(
    /// How log lines are written.
    LogFormat, "text or json", {
        /// One line for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
);

words!(
    /// What gives way when a session's queue is full.
    QueuePolicy, "drop_oldest, drop_newest or end_session", {
        /// The oldest messages that were not sent yet.
        DropOldest = "drop_oldest",
        /// The new message.
        DropNewest = "drop_newest",
        /// The session, with its connection.
        EndSession = "end_session",
    }
);

words!(
    /// What happens to messages with QoS 1 and 2 that do not fit into a client's outbox.
    OutboxPolicy, "drop or disconnect", {
        /// They are dropped.
        Drop = "drop",
        /// The connection ends.
        Disconnect = "disconnect",
    }
);
