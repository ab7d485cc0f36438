//! SCAN patterns: a glob over the whole key (docs/spec/state-store.md, Scan).
//!
//! `*` stands for any characters, `/` included; `?` for one character; `[ab]`, `[a-z]` and `[!ab]` for one of a class,
//! or one outside it; `^` and `\` are ordinary, `[*]` is a literal star. A character is a Unicode scalar value.
//! Matching goes back to the last star only, so its work is bounded by pattern length times key length.

/// The longest pattern, in bytes: what one key can cost is bounded by it.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// The text is no pattern: not UTF-8, too long, or a class that does not end or has no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a pattern")]
pub struct InvalidPattern;

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
    prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// `*`.
    Many,
    /// `?`.
    One,
    Literal(char),
    Class {
        negated: bool,
        /// Sorted, disjoint, inclusive.
        ranges: Box<[(char, char)]>,
    },
}

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`InvalidPattern`], which the client sees as `syntax error`.
    pub fn new(pattern: &[u8]) -> Result<Self, InvalidPattern> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(InvalidPattern);
        }
        let mut rest = std::str::from_utf8(pattern)
            .map_err(|_| InvalidPattern)?
            .chars();
        let mut tokens = Vec::new();
        while let Some(character) = rest.next() {
            match character {
                // Stars in a row are one star.
                '*' if tokens.last() == Some(&Token::Many) => {}
                '*' => tokens.push(Token::Many),
                '?' => tokens.push(Token::One),
                '[' => {
                    let (token, after) = class(rest.as_str())?;
                    tokens.push(token);
                    rest = after.chars();
                }
                literal => tokens.push(Token::Literal(literal)),
            }
        }
        let prefix = tokens
            .iter()
            .map_while(|token| match token {
                Token::Literal(character) => Some(*character),
                _ => None,
            })
            .collect();
        Ok(Glob { tokens, prefix })
    }

    /// What every matching key starts with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether only the key [`Glob::prefix`] matches.
    pub fn is_literal(&self) -> bool {
        self.tokens
            .iter()
            .all(|token| matches!(token, Token::Literal(_)))
    }

    /// Whether the whole of `key` matches; adds the characters compared to `steps`.
    pub fn matches(&self, key: &str, steps: &mut u64) -> bool {
        let mut tokens = self.tokens.as_slice();
        let mut characters = key.chars();
        // Where to go on when a comparison fails: after the last star, one character further each time.
        let mut retry = None;
        loop {
            *steps = steps.saturating_add(1);
            match tokens.split_first() {
                Some((Token::Many, after)) => {
                    if after.is_empty() {
                        return true;
                    }
                    retry = Some((after, characters.clone()));
                    tokens = after;
                    continue;
                }
                Some((token, after)) => match characters.next() {
                    Some(character) if token.accepts(character) => {
                        tokens = after;
                        continue;
                    }
                    Some(_) => {}
                    // Every token but a star takes a character: what is left can only get shorter.
                    None => return false,
                },
                None if characters.as_str().is_empty() => return true,
                None => {}
            }
            let Some((after_star, from)) = &mut retry else {
                return false;
            };
            if from.next().is_none() {
                return false;
            }
            tokens = after_star;
            characters = from.clone();
        }
    }
}

impl Token {
    fn accepts(&self, character: char) -> bool {
        match self {
            Token::Many => false,
            Token::One => true,
            Token::Literal(literal) => *literal == character,
            Token::Class { negated, ranges } => {
                let after = ranges.partition_point(|(from, _)| *from <= character);
                let inside = after
                    .checked_sub(1)
                    .and_then(|last| ranges.get(last))
                    .is_some_and(|(_, to)| character <= *to);
                inside != *negated
            }
        }
    }
}

/// Reads a class after its `[`; gives it and what follows its `]`. A `]` that comes first is a member.
fn class(text: &str) -> Result<(Token, &str), InvalidPattern> {
    let (negated, body) = match text.strip_prefix('!') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let first = body.chars().next().ok_or(InvalidPattern)?.len_utf8();
    let end = body
        .get(first..)
        .and_then(|rest| rest.find(']'))
        .ok_or(InvalidPattern)?
        + first;
    let (members, after) = (&body[..end], &body[end + 1..]);
    let mut ranges = Vec::new();
    let mut rest = members.chars();
    while let Some(from) = rest.next() {
        let mut ahead = rest.clone();
        // A dash that is first or last is a member.
        let to = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) => {
                rest = ahead;
                to
            }
            _ => from,
        };
        if from <= to {
            ranges.push((from, to));
        }
    }
    ranges.sort_unstable();
    ranges.dedup_by(|next, kept| {
        let overlaps = next.0 <= kept.1;
        if overlaps {
            kept.1 = kept.1.max(next.1);
        }
        overlaps
    });
    let token = match ranges.as_slice() {
        [(from, to)] if from == to && !negated => Token::Literal(*from),
        _ => Token::Class {
            negated,
            ranges: ranges.into(),
        },
    };
    Ok((token, after))
}

#[cfg(test)]
#[path = "glob_tests.rs"]
mod tests;
