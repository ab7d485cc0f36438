//! `quorumq acl`: the rules for what principals may do.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hyper::Method;
use serde_json::{Value, json};

use super::exit::{Exit, Failure, Outcome};
use super::http_client::request;
use super::http_node::HttpNode;
use super::output::{self, Format};
use crate::acl::{Document, Facts, KeyAccess, Publication, Rights, Rules, Share, import_mosquitto};
use crate::codec::QoS;
use crate::topic::Filter;

/// How a client proves its name.
const METHODS: [&str; 6] = [
    "anonymous",
    "password",
    "scram",
    "jwt",
    "certificate",
    "http",
];

/// How who asks over HTTP proves its name.
const HTTP_METHODS: [&str; 3] = ["token", "certificate", "anonymous"];

/// Longest time to wait for one answer.
const LIMIT: Duration = Duration::from_secs(35);

/// Look at the rules for what principals may do, check and change them.
#[derive(Args)]
pub struct Acl {
    #[command(flatten)]
    node: HttpNode,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the rules of the cluster; their version goes to standard error.
    Show,
    /// Check a file of rules without changing anything.
    Check {
        /// JSON, or TOML if its name ends so; "-" for standard input.
        file: PathBuf,
    },
    /// Replace the rules of the cluster; they are in force on every node when this returns.
    Set {
        /// JSON, or TOML if its name ends so; "-" for standard input.
        file: PathBuf,
        /// Only if the rules have this version; 0: only if there are none.
        #[arg(long, value_name = "N")]
        expect_version: Option<u64>,
    },
    /// Tell whether a principal may do something; exit code 1 when it may not.
    Test(Test),
    /// Print the rules that mean what an ACL file of Mosquitto means.
    ImportMosquitto {
        /// The file; "-" for standard input.
        file: PathBuf,
    },
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Connect with the client identifier TOPIC.
    Connect,
    /// Publish to TOPIC.
    Publish,
    /// Have a will with TOPIC.
    Will,
    /// Subscribe to the filter TOPIC.
    Subscribe,
    /// Get a message with TOPIC.
    Receive,
    /// Read the key TOPIC of the state store.
    Read,
    /// Write the key TOPIC of the state store.
    Write,
    /// Ask over HTTP, with the method TOPIC, for PATH.
    Http,
}

#[derive(Args)]
struct Test {
    /// Name of the principal; "" for a client that nobody has asked for a name. Of http: name of a token, common name
    /// of a certificate, or "anonymous".
    principal: String,
    /// What it does.
    action: Action,
    /// Topic, topic filter, client identifier or key; of http: GET, POST, PUT or DELETE.
    topic: String,
    /// Of http: the path, as /v1/sessions.
    path: Option<String>,
    /// File of rules instead of those of the cluster.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Client identifier.
    #[arg(long, value_name = "ID", default_value = "client")]
    client_id: String,
    /// A group of the principal. Repeatable.
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
    /// An attribute of the principal. Repeatable.
    #[arg(long, value_name = "NAME=VALUE")]
    attribute: Vec<String>,
    /// Address that it connects from.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Listener that it connects to.
    #[arg(long, value_name = "NAME", default_value = "default")]
    listener: String,
    /// How it has proved its name: anonymous, password, scram, jwt, certificate or http; of http: token, certificate or
    /// anonymous.
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// QoS of the message.
    #[arg(long, value_name = "QOS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// The message is to be retained.
    #[arg(long)]
    retain: bool,
}

/// Runs the command.
pub async fn run(acl: Acl, format: Format) -> Outcome {
    match acl.command {
        Command::Show => show(&acl.node, format).await,
        Command::Check { file } => check(&file, format),
        Command::Set {
            file,
            expect_version,
        } => set(&acl.node, &file, expect_version, format).await,
        Command::Test(test) => {
            let document = match &test.file {
                Some(file) => document(file)?,
                None => fetch(&acl.node).await?.1,
            };
            judge(&test, &document, format)
        }
        Command::ImportMosquitto { file } => {
            let imported = import_mosquitto(&text(&file)?).map_err(Failure::failed)?;
            print(&imported)
        }
    }
}

