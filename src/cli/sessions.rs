//! `quorumq client`, `quorumq session` and `quorumq retained`: what the cluster keeps for its clients, over a node's
//! HTTP port. Retained messages are set and deleted over MQTT, as any client does it.

use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{Client, Outgoing};
use super::exit::{Failure, Outcome};
use super::http_client::{escape, request};
use super::http_node::{HttpNode, HttpPlace};
use super::output::{self, Format};
use super::servers::Servers;
use crate::codec::QoS;
use crate::http::{Listed, RetainedStatus, SessionDetail, SessionStatus};

/// Longest time to wait for one answer.
const LIMIT: Duration = Duration::from_secs(35);

/// Look at connected clients and disconnect them.
#[derive(Args)]
pub struct ClientCommand {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: OfClient,
}

#[derive(Subcommand)]
enum OfClient {
    /// List the clients that are connected, on whichever node; with the addresses of those of the node that is asked.
    List,
    /// Show one client's session with its subscriptions.
    Show {
        /// Client identifier.
        client_id: String,
    },
    /// End a client's connection; its session goes on, and it may connect again.
    Kick {
        /// Client identifier.
        client_id: String,
    },
}

/// Look at sessions and end them.
#[derive(Args)]
pub struct SessionCommand {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: OfSession,
}

#[derive(Subcommand)]
enum OfSession {
    /// List all sessions, connected or not.
    List,
    /// Show one session with its subscriptions.
    Show {
        /// Client identifier.
        client_id: String,
    },
    /// End a session with its connection, subscriptions and queue.
    Delete {
        /// Client identifier.
        client_id: String,
    },
}

/// Look at retained messages, set and delete them.
#[derive(Args)]
pub struct RetainedCommand {
    #[command(flatten)]
    place: HttpPlace,

    #[command(flatten)]
    servers: Servers,

    #[command(subcommand)]
    command: OfRetained,
}

#[derive(Subcommand)]
enum OfRetained {
    /// List retained messages.
    List {
        /// Only those whose topics match this filter.
        #[arg(default_value = "#")]
        filter: String,
    },
    /// Print the retained message of one topic; exit code 1 when there is none.
    Get {
        /// Topic.
        topic: String,
    },
    /// Publish a retained message with QoS 1.
    Set {
        /// Topic.
        topic: String,
        /// The message.
        message: String,
    },
    /// Delete the retained message of one topic.
    Del {
        /// Topic.
        topic: String,
    },
}

async fn ask(node: &HttpNode, method: Method, path: &str) -> Result<Value, Failure> {
    request(node, method, path, None, LIMIT).await
}

