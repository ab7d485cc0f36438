//! The table of `docs/security.md`: every entry point with every way of saying who asks, what comes of it, and the test
//! that shows it.
//!
//! `spec/security.tsv` has one line per cell: part, entry point, who asks, outcome, test. A test is named by its
//! function; a cell that makes no sense has `-` for the outcome and says why in place of the test.
//!
//! Invariant: within a part every entry point has a cell for each way that the part names, and the tests that are named
//! exist. Invariant: a test of a cluster that is named compares what it has seen with its cells ([`Shown`]).

mod shown;

pub use shown::{Shown, of_code, of_status};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What encloses the table in the page.
const BEGIN: &str =
    "<!-- The table: generated from cluster-tests/spec/security.tsv by `make security`. -->\n";
const END: &str = "<!-- The end of the table. -->\n";

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    outcome: String,
    test: String,
}

/// The table of one part.
#[derive(Debug, Default)]
struct Part {
    name: String,
    entries: Vec<String>,
    ways: Vec<String>,
    cells: BTreeMap<(String, String), Cell>,
}

/// All tables, and what is wrong with them.
pub struct Security {
    parts: Vec<Part>,
    problems: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The page.
pub fn page_path() -> PathBuf {
    root().join("docs/security.md")
}

impl Security {
    /// Reads the lines, and looks for the tests that they name.
    pub fn read() -> Security {
        let path = root().join("cluster-tests/spec/security.tsv");
        let text = std::fs::read_to_string(path).expect("spec/security.tsv can be read");
        let mut read = Security::parse(&text);
        let sources = Sources::read();
        for part in &read.parts {
            for ((entry, way), cell) in &part.cells {
                if cell.outcome != "-"
                    && let Some(why) = sources.problem(&cell.test)
                {
                    let problem = format!("{}: {entry}, {way}: {why}", part.name);
                    read.problems.push(problem);
                }
            }
        }
        read
    }

    fn parse(text: &str) -> Security {
        let mut parts: Vec<Part> = Vec::new();
        let mut problems = Vec::new();
        for (number, line) in text.lines().enumerate().skip(1) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [name, entry, way, outcome, test] = columns[..] else {
                problems.push(format!("line {}: not five columns", number + 1));
                continue;
            };
            if !parts.iter().any(|part| part.name == name) {
                parts.push(Part {
                    name: name.to_owned(),
                    ..Part::default()
                });
            }
            let Some(part) = parts.iter_mut().find(|part| part.name == name) else {
                continue;
            };
            let add = |list: &mut Vec<String>, text: &str| {
                if !list.iter().any(|known| known == text) {
                    list.push(text.to_owned());
                }
            };
            add(&mut part.entries, entry);
            add(&mut part.ways, way);
            let cell = Cell {
                outcome: outcome.to_owned(),
                test: test.to_owned(),
            };
            let key = (entry.to_owned(), way.to_owned());
            if part.cells.insert(key, cell).is_some() {
                problems.push(format!(
                    "line {}: {entry}, {way} stands there twice",
                    number + 1
                ));
            }
        }
        for part in &parts {
            for entry in &part.entries {
                for way in &part.ways {
                    if !part.cells.contains_key(&(entry.clone(), way.clone())) {
                        problems.push(format!("{}: {entry}, {way}: there is no cell", part.name));
                    }
                }
            }
        }
        Security { parts, problems }
    }

    /// Every cell: part, entry point, who asks.
    fn cells(&self) -> impl Iterator<Item = (&str, &str, &str, &Cell)> {
        self.parts.iter().flat_map(|part| {
            let cells = part.cells.iter();
            cells.map(|((entry, way), cell)| (&*part.name, &**entry, &**way, cell))
        })
    }