fn text(file: &Path) -> Result<String, Failure> {
    let read = match file.as_os_str() == "-" {
        true => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => std::fs::read_to_string(file),
    };
    read.map_err(|error| Failure::failed(format!("{}: {error}", file.display())))
}

/// Reads and checks a file of rules.
fn document(file: &Path) -> Result<Document, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        let message = format!("{}: {error}", file.display());
        Failure::new(Exit::BadConfiguration, message)
    };
    let text = text(file)?;
    let document = match file
        .extension()
        .is_some_and(|extension| extension == "toml")
    {
        true => toml::from_str(&text).map_err(|error| wrong(&error))?,
        false => Document::read(text.as_bytes()).map_err(|error| wrong(&error))?,
    };
    Rules::compile(&document, 0).map_err(|error| wrong(&error))?;
    Ok(document)
}

fn print(document: &Document) -> Outcome {
    let text = serde_json::to_string_pretty(document).map_err(Failure::failed)?;
    Ok(output::line(text)?)
}

/// The rules of the cluster and their version.
async fn fetch(node: &HttpNode) -> Result<(Value, Document), Failure> {
    let answer = request(node, Method::GET, "/v1/rules", None, LIMIT).await?;
    let document = serde_json::from_value(answer["rules"].clone()).map_err(Failure::failed)?;
    Ok((answer["version"].clone(), document))
}

async fn show(node: &HttpNode, format: Format) -> Outcome {
    let (version, document) = fetch(node).await?;
    if format == Format::Json {
        return Ok(output::json(
            &json!({ "version": version, "rules": document }),
        )?);
    }
    eprintln!("version {version}");
    print(&document)
}

fn check(file: &Path, format: Format) -> Outcome {
    let document = document(file)?;
    let rules = document.rules.len();
    match format {
        Format::Json => Ok(output::json(&json!({ "ok": true, "rules": rules }))?),
        Format::Table => Ok(output::line(format!(
            "{}: ok, {rules} rules",
            file.display()
        ))?),
    }
}

async fn set(node: &HttpNode, file: &Path, expected: Option<u64>, format: Format) -> Outcome {
    let document = serde_json::to_value(document(file)?).map_err(Failure::failed)?;
    let path = match expected {
        Some(version) => format!("/v1/rules?expected_version={version}"),
        None => "/v1/rules".to_owned(),
    };
    let answer = request(node, Method::PUT, &path, Some(&document), LIMIT).await?;
    match format {
        Format::Json => Ok(output::json(&answer)?),
        Format::Table => Ok(output::line(format!("version {}", answer["version"]))?),
    }
}

/// What is known of the client that the test is about.
fn facts(test: &Test) -> Result<Facts, Failure> {
    let mut attributes = BTreeMap::new();
    for attribute in &test.attribute {
        let Some((name, value)) = attribute.split_once('=') else {
            return Err(Failure::failed(format!("{attribute:?} is not NAME=VALUE")));
        };
        attributes.insert(name.into(), value.into());
    }
    let (known, usual) = match test.action {
        Action::Http if test.principal == "anonymous" => (&HTTP_METHODS[..], "anonymous"),
        Action::Http => (&HTTP_METHODS[..], "token"),
        _ if test.principal.is_empty() => (&METHODS[..], "anonymous"),
        _ => (&METHODS[..], "password"),
    };
    let method = match &test.method {
        None => usual,
        Some(method) => {
            let found = known.iter().find(|known| *known == method);
            found.ok_or_else(|| Failure::failed(format!("there is no method {method:?}")))?
        }
    };
    let client_id = match test.action {
        Action::Connect => &test.topic,
        _ => &test.client_id,
    };
    Ok(Facts {
        name: test.principal.as_str().into(),
        method,
        groups: test
            .group
            .iter()
            .map(|group| group.as_str().into())
            .collect(),
        attributes,
        client_id: client_id.as_str().into(),
        address: test.address,
        listener: test.listener.as_str().into(),
    })
}

