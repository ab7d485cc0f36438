//! Where a secret could be that nobody may see: what nodes print, what they answer to everybody, and what they keep.
//!
//! Invariant: what is not found was looked for where other things are found ([`Places::assert_has`]). What a node has
//! compressed on its disk meanwhile is found in the logs of the others.

use crate::cluster::{Cluster, Node, binary};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// By so many bytes at their beginning secrets are looked for, all at once.
const BEGINNING: usize = 6;

/// Everything of a cluster that others than its administrators may come to see, each with its name.
pub struct Places(Vec<(String, Vec<u8>)>);

impl Places {
    /// Of the nodes as they are now: logs, metrics, `quorumq check --effective`, and all files of the data directories.
    pub fn of(cluster: &Cluster) -> Places {
        let mut places = Places(Vec::new());
        for node in &cluster.nodes {
            places.add_node(node);
        }
        places
    }

    /// One place more.
    pub fn add(&mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.push((name.into(), bytes.into()));
    }

    fn add_node(&mut self, node: &Node) {
        let named = |what: &str| format!("node {}: {what}", node.id);
        self.add(named("log"), node.log_text());
        if let Some(metrics) = node.get("/metrics") {
            self.add(named("metrics"), metrics.body);
        }
        let mut check = Command::new(binary());
        check
            .args(["check", "--effective", "--config"])
            .arg(&node.config);
        check
            .envs(node.environment.iter().cloned())
            .stdin(Stdio::null());
        let output = check.output().expect("the binary can be run");
        self.add(named("check"), [output.stdout, output.stderr].concat());
        self.add_files(&named("data"), &node.data);
    }

    /// Files may come and go while the node runs.
    fn add_files(&mut self, name: &str, directory: &Path) {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = format!("{name}/{}", path.file_name().unwrap_or_default().display());
            match std::fs::read(&path) {
                Ok(bytes) => self.add(name, bytes),
                Err(_) => self.add_files(&name, &path),
            }
        }
    }

    /// Names of the places that have this text.
    pub fn with(&self, text: &str) -> Vec<&str> {
        let text = text.as_bytes();
        let has = |bytes: &[u8]| {
            let first = text.first().expect("something is looked for");
            let mut rest = bytes;
            while let Some(at) = rest.iter().position(|byte| byte == first) {
                if rest[at..].starts_with(text) {
                    return true;
                }
                rest = &rest[at + 1..];
            }
            false
        };
        let found = self.0.iter().filter(|(_, bytes)| has(bytes));
        found.map(|(name, _)| name.as_str()).collect()
    }

    /// A place whose name contains `place` has this text, which is no secret: so it was looked at.
    #[track_caller]
    pub fn assert_has(&self, place: &str, text: &str) {
        let found = self.with(text);
        assert!(
            found.iter().any(|name| name.contains(place)),
            "{text:?} is in no {place}, but in {found:?} of {:?}",
            self.0.iter().map(|(name, _)| name).collect::<Vec<_>>()
        );
    }

    /// No place has one of these.
    #[track_caller]
    pub fn assert_without<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        let mut by_beginning: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
        for secret in secrets.into_iter().map(str::as_bytes) {
            let beginning = secret.get(..BEGINNING).expect("secrets are longer");
            by_beginning.entry(beginning).or_default().push(secret);
        }
        for (name, bytes) in &self.0 {
            for (at, beginning) in bytes.windows(BEGINNING).enumerate() {
                let alike = by_beginning.get(beginning).map_or(&[][..], Vec::as_slice);
                let found = alike.iter().find(|secret| bytes[at..].starts_with(secret));
                if let Some(secret) = found {
                    let secret = String::from_utf8_lossy(secret);
                    panic!("the secret {secret:?} is in {name}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_wherever_it_is() {
        let mut places = Places(Vec::new());
        places.add("log", "a line\npencipencil");
        places.add("data", b"\0\xffpencil\0".to_vec());
        places.add("metrics", "pencil_".replace("cil", "sil"));
        assert_eq!(places.with("pencil"), ["log", "data"]);
        assert!(places.with("pencil!").is_empty());
        places.assert_without(["pencil!", "secret"]);
        let found = std::panic::catch_unwind(|| places.assert_without(["secret", "pencil"]));
        assert!(found.is_err());
    }
}
