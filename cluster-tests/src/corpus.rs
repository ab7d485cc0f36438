//! Conversations as text: what the client sends, byte by byte, and what must come back. One file, one rule.
//!
//! ```text
//! # any comment; the first one says which rule is shown
//! level 5                      how answers are read: 3, 4 or 5
//! > 10 [ s"MQTT" 05 02 0000 00 s"id" ]
//! < 20 *                       a packet whose first byte is 20
//! < 90 [ 0001 00 02 ]          a packet with exactly these bytes
//! < E0 81 82                   a DISCONNECT (v5) with one of these reasons
//! < END 81 82                  closed, at most one refusing CONNACK or DISCONNECT with one of these codes before
//! < CLOSE                      closed without another packet
//! < SILENCE                    nothing waits: a PINGREQ is answered at once
//! ```
//!
//! Bytes are hexadecimal; `"text"` is its bytes, `s"text"` has two bytes of length in front, `[ … ]` has its remaining
//! length in front, `( … )` its length as properties do, and `00*70000` repeats a byte.

use crate::connection::Connection;
use crate::wire::{self, Packet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The files of a folder of the corpus, by name.
pub fn files(folder: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(folder);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    found.sort();
    found
}

/// Holds the conversation of a file with the node; panics with file and line where it goes otherwise.
pub fn hold(path: &Path, address: SocketAddr) {
    let text = std::fs::read_to_string(path).expect("a file of the corpus can be read");
    let mut level = wire::V5;
    let mut connection = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{}:{}", path.display(), number + 1);
        let line = line.trim();
        if let Some(named) = line.strip_prefix("level ") {
            level = named
                .trim()
                .parse()
                .unwrap_or_else(|_| panic!("{place}: level"));
        } else if line == "reconnect" {
            connection = None;
        } else if line.starts_with(['>', '<']) {
            let connection = connection.get_or_insert_with(|| {
                Connection::open(address, level).unwrap_or_else(|error| panic!("{place}: {error}"))
            });
            match line.split_at(1) {
                (">", bytes) => {
                    let bytes = parse(bytes).unwrap_or_else(|why| panic!("{place}: {why}"));
                    // A broker may close before it has read everything.
                    let _ = connection.try_send(&bytes);
                }
                (_, wanted) => expect(connection, wanted.trim(), &place),
            }
        } else {
            assert!(
                line.is_empty() || line.starts_with('#'),
                "{place}: {line:?}"
            );
        }
    }
}

fn expect(connection: &mut Connection, wanted: &str, place: &str) {
    let words: Vec<&str> = wanted.split_whitespace().collect();
    let codes = |words: &[&str]| -> Vec<u8> {
        words
            .iter()
            .map(|word| {
                u8::from_str_radix(word, 16).unwrap_or_else(|_| panic!("{place}: code {word:?}"))
            })
            .collect()
    };
    eprintln!("{place}: < {wanted}");
    match words.as_slice() {
        ["CLOSE"] => connection.expect_closed(),
        ["END", rest @ ..] => connection.expect_end(&codes(rest)),
        ["SILENCE"] => connection.expect_nothing(),
        [first, "*"] => {
            let frame = connection.expect_frame();
            let first = codes(&[first])[0];
            assert_eq!(frame.0, first, "{place}: {frame:02x?}");
        }
        ["E0", rest @ ..] if !wanted.contains('[') => match connection.expect() {
            Packet::Disconnect(disconnect) => {
                assert!(
                    codes(rest).contains(&disconnect.code),
                    "{place}: {disconnect:?}"
                );
            }
            other => panic!("{place}: instead of DISCONNECT: {other:?}"),
        },
        _ => {
            let bytes = parse(wanted).unwrap_or_else(|why| panic!("{place}: {why}"));
            let (header, body) = connection.expect_frame();
            assert_eq!(wire::packet(header, &body), bytes, "{place}");
        }
    }
}

/// The bytes that a line stands for.
pub fn parse(line: &str) -> Result<Vec<u8>, String> {
    let mut rest = line.trim();
    let mut open: Vec<(char, Vec<u8>)> = Vec::new();
    let mut bytes = Vec::new();
    while let Some(first) = rest.chars().next() {
        match first {
            ' ' => rest = &rest[1..],
            '[' | '(' => {
                open.push((first, std::mem::take(&mut bytes)));
                rest = &rest[1..];
            }
            ']' | ')' => {
                let (opened, before) = open.pop().ok_or("closed without an opening")?;
                if (opened == '[') != (first == ']') {
                    return Err(format!("{opened} closed by {first}"));
                }
                let length = u32::try_from(bytes.len()).map_err(|_| "too long")?;
                bytes = [before, wire::varint(length), bytes].concat();
                rest = &rest[1..];
            }
            '"' | 's' => {
                let quoted = rest.trim_start_matches('s');
                let inner = quoted.strip_prefix('"').ok_or("s without quotes")?;
                let (text, after) = inner.split_once('"').ok_or("no closing quote")?;
                match first {
                    's' => bytes.extend(wire::field(text.as_bytes())),
                    _ => bytes.extend(text.as_bytes()),
                }
                rest = after;
            }
            _ => {
                let end = rest
                    .find([' ', ']', ')', '[', '(', '"'])
                    .unwrap_or(rest.len());
                bytes.extend(hex(&rest[..end])?);
                rest = &rest[end..];
            }
        }
    }
    if open.is_empty() {
        Ok(bytes)
    } else {
        Err("not closed".into())
    }
}

fn hex(word: &str) -> Result<Vec<u8>, String> {
    let (digits, times) = match word.split_once('*') {
        Some((digits, times)) => (digits, times.parse().map_err(|_| format!("{word:?}"))?),
        None => (word, 1),
    };
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        (pair.len() == 2).then(|| u8::from_str_radix(pair, 16).ok())?
    });
    let bytes = pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| format!("no bytes: {word:?}"))?;
    Ok(bytes.repeat(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_its_bytes() {
        let connect =
            parse(r#"10 [ s"MQTT" 05 02 0000 ( 11 00000001 ) s"a" ]"#).expect("it is well formed");
        let wanted = b"\x10\x13\x00\x04MQTT\x05\x02\x00\x00\x05\x11\x00\x00\x00\x01\x00\x01a";
        assert_eq!(connect, wanted);
        assert_eq!(
            parse("30 00*3").expect("it is well formed"),
            [0x30, 0, 0, 0]
        );
        assert!(parse("[ 00").is_err() && parse("0").is_err() && parse("00 )").is_err());
    }

    #[test]
    fn every_file_is_well_formed() {
        for folder in ["connect", "malformed", "publish", "subscribe"] {
            for path in files(folder) {
                let text =
                    std::fs::read_to_string(&path).expect("a file of the corpus can be read");
                assert!(
                    text.starts_with('#'),
                    "{} says which rule it shows",
                    path.display()
                );
                for line in text.lines().filter(|line| line.starts_with('>')) {
                    parse(&line[1..])
                        .unwrap_or_else(|why| panic!("{}: {line}: {why}", path.display()));
                }
            }
        }
    }
}
