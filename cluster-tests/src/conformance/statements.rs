//! The statements, what shows each of them, and what is missing.

use super::citation::{in_source, in_text};
use super::standard::{Number, Standard};
use crate::corpus;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A numbered statement of a standard.
#[derive(Debug, Clone)]
pub struct Statement {
    pub number: Number,
    pub paraphrase: String,
    /// `client`, `server` or `both`.
    pub binds: String,
    /// Whether the peer of a server can see if it is kept.
    pub visible: bool,
}

/// What shows a statement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proof {
    /// `folder/name` of a conversation, or a test's path and name.
    pub name: String,
    /// Why it is known not to hold.
    pub deviates: Option<String>,
}

/// All of it.
#[derive(Debug)]
pub struct Conformance {
    pub statements: Vec<Statement>,
    pub proofs: BTreeMap<Number, Vec<Proof>>,
    /// Why nothing shows a statement.
    pub elsewhere: BTreeMap<Number, String>,
    /// What is wrong with the citations.
    pub mistakes: Vec<String>,
}

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("it is inside").to_owned()
}

fn spec(name: &str) -> String {
    let path = root().join("cluster-tests/spec").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Conformance {
    /// Reads statements, conversations and tests.
    pub fn read() -> Self {
        let mut found = Self {
            statements: Vec::new(),
            proofs: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            mistakes: Vec::new(),
        };
        for (standard, name) in [(Standard::V5, "mqtt5.tsv"), (Standard::V311, "mqtt311.tsv")] {
            found.statements.extend(statements(standard, &spec(name)));
        }
        for line in spec("elsewhere.tsv").lines().skip(1) {
            let mut fields = line.split('\t');
            let standard = match fields.next() {
                Some("5.0") => Standard::V5,
                _ => Standard::V311,
            };
            let (Some(id), Some(why)) = (fields.next(), fields.next()) else {
                found.mistakes.push(format!("elsewhere.tsv: {line:?}"));
                continue;
            };
            let number = (standard, id.to_owned());
            if !found.is_statement(&number) {
                found
                    .mistakes
                    .push(format!("elsewhere.tsv: there is no {number:?}"));
            }
            found.elsewhere.insert(number, why.to_owned());
        }
        found.read_corpus();
        found.read_tests();
        found
    }

    fn is_statement(&self, number: &Number) -> bool {
        self.statements.iter().any(|known| known.number == *number)
    }

    fn read_corpus(&mut self) {
        for file in corpus::files(&[]) {
            let first = file.text.lines().next().unwrap_or_default();
            let speaks = |level: &str| {
                file.text
                    .lines()
                    .any(|line| line == format!("level {level}"))
            };
            for number in in_text(first) {
                let speaks_it = match number.0 {
                    Standard::V5 => speaks("5"),
                    Standard::V311 => speaks("4"),
                };
                if !self.is_statement(&number) || !speaks_it {
                    let wrong = format!("{}: {number:?} is no statement it can show", file.name);
                    self.mistakes.push(wrong);
                    continue;
                }
                let deviates = file.unlike("quorumq").map(str::to_owned);
                self.proofs.entry(number).or_default().push(Proof {
                    name: format!("corpus/{}", file.name),
                    deviates,
                });
            }
        }
    }

    fn read_tests(&mut self) {
        for directory in ["src", "tests", "cluster-tests/src", "cluster-tests/tests"] {
            for path in sources(&root().join(directory)) {
                let text = std::fs::read_to_string(&path).expect("a source file can be read");
                let inside = path.strip_prefix(root()).expect("it is inside");
                let inside = inside.display().to_string();
                let only_tests = inside.contains("tests/")
                    || inside.ends_with("/tests.rs")
                    || inside.ends_with("_tests.rs");
                let only_tests = only_tests && !inside.starts_with("cluster-tests/src");
                for (test, number) in in_source(&text, only_tests) {
                    if self.is_statement(&number) {
                        let proofs = self.proofs.entry(number).or_default();
                        let proof = Proof {
                            name: format!("{inside}: {test}"),
                            deviates: None,
                        };
                        if !proofs.contains(&proof) {
                            proofs.push(proof);
                        }
                    }
                }
            }
        }
    }

    /// Statements that a peer can see and that nothing shows or explains, and citations that are wrong.
    pub fn gaps(&self) -> Vec<String> {
        let mut gaps = self.mistakes.clone();
        for statement in &self.statements {
            let number = &statement.number;
            // Tests of single modules are listed, but a peer must have seen it.
            let from_outside = |proof: &Proof| {
                proof.name.starts_with("corpus/") || proof.name.starts_with("cluster-tests/tests/")
            };
            let proofs = self.proofs.get(number).map_or(&[][..], Vec::as_slice);
            let shown = proofs.iter().any(from_outside);
            let explained = self.elsewhere.contains_key(number);
            if statement.visible && !shown && !explained {
                gaps.push(format!("{number:?} is not shown: {}", statement.paraphrase));
            }
            if explained && (shown || !statement.visible) {
                gaps.push(format!("{number:?} needs no line in elsewhere.tsv"));
            }
        }
        gaps
    }
}

fn statements(standard: Standard, table: &str) -> Vec<Statement> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [id, _section, paraphrase, binds, visible] = fields[..] else {
            panic!("five fields: {line:?}");
        };
        Statement {
            number: (standard, id.to_owned()),
            paraphrase: paraphrase.to_owned(),
            binds: binds.to_owned(),
            visible: visible == "y",
        }
    };
    table.lines().skip(1).map(line).collect()
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory can be read") {
            let path = entry.expect("a directory can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
