//! Writes results to standard output, as a table for people or as JSON for programs. Everything else goes to
//! standard error.

use std::io::{self, Write};

use clap::ValueEnum;
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

/// Writes rows in aligned columns. Cells that are numbers stand to the right.
///
/// # Errors
/// When standard output is closed.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    line(render(head, rows).trim_end_matches('\n'))
}

fn render(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max();
        widest.unwrap_or(0).max(head[column].chars().count())
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let mut push = |cells: &[&str]| {
        let mut row = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            if is_number(cell) {
                row.push_str(&format!("{cell:>width$}  "));
            } else {
                row.push_str(&format!("{cell:<width$}  "));
            }
        }
        text.push_str(row.trim_end());
        text.push('\n');
    };
    push(head);
    for row in rows {
        let cells: Vec<_> = row.iter().map(String::as_str).collect();
        push(&cells);
    }
    text
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
    fn columns_are_aligned_and_numbers_stand_right() {
        let rows = vec![
            vec!["one".to_owned(), "5".to_owned()],
            vec!["three".to_owned(), "1234".to_owned()],
        ];
        assert_eq!(
            render(&["name", "count"], &rows),
            "name   count\none        5\nthree   1234\n"
        );
    }

    #[test]
    fn bytes_that_are_not_text_are_escaped() {
        assert_eq!(printable(b"a\xffb"), "a\\xffb");
        assert_eq!(printable("grün".as_bytes()), "grün");
    }
}
