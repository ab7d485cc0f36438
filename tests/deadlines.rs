//! The table of deadlines: what it names exists, and no time-out is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    fs::read_to_string(root().join("docs/deadlines.md")).expect("the page is there")
}

/// Words in backquotes, in order.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Constants of the page with the file that each is said to be in.
fn constants(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in page.lines().filter(|line| line.starts_with('|')) {
        let words: Vec<&str> = quoted(line).collect();
        for (place, word) in words.iter().enumerate() {
            if !word.starts_with(|first: char| first.is_ascii_uppercase()) {
                continue;
            }
            let file = words.get(place + 1).copied().unwrap_or_default();
            found.push(((*word).to_owned(), file.to_owned()));
        }
    }
    found
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of the constants of a file that say that they are time-outs.
fn timeouts(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("pub(super) ");
        let line = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        let (name, _) = line.strip_prefix("const ")?.split_once(':')?;
        name.contains("TIMEOUT").then_some(name)
    })
}

#[test]
fn every_constant_of_the_table_exists() {
    let constants = constants(&page());
    assert!(constants.len() > 20, "the table is read: {constants:?}");
    for (name, file) in constants {
        let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
        assert!(
            text.contains(&format!("const {name}:")),
            "docs/deadlines.md: {name} is not in {file:?}"
        );
    }
}

#[test]
fn every_key_of_the_table_exists() {
    let page = page();
    let known: BTreeSet<&str> = quorumq::config::keys().iter().map(|key| key.name).collect();
    let keys: Vec<&str> = quoted(&page)
        .filter(|word| word.contains('.') && !word.contains('/'))
        .collect();
    assert!(keys.len() > 8, "the table is read: {keys:?}");
    for key in keys {
        assert!(known.contains(key), "docs/deadlines.md: there is no {key}");
    }
}

#[test]
fn no_timeout_is_missing_in_the_table() {
    let listed = constants(&page());
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut missing = Vec::new();
    for path in files {
        let file = path.strip_prefix(root()).expect("below the root");
        let file = file.to_string_lossy();
        // The command line waits for a node, not a node for anything.
        if file.starts_with("src/cli/") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source file");
        for name in timeouts(&text) {
            let is_listed = listed
                .iter()
                .any(|(listed, place)| listed == name && *place == file);
            // Factors of other keys, not times.
            if !is_listed && !name.ends_with("_ELECTIONS") {
                missing.push(format!("{name} in {file}"));
            }
        }
    }
    assert!(missing.is_empty(), "not in docs/deadlines.md: {missing:?}");
}

#[test]
fn a_timeout_is_found_by_its_name() {
    let text = "    pub(super) const READ_TIMEOUT: Duration = X;\nconst OTHER: u8 = 1;\n";
    assert_eq!(timeouts(text).collect::<Vec<_>>(), ["READ_TIMEOUT"]);
    assert_eq!(
        constants("| a | `READ_TIMEOUT` (`src/a.rs`) | b |"),
        [("READ_TIMEOUT".to_owned(), "src/a.rs".to_owned())]
    );
}
