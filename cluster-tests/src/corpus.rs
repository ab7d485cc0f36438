//! Conversations as text: what the client sends, byte by byte, and what must come back. One file, one rule.
//!
//! ```text
//! # any comment; the first one says which rule is shown
//! level 5                      how answers are read: 3, 4 or 5
//! node 1                       connect to the second node from here on (of a single one: to that)
//! close                        cut the connection; the next line opens another one
//! pause 1200                   let that many milliseconds pass
//! > 10 [ s"MQTT" 05 02 0000 00 s"id" ]
//! < 20 PRESENT                 an accepting CONNACK with session present 1; NEW: with 0
//! < 20 *                       a packet whose first byte is 20
//! < 90 [ 0001 00 02 ]          a packet with exactly these bytes
//! < E0 81 82                   a DISCONNECT (v5) with one of these reasons
//! < END 81 82                  closed, at most one refusing CONNACK or DISCONNECT with one of these codes before
//! < REFUSED 84 01              closed, with or without a CONNACK of any version that has one of these codes
//! < CLOSE                      closed without another packet
//! < SILENCE                    nothing waits: a PINGREQ is answered at once
//! ```
//!
//! A word in front of `>`, `<`, `close` names one of several connections. Packet ids that the broker chooses are written
//! `$name`: the first use of a name takes what came, later ones stand for it.
//!
//! Bytes are hexadecimal; `"text"` is its bytes, `s"text"` has two bytes of length in front, `[ … ]` has its remaining
//! length in front, `( … )` its length as properties do, and `00*70000` repeats a byte.

use crate::connection::Connection;
use crate::wire::{self, Packet};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// Holds the conversation of a file with these nodes; panics with file and line where it goes otherwise.
pub fn hold(path: &Path, nodes: &[SocketAddr]) {
    let text = std::fs::read_to_string(path).expect("a file of the corpus can be read");
    let mut conversation = Conversation {
        nodes,
        node: 0,
        level: wire::V5,
        open: BTreeMap::new(),
        chosen: BTreeMap::new(),
    };
    for (number, line) in text.lines().enumerate() {
        let place = format!("{}:{}", path.display(), number + 1);
        conversation.line(line.trim(), &place);
    }
}

struct Conversation<'a> {
    nodes: &'a [SocketAddr],
    node: usize,
    level: u8,
    open: BTreeMap<String, Connection>,
    /// Packet ids that the broker chose, by name.
    chosen: BTreeMap<String, [u8; 2]>,
}

