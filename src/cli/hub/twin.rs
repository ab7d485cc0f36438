//! `quorumq twin`.

use std::io::Read as _;
use std::time::Duration;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json as json_value};

use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Format};
use super::place::{Hub, json, path};
use super::twin_query;

/// Look at the twins of devices and modules, change and query them.
#[derive(Args)]
pub struct TwinCommand {
    #[command(flatten)]
    hub: Hub,

    #[command(subcommand)]
    command: OfTwin,
}

#[derive(Subcommand)]
enum OfTwin {
    /// Print a twin.
    Get {
        /// DEVICE or DEVICE/MODULE.
        id: String,
    },
    /// Merge tags and desired properties into a twin, and print it: null deletes.
    Patch {
        /// DEVICE or DEVICE/MODULE.
        id: String,
        /// {"tags":{…},"properties":{"desired":{…}}}; "-" reads it from standard input.
        json: String,
        /// The etag that the twin must have; any when absent.
        #[arg(long)]
        etag: Option<String>,
    },
    /// Replace the tags or the desired properties of a twin, or both, and print it.
    Replace {
        /// DEVICE or DEVICE/MODULE.
        id: String,
        /// {"tags":{…},"properties":{"desired":{…}}}; "-" reads it from standard input.
        json: String,
        /// The etag that the twin must have; any when absent.
        #[arg(long)]
        etag: Option<String>,
    },
    /// Print a twin, and again whenever its version has changed, until Ctrl-C. The hub is asked again and again: of
    /// several changes between two answers only the last one is seen.
    Watch {
        /// DEVICE or DEVICE/MODULE.
        id: String,
        /// Time between two answers, milliseconds.
        #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..))]
        interval: u64,
        /// End after this many twins.
        #[arg(short = 'n', long, value_name = "N")]
        count: Option<u64>,
    },
    /// Print what a query finds.
    Query {
        /// For example: SELECT deviceId FROM devices WHERE tags.site = '43'.
        query: String,
        /// Items that one answer of the hub may have.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        page: u32,
    },
}

/// Runs `quorumq twin`.
pub async fn twin(arguments: TwinCommand, format: Format) -> Outcome {
    let hub = &arguments.hub;
    match arguments.command {
        OfTwin::Get { id } => show(&get(hub, &id).await?, format),
        OfTwin::Patch { id, json, etag } => {
            write(hub, Method::PATCH, &id, &json, etag, format).await
        }
        OfTwin::Replace { id, json, etag } => {
            write(hub, Method::PUT, &id, &json, etag, format).await
        }
        OfTwin::Watch {
            id,
            interval,
            count,
        } => {
            let interval = Duration::from_millis(interval);
            tokio::select! {
                watched = watch(hub, &id, interval, count, format) => watched,
                _ = tokio::signal::ctrl_c() => Ok(()),
            }
        }
        OfTwin::Query { query, page } => twin_query::run(hub, &query, page, format).await,
    }
}

async fn get(hub: &Hub, id: &str) -> Result<Value, Failure> {
    let answer = hub.ask(Method::GET, &path("twins", id), &[], None).await?;
    json(&answer)
}

async fn write(
    hub: &Hub,
    method: Method,
    id: &str,
    text: &str,
    etag: Option<String>,
    format: Format,
) -> Outcome {
    let text = match text {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
        text => text.to_owned(),
    };
    let body: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::failed(format!("this is not JSON: {error}")))?;
    let etag = etag.map(|etag| format!("\"{etag}\""));
    let fields: Vec<(&str, &str)> = etag.iter().map(|etag| ("if-match", &**etag)).collect();
    let answer = hub
        .ask(method, &path("twins", id), &fields, Some(&body))
        .await?;
    show(&json(&answer)?, format)
}

/// A twin: for people as indented JSON, because it is a document.
fn show(twin: &Value, format: Format) -> Outcome {
    match format {
        Format::Json => Ok(output::json(twin)?),
        Format::Table => Ok(output::line(format!("{twin:#}"))?),
    }
}

async fn watch(
    hub: &Hub,
    id: &str,
    interval: Duration,
    count: Option<u64>,
    format: Format,
) -> Outcome {
    let mut shown = json_value!(null);
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let twin = get(hub, id).await?;
        // A twin that was made again begins with low versions.
        let version = json_value!([twin["version"], twin["deviceEtag"]]);
        if version != shown {
            shown = version;
            show(&twin, format)?;
            left -= 1;
        }
        if left > 0 {
            tokio::time::sleep(interval).await;
        }
    }
    Ok(())
}
