//! `quorumq events`: who is to get events of the life of clients, and what could not be delivered, over a node's HTTP
//! port.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, json};

use super::event_tail::{Tail, tail};
use super::exit::{Failure, Outcome};
use super::http_client::{escape, request};
use super::http_node::HttpNode;
use super::output::{self, Format};

/// Longest time to wait for one answer.
const LIMIT: Duration = Duration::from_secs(35);

/// The path of all event subscriptions.
const ALL: &str = "/v1/events/subscriptions";

/// Send the events of clients' connections to endpoints, or read them.
#[derive(Args)]
pub struct Events {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the event subscriptions.
    List,
    /// Make an event subscription, or change what it asks for; what is not given has its default then.
    Add(Box<Add>),
    /// Show one event subscription.
    Show {
        /// Its name.
        name: String,
    },
    /// Keep events from being delivered; they wait.
    Pause {
        /// Its name.
        name: String,
    },
    /// Deliver events again, also to an endpoint that has said that it is gone.
    Resume {
        /// Its name.
        name: String,
    },
    /// Remove an event subscription with what waits for it and its dead letters.
    Remove {
        /// Its name.
        name: String,
    },
    /// Try whether the endpoint wants events; exit code 1 when it does not.
    Test {
        /// Its name.
        name: String,
        /// Send an event that says that it is a test.
        #[arg(long)]
        event: bool,
    },
    /// Print events as they are recorded, or append them to a file.
    Tail(Tail),
    /// Look at events that were given up, deliver them again, or remove them.
    DeadLetters {
        #[command(subcommand)]
        command: DeadLetters,
    },
}

/// What an event subscription asks for.
#[derive(Args)]
struct Add {
    /// Its name: letters, digits and dashes.
    name: String,

    /// Where events go: https://…, or http://… to the nodes' own machines.
    url: String,

    /// cloudevents or eventgrid.
    #[arg(long)]
    schema: Option<String>,

    /// batch, structured or binary.
    #[arg(long)]
    mode: Option<String>,

    /// A type of events in full; may be given several times. All four of clients when absent.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,

    /// What the subjects of events begin with.
    #[arg(long, value_name = "TEXT")]
    subject_begins_with: Option<String>,

    /// What the subjects of events end with.
    #[arg(long, value_name = "TEXT")]
    subject_ends_with: Option<String>,

    /// Let case count in both.
    #[arg(long)]
    case_sensitive: bool,

    /// A reason of disconnections; may be given several times. All when absent.
    #[arg(long = "reason", value_name = "REASON")]
    reasons: Vec<String>,

    /// Age at which an event is given up, minutes.
    #[arg(long, value_name = "MINUTES")]
    ttl_min: Option<u32>,

    /// Attempts after which an event is given up.
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,

    /// Most events of a request.
    #[arg(long, value_name = "NUMBER")]
    max_events: Option<u32>,

    /// Most bytes of a request with more than one event.
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<u32>,

    /// Most requests in a minute.
    #[arg(long, value_name = "NUMBER")]
    rate_per_min: Option<u32>,

    /// Longest time for a request and its answer, seconds.
    #[arg(long, value_name = "SECONDS")]
    timeout_s: Option<u32>,

    /// Name of the secret (events.secrets_file) that is sent as a bearer token.
    #[arg(long, value_name = "SECRET")]
    bearer: Option<String>,

    /// Name of a secret that requests are signed with; may be given twice, while one key replaces another.
    #[arg(long = "signing-key", value_name = "SECRET")]
    signing_keys: Vec<String>,

    /// A header of every request; may be given several times.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// PEM file of the CAs that may vouch for the endpoint, as it is called on every node.
    #[arg(long, value_name = "FILE")]
    endpoint_ca_file: Option<PathBuf>,

    /// Send events without asking the endpoint whether it wants them.
    #[arg(long)]
    no_handshake: bool,

    /// Let events go to other machines by plain HTTP.
    #[arg(long)]
    plain_http: bool,

    /// Begin a new one with the oldest event that is kept.
    #[arg(long)]
    from_oldest: bool,

