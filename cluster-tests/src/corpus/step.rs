//! The lines of a conversation.

use super::event::Event;
use super::hub::{self, Ask};
use super::pattern::{self, Pattern};
use super::setup;
use crate::wire;
use std::time::Duration;

/// What a line asks for.
#[derive(Debug)]
pub enum Step {
    /// Connections opened from here on speak this protocol level.
    Level(u8),
    /// Connections opened from here on go to this node.
    Node(usize),
    Pause(Duration),
    /// These names stand for different values.
    Differ(Vec<String>),
    Close(String),
    Send(String, Vec<Pattern>),
    Expect(Expectation),
    /// A back end asks the hub.
    Ask(Ask),
}

/// What must come.
#[derive(Debug)]
pub struct Expectation {
    /// The connections, on one of which it comes.
    pub on: Vec<String>,
    /// With its neighbours of the same kind in any order.
    pub unordered: bool,
    pub within: Option<Duration>,
    pub wanted: Wanted,
}

#[derive(Debug)]
pub enum Wanted {
    Closed,
    /// Closed, with at most one of these reasons before.
    End(Vec<u8>),
    /// The same, and the packet may be of any protocol level.
    Refused(Vec<u8>),
    Silence,
    /// Nothing comes and nothing is closed for so long.
    Open(Duration),
    Accepted {
        present: bool,
        with: Vec<Vec<Pattern>>,
        without: Vec<u8>,
    },
    First(Vec<u8>),
    /// An acknowledgement in whichever of its forms.
    Ack {
        header: u8,
        id: Pattern,
        codes: Vec<u8>,
        /// Properties it has not.
        without: Vec<u8>,
    },
    Disconnect {
        codes: Vec<u8>,
        without: Vec<u8>,
    },
    Exactly(Vec<Pattern>),
    /// A PUBLISH with an event of the life of a client.
    Event(Event),
}

/// Reads a line; `None` for comments, empty lines and what only the runner looks at.
pub fn parse(line: &str, word: &str) -> Result<Option<Step>, String> {
    let line = line.trim();
    let number = |text: &str| -> Result<u64, String> {
        text.parse().map_err(|_| format!("no number: {text:?}"))
    };
    if line.is_empty() || line.starts_with('#') || line == "alone" || line.starts_with("unlike ") {
        return Ok(None);
    }
    if let Some(asked) = line.strip_prefix("hub ") {
        return Ok(Some(Step::Ask(hub::parse(asked, word)?)));
    }
    if let Some(level) = line.strip_prefix("level ") {
        let level = number(level)?;
        let level = u8::try_from(level)
            .ok()
            .filter(|level| (3..=5).contains(level));
        return Ok(Some(Step::Level(level.ok_or("a level is 3, 4 or 5")?)));
    }
    if let Some(node) = line.strip_prefix("node ") {
        let node = usize::try_from(number(node)?).map_err(|_| "no node")?;
        return Ok(Some(Step::Node(node)));
    }
    if let Some(pause) = line.strip_prefix("pause ") {
        return Ok(Some(Step::Pause(Duration::from_millis(number(pause)?))));
    }
    if let Some(names) = line.strip_prefix("differ ") {
        let names = names
            .split_whitespace()
            .map(|name| name.trim_start_matches('$').to_owned());
        return Ok(Some(Step::Differ(names.collect())));
    }
    if line == "close" || line.ends_with(" close") {
        let name = line.trim_end_matches("close").trim();
        return Ok(Some(Step::Close(name.to_owned())));
    }
    let at = line.find(['>', '<']).ok_or("neither > nor <")?;
    let (name, rest) = (line[..at].trim(), &line[at + 1..]);
    if line[at..].starts_with('>') {
        let patterns = match setup::packet(rest, word)? {
            Some(bytes) => vec![Pattern::Bytes(bytes)],
            None => pattern::parse(rest, word)?,
        };
        return Ok(Some(Step::Send(name.to_owned(), patterns)));
    }
    let (unordered, rest) = match rest.strip_prefix('~') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let (rest, within) = match rest.split_once(" WITHIN ") {
        Some((rest, within)) => (rest, Some(Duration::from_millis(number(within.trim())?))),
        None => (rest, None),
    };
    Ok(Some(Step::Expect(Expectation {
        on: name.split('|').map(|name| name.trim().to_owned()).collect(),
        unordered,
        within,
        wanted: expectation(rest.trim(), word)?,
    })))
}

fn codes(words: &[&str]) -> Result<Vec<u8>, String> {
    words
        .iter()
        .map(|word| u8::from_str_radix(word, 16).map_err(|_| format!("no code: {word:?}")))
        .collect()
}

fn expectation(wanted: &str, word: &str) -> Result<Wanted, String> {
    let (wanted, without) = match wanted.split_once(" WITHOUT ") {
        Some((wanted, without)) => {
            let ids: Vec<&str> = without.split_whitespace().collect();
            (wanted, codes(&ids)?)
        }
        None => (wanted, Vec::new()),
    };
    let words: Vec<&str> = wanted.split_whitespace().collect();
    let what = match words.as_slice() {
        ["CLOSE"] => Wanted::Closed,
        ["END", rest @ ..] => Wanted::End(codes(rest)?),
        ["REFUSED", rest @ ..] => Wanted::Refused(codes(rest)?),
        ["SILENCE"] => Wanted::Silence,
        ["OPEN", millis] => {
            let millis = millis.parse().map_err(|_| "OPEN needs milliseconds")?;
            Wanted::Open(Duration::from_millis(millis))
        }
        ["connack", present @ ("present" | "new"), ..] => {
            let with = wanted.split_once(present).map_or("", |(_, with)| with);
            let with = match pattern::parse(with, word)?.as_slice() {
                [] => Vec::new(),
                [Pattern::Properties(groups)] => groups.clone(),
                _ => return Err("after new or present come properties in ( )".into()),
            };
            Wanted::Accepted {
                present: *present == "present",
                with,
                without,
            }
        }
        ["EVENT", rest @ ..] => Wanted::Event(Event::parse(rest, word)?),
        ["connack", "any"] => Wanted::First(vec![0x20]),
        [first, "*"] => Wanted::First(codes(&first.split('|').collect::<Vec<_>>())?),
        [
            name @ ("PUBACK" | "PUBREC" | "PUBREL" | "PUBCOMP"),
            id,
            rest @ ..,
        ] => {
            let (header, success) = match *name {
                "PUBACK" => (wire::PUBACK, &[0, 0x10][..]),
                "PUBREC" => (wire::PUBREC, &[0, 0x10][..]),
                "PUBREL" => (wire::PUBREL, &[0][..]),
                _ => (wire::PUBCOMP, &[0][..]),
            };
            let mut patterns = pattern::parse(id, word)?;
            Wanted::Ack {
                header,
                id: patterns.pop().ok_or("an acknowledgement has an id")?,
                codes: match rest {
                    [] => success.into(),
                    rest => codes(rest)?,
                },
                without,
            }
        }
        ["E0", rest @ ..] if !wanted.contains('[') => Wanted::Disconnect {
            codes: codes(rest)?,
            without,
        },
        _ if !without.is_empty() => return Err("WITHOUT is for connack, PUBACK, E0".into()),
        _ => Wanted::Exactly(match setup::packet(wanted, word)? {
            Some(bytes) => vec![Pattern::Bytes(bytes)],
            None => pattern::parse(wanted, word)?,
        }),
    };
    Ok(what)
}
