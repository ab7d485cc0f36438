//! `quorumq cluster`: looks at the cluster and changes its members, over a node's HTTP port.

use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::exit::{Failure, Outcome};
use super::http_client::request;
use super::http_node::HttpNode;
use super::output::{self, Format};
use crate::config::Address;
use crate::http::{ClusterStatus, VerifyAnswer};

/// Look at the cluster and change its members.
#[derive(Args)]
pub struct Cluster {
    #[command(flatten)]
    node: HttpNode,

    /// Longest time to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 35, global = true,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show leader, term and members as the asked node sees them.
    Status,
    /// Add a running node as a voter; it is brought up to date first.
    Join {
        /// Number of the new node (its node.id).
        id: u64,
        /// Where the other nodes reach it (its cluster.advertise).
        address: Address,
    },
    /// Remove a node from the voters.
    Leave {
        /// Number of the node.
        id: u64,
    },
    /// Hand leadership to another voter.
    Transfer {
        /// The next leader; the most advanced voter when absent.
        to: Option<u64>,
    },
    /// Move log time forward at once to what a majority of the nodes' wall clocks shows, after all of them were set.
    /// Keys and sessions expire early by as much. The node that is asked must lead.
    CatchUpLogTime,
    /// Compare the states of all nodes; exit with 1 when they are not the same.
    Verify,
}

/// Runs the command.
pub async fn run(cluster: Cluster, format: Format) -> Outcome {
    let limit = Duration::from_secs(cluster.timeout);
    let post = |path: &'static str, body: Value| {
        let node = cluster.node.clone();
        async move { request(&node, Method::POST, path, Some(&body), limit).await }
    };
    let answer = match cluster.command {
        Command::Status => {
            let answer = request(
                &cluster.node,
                Method::GET,
                "/v1/cluster/status",
                None,
                limit,
            )
            .await?;
            return status(answer, format);
        }
        Command::Join { id, address } => {
            eprintln!("adding node {id}; it votes as soon as it has caught up");
            let body = json!({ "id": id, "address": address });
            let asked = post("/v1/cluster/join", body);
            joined(asked, id, &cluster.node, limit).await?
        }
        Command::Leave { id } => post("/v1/cluster/leave", json!({ "id": id })).await?,
        Command::CatchUpLogTime => post("/v1/cluster/log-time", json!({})).await?,
        Command::Verify => return verified(post("/v1/cluster/verify", json!({})).await?, format),
        Command::Transfer { to } => post("/v1/cluster/transfer", json!({ "to": to })).await?,
    };
    match format {
        Format::Json => output::json(&answer)?,
        Format::Table => {
            let text = |value: &Value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            };
            for (name, value) in answer.as_object().into_iter().flatten() {
                output::line(format!("{name} {}", text(value)))?;
            }
        }
    }
    Ok(())
}

/// Time between two lines about a joining node's progress.
const PROGRESS: Duration = Duration::from_secs(2);

/// Waits until node `id` votes, and prints its progress. The node that was asked answers after half a minute at the
/// latest, with a refusal while the copy of a large state is under way; then the cluster's status is followed.
async fn joined(
    asked: impl Future<Output = Result<Value, Failure>>,
    id: u64,
    node: &HttpNode,
    limit: Duration,
) -> Result<Value, Failure> {
    let deadline = tokio::time::Instant::now() + limit;
    tokio::pin!(asked);
    let mut refused = None;
    loop {
        tokio::select! {
            answer = &mut asked, if refused.is_none() => match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => refused = Some(failure),
            },
            () = tokio::time::sleep(PROGRESS) => {}
        }
        let answer = request(node, Method::GET, "/v1/cluster/status", None, PROGRESS).await;
        let status = answer.and_then(|answer| {
            serde_json::from_value::<ClusterStatus>(answer).map_err(Failure::failed)
        });
        let member = status.as_ref().ok().and_then(|status| {
            let mut members = status.members.iter();
            members.find(|member| member.id == id)
        });
        match (member, refused.take()) {
            (Some(member), Some(_)) if member.voter => return Ok(json!({ "joined": id })),
            (None, Some(failure)) => return Err(failure),
            (_, Some(failure)) if tokio::time::Instant::now() >= deadline => return Err(failure),
            (member, failure) => {
                refused = failure;
                if let (Some(member), Ok(status)) = (member, &status) {
                    let last = status.last_log_index;
                    match member.matched_index {
                        Some(index) => eprintln!("node {id} has {index} of {last} entries"),
                        None => eprintln!("node {id} catches up"),
                    }
                }
            }
        }
    }
}

fn verified(answer: Value, format: Format) -> Outcome {
    let found: VerifyAnswer = serde_json::from_value(answer.clone()).map_err(Failure::failed)?;
    let is_same = found.differ.is_empty() && found.disputed.is_empty();
    if format == Format::Json {
        output::json(&answer)?;
    } else {
        output::line(format!("compared after log entry {}", found.index))?;
        for node in &found.same {
            output::line(format!("node {node} is the same"))?;
        }
        for node in &found.missing {
            output::line(format!("node {node} has not answered"))?;
        }
        for differs in &found.differ {
            let tables = &differs.tables;
            output::line(format!(
                "node {} differs in tables {tables:02x?}",
                differs.node
            ))?;
        }
        if !found.disputed.is_empty() {
            let tables = &found.disputed;
            output::line(format!(
                "nodes differ in tables {tables:02x?}, and no majority has the same"
            ))?;
        }
    }
    match (is_same, found.missing.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::failed("not all nodes have answered")),
        (false, _) => Err(Failure::failed("the nodes' states are not the same")),
    }
}

fn status(answer: Value, format: Format) -> Outcome {
    if format == Format::Json {
        return Ok(output::json(&answer)?);
    }
    let status: ClusterStatus = serde_json::from_value(answer).map_err(Failure::failed)?;
    let number =
        |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    output::line(format!(
        "cluster {} ({}), asked node {}, leader {}, term {}, committed {}, applied {}",
        status.name,
        status.cluster_id,
        status.node,
        number(status.leader),
        status.term,
        status.committed_index,
        status.applied_index,
    ))?;
    for problem in &status.problems {
        output::line(format!("! {problem}"))?;
    }
    let rows: Vec<_> = status
        .members
        .iter()
        .map(|member| {
            let role = match (member.voter, Some(member.id) == status.leader) {
                (_, true) => "leader",
                (true, false) => "voter",
                (false, false) => "learner",
            };
            vec![
                member.id.to_string(),
                role.to_owned(),
                member.address.clone(),
                number(member.matched_index),
                number(member.last_seen_ms),
                member
                    .clock_ahead_ms
                    .map_or_else(|| "-".to_owned(), |ahead| ahead.to_string()),
            ]
        })
        .collect();
    Ok(output::table(
        &[
            "NODE",
            "ROLE",
            "ADDRESS",
            "MATCHED",
            "SEEN MS AGO",
            "CLOCK AHEAD MS",
        ],
        &rows,
    )?)
}
