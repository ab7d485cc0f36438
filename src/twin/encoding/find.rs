//! Look-ups in the bytes of a section. What is not asked for is stepped over, not decoded, so a query over many twins
//! allocates nothing for them.

use std::borrow::Cow;

use super::format::Damaged;
use super::read::{Reader, Shallow};
use crate::base::utc::Utc;
use crate::twin::render::Annotations;
use crate::twin::tree::Stamp;

/// What a path of a twin leads to.
#[derive(Clone, Debug, PartialEq)]
pub enum Found<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without a fraction and an exponent.
    Integer(i64),
    /// Any other number.
    Double(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// An object or an array.
    Composite,
}

impl<'a> Found<'a> {
    pub(in crate::twin) fn counter(counter: u64) -> Found<'a> {
        Found::Integer(i64::try_from(counter).unwrap_or(i64::MAX))
    }

    pub(in crate::twin) fn optional(text: Option<&'a str>) -> Found<'a> {
        text.map_or(Found::Null, |text| Found::Text(text.into()))
    }
}

/// What a path below a section leads to, what it shows of its writes included; `None` where nothing is.
///
/// # Errors
/// The bytes are no section.
pub(super) fn find<'a, S: AsRef<str>>(
    (version, stamp, reader): (u64, Stamp, Reader<'a>),
    path: &[S],
    annotations: Annotations,
) -> Result<Option<Found<'a>>, Damaged> {
    let Some((first, rest)) = path.split_first() else {
        return Ok(Some(Found::Composite));
    };
    if annotations == Annotations::None {
        return content(reader, stamp, first.as_ref(), rest);
    }
    match first.as_ref() {
        "$version" => Ok(rest.is_empty().then(|| Found::counter(version))),
        "$metadata" => metadata(reader, stamp, rest, annotations),
        first => content(reader, stamp, first, rest),
    }
}

/// The node of a key among those of an object: its stamp and its value.
fn node<'a>(
    mut reader: Reader<'a>,
    around: Stamp,
    wanted: &str,
) -> Result<Option<(Stamp, Shallow<'a>)>, Damaged> {
    while !reader.is_empty() {
        let key = reader.text()?;
        let stamp = reader.stamp(around)?;
        let value = reader.shallow()?;
        if key == wanted {
            return Ok(Some((stamp, value)));
        }
        // Keys ascend.
        if key > wanted {
            break;
        }
    }
    Ok(None)
}

fn content<'a, S: AsRef<str>>(
    reader: Reader<'a>,
    around: Stamp,
    first: &str,
    rest: &[S],
) -> Result<Option<Found<'a>>, Damaged> {
    let Some((mut stamp, mut value)) = node(reader, around, first)? else {
        return Ok(None);
    };
    for key in rest {
        let Shallow::Object(below) = value else {
            return Ok(None);
        };
        match node(below, stamp, key.as_ref())? {
            Some(found) => (stamp, value) = found,
            None => return Ok(None),
        }
    }
    Ok(Some(match value {
        Shallow::Bool(bool) => Found::Bool(bool),
        Shallow::Integer(integer) => Found::Integer(integer),
        Shallow::Double(double) => Found::Double(double),
        Shallow::Text(text) => Found::Text(text.into()),
        Shallow::Array(_) | Shallow::Object(_) => Found::Composite,
        Shallow::Null => return Err(Damaged),
    }))
}

fn metadata<'a, S: AsRef<str>>(
    mut reader: Reader<'a>,
    mut stamp: Stamp,
    path: &[S],
    annotations: Annotations,
) -> Result<Option<Found<'a>>, Damaged> {
    let mut path = path.iter().map(AsRef::as_ref);
    while let Some(key) = path.next() {
        let found = match key {
            "$lastUpdated" => Some(Found::Text(Utc(stamp.at).to_string().into())),
            "$lastUpdatedVersion" => (annotations == Annotations::Versions
                && stamp != Stamp::default())
            .then(|| Found::counter(stamp.version)),
            key => match node(reader, stamp, key)? {
                Some((below, value)) => {
                    stamp = below;
                    reader = match value {
                        Shallow::Object(below) => below,
                        _ => Reader(&[]),
                    };
                    continue;
                }
                None => None,
            },
        };
        return Ok(found.filter(|_| path.next().is_none()));
    }
    Ok(Some(Found::Composite))
}
