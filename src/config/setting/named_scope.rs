//! What the holders of certificates may do over HTTP.

use std::str::FromStr;

use serde::Serialize;

use super::choice::Scope;
use super::read::{Input, Setting, SettingError};

/// A name with its scope, written `name=scope`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedScope {
    /// The subject's common name.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
}

impl FromStr for NamedScope {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let wrong = || {
            SettingError::unexpected("name=read, name=operate or name=admin", &Input::Text(text))
        };
        // A common name may hold the sign, a scope does not.
        let (name, scope) = text.rsplit_once('=').ok_or_else(wrong)?;
        if name.is_empty() {
            return Err(wrong());
        }
        let scope = scope.parse()?;
        let name = name.to_owned();
        Ok(NamedScope { name, scope })
    }
}

impl Setting for Vec<NamedScope> {
    const KIND: &'static str = "name=scope, or a list of them";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        let texts: Vec<String> = Setting::read(input)?;
        texts.iter().map(|text| text.parse()).collect()
    }

    fn show(&self) -> String {
        let texts: Vec<String> = self
            .iter()
            .map(|named| format!("{}={}", named.name, named.scope))
            .collect();
        texts.show()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_scope() {
        let named: NamedScope = "CN=ops team=admin".parse().expect("a name and a scope");
        assert_eq!(
            (named.name.as_str(), named.scope),
            ("CN=ops team", Scope::Admin)
        );
        for wrong in ["ops", "=admin", "ops=", "ops=root"] {
            assert!(wrong.parse::<NamedScope>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn scopes_include_the_lower_ones() {
        assert!(Scope::Read < Scope::Operate && Scope::Operate < Scope::Admin);
    }
}
