//! `quorumq token`: who may ask a node over HTTP.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::exit::{Failure, Outcome};
use super::http_client::request;
use super::http_node::HttpNode;
use super::output::{self, Format};
use crate::config::Scope;
use crate::http::TokenStatus;

/// Longest time to wait for one answer.
const LIMIT: Duration = Duration::from_secs(35);

/// Make, list and remove the tokens that the HTTP port asks for.
#[derive(Args)]
pub struct Token {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a token and print it: the cluster keeps only its hash, so it is shown this once. From the first one on, the
    /// HTTP ports of all nodes ask for a token.
    Add {
        /// Name of the token: letters, digits, dashes, underscores.
        name: String,
        /// What its holder may do: read, operate or admin; each includes the one before.
        #[arg(long, value_parser = parse_scope)]
        scope: Scope,
        /// Time after which it ends, for example 90d, 12h, 30m or 45s; without it, it does not.
        #[arg(long, value_name = "TIME", value_parser = parse_life)]
        expires: Option<u64>,
        /// Write the token into this new file, which only you can read, instead of printing it.
        #[arg(long, value_name = "FILE")]
        write: Option<PathBuf>,
    },
    /// List the tokens, without their secrets.
    List,
    /// Remove a token: no node takes it any more when this returns.
    Remove {
        /// Name of the token.
        name: String,
    },
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    let scope = text.parse::<Scope>();
    scope.map_err(|_| "expected read, operate or admin".to_owned())
}

/// A number with its unit, in seconds.
pub(super) fn parse_life(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number and d, h, m or s, for example 90d".to_owned();
    let unit = match text.chars().last() {
        Some('d') => 24 * 3_600,
        Some('h') => 3_600,
        Some('m') => 60,
        Some('s') => 1,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Runs the command.
pub async fn run(token: Token, format: Format) -> Outcome {
    let node = &token.node;
    match token.command {
        Command::Add {
            name,
            scope,
            expires,
            write,
        } => {
            let body = json!({ "name": name, "scope": scope.as_str(), "expires_in_s": expires });
            // The file first: a token that can't be kept would be lost.
            let file = write.as_deref().map(create).transpose()?;
            let answer = request(node, Method::POST, "/v1/tokens", Some(&body), LIMIT).await;
            let answer = match (answer, &write) {
                (Err(failure), Some(path)) => {
                    // It was made a moment ago and is empty.
                    let _ = std::fs::remove_file(path);
                    return Err(failure);
                }
                (answer, _) => answer?,
            };
            added(&answer, file, format)
        }
        Command::List => list(node, format).await,
        Command::Remove { name } => {
            let path = format!("/v1/token?name={}", super::http_client::escape(&name));
            request(node, Method::DELETE, &path, None, LIMIT)
                .await
                .map(drop)
        }
    }
}

fn create(path: &Path) -> Result<std::fs::File, Failure> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    created.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

fn added(answer: &Value, file: Option<std::fs::File>, format: Format) -> Outcome {
    let text = answer["token"].as_str();
    let text = text.ok_or_else(|| Failure::failed("the node's answer has no token"))?;
    match (file, format) {
        (Some(mut file), _) => {
            writeln!(file, "{text}")?;
            Ok(file.sync_all()?)
        }
        (None, Format::Json) => Ok(output::json(answer)?),
        (None, Format::Table) => {
            output::line(text)?;
            eprintln!("keep it: it is not shown again");
            Ok(())
        }
    }
}

async fn list(node: &HttpNode, format: Format) -> Outcome {
    let answer = request(node, Method::GET, "/v1/tokens", None, LIMIT).await?;
    let entries = answer["entries"].as_array().cloned().unwrap_or_default();
    if format == Format::Json {
        for entry in &entries {
            output::json(entry)?;
        }
        return Ok(());
    }
    let listed: Vec<TokenStatus> =
        serde_json::from_value(Value::Array(entries)).map_err(Failure::failed)?;
    let rows: Vec<_> = listed
        .into_iter()
        .map(|token| {
            let end = match (token.expired, token.expires_at_ms) {
                (true, _) => "expired".to_owned(),
                (false, Some(at)) => at.to_string(),
                (false, None) => "never".to_owned(),
            };
            vec![
                token.name,
                token.scope,
                token.created_at_ms.to_string(),
                end,
            ]
        })
        .collect();
    let head = ["NAME", "SCOPE", "CREATED AT MS", "EXPIRES AT MS"];
    Ok(output::table(&head, &rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_number_with_its_unit() {
        for (text, seconds) in [
            ("90d", 7_776_000),
            ("12h", 43_200),
            ("30m", 1_800),
            ("45s", 45),
        ] {
            assert_eq!(parse_life(text), Ok(seconds), "{text}");
        }
        for wrong in ["", "d", "90", "1w", "-1d", "99999999999999999999d", "1ü"] {
            assert!(parse_life(wrong).is_err(), "{wrong}");
        }
    }
}
