//! Conditions: their parts.

/// Members at the root of a twin. They are found without case, and answered as they are written here.
pub const ROOTS: [&str; 17] = [
    "authenticationType",
    "capabilities",
    "cloudToDeviceMessageCount",
    "connectionState",
    "deviceEtag",
    "deviceId",
    "etag",
    "lastActivityTime",
    "modelId",
    "moduleId",
    "properties",
    "status",
    "statusReason",
    "statusUpdateTime",
    "tags",
    "version",
    "x509Thumbprint",
];

/// Where a value stands in a row: the names from the root on. There is at least one.
///
/// Invariant: the first one is written as the row writes it, whatever case the query has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Box<str>>);

impl Path {
    pub(super) fn new(mut root: String) -> Path {
        if let Some(known) = ROOTS.iter().find(|known| known.eq_ignore_ascii_case(&root)) {
            root = (*known).to_owned();
        }
        Path(vec![root.into()])
    }

    pub(super) fn push(&mut self, name: String) {
        self.0.push(name.into());
    }

    /// The names.
    pub fn names(&self) -> &[Box<str>] {
        &self.0
    }

    /// The last name.
    pub(super) fn last(&self) -> &str {
        self.0.last().map_or("", |name| name)
    }

    /// Whether it is the one name `root`.
    pub(super) fn is(&self, root: &str) -> bool {
        self.0.len() == 1 && &*self.0[0] == root
    }
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Undefined,
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    Greater,
    LessOrEqual,
    GreaterOrEqual,
}

/// What is done with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A condition, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    Literal(Literal),
    Path(Path),
    IsDefined(Path),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    /// Two or more.
    And(Vec<Expression>),
    /// Two or more.
    Or(Vec<Expression>),
    Compare(Box<Expression>, Comparison, Box<Expression>),
    /// `IN`; `NIN` is its `Not`.
    In(Box<Expression>, Vec<Literal>),
    Arithmetic(Box<Expression>, Operator, Box<Expression>),
}

impl Expression {
    /// Adds the paths that it looks at.
    pub(super) fn add_paths<'e>(&'e self, found: &mut Vec<&'e Path>) {
        match self {
            Expression::Literal(_) => {}
            Expression::Path(path) | Expression::IsDefined(path) => found.push(path),
            Expression::Not(inner) | Expression::Negate(inner) | Expression::In(inner, _) => {
                inner.add_paths(found);
            }
            Expression::And(all) | Expression::Or(all) => {
                all.iter().for_each(|one| one.add_paths(found));
            }
            Expression::Compare(left, _, right) | Expression::Arithmetic(left, _, right) => {
                left.add_paths(found);
                right.add_paths(found);
            }
        }
    }
}
