//! Writing the parts of JSON text that are not plain.

use std::fmt::Write as _;

/// Appends a string with its quotes. What need not be escaped is not.
pub fn write_text(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest
        .bytes()
        .position(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\'))
    {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                // Writing to a String does not fail.
                let _ = write!(out, "\\u{control:04x}");
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// Appends a finite double with the fewest digits that give it back; one without a fraction keeps its `.0` or gets an
/// exponent, so that it does not become an integer.
pub fn write_double(out: &mut String, double: f64) {
    // Writing to a String does not fail.
    let _ = write!(out, "{double:?}");
}

/// Writes the members of an object one after the other, with what stands between them.
pub struct ObjectWriter<'a> {
    out: &'a mut String,
    is_first: bool,
}

impl<'a> ObjectWriter<'a> {
    /// An object begins.
    pub fn new(out: &'a mut String) -> Self {
        out.push('{');
        ObjectWriter {
            out,
            is_first: true,
        }
    }

    /// The value of this member follows.
    pub fn key(&mut self, key: &str) -> &mut String {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(',');
        }
        write_text(self.out, key);
        self.out.push(':');
        self.out
    }

    /// A text.
    pub fn text(&mut self, key: &str, text: &str) {
        write_text(self.key(key), text);
    }

    /// A member that is written as it displays: a number, a boolean.
    pub fn plain(&mut self, key: &str, value: impl std::fmt::Display) {
        // Writing to a String does not fail.
        let _ = write!(self.key(key), "{value}");
    }

    /// A time, or another text that needs no escapes.
    pub fn quoted(&mut self, key: &str, value: impl std::fmt::Display) {
        // Writing to a String does not fail.
        let _ = write!(self.key(key), "\"{value}\"");
    }

    /// A text, or `null`.
    pub fn optional(&mut self, key: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(key, text),
            None => self.key(key).push_str("null"),
        }
    }

    /// The object ends.
    pub fn end(self) {
        self.out.push('}');
    }
}
