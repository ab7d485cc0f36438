//! Queries are read by recursive descent, one function per rule of the grammar (docs/spec/query.md, Grammar).
//!
//! Invariant: the depth of the recursion is bounded by [`MOST_NESTED`], and what it makes is nested no deeper, beside
//! chains of operators that are bounded by [`MOST_TERMS`].

use sha2::{Digest as _, Sha256};

use super::columns::{Columns, Function, Item, Source};
use super::error::QueryError;
use super::expression::{Comparison, Expression, Literal, Operator, Path};
use super::lexer::{Keyword, Lexer, Token, keyword};
use super::limits::{MOST_CHARACTERS, MOST_NESTED, MOST_TERMS};
use super::parsed::{Collection, Query};

type Parsed<T> = Result<T, QueryError>;

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// When it is none, see [`QueryError`].
    pub fn parse(text: &str) -> Result<Query, QueryError> {
        parse(text)
    }
}

fn parse(text: &str) -> Parsed<Query> {
    // A character has at most four bytes.
    if text.len() > 4 * MOST_CHARACTERS || text.chars().count() > MOST_CHARACTERS {
        return Err(QueryError::TooLong);
    }
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&Sha256::digest(text.as_bytes())[..16]);
    let mut lexer = Lexer::new(text);
    let (token, at) = lexer.next()?;
    let mut parser = Parser {
        lexer,
        token,
        at,
        nested: 0,
        terms: 0,
    };
    parser.expect_keyword(Keyword::Select, "SELECT")?;
    let top = parser.top()?;
    let items = parser.items()?;
    parser.expect_keyword(Keyword::From, "FROM")?;
    let collection = parser.collection()?;
    let condition = match parser.take_keyword(Keyword::Where)? {
        true => Some(parser.or()?),
        false => None,
    };
    let by = match parser.take_keyword(Keyword::Group)? {
        true => {
            parser.expect_keyword(Keyword::By, "BY")?;
            Some(parser.path()?)
        }
        false => None,
    };
    match parser.token {
        Token::End => {}
        _ => return Err(parser.expected("the end")),
    }
    Ok(Query {
        fingerprint,
        top,
        columns: Columns::new(items, by)?,
        collection,
        condition,
    })
}

struct Parser<'q> {
    lexer: Lexer<'q>,
    /// What is next.
    token: Token,
    /// Where it stands.
    at: usize,
    nested: usize,
    terms: usize,
}

