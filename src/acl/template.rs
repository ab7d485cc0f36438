//! Patterns with placeholders: `{principal.name}`, `{principal.client_id}` and `{principal.attributes.x}`.
//!
//! Invariant: a value takes the place of one level's text, and of nothing else. A value that is empty, holds `/`, `+`,
//! `#` or NUL, or would begin a pattern with `$`, is *unusable*: an allowed pattern then covers nothing, and a denied
//! one covers everything from that level on, so no value gives more than another one.
//! Invariant: in globs, `*`, `?` and `[` of a value stand for themselves.

use std::borrow::Cow;

use super::facts::Facts;
use crate::topic::MAX_TOPIC_BYTES;

/// What every placeholder begins with.
const OPENING: &str = "{principal.";

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A placeholder has no end.
    #[error("a placeholder has no closing brace")]
    Open,
    /// There is no such placeholder.
    #[error(
        "there is no placeholder {{principal.{0}}}: name, client_id and attributes.… are there"
    )]
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Name,
    ClientId,
    Attribute(Box<str>),
}

/// A pattern with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

/// What a client makes of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filled<'t> {
    /// The pattern of this client.
    Text(Cow<'t, str>),
    /// The client has no such value: the pattern is not about it.
    Missing,
    /// The client's value may not stand in a pattern; what comes before it.
    Unusable(String),
}

impl Template {
    /// Reads a pattern.
    pub(super) fn parse(text: &str) -> Result<Template, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(OPENING) {
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            let (name, after) = after.split_once('}').ok_or(TemplateError::Open)?;
            parts.push(match name {
                "name" | "username" => Part::Name,
                "client_id" | "clientId" => Part::ClientId,
                _ => match name.strip_prefix("attributes.") {
                    Some(attribute) if !attribute.is_empty() => Part::Attribute(attribute.into()),
                    _ => return Err(TemplateError::Unknown(name.to_owned())),
                },
            });
            rest = after;
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Template(parts))
    }

    /// The text, if there is no placeholder in it.
    pub(super) fn fixed(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether it has a placeholder that only clients of listeners have a value for.
    pub(super) fn asks_for_more_than_a_name(&self) -> bool {
        let asks = |part: &Part| matches!(part, Part::ClientId | Part::Attribute(_));
        self.0.iter().any(asks)
    }

    /// The text with `x` for every placeholder, to check its syntax.
    pub(super) fn sample(&self) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.to_string(),
            _ => "x".to_owned(),
        };
        self.0.iter().map(text).collect()
    }

    /// The pattern of a client, whose values are written by `write`.
    pub(super) fn fill(&self, facts: &Facts, write: fn(&str, &mut String)) -> Filled<'_> {
        if let Some(fixed) = self.fixed() {
            return Filled::Text(fixed.into());
        }
        let mut filled = String::new();
        for part in &self.0 {
            let value = match part {
                Part::Text(text) => {
                    filled.push_str(text);
                    continue;
                }
                Part::Name => Some(&*facts.name).filter(|name| !name.is_empty()),
                Part::ClientId => Some(&*facts.client_id),
                Part::Attribute(name) => facts.attributes.get(name).map(|value| &**value),
            };
            let Some(value) = value else {
                return Filled::Missing;
            };
            let begins_reserved = filled.is_empty() && value.starts_with('$');
            if value.is_empty() || value.contains(['/', '+', '#', '\0']) || begins_reserved {
                return Filled::Unusable(filled);
            }
            write(value, &mut filled);
            if filled.len() > MAX_TOPIC_BYTES {
                return Filled::Unusable(String::new());
            }
        }
        Filled::Text(filled.into())
    }
}

/// A value in a topic filter.
pub(super) fn plainly(value: &str, out: &mut String) {
    out.push_str(value);
}

/// A value in a glob.
pub(super) fn in_glob(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '*' | '?' | '[' => {
                out.push('[');
                out.push(character);
                out.push(']');
            }
            _ => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pattern: &str, name: &str, client_id: &str) -> Filled<'static> {
        let facts = Facts {
            name: name.into(),
            client_id: client_id.into(),
            attributes: [("site".into(), "oslo".into())].into(),
            ..Facts::default()
        };
        let template = Template::parse(pattern).expect("a pattern");
        match template.fill(&facts, plainly) {
            Filled::Text(text) => Filled::Text(text.into_owned().into()),
            Filled::Missing => Filled::Missing,
            Filled::Unusable(before) => Filled::Unusable(before),
        }
    }

    #[test]
    fn placeholders_take_values() {
        let text = |text: &'static str| Filled::Text(text.into());
        assert_eq!(fill("a/{principal.name}/#", "bob", "c"), text("a/bob/#"));
        assert_eq!(fill("{principal.clientId}-x", "bob", "c"), text("c-x"));
        assert_eq!(
            fill("{principal.attributes.site}/{principal.name}", "b", ""),
            text("oslo/b")
        );
        assert_eq!(fill("a/{b}/c", "bob", "c"), text("a/{b}/c"));
        assert_eq!(fill("a/{principal.name}", "", "c"), Filled::Missing);
        assert_eq!(
            fill("{principal.attributes.floor}", "bob", "c"),
            Filled::Missing
        );
        for wrong in ["{principal.", "{principal.x}", "a/{principal.attributes.}"] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_value_widens_a_pattern() {
        for value in ["+", "#", "a/b", "a+", "", "x\0"] {
            let unusable = Filled::Unusable("t/".to_owned());
            assert_eq!(fill("t/{principal.client_id}/#", "bob", value), unusable);
        }
        assert_eq!(
            fill("{principal.name}/#", "$SYS", ""),
            Filled::Unusable(String::new())
        );
        let mut escaped = String::new();
        in_glob("a*[b]?", &mut escaped);
        assert_eq!(escaped, "a[*][[]b][?]");
        let glob = crate::store::glob::Glob::new(escaped.as_bytes()).expect("a glob");
        assert!(glob.is_literal());
        assert_eq!(glob.prefix(), "a*[b]?");
    }
}
