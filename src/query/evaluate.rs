//! What a condition comes to for a row.
//!
//! Logic has three values: *undefined* is a value of its own, and only `true` lets a row pass.

use std::cmp::Ordering;

use super::expression::{Comparison, Expression, Literal, Operator};
use super::parsed::Query;
use super::value::{Row, Value};

/// Whether a row passes.
pub fn passes(query: &Query, row: &dyn Row) -> bool {
    let condition = query.condition.as_ref();
    condition.is_none_or(|condition| value(condition, row) == Value::Bool(true))
}

fn value<'r>(expression: &'r Expression, row: &'r dyn Row) -> Value<'r> {
    match expression {
        Expression::Literal(literal) => constant(literal),
        Expression::Path(path) => row.value(path),
        Expression::IsDefined(path) => Value::Bool(row.value(path) != Value::Undefined),
        Expression::Not(inner) => match value(inner, row) {
            Value::Bool(truth) => Value::Bool(!truth),
            _ => Value::Undefined,
        },
        Expression::Negate(inner) => match value(inner, row) {
            Value::Number(number) => Value::Number(-number),
            _ => Value::Undefined,
        },
        Expression::And(all) => decided_by(false, all.iter().map(|one| value(one, row))),
        Expression::Or(all) => decided_by(true, all.iter().map(|one| value(one, row))),
        Expression::Compare(left, comparison, right) => {
            compare(&value(left, row), *comparison, &value(right, row))
        }
        Expression::In(inner, list) => {
            let found = value(inner, row);
            let each = list
                .iter()
                .map(|one| compare(&found, Comparison::Equal, &constant(one)));
            decided_by(true, each)
        }
        Expression::Arithmetic(left, operator, right) => {
            match (value(left, row), value(right, row)) {
                (Value::Number(left), Value::Number(right)) => calculate(left, *operator, right),
                _ => Value::Undefined,
            }
        }
    }
}

fn constant(literal: &Literal) -> Value<'_> {
    match literal {
        Literal::Undefined => Value::Undefined,
        Literal::Null => Value::Null,
        Literal::Bool(truth) => Value::Bool(*truth),
        Literal::Number(number) => Value::Number(*number),
        Literal::Text(text) => Value::text(text),
    }
}

/// AND is decided by the first `false`, OR by the first `true`; otherwise anything that is no boolean makes it
/// undefined.
fn decided_by<'r>(decisive: bool, values: impl Iterator<Item = Value<'r>>) -> Value<'r> {
    let mut outcome = Value::Bool(!decisive);
    for value in values {
        match value {
            Value::Bool(truth) if truth == decisive => return Value::Bool(decisive),
            Value::Bool(_) => {}
            _ => outcome = Value::Undefined,
        }
    }
    outcome
}

fn compare(left: &Value<'_>, comparison: Comparison, right: &Value<'_>) -> Value<'static> {
    let has_order = !matches!(left, Value::Null | Value::Bool(_));
    let order = match (left, right) {
        (Value::Null, Value::Null) => Some(Ordering::Equal),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => left.partial_cmp(right),
        // The order of UTF-8 is that of code points.
        (Value::Text(left), Value::Text(right)) => Some(left.as_bytes().cmp(right.as_bytes())),
        _ => None,
    };
    let Some(order) = order else {
        return Value::Undefined;
    };
    match comparison {
        Comparison::Equal => Value::Bool(order.is_eq()),
        Comparison::NotEqual => Value::Bool(order.is_ne()),
        _ if !has_order => Value::Undefined,
        Comparison::Less => Value::Bool(order.is_lt()),
        Comparison::Greater => Value::Bool(order.is_gt()),
        Comparison::LessOrEqual => Value::Bool(order.is_le()),
        Comparison::GreaterOrEqual => Value::Bool(order.is_ge()),
    }
}

fn calculate(left: f64, operator: Operator, right: f64) -> Value<'static> {
    // By zero, and beyond the range of doubles, there is no number.
    Value::number(match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::Remainder => left % right,
    })
}
