//! Bytes as text: what a line of a conversation sends, and what the bytes that come must look like.

use crate::wire;
use std::collections::BTreeMap;

/// Values that the broker chose, by the name a conversation gave them.
pub type Names = BTreeMap<String, Vec<u8>>;

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    Bytes(Vec<u8>),
    /// `$name`: two bytes, a packet id; `$name*24`: so many bytes.
    Taken(String, usize),
    /// `s$name`: a string with its length.
    Text(String),
    /// `00|10`: one byte, one of these.
    OneOf(Vec<u8>),
    /// `00000008-0000000A`: so many bytes, a number between these, both included.
    Between(Vec<u8>, Vec<u8>),
    /// `..*4`: so many bytes, whatever they are.
    Any(usize),
    /// `[ … ]`: its length in front.
    Body(Vec<Pattern>),
    /// `( … , … )`: its length in front; with commas a list of properties in any order, else exactly that.
    Properties(Vec<Vec<Pattern>>),
}

/// Reads a line; `word` stands for `@` in quotes.
pub fn parse(line: &str, word: &str) -> Result<Vec<Pattern>, String> {
    struct Open {
        bracket: char,
        before: Vec<Pattern>,
        groups: Vec<Vec<Pattern>>,
    }
    let mut rest = line.trim();
    let mut open: Vec<Open> = Vec::new();
    let mut patterns = Vec::new();
    while let Some(first) = rest.chars().next() {
        match first {
            ' ' => rest = &rest[1..],
            '[' | '(' => {
                let before = std::mem::take(&mut patterns);
                let groups = Vec::new();
                open.push(Open {
                    bracket: first,
                    before,
                    groups,
                });
                rest = &rest[1..];
            }
            ',' => {
                let inner = open.last_mut().filter(|inner| inner.bracket == '(');
                let inner = inner.ok_or("a comma outside ( )")?;
                inner.groups.push(std::mem::take(&mut patterns));
                rest = &rest[1..];
            }
            ']' | ')' => {
                let mut inner = open.pop().ok_or("closed without an opening")?;
                let body = std::mem::replace(&mut patterns, inner.before);
                patterns.push(match (inner.bracket, first) {
                    ('[', ']') => Pattern::Body(body),
                    ('(', ')') => {
                        inner.groups.push(body);
                        Pattern::Properties(inner.groups)
                    }
                    (bracket, _) => return Err(format!("{bracket} closed by {first}")),
                });
                rest = &rest[1..];
            }
            quote @ ('"' | '\'') => {
                let (text, after) = quoted(rest, quote, word)?;
                patterns.push(Pattern::Bytes(text));
                rest = after;
            }
            's' if rest[1..].starts_with('"') => {
                let (text, after) = quoted(&rest[1..], '"', word)?;
                patterns.push(Pattern::Bytes(wire::field(&text)));
                rest = after;
            }
            _ => {
                let end = rest
                    .find([' ', ',', ']', ')', '[', '(', '"', '\''])
                    .unwrap_or(rest.len());
                patterns.push(bare(&rest[..end])?);
                rest = &rest[end..];
            }
        }
    }
    if open.is_empty() {
        Ok(patterns)
    } else {
        Err("not closed".into())
    }
}

fn quoted<'a>(rest: &'a str, quote: char, word: &str) -> Result<(Vec<u8>, &'a str), String> {
    let (text, after) = rest[1..].split_once(quote).ok_or("no closing quote")?;
    Ok((text.replace('@', word).into_bytes(), after))
}

fn bare(word: &str) -> Result<Pattern, String> {
    if let Some(name) = word.strip_prefix("s$") {
        return Ok(Pattern::Text(name.to_owned()));
    }
    if let Some(name) = word.strip_prefix('$') {
        let (name, length) = match name.split_once('*') {
            Some((name, length)) => (name, length.parse().map_err(|_| format!("{word:?}"))?),
            None => (name, 2),
        };
        return Ok(Pattern::Taken(name.to_owned(), length));
    }
    if word.contains('|') {
        let bytes = hex(&word.replace('|', ""))?;
        return Ok(Pattern::OneOf(bytes));
    }
    if let Some((low, high)) = word.split_once('-') {
        let (low, high) = (hex(low)?, hex(high)?);
        if low.len() != high.len() || low > high {
            return Err(format!("no range: {word:?}"));
        }
        return Ok(Pattern::Between(low, high));
    }
    let (digits, times) = match word.split_once('*') {
        Some((digits, times)) => (digits, times.parse().map_err(|_| format!("{word:?}"))?),
        None => (word, 1),
    };
    if digits == ".." {
        return Ok(Pattern::Any(times));
    }
    Ok(Pattern::Bytes(hex(digits)?.repeat(times)))
}

