//! Settings of types that the standard library and `uuid` define: numbers, switches, paths, text, UUIDs.

use std::path::PathBuf;

use toml::de::DeValue;
use uuid::Uuid;

use super::read::{Input, Setting, SettingError, quote, text};

fn number(input: &Input<'_>) -> Result<u64, SettingError> {
    let wrong = || SettingError::unexpected("a whole number", input);
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

            fn read(input: &Input<'_>) -> Result<Self, SettingError> {
                let wide = number(input)?;
                <$type>::try_from(wide).map_err(|_| SettingError::TooLarge {
                    number: wide,
                    max: <$type>::MAX as u64,
                })
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

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match input {
            Input::Toml(DeValue::Boolean(value)) => Ok(*value),
            Input::Text("true") => Ok(true),
            Input::Text("false") => Ok(false),
            other => Err(SettingError::unexpected("true or false", other)),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for PathBuf {
    const KIND: &'static str = "path";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match text(input, "a path")? {
            "" => Err(SettingError::Unexpected {
                expected: "a path",
                found: "an empty string".into(),
            }),
            path => Ok(PathBuf::from(path)),
        }
    }

    fn show(&self) -> String {
        quote(&self.to_string_lossy())
    }
}

impl Setting for Option<PathBuf> {
    const KIND: &'static str = "path, empty = none";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        let path = text(input, "a path")?;
        Ok((!path.is_empty()).then(|| PathBuf::from(path)))
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quote(""), Setting::show)
    }
}

impl Setting for String {
    const KIND: &'static str = "text";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        text(input, "text").map(str::to_owned)
    }

    fn show(&self) -> String {
        quote(self)
    }
}

impl Setting for Vec<String> {
    const KIND: &'static str = "text, or a list of texts";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match input {
            Input::Toml(DeValue::Array(items)) => items
                .iter()
                .map(|item| String::read(&Input::Toml(item.get_ref())))
                .collect(),
            _ => Ok(text(input, "a text or a list of texts")?
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()),
        }
    }

    fn show(&self) -> String {
        let items: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", items.join(", "))
    }
}

impl Setting for Option<Uuid> {
    const KIND: &'static str = "UUID, empty = derived";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match text(input, "a UUID")? {
            "" => Ok(None),
            text => Uuid::parse_str(text)
                .map(Some)
                .map_err(|error| SettingError::Malformed {
                    expected: "a UUID",
                    found: text.to_owned(),
                    why: error.to_string(),
                }),
        }
    }

    fn show(&self) -> String {
        quote(&self.map(|id| id.to_string()).unwrap_or_default())
    }
}
