//! Log lines on standard error: one line per event, as text or as a JSON object, each with the node's number.
//!
//! An event carries its subject in its own fields (`client_id`, `peer`, `term`); there are no spans. Nothing here
//! buffers: a line is written before the call returns.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::{LogConfig, LogFormat};

/// Environment variable with a filter that overrides `log.level`.
pub const FILTER_VARIABLE: &str = "QUORUMQ_LOG";

/// Libraries below the connections between nodes: they repeat the same line while a peer is away, which this node's
/// own lines say once.
const QUIET_LIBRARIES: &str = "h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn";

/// Starts logging for the whole process. `engine_filter` limits what the Raft library writes; only its room knows the
/// names of its targets.
///
/// # Errors
/// When the process already logs.
pub fn start(node: u64, config: &LogConfig, engine_filter: &str) -> Result<(), TryInitError> {
    let filter = std::env::var(FILTER_VARIABLE)
        .ok()
        .filter(|filter| !filter.is_empty())
        .map_or_else(
            || {
                let level = config.level.as_str();
                EnvFilter::new(format!("{level},{QUIET_LIBRARIES},{engine_filter}"))
            },
            EnvFilter::new::<String>,
        );
    Registry::default()
        .with(filter)
        .with(Lines {
            node,
            format: config.format,
        })
        .try_init()
}

/// Fields of an event in the order they were recorded.
#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = field.name();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::String(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        self.put(field, Value::String(text));
    }
}

struct Lines {
    node: u64,
    format: LogFormat,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut time = String::with_capacity(32);
        if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
            time.clear();
        }
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let line = match self.format {
            LogFormat::Text => text(&time, level, self.node, target, fields),
            LogFormat::Json => json(&time, level, self.node, target, fields),
        };
        // A log that cannot be written must not stop the broker.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

fn text(time: &str, level: &Level, node: u64, target: &str, fields: Fields) -> String {
    let mut line = format!("{time} {level:>5} node={node} {target}:");
    let (message, rest): (Vec<_>, Vec<_>) = fields
        .0
        .into_iter()
        .partition(|(name, _)| *name == "message");
    for (_, value) in message {
        let _ = match value {
            Value::String(text) => write!(line, " {}", one_line(&text)),
            other => write!(line, " {other}"),
        };
    }
    for (name, value) in rest {
        let _ = match value {
            Value::String(text) if is_plain(&text) => write!(line, " {name}={text}"),
            other => write!(line, " {name}={other}"),
        };
    }
    line.push('\n');
    line
}

/// Whether a value can stand without quotes: nothing in it separates fields or hides what was sent.
fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    !text.is_empty() && text.chars().all(plain)
}

/// A message with its control characters escaped, so that what a client sent cannot forge a line.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

fn json(time: &str, level: &Level, node: u64, target: &str, fields: Fields) -> String {
    let mut object = Map::new();
    object.insert("time".into(), time.into());
    object.insert("level".into(), level.as_str().to_ascii_lowercase().into());
    object.insert("node".into(), node.into());
    object.insert("target".into(), target.into());
    for (name, value) in fields.0 {
        object.entry(name).or_insert(value);
    }
    format!("{}\n", Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(all: &[(&'static str, &str)]) -> Fields {
        Fields(
            all.iter()
                .map(|(name, value)| (*name, Value::from(*value)))
                .collect(),
        )
    }

    #[test]
    fn a_text_line_carries_node_message_and_fields() {
        let line = text(
            "T",
            &Level::INFO,
            3,
            "quorumq::x",
            fields(&[("message", "hello there"), ("client_id", "a")]),
        );
        assert_eq!(line, "T  INFO node=3 quorumq::x: hello there client_id=a\n");
    }

    #[test]
    fn what_a_client_sent_cannot_forge_a_line() {
        let hostile = "a\nT INFO node=1 forged";
        let line = text(
            "T",
            &Level::INFO,
            3,
            "x",
            fields(&[("message", hostile), ("client_id", hostile)]),
        );
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }

    #[test]
    fn a_json_line_is_one_object() {
        let line = json(
            "T",
            &Level::WARN,
            3,
            "x",
            fields(&[("message", "a\nb"), ("term", "7")]),
        );
        let object: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(object["message"], "a\nb");
        assert_eq!(
            (object["node"].as_u64(), object["level"].as_str()),
            (Some(3), Some("warn"))
        );
    }
}