/// Fetches a list page by page and writes it.
pub(super) async fn list<T: DeserializeOwned>(
    node: &HttpNode,
    path: &str,
    format: Format,
    head: &[&str],
    row: impl Fn(&T) -> Vec<String>,
) -> Outcome {
    let mut after = String::new();
    let mut rows = Vec::new();
    loop {
        let page = format!("{path}&after={}", escape(&after));
        let answer = ask(node, Method::GET, &page).await?;
        if format == Format::Json {
            for entry in answer["entries"].as_array().into_iter().flatten() {
                output::json(entry)?;
            }
        }
        let listed: Listed<T> = serde_json::from_value(answer).map_err(Failure::failed)?;
        rows.extend(listed.entries.iter().map(&row));
        match listed.next {
            Some(next) => after = next,
            None => break,
        }
    }
    if format == Format::Table {
        output::table(head, &rows)?;
    }
    Ok(())
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Where the client is, as far as the node that was asked knows.
fn address(session: &SessionStatus) -> String {
    session
        .address
        .map_or_else(|| "-".to_owned(), |address| address.to_string())
}

fn expiry(session: &SessionStatus) -> String {
    match session.expiry_interval_s {
        u32::MAX => "never".to_owned(),
        seconds => seconds.to_string(),
    }
}

async fn list_sessions(node: &HttpNode, connected: bool, format: Format) -> Outcome {
    let path = format!("/v1/sessions?connected={connected}");
    let head = [
        "CLIENT",
        "OWNER",
        "NODE",
        "ADDRESS",
        "PROTOCOL",
        "EXPIRY S",
        "QUEUED",
        "BYTES",
        "IN FLIGHT",
        "DROPPED",
    ];
    list(node, &path, format, &head, |session: &SessionStatus| {
        vec![
            session.client_id.clone(),
            session.owner.clone().unwrap_or_else(|| "-".to_owned()),
            number(session.node),
            address(session),
            session.protocol.clone(),
            expiry(session),
            session.queued_messages.to_string(),
            session.queued_bytes.to_string(),
            session.in_flight.to_string(),
            session.dropped_messages.to_string(),
        ]
    })
    .await
}

async fn show(node: &HttpNode, client_id: &str, format: Format) -> Outcome {
    let path = format!("/v1/session?client_id={}", escape(client_id));
    let answer = ask(node, Method::GET, &path).await?;
    if format == Format::Json {
        return Ok(output::json(&answer)?);
    }
    let detail: SessionDetail = serde_json::from_value(answer).map_err(Failure::failed)?;
    let session = &detail.session;
    let lines = [
        ("client", session.client_id.clone()),
        (
            "owner",
            session.owner.clone().unwrap_or_else(|| "-".to_owned()),
        ),
        ("node", number(session.node)),
        ("address", address(session)),
        ("protocol", session.protocol.clone()),
        ("expiry interval s", expiry(session)),
        ("expires at ms", number(session.expires_at_ms)),
        ("durable", session.durable.to_string()),
        ("queued messages", session.queued_messages.to_string()),
        ("queued bytes", session.queued_bytes.to_string()),
        ("in flight", session.in_flight.to_string()),
        ("dropped messages", session.dropped_messages.to_string()),
        ("will", session.has_will.to_string()),
    ];
    for (name, value) in lines {
        output::line(format!("{name:<18} {value}"))?;
    }
    let rows: Vec<_> = detail
        .subscriptions
        .iter()
        .map(|subscription| {
            vec![
                subscription.filter.clone(),
                subscription.qos.to_string(),
                subscription.no_local.to_string(),
                subscription.retain_as_published.to_string(),
                subscription.retain_handling.to_string(),
                number(subscription.identifier.map(u64::from)),
            ]
        })
        .collect();
    let head = [
        "FILTER",
        "QOS",
        "NO LOCAL",
        "RETAIN AS PUBLISHED",
        "RETAIN HANDLING",
        "IDENTIFIER",
    ];
    Ok(output::table(&head, &rows)?)
}

/// Runs `quorumq client`.
pub async fn client(arguments: ClientCommand, format: Format) -> Outcome {
    let node = &arguments.node;
    match arguments.command {
        OfClient::List => list_sessions(node, true, format).await,
        OfClient::Show { client_id } => show(node, &client_id, format).await,
        OfClient::Kick { client_id } => {
            let path = format!("/v1/session/kick?client_id={}", escape(&client_id));
            ask(node, Method::POST, &path).await.map(drop)
        }
    }
}

/// Runs `quorumq session`.
pub async fn session(arguments: SessionCommand, format: Format) -> Outcome {
    let node = &arguments.node;
    match arguments.command {
        OfSession::List => list_sessions(node, false, format).await,
        OfSession::Show { client_id } => show(node, &client_id, format).await,
        OfSession::Delete { client_id } => {
            let path = format!("/v1/session?client_id={}", escape(&client_id));
            ask(node, Method::DELETE, &path).await.map(drop)
        }
    }
}

/// Runs `quorumq retained`.
pub async fn retained(arguments: RetainedCommand, format: Format) -> Outcome {
    let node = &HttpNode::beside(&arguments.place, &arguments.servers);
    match &arguments.command {
        OfRetained::List { filter } => {
            let path = format!("/v1/retained?filter={}", escape(filter));
            let head = ["TOPIC", "QOS", "BYTES", "EXPIRES AT MS"];
            list(node, &path, format, &head, |message: &RetainedStatus| {
                vec![
                    message.topic.clone(),
                    message.qos.to_string(),
                    message.payload_bytes.to_string(),
                    number(message.expires_at_ms),
                ]
            })
            .await
        }
        OfRetained::Get { topic } => {
            let path = format!("/v1/retained/message?topic={}", escape(topic));
            let answer = ask(node, Method::GET, &path).await?;
            if format == Format::Json {
                return Ok(output::json(&answer)?);
            }
            let message: RetainedStatus =
                serde_json::from_value(answer).map_err(Failure::failed)?;
            let payload = message.payload.or(message.payload_hex);
            Ok(output::line(payload.unwrap_or_default())?)
        }
        OfRetained::Set { topic, message } => set(&arguments.servers, topic, message).await,
        OfRetained::Del { topic } => set(&arguments.servers, topic, "").await,
    }
}

async fn set(servers: &Servers, topic: &str, message: &str) -> Outcome {
    let mut client = Client::connect(&servers.options("retained")?, 0).await?;
    let outgoing = Outgoing {
        topic,
        qos: QoS::AtLeastOnce,
        retain: true,
        payload: message.as_bytes(),
        ..Outgoing::default()
    };
    let limit = servers.limit();
    tokio::time::timeout(limit, client.publish(&outgoing))
        .await
        .map_err(|_| Failure::from(super::client::ClientError::TimedOut(limit.as_secs())))??;
    Ok(client.disconnect().await?)
}
