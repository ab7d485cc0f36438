//! JSON objects where objects are meant: serde reads an array as a structure, too, field by field in their order.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A structure that was written as an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(OfMap(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Token {
        name: String,
        #[serde(default)]
        scope: Option<String>,
    }

    fn read(text: &str) -> Result<Token, String> {
        let read: Result<Object<Token>, _> = serde_json::from_str(text);
        read.map(|token| token.0).map_err(|error| error.to_string())
    }

    #[test]
    fn an_array_is_no_object() {
        let name = "ann".to_owned();
        let expected = Token { name, scope: None };
        assert_eq!(read(r#"{"name": "ann"}"#), Ok(expected));
        for wrong in [r#"["ann", "admin"]"#, r#"["ann"]"#, "[]"] {
            let error = read(wrong).expect_err("an array");
            assert!(error.contains("expected an object"), "{error}");
        }
        let error = read(r#"{"name": "ann", "more": 1}"#).expect_err("one field more");
        assert!(error.contains("unknown field `more`"), "{error}");
        let error = read("{}").expect_err("no name");
        assert!(error.contains("missing field `name`"), "{error}");
    }
}
