//! Which devices a condition names, so that they are looked up and not all rows read.

use std::collections::BTreeSet;

use super::expression::{Comparison, Expression, Literal};

/// The devices outside which the condition is never true; `None` when it does not say.
pub(super) fn devices(condition: &Expression) -> Option<BTreeSet<String>> {
    match condition {
        Expression::Compare(left, Comparison::Equal, right) => {
            let constant = match (&**left, &**right) {
                (path, Expression::Literal(constant)) if is_device(path) => constant,
                (Expression::Literal(constant), path) if is_device(path) => constant,
                _ => return None,
            };
            Some(texts(std::slice::from_ref(constant)))
        }
        Expression::In(value, list) if is_device(value) => Some(texts(list)),
        Expression::And(all) => {
            let named = all.iter().filter_map(devices);
            named.reduce(|left, right| left.intersection(&right).cloned().collect())
        }
        Expression::Or(any) => {
            let named: Option<Vec<_>> = any.iter().map(devices).collect();
            named.map(|named| named.into_iter().flatten().collect())
        }
        _ => None,
    }
}

fn is_device(expression: &Expression) -> bool {
    matches!(expression, Expression::Path(path) if path.is("deviceId"))
}

/// No device is equal to what is no text.
fn texts(list: &[Literal]) -> BTreeSet<String> {
    let texts = list.iter().filter_map(|literal| match literal {
        Literal::Text(text) => Some(text.clone()),
        _ => None,
    });
    texts.collect()
}
