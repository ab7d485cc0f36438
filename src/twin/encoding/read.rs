//! Reading.

use std::collections::BTreeMap;

use super::format::{DEPTH, Damaged, tag};
use crate::base::time::Millis;
use crate::twin::tree::{Content, Members, Node, Nodes, Patch, Stamp, Value};

/// What is left to be read.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

/// The outside of a value: what is inside objects and arrays is not read yet.
pub(super) enum Shallow<'a> {
    Bool(bool),
    Integer(i64),
    Double(f64),
    Text(&'a str),
    Array(Reader<'a>),
    Object(Reader<'a>),
    Null,
}

impl<'a> Reader<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let (byte, rest) = self.0.split_first().ok_or(Damaged)?;
        self.0 = rest;
        Ok(*byte)
    }

    /// A number in its shortest form.
    pub fn number(&mut self) -> Result<u64, Damaged> {
        let mut number = 0;
        for position in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            let fits = position < 9 || bits <= 1;
            let is_shortest = position == 0 || byte != 0;
            if !fits || !is_shortest {
                return Err(Damaged);
            }
            number |= bits << (7 * position);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Damaged)
    }

    fn delimited(&mut self) -> Result<&'a [u8], Damaged> {
        let length = usize::try_from(self.number()?).map_err(|_| Damaged)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn text(&mut self) -> Result<&'a str, Damaged> {
        std::str::from_utf8(self.delimited()?).map_err(|_| Damaged)
    }

    /// The stamp of a node in an object with this stamp.
    pub fn stamp(&mut self, around: Stamp) -> Result<Stamp, Damaged> {
        let at = around.at.0.checked_sub(self.number()?).ok_or(Damaged)?;
        let version = around.version.checked_sub(self.number()?);
        Ok(Stamp {
            at: Millis(at),
            version: version.ok_or(Damaged)?,
        })
    }

    pub fn shallow(&mut self) -> Result<Shallow<'a>, Damaged> {
        Ok(match self.byte()? {
            tag::FALSE => Shallow::Bool(false),
            tag::TRUE => Shallow::Bool(true),
            tag::INTEGER => {
                let zigzag = self.number()?;
                Shallow::Integer((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
            }
            tag::DOUBLE => {
                let (bytes, rest) = self.0.split_first_chunk().ok_or(Damaged)?;
                self.0 = rest;
                let double = f64::from_bits(u64::from_le_bytes(*bytes));
                match double.is_finite() {
                    true => Shallow::Double(double),
                    false => return Err(Damaged),
                }
            }
            tag::TEXT => Shallow::Text(self.text()?),
            tag::ARRAY => Shallow::Array(Reader(self.delimited()?)),
            tag::OBJECT => Shallow::Object(Reader(self.delimited()?)),
            tag::NULL => Shallow::Null,
            _ => return Err(Damaged),
        })
    }

    /// The rest, as the members of an object with this stamp that has so many around it.
    pub fn nodes(&mut self, around: Stamp, depth: usize) -> Result<Nodes, Damaged> {
        let depth = deeper(depth)?;
        self.members(|reader| {
            let stamp = reader.stamp(around)?;
            let content = match reader.shallow()? {
                Shallow::Object(mut below) => Content::Object(below.nodes(stamp, depth)?),
                other => Content::Leaf(value(other, depth)?),
            };
            Ok(Node { stamp, content })
        })
    }

    /// The rest, as changes.
    pub fn changes(&mut self, depth: usize) -> Result<Members, Damaged> {
        let depth = deeper(depth)?;
        self.members(|reader| {
            Ok(match reader.shallow()? {
                Shallow::Null => Patch::Delete,
                Shallow::Object(mut below) => Patch::Object(below.changes(depth)?),
                other => Patch::Leaf(value(other, depth)?),
            })
        })
    }

    /// The rest, as members whose keys ascend.
    fn members<T>(
        &mut self,
        member: impl Fn(&mut Self) -> Result<T, Damaged>,
    ) -> Result<BTreeMap<String, T>, Damaged> {
        let mut members = BTreeMap::new();
        let mut last = None;
        while !self.is_empty() {
            let key = self.text()?;
            if last.is_some_and(|last| key <= last) {
                return Err(Damaged);
            }
            last = Some(key);
            members.insert(key.to_owned(), member(self)?);
        }
        Ok(members)
    }
}

fn deeper(depth: usize) -> Result<usize, Damaged> {
    match depth < DEPTH {
        true => Ok(depth + 1),
        false => Err(Damaged),
    }
}

/// The whole of a value that has so many objects and arrays around it.
pub(super) fn value(shallow: Shallow<'_>, depth: usize) -> Result<Value, Damaged> {
    Ok(match shallow {
        Shallow::Null => return Err(Damaged),
        Shallow::Bool(bool) => Value::Bool(bool),
        Shallow::Integer(integer) => Value::Integer(integer),
        Shallow::Double(double) => Value::Double(double),
        Shallow::Text(text) => Value::Text(text.to_owned()),
        Shallow::Array(mut reader) => {
            let depth = deeper(depth)?;
            let mut elements = Vec::new();
            while !reader.is_empty() {
                let element = reader.shallow()?;
                elements.push(value(element, depth)?);
            }
            Value::Array(elements)
        }
        Shallow::Object(mut reader) => {
            let depth = deeper(depth)?;
            let member = |reader: &mut Reader<'_>| value(reader.shallow()?, depth);
            Value::Object(reader.members(member)?)
        }
    })
}
