//! JSON of strangers, read strictly: no name twice in an object (RFC 7519 §4 leaves it to the reader what such a token
//! means, and two readers may differ), no deep nesting, no number that is no number.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::base::time::Millis;

/// Deepest nesting: claims of real tokens have three levels.
const DEEPEST: usize = 16;

/// Most values in one document, so that reading it costs little more memory than its text.
const MOST_VALUES: usize = 4096;

/// Latest time that is taken, in seconds: the end of the year 9999. What is beyond is a mistake, or worse.
const LATEST_S: f64 = 253_402_300_799.0;

/// Reads a NumericDate (RFC 7519 §2): seconds, fractions allowed. `None` when the value is none.
pub(crate) fn time(value: &Value) -> Option<Millis> {
    let seconds = value.as_f64()?;
    let is_time = (0.0..=LATEST_S).contains(&seconds);
    is_time.then_some(Millis((seconds * 1000.0) as u64))
}

/// Reads an object. `None` when the text is anything else, or not to be trusted.
pub(crate) fn object(text: &[u8]) -> Option<Map<String, Value>> {
    let mut left = MOST_VALUES;
    let mut input = serde_json::Deserializer::from_slice(text);
    let depth = DEEPEST;
    let value = Seed {
        depth,
        left: &mut left,
    }
    .deserialize(&mut input)
    .ok()?;
    input.end().ok()?;
    match value {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

struct Seed<'a> {
    depth: usize,
    left: &'a mut usize,
}

impl Seed<'_> {
    /// For what is inside.
    fn inner<E: Error>(&mut self) -> Result<Seed<'_>, E> {
        let depth = self.depth.checked_sub(1);
        Ok(Seed {
            depth: depth.ok_or_else(|| E::custom("it is nested too deeply"))?,
            left: self.left,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.left.checked_sub(1);
        *self.left = left.ok_or_else(|| D::Error::custom("there are too many values"))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value);
        let number = number.ok_or_else(|| E::custom("a number is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self.inner()?)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(self.inner()?)?;
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name stands twice in an object"));
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_readers_may_understand_differently_is_refused() {
        assert!(object(br#"{"a":1,"b":{"a":2},"c":[{"a":3}]}"#).is_some());
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"b":{"a":1,"\u0061":2}}"#,
            r#"[{"a":1}]"#,
            r#"{"a":1} {"b":2}"#,
            r#"{"a":1e999}"#,
            r#"{"a":01}"#,
            r#"{"a":"#,
            "null",
            "",
            "{\"a\":\"\u{0}\"}",
        ] {
            assert!(object(text.as_bytes()).is_none(), "{text}");
        }
        assert!(object(b"{\"a\":\"\xff\"}").is_none());
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let deep = |levels: usize| {
            let text = format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
            object(text.as_bytes()).is_some()
        };
        assert!(deep(DEEPEST - 1));
        assert!(!deep(DEEPEST + 1));
        assert!(!deep(100_000));
        let many = |count: usize| {
            let text = format!("{{\"a\":[{}1]}}", "1,".repeat(count));
            object(text.as_bytes()).is_some()
        };
        assert!(many(MOST_VALUES - 4));
        assert!(!many(MOST_VALUES));
    }
}
