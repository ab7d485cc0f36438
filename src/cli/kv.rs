//! `quorumq kv`: the replicated state store from the command line.

use std::io::Read;

use clap::{Args, Subcommand};
use serde_json::json;

use super::client::{Answer, ClientError, Notification, StateStore};
use super::exit::{Failure, Outcome};
use super::output::{self, Format, printable};
use super::servers::Servers;

/// Use the replicated state store.
#[derive(Args)]
pub struct Kv {
    #[command(flatten)]
    servers: Servers,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the value of a key; exit code 1 when it is absent.
    Get {
        /// Key to read.
        key: String,
    },
    /// Store a value; exit code 1 when a condition refuses it.
    Set {
        /// Key to write.
        key: String,
        /// Its new value; "-" reads it from standard input.
        value: String,
        /// Only if the key is absent.
        #[arg(long, conflicts_with = "nex")]
        nx: bool,
        /// Only if the key is absent or has this very value already.
        #[arg(long)]
        nex: bool,
        /// Milliseconds after which the key expires.
        #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
        px: Option<u64>,
        /// Fencing token: the version that a lock was taken with.
        #[arg(long, value_name = "VERSION")]
        fencing_token: Option<String>,
    },
    /// Delete a key; exit code 1 when it was absent.
    Del {
        /// Key to delete.
        key: String,
        /// Fencing token: the version that a lock was taken with.
        #[arg(long, value_name = "VERSION")]
        fencing_token: Option<String>,
    },
    /// Delete a key if it has a value; exit code 1 when it was absent or has another one.
    Vdel {
        /// Key to delete.
        key: String,
        /// The value it must have; "-" reads it from standard input.
        value: String,
        /// Fencing token: the version that a lock was taken with.
        #[arg(long, value_name = "VERSION")]
        fencing_token: Option<String>,
    },
    /// Print every change of a key until Ctrl-C.
    Watch {
        /// Key to watch.
        key: String,
        /// End after this many changes.
        #[arg(short = 'n', long, value_name = "N")]
        count: Option<u64>,
    },
    /// List keys that match a pattern: * any characters, ? one, [a-z] a set, [!a] its complement.
    Scan {
        /// Pattern of the keys.
        #[arg(default_value = "*")]
        pattern: String,
    },
}

/// Runs the command.
pub async fn run(kv: Kv, format: Format) -> Outcome {
    let mut store = StateStore::new(kv.servers.options("kv")?, kv.servers.limit());
    let outcome = execute(&mut store, kv.command, format).await;
    store.close().await;
    outcome
}

async fn execute(store: &mut StateStore, command: Command, format: Format) -> Outcome {
    match command {
        Command::Get { key } => get(store, &key, format).await,
        Command::Set {
            key,
            value,
            nx,
            nex,
            px,
            fencing_token,
        } => {
            let value = argument(value)?;
            let px = px.map(|ms| ms.to_string());
            let mut arguments: Vec<&[u8]> = vec![b"SET", key.as_bytes(), &value];
            if nx {
                arguments.push(b"NX");
            }
            if nex {
                arguments.push(b"NEX");
            }
            if let Some(ms) = &px {
                arguments.push(b"PX");
                arguments.push(ms.as_bytes());
            }
            let (answer, version) = store.call(&arguments, fencing_token.as_deref()).await?;
            changed(answer, version, format)
        }
        Command::Del { key, fencing_token } => {
            let arguments: [&[u8]; 2] = [b"DEL", key.as_bytes()];
            let (answer, version) = store.call(&arguments, fencing_token.as_deref()).await?;
            changed(answer, version, format)
        }
        Command::Vdel {
            key,
            value,
            fencing_token,
        } => {
            let value = argument(value)?;
            let arguments: [&[u8]; 3] = [b"VDEL", key.as_bytes(), &value];
            let (answer, version) = store.call(&arguments, fencing_token.as_deref()).await?;
            changed(answer, version, format)
        }
        Command::Watch { key, count } => watch(store, &key, count, format).await,
        Command::Scan { pattern } => scan(store, &pattern, format).await,
    }
}

/// A value as it is written on the command line, or standard input for `-`.
fn argument(value: String) -> Result<Vec<u8>, Failure> {
    if value != "-" {
        return Ok(value.into_bytes());
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::Error(text) => Failure::failed(text),
        other => ClientError::Answer(format!("{other:?}")).into(),
    }
}