    /// Only change it if it has this revision; 0: only make a new one.
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
}

#[derive(Subcommand)]
enum DeadLetters {
    /// List them.
    List {
        /// The event subscription.
        name: String,
    },
    /// Deliver them again.
    Replay {
        /// The event subscription.
        name: String,
        #[command(flatten)]
        range: Range,
    },
    /// Remove them.
    Purge {
        /// The event subscription.
        name: String,
        #[command(flatten)]
        range: Range,
    },
}

/// Some dead letters of all.
#[derive(Args)]
struct Range {
    /// The lowest number.
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,

    /// The highest number.
    #[arg(long, value_name = "NUMBER")]
    through: Option<u64>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (name, value) = parts.ok_or("a header is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Add {
    /// The body of the request: what was given.
    fn body(&self) -> Value {
        let mut body = Map::new();
        let mut put = |name: &str, value: Value| {
            let is_absent = match &value {
                Value::Null | Value::Bool(false) => true,
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            if !is_absent {
                body.insert(name.to_owned(), value);
            }
        };
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| json!({ "name": name, "value": value }));
        put("url", json!(self.url));
        put("schema", json!(self.schema));
        put("mode", json!(self.mode));
        put("types", json!(self.types));
        put("subject_begins_with", json!(self.subject_begins_with));
        put("subject_ends_with", json!(self.subject_ends_with));
        put("case_sensitive", json!(self.case_sensitive));
        put("reasons", json!(self.reasons));
        put("ttl_min", json!(self.ttl_min));
        put("max_attempts", json!(self.max_attempts));
        put("max_events", json!(self.max_events));
        put("max_bytes", json!(self.max_bytes));
        put("rate_per_min", json!(self.rate_per_min));
        put("timeout_s", json!(self.timeout_s));
        put("token", json!(self.bearer));
        put("signing_keys", json!(self.signing_keys));
        put("headers", headers.collect());
        put("ca_file", json!(self.endpoint_ca_file));
        put("handshake", json!(self.no_handshake.then_some("off")));
        put("plain_http", json!(self.plain_http));
        put("from", json!(self.from_oldest.then_some("oldest")));
        put("revision", json!(self.revision));
        Value::Object(body)
    }
}

async fn ask(
    node: &HttpNode,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, Failure> {
    request(node, method, path, body.as_ref(), LIMIT).await
}

fn path(name: &str, rest: &str) -> String {
    format!("{ALL}/{}{rest}", escape(name))
}

/// A value as it stands in a table.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// The fields of one answer.
fn show(answer: &Value, format: Format) -> Outcome {
    if format == Format::Json {
        return Ok(output::json(answer)?);
    }
    let fields = answer.as_object().into_iter().flatten();
    let rows: Vec<Vec<String>> = fields
        .map(|(name, value)| vec![name.clone(), shown(value)])
        .collect();
    Ok(output::table(&["FIELD", "VALUE"], &rows)?)
}

/// Fields of the entries of an answer, as columns.
fn columns(answer: &Value, format: Format, fields: &[&str], head: &[&str]) -> Outcome {
    let entries = answer["entries"].as_array().cloned().unwrap_or_default();
    if format == Format::Json {
        entries.iter().try_for_each(output::json)?;
        return Ok(());
    }
    let row = |entry: &Value| {
        let of = |field: &&str| shown(entry.pointer(field).unwrap_or(&Value::Null));
        fields.iter().map(of).collect::<Vec<String>>()
    };
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    Ok(output::table(head, &rows)?)
}

/// Runs `quorumq events`.
pub async fn run(arguments: Events, format: Format) -> Outcome {
    let node = &arguments.node;
    let change = async |name: &str, what: &str| {
        ask(node, Method::POST, &path(name, what), Some(json!({}))).await?;
        Ok(())
    };
    match arguments.command {
        Command::List => {
            let answer = ask(node, Method::GET, ALL, None).await?;
            let fields = [
                "/name",
                "/state",
                "/url",
                "/waiting",
                "/parked",
                "/dead",
                "/last_error",
            ];
            let head = [
                "NAME",
                "STATE",
                "URL",
                "WAITING",
                "PARKED",
                "DEAD",
                "LAST ERROR",
            ];
            columns(&answer, format, &fields, &head)
        }
        Command::Add(add) => {
            let answer = ask(node, Method::PUT, &path(&add.name, ""), Some(add.body())).await?;
            show(&answer, format)
        }
        Command::Show { name } => {
            let answer = ask(node, Method::GET, &path(&name, ""), None).await?;
            show(&answer, format)
        }
        Command::Pause { name } => change(&name, "/pause").await,
        Command::Resume { name } => change(&name, "/resume").await,
        Command::Remove { name } => {
            ask(node, Method::DELETE, &path(&name, ""), None).await?;
            Ok(())
        }
        Command::Test { name, event } => {
            let body = json!({ "event": event });
            let answer = ask(node, Method::POST, &path(&name, "/test"), Some(body)).await?;
            show(&answer, format)?;
            match answer["accepted"] == json!(true) {
                true => Ok(()),
                false => Err(Failure::failed(shown(&answer["answer"]))),
            }
        }
        Command::Tail(arguments) => tail(node, arguments).await,
        Command::DeadLetters { command } => dead_letters(node, command, format).await,
    }
}

async fn dead_letters(node: &HttpNode, command: DeadLetters, format: Format) -> Outcome {
    let settle = async |name: &str, what: &str, range: Range| {
        let mut body = Map::new();
        for (field, number) in [("from", range.from), ("through", range.through)] {
            if let Some(number) = number {
                body.insert(field.to_owned(), json!(number));
            }
        }
        let path = path(name, &format!("/dead-letters/{what}"));
        ask(node, Method::POST, &path, Some(Value::Object(body))).await?;
        Ok(())
    };
    match command {
        DeadLetters::List { name } => list_dead_letters(node, &name, format).await,
        DeadLetters::Replay { name, range } => settle(&name, "replay", range).await,
        DeadLetters::Purge { name, range } => settle(&name, "purge", range).await,
    }
}

async fn list_dead_letters(node: &HttpNode, name: &str, format: Format) -> Outcome {
    let mut entries = Vec::new();
    let mut after = 0;
    loop {
        let path = path(name, &format!("/dead-letters?after={after}"));
        let answer = ask(node, Method::GET, &path, None).await?;
        entries.extend(answer["entries"].as_array().cloned().unwrap_or_default());
        match answer["next"].as_u64() {
            Some(next) => after = next,
            None => break,
        }
    }
    // Either schema.
    for entry in &mut entries {
        for (name, other) in [
            ("deadletterreason", "deadLetterReason"),
            ("deliveryattempts", "deliveryAttempts"),
            ("lastdeliveryoutcome", "lastDeliveryOutcome"),
        ] {
            if format == Format::Table && entry["letter"][name].is_null() {
                let value = entry["letter"][other].clone();
                entry["letter"][name] = value;
            }
        }
    }
    let fields = [
        "/number",
        "/letter/id",
        "/letter/subject",
        "/letter/deadletterreason",
        "/letter/deliveryattempts",
        "/letter/lastdeliveryoutcome",
    ];
    let head = ["NUMBER", "ID", "SUBJECT", "REASON", "ATTEMPTS", "OUTCOME"];
    columns(&json!({ "entries": entries }), format, &fields, &head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_and_a_value() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(header("a").is_err());
    }

    #[test]
    fn what_is_not_given_is_not_asked_for() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            add: Add,
        }
        let line = [
            "x",
            "ops",
            "https://x/",
            "--mode",
            "binary",
            "--header",
            "a=b",
        ];
        let parsed = <Line as clap::Parser>::try_parse_from(line);
        let body = parsed.unwrap_or_else(|error| panic!("{error}")).add.body();
        let expected = json!({
            "url": "https://x/",
            "mode": "binary",
            "headers": [{ "name": "a", "value": "b" }],
        });
        assert_eq!(body, expected);
    }
}
