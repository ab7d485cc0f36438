//! `quorumq events tail`: events as they are recorded, on standard output or at the end of a file.
//!
//! Invariant: the token beside the file is written after the events, and both are on disk when the next ones are asked
//! for. Whoever is interrupted goes on behind what is in the file; the last events may come twice. Invariant: each line
//! is whole. Half a line that an interruption has left is cut off; its event comes again. Nothing is cut off a file
//! that somebody else has written, which has no token beside it. Invariant: one process at a time writes to a file:
//! what another one has not yet written whole is not half a line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::Value;

use super::exit::{Failure, Outcome};
use super::http_client::{escape, request};
use super::http_node::HttpNode;
use super::output;

/// How long the node may wait for the next event.
const WAIT_S: u64 = 25;

/// Longest time to wait for one answer.
const LIMIT: Duration = Duration::from_secs(35);

/// Which events, and where they go.
#[derive(Args)]
pub struct Tail {
    /// Go on after this token; otherwise after the token beside the file, or from the oldest event that is kept.
    #[arg(long, value_name = "TOKEN")]
    after: Option<String>,

    /// Append events to this file, one in a line, and keep the token in FILE.token.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Only events of this type, in full.
    #[arg(long = "type", value_name = "TYPE", default_value = "")]
    kind: String,

    /// Only events whose subject begins with this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    subject: String,

    /// End when there is no more event, instead of waiting for the next one.
    #[arg(long)]
    once: bool,
}

/// Where events go.
struct Sink {
    file: Option<(File, PathBuf)>,
}

fn token_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".token");
    name.into()
}

/// Cuts off what follows the last end of a line.
fn cut_to_lines(file: &mut File) -> io::Result<()> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let mut part = vec![0; 64 << 10];
    let mut keep = 0;
    while end > 0 {
        let from = end.saturating_sub(part.len() as u64);
        // No larger than the part.
        let size = usize::try_from(end - from).unwrap_or(part.len());
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut part[..size])?;
        if let Some(at) = part[..size].iter().rposition(|byte| *byte == b'\n') {
            keep = from + at as u64 + 1;
            break;
        }
        end = from;
    }
    match keep == file.metadata()?.len() {
        true => Ok(()),
        false => file.set_len(keep),
    }
}

/// Ends the last line, where it has no end.
fn end_line(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    match last == *b"\n" {
        true => Ok(()),
        false => file.write_all(b"\n"),
    }
}

impl Sink {
    fn open(path: Option<&Path>) -> io::Result<Sink> {
        let open = |path: &Path| {
            let mut file = OpenOptions::new()
                .create(true)
                .read(true)
                .append(true)
                .open(path)?;
            file.try_lock()?;
            let token = token_path(path);
            match token.exists() {
                true => cut_to_lines(&mut file)?,
                false => {
                    end_line(&mut file)?;
                    // From here on it is this command's file.
                    File::create(&token)?;
                }
            }
            Ok::<_, io::Error>((file, token))
        };
        Ok(Sink {
            file: path.map(open).transpose()?,
        })
    }

    /// The token that was kept.
    fn token(&self) -> io::Result<Option<String>> {
        let Some((_, token)) = &self.file else {
            return Ok(None);
        };
        match std::fs::read_to_string(token) {
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&mut self, events: &[Value], token: &str) -> io::Result<()> {
        let Some((file, path)) = &mut self.file else {
            return events.iter().try_for_each(output::json);
        };
        let mut lines = String::new();
        for event in events {
            lines.push_str(&event.to_string());
            lines.push('\n');
        }
        file.write_all(lines.as_bytes())?;
        file.sync_data()?;
        // In its place at once, so that there is always a whole one.
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        let mut new = File::create(&fresh)?;
        writeln!(new, "{token}")?;
        new.sync_data()?;
        std::fs::rename(&fresh, path)
    }
}

/// Runs `quorumq events tail`.
pub async fn tail(node: &HttpNode, arguments: Tail) -> Outcome {
    let mut sink = Sink::open(arguments.to.as_deref()).map_err(Failure::failed)?;
    let kept = sink.token().map_err(Failure::failed)?;
    let mut after = arguments.after.or(kept).unwrap_or_default();
    let (kind, subject) = (escape(&arguments.kind), escape(&arguments.subject));
    let wait_s = if arguments.once { 0 } else { WAIT_S };
    loop {
        let path = format!(
            "/v1/events?after={}&limit=1000&wait_s={wait_s}&type={kind}&subject={subject}",
            escape(&after)
        );
        let answer = request(node, Method::GET, &path, None, LIMIT).await?;
        if answer["lost"] == Value::Bool(true) {
            eprintln!("some events are gone: they were kept for too short a time");
        }
        let next = answer["next"].as_str();
        let next = next.ok_or_else(|| Failure::failed("the node's answer has no token"))?;
        let events = answer["events"].as_array();
        let events = events.map_or(&[][..], Vec::as_slice);
        if next != after {
            sink.write(events, next)?;
        }
        if arguments.once && next == after {
            return Ok(());
        }
        after = next.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_grows_and_its_token_is_the_last_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("events");
        let mut sink = Sink::open(Some(&path)).expect("it is opened");
        assert_eq!(sink.token().ok(), Some(None));
        let event = serde_json::json!({ "id": "a" });
        sink.write(&[event.clone(), event.clone()], "1")
            .expect("it is written");
        drop(sink);
        let mut sink = Sink::open(Some(&path)).expect("it is opened");
        assert_eq!(sink.token().ok().flatten().as_deref(), Some("1"));
        assert!(Sink::open(Some(&path)).is_err(), "it is in use");
        sink.write(&[event], "2").expect("it is written");
        let text = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(text, "{\"id\":\"a\"}\n".repeat(3));
        assert_eq!(sink.token().ok().flatten().as_deref(), Some("2"));
    }

    #[test]
    fn a_file_of_somebody_else_stays_as_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notes");
        std::fs::write(&path, "one line").expect("it is written");
        drop(Sink::open(Some(&path)).expect("it is opened"));
        let text = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(text, "one line\n");
        let sink = Sink::open(Some(&path)).expect("it is opened");
        assert_eq!(sink.token().ok(), Some(None));
    }

    #[test]
    fn half_a_line_is_cut_off() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("events");
        std::fs::write(token_path(&path), "").expect("it is written");
        let long = "x".repeat(200_000);
        for (left, kept) in [
            ("{}\n{\"id".to_owned(), "{}\n".to_owned()),
            ("{\"id".to_owned(), String::new()),
            (String::new(), String::new()),
            ("{}\n".to_owned(), "{}\n".to_owned()),
            (format!("{long}\n{long}"), format!("{long}\n")),
        ] {
            std::fs::write(&path, &left).expect("it is written");
            let mut sink = Sink::open(Some(&path)).expect("it is opened");
            sink.write(&[serde_json::json!({ "id": "a" })], "1")
                .expect("it is written");
            let text = std::fs::read_to_string(&path).expect("a file");
            assert!(
                text == format!("{kept}{{\"id\":\"a\"}}\n"),
                "{} bytes",
                left.len()
            );
        }
    }
}