    /// Cells that are missing, or name no test.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The tables, one per part: a row per way, a column per entry point; tests by number below.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            let _ = writeln!(text, "\n### {}\n", part.name);
            let _ = writeln!(text, "| who asks | {} |", part.entries.join(" | "));
            let _ = writeln!(text, "|---|{}", "---|".repeat(part.entries.len()));
            let mut notes: Vec<&str> = Vec::new();
            for way in &part.ways {
                let _ = write!(text, "| {way} |");
                for entry in &part.entries {
                    let cell = part.cells.get(&(entry.clone(), way.clone()));
                    let Some(cell) = cell else {
                        text.push_str(" ? |");
                        continue;
                    };
                    let known = notes.iter().position(|note| *note == cell.test);
                    let number = known.unwrap_or_else(|| {
                        notes.push(&cell.test);
                        notes.len() - 1
                    });
                    let _ = write!(text, " {} ({}) |", cell.outcome, number + 1);
                }
                text.push('\n');
            }
            text.push('\n');
            for (number, note) in notes.iter().enumerate() {
                let is_test = !note.contains(' ');
                let note = if is_test {
                    format!("`{note}`")
                } else {
                    (*note).to_owned()
                };
                let _ = writeln!(text, "{}. {note}", number + 1);
            }
        }
        text.push('\n');
        text
    }

    /// The page with these tables in place of those that it has.
    ///
    /// # Panics
    /// When the page has no place for them.
    pub fn in_page(&self, page: &str) -> String {
        let (before, rest) = page
            .split_once(BEGIN)
            .expect("the page says where the table begins");
        let (_, after) = rest
            .split_once(END)
            .expect("the page says where the table ends");
        format!("{before}{BEGIN}{}{END}{after}", self.tables())
    }
}

/// What there is in the sources and tests of the repository.
#[derive(Default)]
struct Sources {
    /// All functions.
    names: BTreeSet<String>,
    /// Those that tests of clusters have.
    of_clusters: BTreeSet<String>,
    /// Those of these that compare what they have seen with the table.
    comparing: BTreeSet<String>,
}

impl Sources {
    fn read() -> Sources {
        let mut sources = Sources::default();
        for directory in ["src", "tests", "cluster-tests/src"] {
            visit(&root().join(directory), &mut |text| {
                sources.names.extend(functions(text))
            });
        }
        visit(&root().join("cluster-tests/tests"), &mut |text| {
            sources.of_clusters.extend(functions(text));
            let begin = "Shown::by(\"";
            let compared = text
                .split(begin)
                .skip(1)
                .filter_map(|rest| rest.split_once('"'));
            sources
                .comparing
                .extend(compared.map(|(name, _)| name.to_owned()));
        });
        sources.names.extend(sources.of_clusters.iter().cloned());
        sources
    }

    /// Why this is no name for a test of a cell.
    fn problem(&self, test: &str) -> Option<String> {
        if !self.names.contains(test) {
            return Some(format!("no test is named {test}"));
        }
        let is_silent = self.of_clusters.contains(test) && !self.comparing.contains(test);
        is_silent.then(|| format!("{test} does not compare what it has seen with the table"))
    }
}

/// Names of the functions of a source file.
fn functions(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter_map(|line| line.split_once("fn "));
    lines.filter_map(|(_, rest)| Some(rest.split_once('(')?.0.to_owned()))
}

fn visit(directory: &Path, look: &mut impl FnMut(&str)) {
    let entries = std::fs::read_dir(directory).expect("a directory of sources");
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            visit(&path, look);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(&std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "part\tentry point\twho asks\toutcome\ttest\n";

    #[test]
    fn a_missing_cell_is_found() {
        let text = format!("{HEAD}P\ta\tx\trefused\tt\nP\ta\ty\tallowed\tt\nP\tb\tx\trefused\tt\n");
        let read = Security::parse(&text);
        assert_eq!(read.problems(), ["P: b, y: there is no cell"]);
        let whole = Security::parse(&format!("{text}P\tb\ty\t-\tnobody asks it so\n"));
        assert!(whole.problems().is_empty());
        let tables = whole.tables();
        assert!(tables.contains("| y | allowed (1) | - (2) |"), "{tables}");
        assert!(
            tables.contains("1. `t`\n2. nobody asks it so\n"),
            "{tables}"
        );
    }

    #[test]
    fn tests_are_known_by_their_names() {
        let sources = Sources::read();
        assert_eq!(sources.problem("tests_are_known_by_their_names"), None);
        assert!(sources.problem("nobody_has_this_name").is_some());
        let silent = sources.problem("every_cell_names_a_test");
        assert!(silent.is_some_and(|why| why.contains("does not compare")));
    }
}
