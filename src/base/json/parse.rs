//! Reading JSON text.

use std::collections::BTreeMap;

use super::Json;

/// How many arrays and objects may be inside one another.
pub const MAX_DEPTH: usize = 128;

/// Bytes are not JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They are not UTF-8.
    #[error("not UTF-8 at byte {0}")]
    Utf8(usize),
    /// They do not follow the grammar, or a string has half of a surrogate pair.
    #[error("not JSON at byte {0}")]
    Syntax(usize),
    /// Arrays and objects are deeper inside one another than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} at byte {0}")]
    TooDeep(usize),
}

/// Reads one value, and nothing else but white space around it.
///
/// # Errors
/// The first place where the bytes are not JSON.
pub fn parse(bytes: &[u8]) -> Result<Json, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|error| Malformed::Utf8(error.valid_up_to()))?;
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.syntax()),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Always between two characters.
    at: usize,
}

impl Parser<'_> {
    fn syntax(&self) -> Malformed {
        Malformed::Syntax(self.at)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Takes an ASCII character, if it comes next.
    fn take(&mut self, character: u8) -> bool {
        let comes = self.peek() == Some(character);
        self.at += usize::from(comes);
        comes
    }

    fn expect(&mut self, character: u8) -> Result<(), Malformed> {
        match self.take(character) {
            true => Ok(()),
            false => Err(self.syntax()),
        }
    }

    /// A value with so many arrays and objects around it.
    fn value(&mut self, depth: usize) -> Result<Json, Malformed> {
        self.skip_space();
        match self.peek() {
            Some(b'{' | b'[') if depth == MAX_DEPTH => Err(Malformed::TooDeep(self.at)),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            _ => Err(self.syntax()),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, Malformed> {
        match self.text[self.at..].starts_with(word) {
            true => {
                self.at += word.len();
                Ok(value)
            }
            false => Err(self.syntax()),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Malformed> {
        self.expect(b'{')?;
        let mut members = BTreeMap::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            let name = self.string()?;
            self.skip_space();
            self.expect(b':')?;
            let value = self.value(depth)?;
            members.insert(name, value);
            self.skip_space();
            if !self.take(b',') {
                self.expect(b'}')?;
                return Ok(Json::Object(members));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, Malformed> {
        self.expect(b'[')?;
        let mut elements = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Json::Array(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            self.skip_space();
            if !self.take(b',') {
                self.expect(b']')?;
                return Ok(Json::Array(elements));
            }
        }
    }

    fn string(&mut self) -> Result<String, Malformed> {
        self.expect(b'"')?;
        let mut string = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest
                .bytes()
                .position(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\'));
            let plain = plain.unwrap_or(rest.len());
            string.push_str(&rest[..plain]);
            self.at += plain;
            if self.take(b'"') {
                return Ok(string);
            }
            self.expect(b'\\')?;
            string.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Result<char, Malformed> {
        let escaped = match self.peek() {
            Some(same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.code_point();
            }
            _ => return Err(self.syntax()),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// What follows `\u`: a character of the basic plane, or both halves of another one.
    fn code_point(&mut self) -> Result<char, Malformed> {
        let first = self.four_digits()?;
        if !(0xD800..0xDC00).contains(&first) {
            return char::from_u32(first).ok_or(self.syntax());
        }
        self.expect(b'\\')?;
        self.expect(b'u')?;
        let second = self.four_digits()?;
        let Some(low) = second.checked_sub(0xDC00).filter(|low| *low < 0x400) else {
            return Err(self.syntax());
        };
        char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + low).ok_or(self.syntax())
    }

    fn four_digits(&mut self) -> Result<u32, Malformed> {
        let mut number = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            number = number << 4 | digit.ok_or(self.syntax())?;
            self.at += 1;
        }
        Ok(number)
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let from = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        match self.at == from {
            true => Err(self.syntax()),
            false => Ok(()),
        }
    }

    fn number(&mut self) -> Result<Json, Malformed> {
        let from = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        let mut is_integer = true;
        if self.take(b'.') {
            is_integer = false;
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            is_integer = false;
            if !self.take(b'-') {
                self.take(b'+');
            }
            self.digits()?;
        }
        let literal = &self.text[from..self.at];
        let value = match is_integer {
            true => literal.parse().ok().map(Json::Integer),
            false => {
                let double = literal
                    .parse()
                    .ok()
                    .filter(|double: &f64| double.is_finite());
                double.map(Json::Double)
            }
        };
        Ok(value.unwrap_or(Json::TooLarge))
    }
}