/// Bytes from hexadecimal digits.
pub fn hex(digits: &str) -> Result<Vec<u8>, String> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        (pair.len() == 2).then(|| u8::from_str_radix(pair, 16).ok())?
    });
    let bytes = pairs.collect::<Option<Vec<u8>>>();
    bytes.ok_or_else(|| format!("no bytes: {digits:?}"))
}

/// The bytes to send; every name must have its value.
pub fn bytes(patterns: &[Pattern], names: &Names) -> Result<Vec<u8>, String> {
    let value = |name: &String| {
        let value = names.get(name);
        value.ok_or_else(|| format!("${name} has not come yet"))
    };
    let mut said = Vec::new();
    for node in patterns {
        match node {
            Pattern::Bytes(bytes) => said.extend(bytes),
            Pattern::Taken(name, _) => said.extend(value(name)?),
            Pattern::Text(name) => said.extend(wire::field(value(name)?)),
            Pattern::Body(inner) => said.extend(with_length(bytes(inner, names)?)?),
            Pattern::Properties(groups) => {
                let mut list = Vec::new();
                for group in groups {
                    list.extend(bytes(group, names)?);
                }
                said.extend(with_length(list)?);
            }
            Pattern::OneOf(_) | Pattern::Between(..) | Pattern::Any(_) => {
                return Err("choices are for what comes, not for what is sent".into());
            }
        }
    }
    Ok(said)
}

fn with_length(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let length = u32::try_from(bytes.len()).map_err(|_| "too long")?;
    Ok([wire::varint(length), bytes].concat())
}

/// Whether `came` is exactly what the patterns say. Names that are met for the first time take what came, also when the
/// rest then turns out to be something else: match against a copy where that matters.
pub fn matches(patterns: &[Pattern], came: &[u8], names: &mut Names) -> bool {
    beginning(patterns, came, names) == Some(came.len())
}

/// How many of the bytes the patterns cover.
fn beginning(patterns: &[Pattern], came: &[u8], names: &mut Names) -> Option<usize> {
    let mut at = 0;
    for node in patterns {
        let rest = &came[at..];
        at += match node {
            Pattern::Bytes(wanted) => rest.starts_with(wanted).then_some(wanted.len())?,
            Pattern::OneOf(choices) => choices.contains(rest.first()?).then_some(1)?,
            Pattern::Any(count) => rest.get(..*count)?.len(),
            Pattern::Between(low, high) => {
                let value = rest.get(..low.len())?;
                (value >= &low[..] && value <= &high[..]).then_some(low.len())?
            }
            Pattern::Taken(name, length) => taken(name, rest.get(..*length)?, names)?.len(),
            Pattern::Text(name) => {
                let length = usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?]));
                2 + taken(name, rest.get(2..2 + length)?, names)?.len()
            }
            Pattern::Body(inner) => {
                let (start, body) = measured(rest)?;
                matches(inner, body, names).then_some(start + body.len())?
            }
            Pattern::Properties(groups) => {
                let (start, list) = measured(rest)?;
                let same = match groups.as_slice() {
                    [exactly] => matches(exactly, list, names),
                    several => any_order(several, list, names),
                };
                same.then_some(start + list.len())?
            }
        };
    }
    Some(at)
}

/// The value of a name is what came, or becomes it.
fn taken<'a>(name: &str, came: &'a [u8], names: &mut Names) -> Option<&'a [u8]> {
    let known = names.entry(name.to_owned()).or_insert_with(|| came.into());
    (known == came).then_some(came)
}

/// A length in front, how many bytes it took, and what it measures.
fn measured(came: &[u8]) -> Option<(usize, &[u8])> {
    let mut length = 0;
    for (position, byte) in came.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7F) << (7 * position);
        if byte & 0x80 == 0 {
            let start = position + 1;
            return Some((start, came.get(start..start + length)?));
        }
    }
    None
}

