//! For tests: a row that is a JSON document.

use serde_json::Value as Json;

use super::expression::Path;
use super::value::{Row, Value};

/// A JSON document.
pub(super) struct Document(pub(super) Json);

impl Document {
    fn find(&self, path: &Path) -> Option<&Json> {
        let mut names = path.names().iter();
        names.try_fold(&self.0, |value, name| value.as_object()?.get(&**name))
    }
}

impl Row for Document {
    fn value(&self, path: &Path) -> Value<'_> {
        match self.find(path) {
            None => Value::Undefined,
            Some(Json::Null) => Value::Null,
            Some(Json::Bool(truth)) => Value::Bool(*truth),
            Some(Json::Number(number)) => Value::Number(number.as_f64().expect("a double")),
            Some(Json::String(text)) => Value::text(text),
            Some(Json::Array(_) | Json::Object(_)) => Value::Composite,
        }
    }

    fn write(&self, path: &Path, json: &mut String) -> bool {
        let found = self.find(path);
        if let Some(found) = found {
            json.push_str(&found.to_string());
        }
        found.is_some()
    }

    fn write_all(&self, json: &mut String) {
        json.push_str(&self.0.to_string());
    }
}
