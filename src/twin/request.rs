//! Bodies of requests: JSON in, trees of changes out, judged by every limit that needs no state.
//!
//! A body is judged as a whole: one breach, at any depth of either section, refuses all of it.

use std::collections::BTreeMap;

use super::limits;
use super::tree::{Members, Patch, Value};
use crate::base::json::{self, Json, Malformed};

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not JSON.
    #[error("the body is malformed: {0}")]
    NotJson(#[from] Malformed),
    /// It is JSON, and breaks a rule.
    #[error("{0}")]
    Invalid(#[from] Invalid),
}

/// The rule that a document breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The body, `properties` or a section is something else.
    #[error("{0} is not an object")]
    NotAnObject(&'static str),
    /// A key is longer than it may be.
    #[error("a key has {bytes} bytes, and may have {most}", most = limits::KEY_BYTES)]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A key has a character that it may not have.
    #[error("a key has the character {0:?}")]
    KeyCharacter(char),
    /// A string is longer than it may be.
    #[error("a string has {bytes} bytes, and may have {most}", most = limits::TEXT_BYTES)]
    TextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// An integer is out of range, or a number is larger than a double holds.
    #[error(
        "a number is out of range: integers are from {} to {}",
        limits::INTEGERS.start(),
        limits::INTEGERS.end()
    )]
    Number,
    /// Arrays and objects are deeper inside one another than they may be.
    #[error(
        "there are more than {} objects and arrays inside one another",
        limits::DEPTH
    )]
    TooDeep,
    /// An array, or an object in one, has a `null`.
    #[error("an array holds null")]
    NullInArray,
    /// A section that is to be replaced has a `null`.
    #[error("a document that replaces another one holds null")]
    NullInDocument,
}

/// What a back end writes: the sections that are there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TwinUpdate {
    /// The tags.
    pub tags: Option<Members>,
    /// The desired properties.
    pub desired: Option<Members>,
}

/// Reads the body of a PATCH (`replace` is false) or of a PUT of a twin. Whatever else a twin shows is passed over, so
/// that one can be read, changed and sent back whole.
///
/// # Errors
/// What is wrong with it.
pub fn twin_update(body: &[u8], replace: bool) -> Result<TwinUpdate, Refused> {
    let Json::Object(mut body) = json::parse(body)? else {
        return Err(Invalid::NotAnObject("the body").into());
    };
    let properties = body.remove("properties").unwrap_or(Json::Null);
    let desired = match properties {
        Json::Null => Json::Null,
        Json::Object(mut properties) => properties.remove("desired").unwrap_or(Json::Null),
        _ => return Err(Invalid::NotAnObject("properties").into()),
    };
    let tags = body.remove("tags").unwrap_or(Json::Null);
    Ok(TwinUpdate {
        tags: section(tags, "tags", replace)?,
        desired: section(desired, "properties.desired", replace)?,
    })
}

/// Reads the payload of a device's or a module's patch of its reported properties.
///
/// # Errors
/// What is wrong with it.
pub fn reported_patch(payload: &[u8]) -> Result<Members, Refused> {
    let patch = section(json::parse(payload)?, "the payload", false)?;
    Ok(patch.ok_or(Invalid::NotAnObject("the payload"))?)
}

/// A section of a body; `null` is as if it were not there.
fn section(json: Json, name: &'static str, replace: bool) -> Result<Option<Members>, Invalid> {
    let mut members = match json {
        Json::Null => return Ok(None),
        Json::Object(members) => members,
        _ => return Err(Invalid::NotAnObject(name)),
    };
    for shown in ["$version", "$metadata", "$etag"] {
        members.remove(shown);
    }
    changes(members, 0, replace).map(Some)
}

/// The members of an object with so many objects around it, below its section.
fn changes(
    members: BTreeMap<String, Json>,
    depth: usize,
    replace: bool,
) -> Result<Members, Invalid> {
    let change = |(key, json): (String, Json)| {
        check_key(&key)?;
        let change = match json {
            Json::Null if replace => return Err(Invalid::NullInDocument),
            Json::Null => Patch::Delete,
            Json::Object(members) => Patch::Object(changes(members, deeper(depth)?, replace)?),
            json => Patch::Leaf(value(json, depth)?),
        };
        Ok((key, change))
    };
    members.into_iter().map(change).collect()
}

fn deeper(depth: usize) -> Result<usize, Invalid> {
    match depth < limits::DEPTH {
        true => Ok(depth + 1),
        false => Err(Invalid::TooDeep),
    }
}

/// A scalar or an array with so many objects and arrays around it, or what an array holds.
fn value(json: Json, depth: usize) -> Result<Value, Invalid> {
    match json {
        Json::Null => Err(Invalid::NullInArray),
        Json::TooLarge => Err(Invalid::Number),
        Json::Bool(bool) => Ok(Value::Bool(bool)),
        Json::Integer(integer) if limits::INTEGERS.contains(&integer) => {
            Ok(Value::Integer(integer))
        }
        Json::Integer(_) => Err(Invalid::Number),
        Json::Double(double) => Ok(Value::Double(double)),
        Json::Text(text) if text.len() <= limits::TEXT_BYTES => Ok(Value::Text(text)),
        Json::Text(text) => Err(Invalid::TextTooLong { bytes: text.len() }),
        Json::Array(elements) => {
            let depth = deeper(depth)?;
            let elements = elements.into_iter().map(|element| value(element, depth));
            elements.collect::<Result<_, _>>().map(Value::Array)
        }
        Json::Object(members) => {
            let depth = deeper(depth)?;
            let member = |(key, json): (String, Json)| {
                check_key(&key)?;
                Ok((key, value(json, depth)?))
            };
            let members = members.into_iter().map(member);
            members.collect::<Result<_, _>>().map(Value::Object)
        }
    }
}

fn check_key(key: &str) -> Result<(), Invalid> {
    if key.len() > limits::KEY_BYTES {
        let bytes = key.len();
        return Err(Invalid::KeyTooLong { bytes });
    }
    match key
        .chars()
        .find(|character| !limits::may_be_in_key(*character))
    {
        Some(character) => Err(Invalid::KeyCharacter(character)),
        None => Ok(()),
    }
}
