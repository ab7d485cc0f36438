//! The wire format of Protocol Buffers, read without decoding: whether bytes are a message of a known shape.
//!
//! `build.rs` makes a [`Schema`] of each message of `proto/command.proto`, so the two can't differ.
//!
//! Invariant: what [`Schema::check`] accepts, the generated `decode` accepts. It is stricter: it accepts no field that
//! is not in the schema, and no repeated field beyond [`limits::ELEMENTS_PER_COMMAND`] elements, because an element of
//! two bytes takes tens of bytes in memory.
//! Invariant: nothing here allocates, recurses deeper than the schema is, or panics.

use super::limits;

/// The fields of a message.
#[derive(Debug)]
pub struct Schema(pub &'static [Field]);

/// One field.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// What it holds.
    pub kind: FieldKind,
    /// It may come more than once.
    pub repeated: bool,
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub enum FieldKind {
    /// An integer or a bool.
    Varint,
    /// An integer of eight bytes.
    Fixed64,
    /// Any bytes.
    Bytes,
    /// UTF-8.
    Text,
    /// Another message.
    Message(&'static Schema),
}

/// Why bytes are not a message of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They are not in the wire format, or a field has another type.
    #[error("the bytes are no message of this kind")]
    Bytes,
    /// A field's number is not in the schema.
    #[error("field {0} is not known")]
    UnknownField(u32),
    /// There are more elements than are decoded.
    #[error("a list has more than {} elements", limits::ELEMENTS_PER_COMMAND)]
    TooManyElements,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer.
    Varint(u64),
    /// Eight bytes.
    Fixed64,
    /// Four bytes.
    Fixed32,
    /// A string of bytes: text, a message, or packed integers.
    Delimited(&'a [u8]),
}

/// Reads the fields of a message one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field's number and value; `None` at the end.
    ///
    /// # Errors
    /// When the bytes are not in the wire format. Groups are not read; they are deprecated.
    pub fn next_field(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = u32::try_from(self.varint()?).map_err(|_| Malformed::Bytes)?;
        let number = key >> 3;
        if number == 0 {
            return Err(Malformed::Bytes);
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Value::Fixed64)?,
            2 => Value::Delimited(self.delimited()?),
            5 => self.skip(4).map(|_| Value::Fixed32)?,
            _ => return Err(Malformed::Bytes),
        };
        Ok(Some((number, value)))
    }

    /// A length and as many bytes.
    ///
    /// # Errors
    /// When they are not there.
    pub fn delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Bytes)?;
        self.skip(length)
    }

    fn skip(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (skipped, rest) = self.0.split_at_checked(length).ok_or(Malformed::Bytes)?;
        self.0 = rest;
        Ok(skipped)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for position in 0..10 {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed::Bytes)?;
            self.0 = rest;
            if position == 9 && byte > 1 {
                return Err(Malformed::Bytes);
            }
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::Bytes)
    }
}

impl Schema {
    /// Whether `bytes` are a message with these fields.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self, bytes: &[u8]) -> Result<(), Malformed> {
        self.check_fields(bytes, &mut 0)
    }

    fn check_fields(&self, bytes: &[u8], elements: &mut usize) -> Result<(), Malformed> {
        let mut fields = Fields(bytes);
        while let Some((number, value)) = fields.next_field()? {
            let field = self.0.iter().find(|field| field.number == number);
            let field = field.ok_or(Malformed::UnknownField(number))?;
            if field.repeated {
                *elements += 1;
            }
            match (field.kind, value) {
                (FieldKind::Varint, Value::Varint(_))
                | (FieldKind::Fixed64, Value::Fixed64)
                | (FieldKind::Bytes, Value::Delimited(_)) => {}
                (FieldKind::Text, Value::Delimited(text)) => {
                    std::str::from_utf8(text).map_err(|_| Malformed::Bytes)?;
                }
                (FieldKind::Message(schema), Value::Delimited(message)) => {
                    schema.check_fields(message, elements)?;
                }
                (FieldKind::Varint, Value::Delimited(packed)) if field.repeated => {
                    let mut packed = Fields(packed);
                    while !packed.0.is_empty() {
                        packed.varint()?;
                        *elements += 1;
                    }
                }
                _ => return Err(Malformed::Bytes),
            }
            if *elements > limits::ELEMENTS_PER_COMMAND {
                return Err(Malformed::TooManyElements);
            }
        }
        Ok(())
    }
}