impl Parser<'_> {
    fn advance(&mut self) -> Parsed<Token> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn expected(&self, expected: &'static str) -> QueryError {
        QueryError::Expected {
            at: self.at,
            expected,
            found: self.token.shown(),
        }
    }

    fn next_keyword(&self) -> Option<Keyword> {
        match &self.token {
            Token::Word(word) => keyword(word),
            _ => None,
        }
    }

    fn take_keyword(&mut self, wanted: Keyword) -> Parsed<bool> {
        let is_there = self.next_keyword() == Some(wanted);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn expect_keyword(&mut self, wanted: Keyword, name: &'static str) -> Parsed<()> {
        match self.take_keyword(wanted)? {
            true => Ok(()),
            false => Err(self.expected(name)),
        }
    }

    fn take_mark(&mut self, wanted: &str) -> Parsed<bool> {
        let is_there = matches!(self.token, Token::Mark(mark) if mark == wanted);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn expect_mark(&mut self, wanted: &'static str) -> Parsed<()> {
        match self.take_mark(wanted)? {
            true => Ok(()),
            false => Err(self.expected(wanted)),
        }
    }

    /// A word that is no keyword.
    fn name(&mut self) -> Parsed<String> {
        match (&self.token, self.next_keyword()) {
            (Token::Word(_), None) => self.word(),
            _ => Err(self.expected("a name")),
        }
    }

    /// A word, also one that is a keyword elsewhere.
    fn word(&mut self) -> Parsed<String> {
        let Token::Word(_) = self.token else {
            return Err(self.expected("a name"));
        };
        match self.advance()? {
            Token::Word(word) => Ok(word),
            _ => Err(self.expected("a name")),
        }
    }

    fn term(&mut self) -> Parsed<()> {
        self.terms += 1;
        match self.terms > MOST_TERMS {
            true => Err(QueryError::Terms),
            false => Ok(()),
        }
    }

    /// Reads something that may hold the like of itself.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nested == MOST_NESTED {
            return Err(QueryError::Nested);
        }
        self.nested += 1;
        let inner = read(self)?;
        self.nested -= 1;
        Ok(inner)
    }

    fn top(&mut self) -> Parsed<Option<u64>> {
        if !self.take_keyword(Keyword::Top)? {
            return Ok(None);
        }
        match self.advance()? {
            // More rows than this are nowhere.
            Token::Number(number) if number >= 1.0 && number.fract() == 0.0 => {
                Ok(Some(number as u64))
            }
            _ => Err(QueryError::Top),
        }
    }

    /// The columns; `None` for `*`.
    fn items(&mut self) -> Parsed<Option<Vec<Item>>> {
        if self.take_mark("*")? {
            return Ok(None);
        }
        let mut items = vec![self.item()?];
        while self.take_mark(",")? {
            items.push(self.item()?);
        }
        Ok(Some(items))
    }

    fn item(&mut self) -> Parsed<Item> {
        self.term()?;
        let root = self.name()?;
        let (source, default) = match self.take_mark("(")? {
            true => self.function(&root)?,
            false => {
                let path = self.path_from(root)?;
                let name = path.last().to_owned();
                (Source::Path(path), name)
            }
        };
        let name = match self.take_keyword(Keyword::As)? {
            true => self.name()?,
            false => default,
        };
        Ok(Item { source, name })
    }

    /// A function of columns behind its parenthesis.
    fn function(&mut self, name: &str) -> Parsed<(Source, String)> {
        let lower = name.to_ascii_lowercase();
        let function = match lower.as_str() {
            "count" => Function::Count,
            "avg" => Function::Average,
            "sum" => Function::Sum,
            "min" => Function::Smallest,
            "max" => Function::Largest,
            _ => return Err(QueryError::Function(name.to_owned())),
        };
        let path = match function {
            Function::Count => None,
            _ => Some(self.path()?),
        };
        self.expect_mark(")")?;
        Ok((Source::Function(function, path), lower))
    }

    fn collection(&mut self) -> Parsed<Collection> {
        let mut name = self.name()?;
        while self.take_mark(".")? {
            name.push('.');
            name.push_str(&self.word()?);
        }
        match name.as_str() {
            "devices" => Ok(Collection::Devices),
            "devices.modules" => Ok(Collection::Modules),
            _ => Err(QueryError::Collection(name)),
        }
    }

    fn path(&mut self) -> Parsed<Path> {
        let root = self.name()?;
        self.path_from(root)
    }

    fn path_from(&mut self, root: String) -> Parsed<Path> {
        let mut path = Path::new(root);
        loop {
            if self.take_mark(".")? {
                path.push(self.word()?);
            } else if self.take_mark("[")? {
                let Token::Text(_) = self.token else {
                    return Err(self.expected("a text"));
                };
                if let Token::Text(name) = self.advance()? {
                    path.push(name);
                }
                self.expect_mark("]")?;
            } else {
                return Ok(path);
            }
        }
    }

    fn or(&mut self) -> Parsed<Expression> {
        let first = self.and()?;
        let mut all = vec![first];
        while self.take_keyword(Keyword::Or)? {
            all.push(self.and()?);
        }
        Ok(only(all, Expression::Or))
    }

    fn and(&mut self) -> Parsed<Expression> {
        let first = self.not()?;
        let mut all = vec![first];
        while self.take_keyword(Keyword::And)? {
            all.push(self.not()?);
        }
        Ok(only(all, Expression::And))
    }

    fn not(&mut self) -> Parsed<Expression> {
        match self.take_keyword(Keyword::Not)? {
            true => {
                let inner = self.deeper(Self::not)?;
                Ok(Expression::Not(Box::new(inner)))
            }
            false => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Parsed<Expression> {
        let left = self.sum()?;
        if self.take_keyword(Keyword::In)? {
            return Ok(Expression::In(Box::new(left), self.list()?));
        }
        if self.take_keyword(Keyword::Nin)? {
            let inside = Expression::In(Box::new(left), self.list()?);
            return Ok(Expression::Not(Box::new(inside)));
        }
        let comparison = match self.token {
            Token::Mark("=") => Comparison::Equal,
            Token::Mark("!=" | "<>") => Comparison::NotEqual,
            Token::Mark("<") => Comparison::Less,
            Token::Mark(">") => Comparison::Greater,
            Token::Mark("<=") => Comparison::LessOrEqual,
            Token::Mark(">=") => Comparison::GreaterOrEqual,
            _ => return Ok(left),
        };
        self.advance()?;
        let right = self.sum()?;
        Ok(Expression::Compare(
            Box::new(left),
            comparison,
            Box::new(right),
        ))
    }

    fn list(&mut self) -> Parsed<Vec<Literal>> {
        self.expect_mark("[")?;
        let mut list = vec![self.element()?];
        while self.take_mark(",")? {
            list.push(self.element()?);
        }
        self.expect_mark("]")?;
        Ok(list)
    }

    /// A constant of a list, which may have a sign.
    fn element(&mut self) -> Parsed<Literal> {
        self.term()?;
        let is_negative = self.take_mark("-")?;
        match (self.literal()?, is_negative) {
            (Some(Literal::Number(number)), true) => Ok(Literal::Number(-number)),
            (Some(literal), false) => Ok(literal),
            _ => Err(self.expected("a constant")),
        }
    }

    fn sum(&mut self) -> Parsed<Expression> {
        let mut left = self.product()?;
        loop {
            let operator = match self.token {
                Token::Mark("+") => Operator::Add,
                Token::Mark("-") => Operator::Subtract,
                _ => return Ok(left),
            };
            self.advance()?;
            let right = self.product()?;
            left = Expression::Arithmetic(Box::new(left), operator, Box::new(right));
        }
    }

    fn product(&mut self) -> Parsed<Expression> {
        let mut left = self.signed()?;
        loop {
            let operator = match self.token {
                Token::Mark("*") => Operator::Multiply,
                Token::Mark("/") => Operator::Divide,
                Token::Mark("%") => Operator::Remainder,
                _ => return Ok(left),
            };
            self.advance()?;
            let right = self.signed()?;
            left = Expression::Arithmetic(Box::new(left), operator, Box::new(right));
        }
    }

    fn signed(&mut self) -> Parsed<Expression> {
        match self.take_mark("-")? {
            true => {
                let inner = self.deeper(Self::signed)?;
                Ok(Expression::Negate(Box::new(inner)))
            }
            false => self.atom(),
        }
    }

    fn atom(&mut self) -> Parsed<Expression> {
        if self.take_mark("(")? {
            let inner = self.deeper(Self::or)?;
            self.expect_mark(")")?;
            return Ok(inner);
        }
        self.term()?;
        if let Some(literal) = self.literal()? {
            return Ok(Expression::Literal(literal));
        }
        let root = self.name()?;
        if !self.take_mark("(")? {
            return Ok(Expression::Path(self.path_from(root)?));
        }
        if !root.eq_ignore_ascii_case("IS_DEFINED") {
            return Err(QueryError::Function(root));
        }
        let path = self.path()?;
        self.expect_mark(")")?;
        Ok(Expression::IsDefined(path))
    }

    /// The constant that is next, if one is.
    fn literal(&mut self) -> Parsed<Option<Literal>> {
        let literal = match (&self.token, self.next_keyword()) {
            (_, Some(Keyword::True)) => Literal::Bool(true),
            (_, Some(Keyword::False)) => Literal::Bool(false),
            (_, Some(Keyword::Null)) => Literal::Null,
            (_, Some(Keyword::Undefined)) => Literal::Undefined,
            (Token::Number(number), _) => Literal::Number(*number),
            (Token::Text(text), _) => Literal::Text(text.clone()),
            _ => return Ok(None),
        };
        self.advance()?;
        Ok(Some(literal))
    }
}

/// What `all` comes to: itself when it is one.
fn only(mut all: Vec<Expression>, many: fn(Vec<Expression>) -> Expression) -> Expression {
    match (all.len(), all.pop()) {
        (1, Some(one)) => one,
        (_, last) => {
            all.extend(last);
            many(all)
        }
    }
}