/// Every property has its group; user properties come in the order of theirs.
fn any_order(groups: &[Vec<Pattern>], list: &[u8], names: &mut Names) -> bool {
    let Ok(mut came) = wire::split_properties(list) else {
        return false;
    };
    let is_user = |one: &&[u8]| one.first() == Some(&wire::id::USER_PROPERTY);
    groups.iter().all(|group| {
        let position = came
            .iter()
            .position(|one| matches(group, one, &mut names.clone()));
        let Some(position) = position else {
            return false;
        };
        let one = came.remove(position);
        let in_order = !is_user(&one) || !came[..position].iter().any(is_user);
        in_order && matches(group, one, names)
    }) && came.is_empty()
}

/// Whether the list has a property for every group, whatever else it has.
pub fn holds_all(groups: &[Vec<Pattern>], list: &[&[u8]], names: &mut Names) -> bool {
    groups
        .iter()
        .all(|group| list.iter().any(|one| matches(group, one, names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> Result<Vec<u8>, String> {
        bytes(&parse(line, "w")?, &Names::new())
    }

    fn fits(line: &str, came: &[u8]) -> bool {
        let patterns = parse(line, "w").expect("it is well formed");
        matches(&patterns, came, &mut Names::new())
    }

    #[test]
    fn a_line_becomes_its_bytes() {
        assert_eq!(
            said(r#"10 [ s"MQTT" 05 02 0000 ( 11 00000001 ) s"@a" ]"#).as_deref(),
            Ok(&b"\x10\x14\x00\x04MQTT\x05\x02\x00\x00\x05\x11\x00\x00\x00\x01\x00\x02wa"[..])
        );
        assert_eq!(said("30 00*3").as_deref(), Ok(&[0x30, 0, 0, 0][..]));
        assert_eq!(
            said(r#"'{"@":' 78*2 '}'"#).as_deref(),
            Ok(&b"{\"w\":xx}"[..])
        );
        assert_eq!(
            said(r#"( 01 00 , 23 0001 )"#).as_deref(),
            Ok(&[5, 1, 0, 0x23, 0, 1][..])
        );
        for wrong in ["[ 00", "0", "00 )", "[ 00 )", "$1", "00|10", "[ 00, 01 ]"] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_left_open_fits_what_comes() {
        assert!(fits("40 [ .. 01 00|10 ]", &[0x40, 3, 9, 1, 0x10]));
        assert!(!fits("40 [ .. 01 00|10 ]", &[0x40, 3, 9, 1, 0x11]));
        assert!(!fits("40 [ 0001 ]", &[0x40, 3, 0, 1, 0]), "longer");
        assert!(fits("02 00000008-0000000A", &[2, 0, 0, 0, 9]));
        assert!(!fits("02 00000008-0000000A", &[2, 0, 0, 0, 11]));
    }

    #[test]
    fn properties_with_commas_come_in_any_order_but_equal_ones_in_theirs() {
        let line = r#"( 26 s"b" s"" , 26 s"a" s"" , 01 01 )"#;
        let (b, a) = (
            b"\x26\x00\x01b\x00\x00".as_slice(),
            b"\x26\x00\x01a\x00\x00".as_slice(),
        );
        assert!(fits(line, &[&[14][..], b, &[1, 1], a].concat()));
        assert!(!fits(line, &[&[14][..], a, &[1, 1], b].concat()));
        assert!(!fits(line, &[&[12][..], b, a].concat()), "one is missing");
    }

    #[test]
    fn a_name_takes_what_comes_and_keeps_it() {
        let patterns = parse("$1 s$id $1", "w").expect("it is well formed");
        let mut names = Names::new();
        assert!(matches(&patterns, &[7, 8, 0, 1, b'x', 7, 8], &mut names));
        assert_eq!(names["id"], b"x");
        assert!(!matches(&patterns, &[7, 9, 0, 1, b'x', 7, 9], &mut names));
        let patterns = parse("$long*3 $1", "w").expect("it is well formed");
        assert!(matches(&patterns, &[1, 2, 3, 7, 8], &mut names));
        assert_eq!(names["long"], [1, 2, 3]);
        let answer = parse("[ $1 s$id ]", "w").expect("it is well formed");
        assert_eq!(
            bytes(&answer, &names).as_deref(),
            Ok(&[5, 7, 8, 0, 1, b'x'][..])
        );
    }
}
