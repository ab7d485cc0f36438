//! What a setting is: a type that is read from TOML or text and shown as TOML.

use std::ops::RangeInclusive;

use toml::de::DeValue;

/// A value as it was written: in a TOML file, or as text in the environment or on the command line.
pub enum Input<'a> {
    /// A parsed TOML value.
    Toml(&'a DeValue<'a>),
    /// Text of an environment variable or a flag.
    Text(&'a str),
}

/// Why a value was not accepted, as a sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// A value of another type, or text of another form.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// The type or the form that is accepted.
        expected: &'static str,
        /// The value as it was written.
        found: String,
    },
    /// Text of the right form with a wrong part.
    #[error("expected {expected}, found {found:?} ({why})")]
    Malformed {
        /// The form that is accepted.
        expected: &'static str,
        /// The text as it was written.
        found: String,
        /// Which part is wrong.
        why: String,
    },
    /// A table without one of its two keys.
    #[error("expected {expected}; one of the two is missing")]
    Incomplete {
        /// The table that is accepted.
        expected: &'static str,
    },
    /// A number that the value's type cannot hold.
    #[error("{number} is more than {max}")]
    TooLarge {
        /// The number as it was written.
        number: u64,
        /// The largest number of the type.
        max: u64,
    },
    /// A number outside the range of its key.
    #[error("{number} is outside {min} to {max}")]
    OutOfRange {
        /// The number as it was written.
        number: u64,
        /// The smallest number that the key accepts.
        min: u64,
        /// The largest number that the key accepts.
        max: u64,
    },
    /// A value inside of a table.
    #[error("{key}: {error}")]
    Inside {
        /// The key in the table.
        key: &'static str,
        /// What is wrong with its value.
        error: Box<SettingError>,
    },
    /// Text that should be a TOML list and is not TOML.
    #[error("{0}")]
    NotToml(String),
}

impl SettingError {
    /// `input` is of another type, or of another form, than `expected`.
    pub(in crate::config) fn unexpected(expected: &'static str, input: &Input<'_>) -> SettingError {
        SettingError::Unexpected {
            expected,
            found: found(input),
        }
    }
}

/// A type that a key can have.
pub trait Setting: Sized {
    /// What the reference page calls this type.
    const KIND: &'static str;

    /// Reads one value.
    ///
    /// # Errors
    /// A value that is not of this type; whether it is in the range of its key is judged afterwards.
    fn read(input: &Input<'_>) -> Result<Self, SettingError>;

    /// The value as it would be written in a TOML file.
    fn show(&self) -> String;

    /// The value as a number, for the range check of its key.
    fn number(&self) -> Option<u64> {
        None
    }
}

/// Judges a value by the range of its key.
pub fn in_range<T: Setting>(
    value: T,
    range: Option<&RangeInclusive<u64>>,
) -> Result<T, SettingError> {
    match (value.number(), range) {
        (Some(number), Some(range)) if !range.contains(&number) => Err(SettingError::OutOfRange {
            number,
            min: *range.start(),
            max: *range.end(),
        }),
        _ => Ok(value),
    }
}

/// The items of a list that is written as TOML, in a file or as text.
pub fn items<T>(
    input: &Input<'_>,
    read: impl Fn(&DeValue<'_>) -> Result<T, SettingError>,
) -> Result<Vec<T>, SettingError> {
    match input {
        Input::Toml(DeValue::Array(items)) => {
            items.iter().map(|item| read(item.get_ref())).collect()
        }
        Input::Text(text) if text.trim_start().starts_with('[') => {
            let value = DeValue::parse(text)
                .map_err(|error| SettingError::NotToml(error.message().to_owned()))?;
            items(&Input::Toml(value.get_ref()), read)
        }
        Input::Text(text) if text.trim().is_empty() => Ok(Vec::new()),
        other => Err(SettingError::unexpected("a list", other)),
    }
}

/// The value that was found, as it is named in a message.
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

/// The text of a TOML string, an environment variable or a flag.
pub(super) fn text<'a>(input: &Input<'a>, expected: &'static str) -> Result<&'a str, SettingError> {
    match input {
        Input::Toml(DeValue::String(text)) => Ok(text),
        Input::Text(text) => Ok(text),
        other => Err(SettingError::unexpected(expected, other)),
    }
}

/// A text as a TOML string.
pub(super) fn quote(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Implements [`Setting`] for a type that is written as one string and parsed by its `FromStr`.
macro_rules! strings {
    ($type:ty, $kind:literal) => {
        impl Setting for $type {
            const KIND: &'static str = $kind;

            fn read(input: &Input<'_>) -> Result<Self, SettingError> {
                text(input, concat!("a string (", $kind, ")"))?.parse()
            }

            fn show(&self) -> String {
                quote(&self.to_string())
            }
        }
    };
}
pub(super) use strings;
