//! The audit log of a cluster: one file that all its nodes append to, and what must be in it.
//!
//! Invariant: a line that is asked for has its node and its time, and an address, unless it says that it has none.

use crate::wait;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// How long a line may take that must come: the nodes' writers do not wait for anybody.
const WITHIN: Duration = Duration::from_secs(20);

/// A file that goes with this value.
pub struct Audit {
    path: PathBuf,
    _directory: TempDir,
}

impl Audit {
    /// Of nodes that are not started yet.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Audit {
        let directory = TempDir::new().expect("a temporary directory can be made");
        Audit {
            path: directory.path().join("audit.jsonl"),
            _directory: directory,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a node's configuration says of it.
    pub fn toml(&self) -> String {
        format!("[audit]\nfile = {:?}\n", self.path)
    }

    /// Everything that is in it.
    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap_or_default()
    }

    /// Waits for a line with all of these fields, and returns it. A text that ends in `*` stands for every text that
    /// begins so, `null` for a field that is not there. A line whose `address` is not asked for has one of this
    /// machine.
    #[track_caller]
    pub fn expect(&self, wanted: &Value) -> Value {
        let kind = wanted["event"].as_str().unwrap_or("an event").to_owned();
        wait::until_ok(&format!("a line {wanted}"), WITHIN, || {
            let text = self.text();
            text.lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .find(|line| matches(line, wanted))
                .ok_or_else(|| {
                    let alike = text.lines().filter(|line| line.contains(&kind));
                    alike.collect::<Vec<_>>().join("\n")
                })
        })
    }

    /// Waits for each of these lines ([`Audit::expect`]).
    #[track_caller]
    pub fn expect_all(&self, wanted: &[Value]) {
        for wanted in wanted {
            self.expect(wanted);
        }
    }
}

fn matches(line: &Value, wanted: &Value) -> bool {
    let has = |name: &str, wanted: &Value| match (line.get(name), wanted.as_str()) {
        (found, _) if wanted.is_null() => found.is_none(),
        (Some(Value::String(found)), Some(wanted)) => match wanted.strip_suffix('*') {
            Some(prefix) => found.starts_with(prefix),
            None => found == wanted,
        },
        (found, _) => found == Some(wanted),
    };
    let whole = line["node"].is_u64()
        && line["time"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z'));
    let is_here = wanted.get("address").is_some() || has("address", &"127.0.0.1*".into());
    let mut fields = wanted.as_object().into_iter().flatten();
    whole && is_here && fields.all(|(name, wanted)| has(name, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_has_what_is_asked_for() {
        let line = json!({
            "time": "2026-01-01T00:00:00Z", "node": 1, "event": "user", "address": "127.0.0.1:9", "name": "anna",
        });
        for (wanted, is_found) in [
            (json!({"event": "user"}), true),
            (json!({"event": "user", "name": "an*"}), true),
            (json!({"event": "user", "reason": null}), true),
            (json!({"event": "ban"}), false),
            (
                json!({"event": "user", "name": "anna", "principal": "ops"}),
                false,
            ),
            (json!({"event": "user", "name": null}), false),
            (json!({"event": "user", "address": null}), false),
        ] {
            assert_eq!(matches(&line, &wanted), is_found, "{wanted}");
        }
        let mut elsewhere = line.clone();
        elsewhere["address"] = "192.0.2.1:9".into();
        assert!(!matches(&elsewhere, &json!({"event": "user"})));
        let mut nowhere = line;
        nowhere["node"] = Value::Null;
        assert!(!matches(&nowhere, &json!({"event": "user"})));
    }
}
