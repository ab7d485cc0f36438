//! The language, evaluated word for word by its rules: what the evaluator is compared with.
//!
//! A condition is a tree that also writes itself as text; *undefined* is `None`.

use serde_json::{Number, Value as Json};

/// A condition.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    /// A constant of JSON, or `UNDEFINED`.
    Constant(Option<Json>),
    Path(Vec<&'static str>),
    IsDefined(Vec<&'static str>),
    Not(Box<Tree>),
    Minus(Box<Tree>),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Compare(Box<Tree>, &'static str, Box<Tree>),
    In(Box<Tree>, bool, Vec<Option<Json>>),
    Calculate(Box<Tree>, char, Box<Tree>),
}

/// A constant as text.
fn constant(value: &Option<Json>) -> String {
    match value {
        None => "Undefined".to_owned(),
        Some(Json::Null) => "NULL".to_owned(),
        Some(Json::String(text)) => {
            let escaped = text.replace('\\', "\\\\").replace('\'', "\\'");
            format!("'{escaped}'")
        }
        Some(other) => other.to_string(),
    }
}

/// A path as text: every other name in brackets.
pub(super) fn path_text(names: &[&str]) -> String {
    let mut text = names[0].to_owned();
    for (at, name) in names.iter().enumerate().skip(1) {
        match at % 2 {
            1 => text.push_str(&format!(".{name}")),
            _ => text.push_str(&format!("['{name}']")),
        }
    }
    text
}

impl Tree {
    /// The text of the language that says the same.
    pub(super) fn text(&self) -> String {
        match self {
            Tree::Constant(value) => constant(value),
            Tree::Path(names) => path_text(names),
            Tree::IsDefined(names) => format!("is_defined({})", path_text(names)),
            Tree::Not(inner) => format!("(NOT ({}))", inner.text()),
            Tree::Minus(inner) => format!("(- ({}))", inner.text()),
            Tree::And(left, right) => format!("({} and {})", left.text(), right.text()),
            Tree::Or(left, right) => format!("({} OR {})", left.text(), right.text()),
            Tree::Compare(left, sign, right) => {
                format!("({} {sign} {})", left.text(), right.text())
            }
            Tree::In(inner, negated, list) => {
                let list: Vec<String> = list.iter().map(constant).collect();
                let word = if *negated { "NIN" } else { "IN" };
                format!("({} {word} [{}])", inner.text(), list.join(", "))
            }
            Tree::Calculate(left, sign, right) => {
                format!("({} {sign} {})", left.text(), right.text())
            }
        }
    }

    /// What it comes to for a document.
    pub(super) fn value(&self, document: &Json) -> Option<Json> {
        match self {
            Tree::Constant(value) => value.clone(),
            Tree::Path(names) => find(document, names).cloned(),
            Tree::IsDefined(names) => Some(find(document, names).is_some().into()),
            Tree::Not(inner) => Some((!inner.value(document)?.as_bool()?).into()),
            Tree::Minus(inner) => number(-inner.value(document)?.as_f64()?),
            Tree::And(left, right) => {
                let both = [left, right].map(|one| one.value(document)?.as_bool());
                match both {
                    [Some(false), _] | [_, Some(false)] => Some(false.into()),
                    [Some(true), Some(true)] => Some(true.into()),
                    _ => None,
                }
            }
            Tree::Or(left, right) => {
                let both = [left, right].map(|one| one.value(document)?.as_bool());
                match both {
                    [Some(true), _] | [_, Some(true)] => Some(true.into()),
                    [Some(false), Some(false)] => Some(false.into()),
                    _ => None,
                }
            }
            Tree::Compare(left, sign, right) => {
                compare(&left.value(document)?, sign, &right.value(document)?)
            }
            Tree::In(inner, negated, list) => {
                let value = inner.value(document)?;
                let each = list.iter().map(|one| compare(&value, "=", one.as_ref()?));
                let each: Vec<Option<Json>> = each.collect();
                let is_in = match each {
                    each if each.contains(&Some(true.into())) => true,
                    each if each.contains(&None) => return None,
                    _ => false,
                };
                Some((is_in != *negated).into())
            }
            Tree::Calculate(left, sign, right) => {
                let left = left.value(document)?.as_f64()?;
                let right = right.value(document)?.as_f64()?;
                number(match sign {
                    '+' => left + right,
                    '-' => left - right,
                    '*' => left * right,
                    '/' if right != 0.0 => left / right,
                    '%' if right != 0.0 => left % right,
                    _ => return None,
                })
            }
        }
    }
}

pub(super) fn find<'d>(document: &'d Json, names: &[&str]) -> Option<&'d Json> {
    let mut names = names.iter();
    names.try_fold(document, |value, name| value.as_object()?.get(*name))
}

fn number(value: f64) -> Option<Json> {
    Number::from_f64(value).map(Json::Number)
}

fn compare(left: &Json, sign: &str, right: &Json) -> Option<Json> {
    let ordered = |less: bool, equal: bool| match sign {
        "=" => equal,
        "!=" | "<>" => !equal,
        "<" => less,
        "<=" => less || equal,
        ">" => !less && !equal,
        _ => !less,
    };
    let equality_alone = matches!(sign, "=" | "!=" | "<>");
    let truth = match (left, right) {
        (Json::Number(_), Json::Number(_)) => {
            let (left, right) = (left.as_f64()?, right.as_f64()?);
            ordered(left < right, left == right)
        }
        (Json::String(left), Json::String(right)) => {
            let (left, right): (Vec<char>, Vec<char>) =
                (left.chars().collect(), right.chars().collect());
            ordered(left < right, left == right)
        }
        (Json::Bool(_), Json::Bool(_)) | (Json::Null, Json::Null) if equality_alone => {
            ordered(false, left == right)
        }
        _ => return None,
    };
    Some(truth.into())
}