/// Tells what the rules say of a request over HTTP.
fn judge_route(test: &Test, rules: &Rules, format: Format) -> Outcome {
    let path = test.path.as_deref().filter(|path| path.starts_with('/'));
    let path = path.ok_or_else(|| {
        Failure::failed(
            "http needs a method and a path: quorumq acl test ops http GET /v1/sessions",
        )
    })?;
    if !test.group.is_empty() || !test.attribute.is_empty() {
        let text = "who asks over HTTP has no groups and no attributes";
        return Err(Failure::failed(text));
    }
    // The query is nothing that rules are about.
    let path = path.split('?').next().unwrap_or_default();
    let verdict = rules.route(&facts(test)?, &test.topic.to_ascii_uppercase(), path);
    let allowed = verdict.is_none_or(|verdict| verdict.is_allowed);
    let rule = verdict.and_then(|verdict| verdict.rule);
    let word = if allowed { "allow" } else { "deny" };
    match (format, rule) {
        (Format::Json, _) => output::json(&json!({ "allowed": allowed, "rule": rule }))?,
        (Format::Table, Some(rule)) => output::line(format!("{word} (rules[{rule}])"))?,
        (Format::Table, None) => output::line("allow (no rule speaks: the scope decides alone)")?,
    }
    match allowed {
        true => Ok(()),
        false => Err(Failure::failed("")),
    }
}

fn judge(test: &Test, document: &Document, format: Format) -> Outcome {
    let rules = Arc::new(Rules::compile(document, 0).map_err(Failure::failed)?);
    if test.path.is_some() && test.action != Action::Http {
        return Err(Failure::failed("a path belongs to http alone"));
    }
    let rights = Rights::new(&rules, &facts(test)?);
    let topic = test.topic.as_str();
    let publication = Publication {
        qos: QoS::from_number(test.qos.into()),
        retain: test.retain,
    };
    let mut granted = None;
    let (allowed, rule) = match test.action {
        Action::Connect => (rights.may_connect(), rights.rule_of_connect()),
        Action::Publish => (
            rights.publish(topic).allow(publication),
            rights.rule_of_publish(topic, publication),
        ),
        Action::Will => (
            rights.will(topic).allow(publication),
            rights.rule_of_will(topic, publication),
        ),
        Action::Receive => (
            rights.may_receive(topic, Share::None),
            rights.rule_of_receive(topic, Share::None),
        ),
        Action::Read => access(&rights, KeyAccess::Read, topic),
        Action::Write => access(&rights, KeyAccess::Write, topic),
        Action::Subscribe => {
            let filter = Filter::parse(topic).map_err(Failure::failed)?;
            granted = rights.subscribe(&filter).map(|qos| qos as u8);
            (granted.is_some(), rights.rule_of_subscribe(&filter))
        }
        Action::Http => return judge_route(test, &rules, format),
    };
    let word = if allowed { "allow" } else { "deny" };
    let reason = match rule {
        Some(rule) => format!("rules[{rule}]"),
        None => "no rule speaks".to_owned(),
    };
    match (format, granted) {
        (Format::Json, _) => output::json(&json!({
            "allowed": allowed,
            "max_qos": granted,
            "rule": rule,
        }))?,
        (Format::Table, Some(qos)) => {
            output::line(format!("{word} (QoS {qos} at most; {reason})"))?;
        }
        (Format::Table, None) => output::line(format!("{word} ({reason})"))?,
    }
    match allowed {
        true => Ok(()),
        false => Err(Failure::failed("")),
    }
}

/// Whether a key may be used so, and the place of the rule that says so.
fn access(rights: &Rights, access: KeyAccess, key: &str) -> (bool, Option<u32>) {
    let key = key.as_bytes();
    (
        rights.may_access(access, key),
        rights.rule_of_access(access, key),
    )
}
