//! YAML as the JSON that it stands for: merge keys (`<<`) are carried out, as Compose does it.

use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// The documents of a text; empty ones are left out.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
    let documents = documents.iter().filter(|one| !one.is_null());
    documents.map(json).collect()
}

fn json(yaml: &Yaml) -> Result<Value, String> {
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Boolean(value) => (*value).into(),
        Yaml::Integer(value) => (*value).into(),
        Yaml::Real(text) | Yaml::String(text) => text.clone().into(),
        Yaml::Array(items) => items.iter().map(json).collect::<Result<_, _>>()?,
        Yaml::Hash(entries) => {
            let (mut object, mut own) = (Map::new(), Map::new());
            for (key, value) in entries {
                let key = key
                    .as_str()
                    .ok_or(format!("a key that is no text: {key:?}"))?;
                match (key, json(value)?) {
                    ("<<", Value::Object(merged)) => object.extend(merged),
                    ("<<", other) => return Err(format!("merged with {other}")),
                    (key, value) => drop(own.insert(key.to_owned(), value)),
                }
            }
            object.extend(own);
            Value::Object(object)
        }
        Yaml::Alias(_) | Yaml::BadValue => return Err(format!("{yaml:?}")),
    })
}

/// What is at a JSON pointer; null if nothing is.
pub fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// The text at a JSON pointer; empty if there is none.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    at(value, pointer).as_str().unwrap_or_default()
}

/// The items of the list at a JSON pointer.
pub fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    at(value, pointer).as_array().map_or(&[], Vec::as_slice)
}

/// The entry of the list at a JSON pointer that has this name.
pub fn named<'a>(value: &'a Value, pointer: &str, name: &str) -> &'a Value {
    let mut items = items(value, pointer).iter();
    items
        .find(|item| item["name"] == name)
        .unwrap_or(&Value::Null)
}