async fn get(store: &mut StateStore, key: &str, format: Format) -> Outcome {
    let (answer, version) = store.call(&[b"GET", key.as_bytes()], None).await?;
    match (answer, format) {
        (Answer::Value(value), Format::Table) => Ok(output::line(value)?),
        (Answer::Value(value), Format::Json) => {
            let value = printable(&value);
            Ok(output::json(
                &json!({ "key": key, "value": value, "version": version }),
            )?)
        }
        (Answer::Absent, Format::Table) => Err(Failure::failed(format!("{key:?} is absent"))),
        (Answer::Absent, Format::Json) => {
            output::json(&json!({ "key": key, "value": null }))?;
            Err(Failure::failed(""))
        }
        (other, _) => Err(unexpected(other)),
    }
}

/// Writes the answer to a command that changes a key.
fn changed(answer: Answer, version: Option<String>, format: Format) -> Outcome {
    let (done, text) = match &answer {
        Answer::Ok => (true, "ok"),
        Answer::Number(1) => (true, "deleted"),
        Answer::Number(0) => (false, "absent"),
        Answer::Number(-1) => (false, "refused: the key exists, or has another value"),
        _ => return Err(unexpected(answer)),
    };
    match format {
        Format::Table if done => {
            let version = version
                .map(|version| format!(" {version}"))
                .unwrap_or_default();
            output::line(format!("{text}{version}"))?;
        }
        Format::Table => return Err(Failure::failed(text)),
        Format::Json => {
            output::json(&json!({ "done": done, "answer": text, "version": version }))?;
        }
    }
    if done {
        Ok(())
    } else {
        Err(Failure::failed(""))
    }
}

async fn watch(store: &mut StateStore, key: &str, count: Option<u64>, format: Format) -> Outcome {
    tokio::select! {
        outcome = observe(store, key, count, format) => outcome,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Watches a key over as many connections as it takes. A new connection begins with a GET: when the version is another
/// one than the last that was seen, the value is printed, because changes in between were not notified.
async fn observe(store: &mut StateStore, key: &str, count: Option<u64>, format: Format) -> Outcome {
    let mut seen = 0;
    let mut last_version = None;
    let mut first = true;
    while count.is_none_or(|count| seen < count) {
        match store.call(&[b"KEYNOTIFY", key.as_bytes()], None).await? {
            (Answer::Ok, _) => {}
            (other, _) => return Err(unexpected(other)),
        }
        let (found, version) = store.call(&[b"GET", key.as_bytes()], None).await?;
        if !first && version != last_version {
            let value = match found {
                Answer::Value(value) => Some(value),
                _ => None,
            };
            eprintln!("quorumq: connected again; changes in between may be missing");
            print(
                key,
                &Notification {
                    value,
                    version: version.clone(),
                },
                format,
            )?;
            seen += 1;
        }
        if first {
            eprintln!("watching {key:?}; Ctrl-C ends it");
        }
        last_version = version;
        first = false;
        while count.is_none_or(|count| seen < count) {
            match store.next_notification().await {
                Ok(notification) => {
                    last_version = notification
                        .value
                        .as_ref()
                        .and(notification.version.clone());
                    print(key, &notification, format)?;
                    seen += 1;
                }
                Err(error) if error.is_transient() => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn print(key: &str, notification: &Notification, format: Format) -> Outcome {
    let Notification { value, version } = notification;
    let value = value.as_deref().map(printable);
    match format {
        Format::Json => output::json(&json!({
            "key": key,
            "event": if value.is_some() { "set" } else { "delete" },
            "value": value,
            "version": version,
        }))?,
        Format::Table => {
            let version = version.as_deref().unwrap_or("-");
            output::line(match value {
                Some(value) => format!("{version} SET {value}"),
                None => format!("{version} DELETE"),
            })?;
        }
    }
    Ok(())
}

async fn scan(store: &mut StateStore, pattern: &str, format: Format) -> Outcome {
    let mut token: Option<Vec<u8>> = None;
    loop {
        let mut arguments: Vec<&[u8]> = vec![b"SCAN", pattern.as_bytes()];
        if let Some(token) = &token {
            arguments.push(token);
        }
        let (answer, _) = store.call(&arguments, None).await?;
        let Answer::Page(keys, next) = answer else {
            return Err(unexpected(answer));
        };
        for key in keys {
            match format {
                Format::Table => output::line(&key)?,
                Format::Json => output::json(&json!({ "key": printable(&key) }))?,
            }
        }
        match next {
            Some(next) => token = Some(next),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::*;

    fn exit(answer: Answer) -> Option<Exit> {
        changed(answer, None, Format::Json)
            .err()
            .map(|failure| failure.exit)
    }

    #[test]
    fn a_refusal_and_an_absent_key_are_exit_code_1() {
        assert_eq!(exit(Answer::Ok), None);
        assert_eq!(exit(Answer::Number(1)), None);
        for answer in [
            Answer::Number(0),
            Answer::Number(-1),
            Answer::Error("syntax error".into()),
        ] {
            assert_eq!(exit(answer), Some(Exit::Failed));
        }
    }
}
