//! Keys of the state store, and globs of client identifiers and share names.

use super::document::{Effect, StoreMethod};
use super::facts::Facts;
use super::template::{Filled, Template, in_glob, plainly};
use crate::store::glob::Glob;

/// Whether one of the globs matches.
pub(super) fn any_glob_matches(globs: &[Glob], text: &str) -> bool {
    let mut steps = 0;
    globs.iter().any(|glob| glob.matches(text, &mut steps))
}

/// Globs with placeholders.
#[derive(Clone, Debug)]
pub(super) enum TextPattern {
    /// Without any.
    Fixed(Glob),
    /// To be filled for each client.
    Template(Template),
}

impl TextPattern {
    /// Whether the glob that a client makes of it matches. A denied pattern matches everything where the client's value
    /// is unusable.
    pub(super) fn matches(&self, text: &str, facts: &Facts, effect: Effect) -> bool {
        let matches = |glob: &Glob| glob.matches(text, &mut 0);
        match self {
            TextPattern::Fixed(glob) => matches(glob),
            TextPattern::Template(template) => match template.fill(facts, in_glob) {
                Filled::Missing => false,
                Filled::Unusable(_) => effect == Effect::Deny,
                Filled::Text(filled) => match Glob::new(filled.as_bytes()) {
                    Ok(glob) => matches(&glob),
                    // Too long with the value.
                    Err(_) => effect == Effect::Deny,
                },
            },
        }
    }
}

/// Which keys a pattern covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyMatch {
    /// This one.
    Exact(Box<[u8]>),
    /// Those that begin so.
    Prefix(Box<[u8]>),
    /// Those that match. A key that is not UTF-8 is read with U+FFFD for what is not.
    Glob(Glob),
}

impl KeyMatch {
    /// Whether it covers a key; adds the characters that a glob compares to `steps`.
    pub(super) fn covers(&self, key: &[u8], steps: &mut u64) -> bool {
        match self {
            KeyMatch::Exact(exact) => **exact == *key,
            KeyMatch::Prefix(prefix) => key.starts_with(prefix),
            KeyMatch::Glob(glob) => glob.matches(&String::from_utf8_lossy(key), steps),
        }
    }
}

/// How a pattern with placeholders is read once it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyTemplate {
    Exact,
    Prefix,
    Glob,
}

/// A pattern of keys.
#[derive(Clone, Debug)]
pub(super) enum KeyPattern {
    Fixed(KeyMatch),
    Template(KeyTemplate, Template),
}

impl KeyPattern {
    /// What a client makes of a pattern with placeholders; `None` where it covers nothing.
    pub(super) fn fill(
        kind: KeyTemplate,
        template: &Template,
        facts: &Facts,
        effect: Effect,
    ) -> Option<KeyMatch> {
        let write = match kind {
            KeyTemplate::Glob => in_glob,
            KeyTemplate::Exact | KeyTemplate::Prefix => plainly,
        };
        let bytes = |text: &str| text.as_bytes().into();
        let filled = match template.fill(facts, write) {
            Filled::Text(filled) => filled,
            Filled::Missing => return None,
            // Every key: what comes before the value may itself be a glob.
            Filled::Unusable(_) => {
                return (effect == Effect::Deny).then_some(KeyMatch::Prefix(Box::default()));
            }
        };
        match kind {
            KeyTemplate::Exact => Some(KeyMatch::Exact(bytes(&filled))),
            KeyTemplate::Prefix => Some(KeyMatch::Prefix(bytes(&filled))),
            KeyTemplate::Glob => match Glob::new(filled.as_bytes()) {
                Ok(glob) => Some(KeyMatch::Glob(glob)),
                Err(_) => (effect == Effect::Deny).then_some(KeyMatch::Prefix(Box::default())),
            },
        }
    }
}

/// One pattern of one rule.
#[derive(Clone, Debug)]
pub(super) struct KeyRule {
    /// The rule's place.
    pub(super) rule: u32,
    pub(super) method: StoreMethod,
    pub(super) pattern: KeyPattern,
}

impl KeyRule {
    pub(super) fn is_about_reads(&self) -> bool {
        self.method != StoreMethod::Write
    }

    pub(super) fn is_about_writes(&self) -> bool {
        self.method != StoreMethod::Read
    }
}
