//! `quorumq user` and `quorumq ban`: who may log in, and who may not connect, over a node's HTTP port.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hyper::Method;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::exit::{Failure, Outcome};
use super::http_client::{escape, request};
use super::http_node::HttpNode;
use super::output::{self, Format};
use super::password::first_line;
use super::sessions::list;
use crate::http::{BanStatus, ImportAnswer, UserStatus};

/// Longest time to wait for one answer.
const LIMIT: Duration = Duration::from_secs(35);

/// Bytes of a file that go with one request, about.
const IMPORT_BYTES: usize = 32 << 10;

/// Keep the users of the cluster, who log in with a password or by SCRAM.
#[derive(Args)]
pub struct UserCommand {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: OfUser,
}

/// What a user has beside its password.
#[derive(Args)]
struct Labels {
    /// A group that rules may name; may be given several times, and replaces all groups.
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,

    /// An attribute that rules may name; may be given several times, and replaces all attributes.
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,

    /// What is to be said of it.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

#[derive(Subcommand)]
enum OfUser {
    /// Add a user. The password is the first line of standard input.
    Add {
        /// User name.
        name: String,
        #[command(flatten)]
        labels: Labels,
    },
    /// List all users.
    List,
    /// Show one user.
    Show {
        /// User name.
        name: String,
    },
    /// Change a user's password, which is the first line of standard input; its connections end.
    SetPassword {
        /// User name.
        name: String,
    },
    /// Change a user's groups, attributes or note; its connections end, and may come back.
    Set {
        /// User name.
        name: String,
        #[command(flatten)]
        labels: Labels,
    },
    /// Keep a user from logging in; its connections end.
    Disable {
        /// User name.
        name: String,
    },
    /// Let a disabled user log in again.
    Enable {
        /// User name.
        name: String,
    },
    /// Delete a user; its connections end.
    Delete {
        /// User name.
        name: String,
    },
    /// Add the users of a file. Their hashes are taken as they are.
    Import {
        /// What the file is.
        #[arg(long, value_enum, default_value_t)]
        format: FileFormat,
        /// Give users that are there already the credentials of the file; otherwise they stay as they are.
        #[arg(long)]
        replace: bool,
        /// The file.
        file: PathBuf,
    },
}

/// What a file of users is.
#[derive(Clone, Copy, Default, ValueEnum)]
enum FileFormat {
    /// A password file of Mosquitto ($7$ or $6$ hashes).
    #[default]
    Mosquitto,
    /// A file of SCRAM verifiers, as auth.scram_file is.
    Scram,
}

/// Keep a client id, a user or a network from connecting for a time.
#[derive(Args)]
pub struct BanCommand {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: OfBan,
}

#[derive(Subcommand)]
enum OfBan {
    /// Ban somebody; its connections end.
    Add {
        /// client:ID, user:NAME, address:ADDRESS or address:ADDRESS/PREFIX.
        target: String,
        /// For how long, seconds; until it is removed when absent.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
        seconds: Option<u64>,
        /// What is to be said of it.
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// List all bans.
    List,
    /// Remove a ban.
    Remove {
        /// As it was added, or as it is listed.
        target: String,
    },
}

fn attribute(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (name, value) = parts.ok_or("an attribute is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Labels {
    /// Adds what was given to the body of a request.
    fn put(self, body: &mut Value) {
        if !self.groups.is_empty() {
            body["groups"] = json!(self.groups);
        }
        if !self.attributes.is_empty() {
            let attributes: BTreeMap<String, String> = self.attributes.into_iter().collect();
            body["attributes"] = json!(attributes);
        }
        if let Some(note) = self.note {
            body["note"] = json!(note);
        }
    }
}

fn user_path(name: &str) -> String {
    format!("/v1/user?name={}", escape(name))
}

async fn ask(
    node: &HttpNode,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, Failure> {
    request(node, method, path, body.as_ref(), LIMIT).await
}

/// One user, or one ban, as it is now.
fn show(answer: &Value, format: Format) -> Outcome {
    if format == Format::Json {
        return Ok(output::json(answer)?);
    }
    let fields = answer.as_object().into_iter().flatten();
    let rows: Vec<Vec<String>> = fields
        .map(|(name, value)| {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            vec![name.clone(), value]
        })
        .collect();
    Ok(output::table(&["FIELD", "VALUE"], &rows)?)
}

/// Runs `quorumq user`.
pub async fn user(arguments: UserCommand, format: Format) -> Outcome {
    let node = &arguments.node;
    let change = async |name: &str, body: Value| {
        let answer = ask(node, Method::POST, &user_path(name), Some(body)).await?;
        show(&answer, format)
    };
    match arguments.command {
        OfUser::Add { name, labels } => {
            let password = first_line()?;
            let mut body = json!({ "name": name, "password": *password });
            labels.put(&mut body);
            let answer = ask(node, Method::POST, "/v1/users", Some(body)).await?;
            show(&answer, format)
        }
        OfUser::List => list_users(node, format).await,
        OfUser::Show { name } => {
            let answer = ask(node, Method::GET, &user_path(&name), None).await?;
            show(&answer, format)
        }
        OfUser::SetPassword { name } => {
            let password = first_line()?;
            change(&name, json!({ "password": *password })).await
        }
        OfUser::Set { name, labels } => {
            let mut body = json!({});
            labels.put(&mut body);
            change(&name, body).await
        }
        OfUser::Disable { name } => change(&name, json!({ "disabled": true })).await,
        OfUser::Enable { name } => change(&name, json!({ "disabled": false })).await,
        OfUser::Delete { name } => {
            ask(node, Method::DELETE, &user_path(&name), None).await?;
            warn_if_last(node).await;
            Ok(())
        }
        OfUser::Import {
            format: file_format,
            replace,
            file,
        } => {
            let text = fs::read_to_string(&file)
                .map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
            let text = Zeroizing::new(text);
            let done = import(node, file_format, replace, &text).await?;
            match format {
                Format::Json => Ok(output::json(&json!(done))?),
                Format::Table => Ok(output::line(format!(
                    "{} added, {} replaced, {} kept",
                    done.added, done.replaced, done.kept
                ))?),
            }
        }
    }
}

/// Says so when no user is left. Deleting has succeeded, whether the node answers once more or not.
async fn warn_if_last(node: &HttpNode) {
    let Ok(left) = ask(node, Method::GET, "/v1/users?limit=1", None).await else {
        return;
    };
    if left["entries"].as_array().is_some_and(Vec::is_empty) {
        eprintln!(
            "That was the last user. Where auth.scram_file is not set, listeners without `authentication` let \
             everybody in from now on; to have nobody let in, set listeners.authentication."
        );
    }
}

async fn list_users(node: &HttpNode, format: Format) -> Outcome {
    let head = ["USER", "DISABLED", "PASSWORD", "SCRAM", "GROUPS", "NOTE"];
    list(node, "/v1/users?", format, &head, |user: &UserStatus| {
        vec![
            user.name.clone(),
            user.disabled.to_string(),
            user.password.clone(),
            user.scram.join(" "),
            user.groups.join(" "),
            user.note.clone(),
        ]
    })
    .await
}

/// Pieces of a file, each of whole lines.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for line in text.lines() {
        if pieces
            .last()
            .is_some_and(|piece| piece.len() > IMPORT_BYTES)
        {
            pieces.push(String::new());
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push_str(line);
            piece.push('\n');
        }
    }
    pieces
}

/// Imports a file piece by piece. It is looked at as a whole first: when a line is wrong, nothing is imported.
async fn import(
    node: &HttpNode,
    format: FileFormat,
    replace: bool,
    text: &str,
) -> Result<ImportAnswer, Failure> {
    let (name, problems) = match format {
        FileFormat::Mosquitto => (
            "mosquitto",
            crate::auth::password::file::parse_file(text)
                .map(drop)
                .err(),
        ),
        FileFormat::Scram => (
            "scram",
            crate::auth::scram::Credentials::parse(text).map(drop).err(),
        ),
    };
    if let Some(problems) = problems {
        let lines = problems
            .iter()
            .map(|problem| format!("line {}: {}", problem.line, problem.message));
        return Err(Failure::failed(lines.collect::<Vec<_>>().join("\n")));
    }
    let mut done = ImportAnswer::default();
    for piece in pieces(text) {
        let has_users = piece
            .lines()
            .any(|line| !line.trim().is_empty() && !line.starts_with('#'));
        if !has_users {
            continue;
        }
        let body = json!({ "format": name, "text": piece, "replace": replace });
        let answer = ask(node, Method::POST, "/v1/users/import", Some(body)).await?;
        let some: ImportAnswer = serde_json::from_value(answer).map_err(Failure::failed)?;
        done.added += some.added;
        done.replaced += some.replaced;
        done.kept += some.kept;
    }
    Ok(done)
}

/// Runs `quorumq ban`.
pub async fn ban(arguments: BanCommand, format: Format) -> Outcome {
    let node = &arguments.node;
    match arguments.command {
        OfBan::Add {
            target,
            seconds,
            reason,
        } => {
            let body = json!({ "target": target, "seconds": seconds, "reason": reason });
            let answer = ask(node, Method::POST, "/v1/bans", Some(body)).await?;
            show(&answer, format)
        }
        OfBan::List => {
            let head = ["TARGET", "EXPIRES AT MS", "REASON"];
            list(node, "/v1/bans?", format, &head, |ban: &BanStatus| {
                let expires = ban.expires_at_ms;
                vec![
                    ban.target.clone(),
                    expires.map_or_else(|| "never".to_owned(), |at| at.to_string()),
                    ban.reason.clone(),
                ]
            })
            .await
        }
        OfBan::Remove { target } => {
            let path = format!("/v1/bans?target={}", escape(&target));
            ask(node, Method::DELETE, &path, None).await?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_cut_between_lines_and_nothing_is_lost() {
        let text: String = (0..5_000)
            .map(|number| format!("user {number}\n"))
            .collect();
        let pieces = pieces(&text);
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() < 2 * IMPORT_BYTES));
        assert_eq!(pieces.concat(), text);
        assert!(pieces.iter().all(|piece| piece.ends_with('\n')));
    }

    #[test]
    fn an_attribute_has_a_name_and_a_value() {
        assert_eq!(attribute("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(attribute("a").is_err());
    }
}
