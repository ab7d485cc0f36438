//! What a query sees of a row.

use std::borrow::Cow;

use super::expression::Path;

/// A value as conditions see it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// There is nothing.
    Undefined,
    /// JSON's `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// A text.
    Text(Cow<'a, str>),
    /// An object or an array: it is defined, and equals nothing.
    Composite,
}

impl Value<'_> {
    /// A text that is borrowed.
    pub fn text(text: &str) -> Value<'_> {
        Value::Text(Cow::Borrowed(text))
    }

    /// A number; what is not finite is no value.
    pub(super) fn number(number: f64) -> Value<'static> {
        match number.is_finite() {
            true => Value::Number(number),
            false => Value::Undefined,
        }
    }
}

/// A row of a collection: a twin.
pub trait Row {
    /// What stands at a path. The path's first name is written as the row writes it, see [`Path`].
    fn value(&self, path: &Path) -> Value<'_>;

    /// Appends what stands at a path, as JSON. Returns `false`, and appends nothing, where nothing stands.
    fn write(&self, path: &Path, json: &mut String) -> bool;

    /// Appends the whole row, as JSON.
    fn write_all(&self, json: &mut String);
}
