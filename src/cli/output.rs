//! Writes results to standard output, as a table for people or as JSON for programs.

use std::borrow::Cow;
use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Cell, CellAlignment, Table};
use serde_json::Value;

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Table,
    /// One JSON value; one per line for streams.
    Json,
}

/// Writes one line and flushes, so that a reader behind a pipe sees it at once.
///
/// # Errors
/// When standard output is closed.
pub fn line(text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Writes bytes as they are and flushes.
///
/// # Errors
/// When standard output is closed.
pub fn raw(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Writes one JSON value on one line.
///
/// # Errors
/// When standard output is closed.
pub fn json(value: &Value) -> io::Result<()> {
    line(value.to_string())
}

/// Writes rows in aligned columns below a head. Cells that are numbers are aligned to the right.
///
/// # Errors
/// When standard output is closed.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    line(render(head, rows))
}

/// Columns without borders, two spaces apart, and no spaces at the end of a line.
fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let has_numbers_right: Vec<_> = (0..head.len())
        .map(|column| has_numbers_right(rows.iter().filter_map(|row| row.get(column))))
        .collect();
    let cell = |(text, has_numbers_right): (&String, &bool)| {
        let is_right = *has_numbers_right && is_number(text);
        Cell::new(harmless(text)).set_alignment(match is_right {
            true => CellAlignment::Right,
            false => CellAlignment::Left,
        })
    };
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head.iter().map(Cell::new));
    for row in rows {
        table.add_row(row.iter().zip(&has_numbers_right).map(cell));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// A text without control characters: names come from clients, and a terminal obeys what it is shown.
fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Whether numbers stand right in a column: no text in it is longer, from which they would be far away.
fn has_numbers_right<'a>(column: impl Iterator<Item = &'a String>) -> bool {
    let (mut number, mut text) = (0, 0);
    for cell in column {
        let longest = if is_number(cell) {
            &mut number
        } else {
            &mut text
        };
        *longest = cell.len().max(*longest);
    }
    text <= number
}

fn is_number(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit()) && cell.parse::<f64>().is_ok()
}

/// Bytes as text for people and JSON: UTF-8 as it is, anything else as `\xNN` escapes.
pub fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_client_is_called_is_obeyed_by_a_terminal() {
        let rows = vec![vec!["a\u{1b}[2J\r\n\u{9b}ä".to_owned()]];
        assert_eq!(render(&["name"], &rows), "name\na\\u{1b}[2J\\r\\n\\u{9b}ä");
    }

    #[test]
    fn columns_are_aligned_and_numbers_stand_right() {
        let rows = vec![
            vec!["one".to_owned(), "5".to_owned()],
            vec!["three".to_owned(), "1234".to_owned()],
        ];
        assert_eq!(
            render(&["name", "count"], &rows),
            "name   count\none        5\nthree   1234"
        );
    }

    #[test]
    fn numbers_stand_left_beside_long_texts() {
        let row = |key: &str, value: &str| vec![key.to_owned(), value.to_owned()];
        let rows = vec![row("id", "7"), row("name", "a long one")];
        assert_eq!(
            render(&["field", "value"], &rows),
            "field  value\nid     7\nname   a long one"
        );
    }

    #[test]
    fn bytes_that_are_not_text_are_escaped() {
        assert_eq!(printable(b"a\xffb"), "a\\xffb");
        assert_eq!(printable("grün".as_bytes()), "grün");
    }
}