impl Conversation<'_> {
    fn line(&mut self, line: &str, place: &str) {
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        let number =
            |text: &str| -> u64 { text.parse().unwrap_or_else(|_| panic!("{place}: {text:?}")) };
        if let Some(level) = line.strip_prefix("level ") {
            self.level = u8::try_from(number(level)).expect("3, 4 or 5");
        } else if let Some(node) = line.strip_prefix("node ") {
            self.node = usize::try_from(number(node)).expect("it is small");
        } else if let Some(pause) = line.strip_prefix("pause ") {
            std::thread::sleep(Duration::from_millis(number(pause)));
        } else if line == "close" || line.ends_with(" close") {
            self.open.remove(line.trim_end_matches("close").trim());
        } else {
            let at = line
                .find(['>', '<'])
                .unwrap_or_else(|| panic!("{place}: {line:?}"));
            let (name, rest) = (line[..at].trim(), &line[at + 1..]);
            if line[at..].starts_with('>') {
                self.say(name, rest, place);
            } else {
                eprintln!("{place}: {line}");
                self.expect(name, rest.trim(), place);
            }
        }
    }

    fn connection(&mut self, name: &str, place: &str) -> &mut Connection {
        let (address, level) = (self.nodes[self.node % self.nodes.len()], self.level);
        self.open.entry(name.to_owned()).or_insert_with(|| {
            Connection::open(address, level).unwrap_or_else(|error| panic!("{place}: {error}"))
        })
    }

    fn say(&mut self, name: &str, rest: &str, place: &str) {
        let mut text = rest.to_owned();
        for (chosen, id) in &self.chosen {
            text = text.replace(
                &format!("${chosen}"),
                &format!("{:02X}{:02X}", id[0], id[1]),
            );
        }
        let bytes = parse(&text).unwrap_or_else(|why| panic!("{place}: {why}"));
        // A broker may close before it has read everything.
        let _ = self.connection(name, place).try_send(&bytes);
    }

    fn expect(&mut self, name: &str, wanted: &str, place: &str) {
        let words: Vec<&str> = wanted.split_whitespace().collect();
        let codes = |words: &[&str]| -> Vec<u8> {
            words
                .iter()
                .map(|word| {
                    u8::from_str_radix(word, 16)
                        .unwrap_or_else(|_| panic!("{place}: code {word:?}"))
                })
                .collect()
        };
        let connection = self.connection(name, place);
        match words.as_slice() {
            ["CLOSE"] => connection.expect_closed(),
            ["END", rest @ ..] => connection.expect_end(&codes(rest)),
            ["REFUSED", rest @ ..] => connection.expect_refusal(&codes(rest)),
            ["SILENCE"] => connection.expect_nothing(),
            ["20", present @ ("PRESENT" | "NEW")] => match connection.expect() {
                Packet::Connack(connack) => {
                    assert_eq!(connack.code, 0, "{place}: {connack:?}");
                    assert_eq!(connack.session_present, *present == "PRESENT", "{place}");
                }
                other => panic!("{place}: instead of CONNACK: {other:?}"),
            },
            [first, "*"] => {
                let frame = connection.expect_frame();
                assert_eq!(frame.0, codes(&[first])[0], "{place}: {frame:02x?}");
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
                let (header, body) = connection.expect_frame();
                self.exactly(&wire::packet(header, &body), wanted, place);
            }
        }
    }

    /// Compares with the bytes that are wanted, and takes over the packet ids that are named for the first time.
    fn exactly(&mut self, came: &[u8], wanted: &str, place: &str) {
        let mut text = wanted.to_owned();
        while let Some(at) = text.find('$') {
            // A `$` in quotes is one of a topic.
            if text[..at].matches('"').count() % 2 == 1 {
                break;
            }
            let name: String = text[at + 1..]
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect();
            let id = *self.chosen.entry(name.clone()).or_insert_with(|| {
                // Everything in front of it has a known length.
                let length = came.len()
                    - parse(&text[at + 1 + name.len()..].replace([']', ')'], " "))
                        .map_or(0, |rest| rest.len());
                let start = length.saturating_sub(2);
                [came[start], came[start + 1]]
            });
            text.replace_range(at..=at + name.len(), &format!("{:02X}{:02X}", id[0], id[1]));
        }
        let bytes = parse(&text).unwrap_or_else(|why| panic!("{place}: {why}"));
        assert_eq!(came, bytes, "{place}");
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
        for folder in ["connect", "malformed", "publish", "session", "subscribe"] {
            for path in files(folder) {
                let text =
                    std::fs::read_to_string(&path).expect("a file of the corpus can be read");
                assert!(
                    text.starts_with('#'),
                    "{} says which rule it shows",
                    path.display()
                );
                for line in text.lines().filter_map(|line| line.split_once("> ")) {
                    let chosen = line.1.replace("$share", "share");
                    let bytes: Vec<&str> = chosen.split('$').collect();
                    // An id that the broker chooses is `$` and one digit.
                    let rest = bytes[1..].iter().map(|part| &part[1..]);
                    let said = std::iter::once(bytes[0]).chain(rest).collect::<Vec<_>>();
                    parse(&said.join("0001"))
                        .unwrap_or_else(|why| panic!("{}: {line:?}: {why}", path.display()));
                }
            }
        }
    }
}
