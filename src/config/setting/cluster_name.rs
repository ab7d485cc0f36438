//! The name of a cluster.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::read::{Input, Setting, SettingError, quote, strings, text};

/// Name of a cluster: 1 to 64 of `a-z A-Z 0-9 . _ -`, so that it fits logs, labels and file names.
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
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if (1..=64).contains(&text.len()) && text.chars().all(fits) {
            Ok(ClusterName(text.to_owned()))
        } else {
            Err(SettingError::unexpected(
                "1 to 64 letters, digits, dots, dashes or underscores",
                &Input::Text(text),
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
