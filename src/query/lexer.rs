//! Words of a query.

use super::error::QueryError;
use super::number;

/// A word that the language has for itself. It is recognized in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Select,
    Top,
    From,
    Where,
    Group,
    By,
    As,
    And,
    Or,
    Not,
    In,
    Nin,
    True,
    False,
    Null,
    Undefined,
}

const KEYWORDS: [(&str, Keyword); 16] = [
    ("SELECT", Keyword::Select),
    ("TOP", Keyword::Top),
    ("FROM", Keyword::From),
    ("WHERE", Keyword::Where),
    ("GROUP", Keyword::Group),
    ("BY", Keyword::By),
    ("AS", Keyword::As),
    ("AND", Keyword::And),
    ("OR", Keyword::Or),
    ("NOT", Keyword::Not),
    ("IN", Keyword::In),
    ("NIN", Keyword::Nin),
    ("TRUE", Keyword::True),
    ("FALSE", Keyword::False),
    ("NULL", Keyword::Null),
    ("UNDEFINED", Keyword::Undefined),
];

/// The keyword that a word is.
pub(super) fn keyword(word: &str) -> Option<Keyword> {
    let mut known = KEYWORDS.iter();
    let found = known.find(|(text, _)| text.eq_ignore_ascii_case(word));
    found.map(|(_, keyword)| *keyword)
}

/// A word, a constant or a mark.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name or a keyword: the parser knows which it may be.
    Word(String),
    Text(String),
    Number(f64),
    /// `,` `(` `=` `<=` and the like.
    Mark(&'static str),
    End,
}

impl Token {
    /// As an error tells it.
    pub(super) fn shown(&self) -> String {
        match self {
            Token::Word(word) => format!("{word:?}"),
            Token::Text(_) => "a text".to_owned(),
            Token::Number(number) => format!("the number {number}"),
            Token::Mark(mark) => format!("{mark:?}"),
            Token::End => "the end".to_owned(),
        }
    }
}

/// Longer ones first, so that `<=` is not `<`.
const MARKS: [&str; 18] = [
    "<=", ">=", "!=", "<>", "=", "<", ">", ",", "(", ")", "[", "]", ".", "*", "+", "-", "/", "%",
];

/// Reads a query word by word.
pub(super) struct Lexer<'q> {
    rest: &'q str,
    /// Characters before `rest`.
    characters: usize,
}

impl<'q> Lexer<'q> {
    pub(super) fn new(query: &'q str) -> Lexer<'q> {
        Lexer {
            rest: query,
            characters: 0,
        }
    }

    /// The next token, and which character it begins with, counted from 1.
    pub(super) fn next(&mut self) -> Result<(Token, usize), QueryError> {
        let blank = self.rest.len() - self.rest.trim_start().len();
        self.skip(blank);
        let at = self.characters + 1;
        let Some(first) = self.rest.chars().next() else {
            return Ok((Token::End, at));
        };
        let token = match first {
            'A'..='Z' | 'a'..='z' | '_' | '$' => self.word(),
            '0'..='9' => {
                let (number, length) = number::read(self.rest).ok_or(QueryError::Number { at })?;
                self.skip(length);
                Token::Number(number)
            }
            '\'' | '"' => self.text(first, at)?,
            found => {
                let mark = MARKS.iter().find(|mark| self.rest.starts_with(**mark));
                let mark = mark.ok_or(QueryError::Character { at, found })?;
                self.skip(mark.len());
                Token::Mark(mark)
            }
        };
        Ok((token, at))
    }

    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at(bytes);
        self.characters += skipped.chars().count();
        self.rest = rest;
    }

    fn word(&mut self) -> Token {
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$');
        let length = self.rest.bytes().take_while(fits).count();
        let word = self.rest[..length].to_owned();
        self.skip(length);
        Token::Word(word)
    }

    /// A text in quotes; `at` is where it begins.
    fn text(&mut self, quote: char, at: usize) -> Result<Token, QueryError> {
        let mut text = String::new();
        self.skip(1);
        loop {
            let stop = self.rest.find([quote, '\\']);
            let stop = stop.ok_or(QueryError::Unended { at })?;
            text.push_str(&self.rest[..stop]);
            self.skip(stop);
            if self.rest.starts_with(quote) {
                self.skip(1);
                return Ok(Token::Text(text));
            }
            text.push(self.escape()?);
        }
    }

    /// The character for which the escape stands that begins here.
    fn escape(&mut self) -> Result<char, QueryError> {
        let wrong = QueryError::Escape {
            at: self.characters + 1,
        };
        let escaped = self.rest[1..].chars().next();
        if let Some(plain @ ('\'' | '"' | '\\')) = escaped {
            self.skip(2);
            return Ok(plain);
        }
        let first = self.unit().ok_or_else(|| wrong.clone())?;
        // Two surrogates are one character, as in JSON.
        let units = match first {
            0xd800..=0xdbff => vec![first, self.unit().ok_or_else(|| wrong.clone())?],
            _ => vec![first],
        };
        let mut decoded = char::decode_utf16(units);
        let character = decoded.next().and_then(Result::ok).ok_or(wrong)?;
        Ok(character)
    }

    /// A `\uXXXX`.
    fn unit(&mut self) -> Option<u16> {
        let digits = self.rest.strip_prefix("\\u")?.get(..4)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let unit = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
        self.skip(6);
        Some(unit)
    }
}
