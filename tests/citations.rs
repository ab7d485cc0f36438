//! Citations lead somewhere: pages and their headings, decisions, numbered statements of the MQTT standards, codes of
//! promises and invariants, and files, wherever a comment or a page names one; and on pages, names of the code.
//!
//! Comments count in `.rs` and `.proto` files and in conversations; in Markdown everything outside code blocks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where citations are looked for, from the root of the repository. What is not there is passed over.
const PLACES: &[&str] = &[
    "src",
    "bench",
    "tests",
    "proto",
    "docs",
    "cluster-tests/src",
    "cluster-tests/tests",
    "cluster-tests/examples",
    "cluster-tests/corpus",
    "cluster-tests/azure/src",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

/// Pages that are made from code, which tests of their own compare, and a file whose tests hold invented citations.
const LEFT_OUT: &[&str] = &[
    "docs/conformance.md",
    "docs/configuration.md",
    "docs/metrics.md",
    "cluster-tests/src/conformance/citation.rs",
];

/// What the name of a cited file begins with.
const ROOTS: &[&str] = &[
    "src/",
    "bench/",
    "tests/",
    "proto/",
    "docs/",
    "scripts/",
    "deploy/",
    "cluster-tests/",
];

/// What it ends with.
const ENDINGS: &[&str] = &[".rs", ".proto", ".md", ".py", ".tsv", ".yaml"];

/// Documents that are not in the repository.
const ELSEWHERE: &[&str] = &["DESIGN", "STYLE", "state store §", "State store §"];

/// A run of comment lines, or of lines of a page, as one text: a citation may go on in the next line.
struct Passage {
    path: PathBuf,
    /// Its first line.
    line: usize,
    text: String,
}

impl Passage {
    fn says(&self, what: &str) -> String {
        format!("{}:{}: {what}", self.path.display(), self.line)
    }

    /// Words without the marks around them.
    fn words(&self) -> impl Iterator<Item = &str> {
        let marks = |c: char| !(c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
        let words = self.text.split(marks);
        words.map(|word| word.trim_end_matches('.').trim_end_matches("//"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).expect("what was just listed can be read")
}

/// Names of what is in a directory, from the root.
fn list(path: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(root().join(path)).expect("a directory of the repository can be read");
    entries
        .map(|entry| path.join(entry.expect("it can be listed").file_name()))
        .collect()
}

/// Everything that may cite.
fn passages() -> Vec<Passage> {
    let mut open: Vec<PathBuf> = PLACES.iter().map(PathBuf::from).collect();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if root().join(&path).is_dir() {
            open.extend(list(&path));
        } else if !root().join(&path).is_file() {
            continue;
        } else if !LEFT_OUT.iter().any(|page| Path::new(page) == path) {
            found.extend(passages_of(&path));
        }
    }
    assert!(found.len() > 1000, "there is something to look at");
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    found
}

fn passages_of(path: &Path) -> Vec<Passage> {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let mut found: Vec<Passage> = Vec::new();
    let mut goes_on = false;
    let mut in_block = false;
    if !matches!(ending, Some("rs" | "proto" | "md" | "txt")) {
        return found;
    }
    for (index, line) in read(path).lines().enumerate() {
        in_block ^= ending == Some("md") && line.trim_start().starts_with("```");
        let said = match ending {
            Some("md") => (!in_block).then_some(line),
            Some("txt") => line.strip_prefix('#'),
            _ => comment(line),
        };
        let said = said.map(str::trim).filter(|said| !said.is_empty());
        goes_on &= ending != Some("md") || !said.is_some_and(begins_item);
        match (said, found.last_mut().filter(|_| goes_on)) {
            (Some(said), Some(passage)) => {
                passage.text.push(' ');
                passage.text.push_str(said);
            }
            (Some(said), None) => found.push(Passage {
                path: path.to_owned(),
                line: index + 1,
                text: said.to_owned(),
            }),
            (None, _) => {}
        }
        goes_on = said.is_some();
    }
    found
}

/// Whether a line of a page begins an item of a list or a row of a table.
fn begins_item(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['*', '-', '|']) || (number != line && number.starts_with(". "))
}

/// What a line of code says in a comment.
fn comment(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    // An address in a string is no comment.
    let is_address = line[..at].ends_with(':');
    (!is_address).then(|| line[at..].trim_start_matches(['/', '!']))
}

/// Headings of a page, and names that it gives to other places.
fn headings(page: &Path) -> Vec<String> {
    let text = read(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim().to_owned());
    let named = text.split("<a id=\"").skip(1);
    let names = named.filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_owned()));
    titles.chain(names).collect()
}

/// How a link names a heading.
fn anchor(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.collect()
}

#[track_caller]
fn assert_none(found: &[String], what: &str) {
    assert!(
        found.is_empty(),
        "{} {what}:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// The heading that a comment names after a page: `docs/spec/state-store.md, Fencing`, with or without marks.
fn named_heading(after: &str) -> Option<&str> {
    let after = after.trim_start_matches(['`', '"']);
    let name = after.strip_prefix(", ")?.trim_start_matches(['"', '`']);
    name.starts_with(char::is_uppercase).then_some(name)
}

#[test]
fn cited_files_are_there() {
    let mut found = Vec::new();
    for passage in passages() {
        let in_cluster_tests = passage.path.starts_with("cluster-tests");
        for word in passage.words() {
            let is_path = ROOTS.iter().any(|root| word.starts_with(root))
                && ENDINGS.iter().any(|ending| word.ends_with(ending));
            let is_there = root().join(word).exists()
                || (in_cluster_tests && root().join("cluster-tests").join(word).exists());
            if is_path && !is_there {
                found.push(passage.says(&format!("there is no {word}")));
            }
        }
    }
    assert_none(&found, "citations of files that are not there");
}

#[test]
fn cited_headings_are_there() {
    let mut found = Vec::new();
    for passage in passages() {
        for (at, _) in passage.text.match_indices("docs/") {
            let name = &passage.text[at..];
            let Some(end) = name.find(".md").map(|end| end + 3) else {
                continue;
            };
            let (page, after) = (Path::new(&name[..end]), &name[end..]);
            let Some(wanted) = named_heading(after).filter(|_| root().join(page).is_file()) else {
                continue;
            };
            let is_there = headings(page).iter().any(|heading| {
                wanted
                    .strip_prefix(heading.as_str())
                    .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            });
            if !is_there {
                let words: Vec<&str> = wanted.split(' ').take(4).collect();
                let what = format!("{} has no heading {:?}", page.display(), words.join(" "));
                found.push(passage.says(&what));
            }
        }
    }
    assert_none(&found, "citations of headings that are not there");
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut found = Vec::new();
    for passage in passages() {
        if passage.path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let directory = passage.path.parent().expect("a file is in a directory");
        for link in passage.text.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => passage.path.clone(),
                file => directory.join(file),
            };
            let is_there = root().join(&target).exists();
            let is_named = || {
                headings(&target)
                    .iter()
                    .any(|heading| anchor(heading) == place)
            };
            if !is_there || !(place.is_empty() || is_named()) {
                found.push(passage.says(&format!("the link {link} leads nowhere")));
            }
        }
    }
    assert_none(&found, "links that lead nowhere");
}

#[test]
fn cited_decisions_are_there() {
    let decisions: BTreeSet<u32> = list(Path::new("docs/adr"))
        .iter()
        .filter_map(|path| path.file_name()?.to_str()?.split('-').next()?.parse().ok())
        .collect();
    let mut found = Vec::new();
    for passage in passages() {
        for mark in ["ADR ", "docs/adr/"] {
            for after in passage.text.split(mark).skip(1) {
                let digits = after
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(after.len());
                let number = after[..digits].parse::<u32>();
                if number.is_ok_and(|number| !decisions.contains(&number)) {
                    found.push(passage.says(&format!("there is no {mark}{}", &after[..digits])));
                }
            }
        }
    }
    assert_none(&found, "citations of decisions that are not there");
}

/// The path of a module or a test without its last names: what stands before `::` as far as it is a file or a
/// directory.
fn module(path: &[&str]) -> Option<(PathBuf, usize)> {
    let test = Path::new("cluster-tests/tests").join(format!("{}.rs", path[0]));
    if root().join(&test).is_file() {
        return Some((test, 1));
    }
    let mut roots = ["src", "cluster-tests/src"].into_iter();
    roots.find_map(|place| module_below(place.into(), path))
}

fn module_below(mut place: PathBuf, path: &[&str]) -> Option<(PathBuf, usize)> {
    for (depth, name) in path.iter().enumerate() {
        let directory = place.join(name);
        let file = place.join(format!("{name}.rs"));
        if root().join(&directory).is_dir() {
            place = directory;
        } else if root().join(&file).is_file() {
            return Some((file, depth + 1));
        } else {
            return (depth > 0).then_some((place, depth));
        }
    }
    Some((place, path.len()))
}

/// Whether one of these sources defines a name: an item, or a variant.
fn defines(place: &Path, name: &str) -> bool {
    if root().join(place).is_dir() {
        let beside = place.with_extension("rs");
        let is_there = root().join(&beside).is_file();
        let inner = list(place);
        return inner.iter().any(|inner| defines(inner, name))
            || is_there && defines(&beside, name);
    }
    read(place).lines().any(|line| {
        let line = line.trim_start();
        let items = [
            "fn ", "struct ", "enum ", "trait ", "type ", "const ", "mod ",
        ];
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_item = items.iter().any(|item| {
            let after = line.split_once(item).map(|(_, after)| after);
            after
                .and_then(|after| after.strip_prefix(name))
                .is_some_and(ends)
        });
        is_item
            || line
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([',', '(', ' ']))
    })
}

#[test]
fn names_on_pages_are_there() {
    let mut found = Vec::new();
    for passage in passages() {
        if passage.path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        for quoted in passage.text.split('`').skip(1).step_by(2) {
            let path: Vec<&str> = quoted.trim_end_matches("()").split("::").collect();
            let Some((place, depth)) = module(&path).filter(|_| path.len() > 1) else {
                continue;
            };
            let missing = path[depth..].iter().find(|name| !defines(&place, name));
            if let Some(name) = missing {
                let what = format!("`{quoted}`: {} has no {name}", place.display());
                found.push(passage.says(&what));
            }
        }
    }
    assert_none(&found, "names that are not in the code");
}

/// Numbered statements of a standard.
fn statements(file: &str) -> BTreeSet<String> {
    let text = read(&Path::new("cluster-tests/spec").join(file));
    let fields = text.lines().flat_map(|line| line.split('\t'));
    let numbers = fields.filter(|field| field.starts_with("MQTT-"));
    numbers.map(str::to_owned).collect()
}

#[test]
fn cited_statements_are_there() {
    let known = [statements("mqtt5.tsv"), statements("mqtt311.tsv")];
    assert!(
        known.iter().all(|known| known.len() > 100),
        "they are listed"
    );
    let mut found = Vec::new();
    for passage in passages() {
        for after in passage.text.split("[MQTT").skip(1) {
            let number = after.split([']', '\\']).next().unwrap_or_default();
            // The name of a form, not a statement.
            if number.starts_with("-x.y.z") {
                continue;
            }
            let is_there = match number.strip_prefix("311") {
                Some(number) => known[1].contains(&format!("MQTT{number}")),
                None => known
                    .iter()
                    .any(|known| known.contains(&format!("MQTT{number}"))),
            };
            if !is_there {
                found.push(passage.says(&format!("there is no statement [MQTT{number}]")));
            }
        }
    }
    assert_none(&found, "citations of statements that are not there");
}

/// Codes that the specification gives: the first cell of a row.
fn codes() -> BTreeSet<String> {
    let pages = ["docs/spec/promises.md", "docs/spec/invariants.md"];
    let mut found = BTreeSet::new();
    for page in pages {
        for line in read(Path::new(page)).lines() {
            let cell = line
                .strip_prefix("| ")
                .and_then(|line| line.split(" |").next());
            found.extend(cell.filter(|cell| is_code(cell)).map(str::to_owned));
        }
    }
    found
}

/// A letter of the specification and a number.
fn is_code(word: &str) -> bool {
    word.strip_prefix(['P', 'K', 'D', 'S', 'R', 'W', 'C', 'T', 'E'])
        .is_some_and(|number| {
            (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// The codes between two parentheses, if nothing else is there.
fn codes_between(text: &str) -> Vec<&str> {
    let words: Vec<&str> = text
        .split([' ', ','])
        .filter(|word| !matches!(*word, "" | "to" | "and"))
        .collect();
    match words.iter().all(|word| is_code(word)) {
        true => words,
        false => Vec::new(),
    }
}

#[test]
fn cited_codes_are_there() {
    let known = codes();
    assert!(known.len() > 40, "{known:?}");
    let mut found = Vec::new();
    for passage in passages() {
        for after in passage.text.split('(').skip(1) {
            let inside = after.split(')').next().unwrap_or_default();
            for code in codes_between(inside) {
                if !known.contains(code) {
                    found.push(passage.says(&format!("the specification has no {code}")));
                }
            }
        }
    }
    assert_none(
        &found,
        "citations of codes that the specification does not have",
    );
}

#[test]
fn nothing_is_cited_that_is_elsewhere() {
    let mut found = Vec::new();
    for passage in passages() {
        for name in ELSEWHERE {
            let is_cited = passage.text.match_indices(name).any(|(at, _)| {
                let around = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let before = passage.text[..at].chars().next_back();
                let after = passage.text[at + name.len()..].chars().next();
                !around(before) && (name.ends_with('§') || !around(after))
            });
            if is_cited {
                found.push(passage.says(&format!("{name} is not in the repository")));
            }
        }
    }
    assert_none(&found, "citations of what is not in the repository");
}

#[test]
fn citations_are_recognised() {
    assert_eq!(comment("let a = 1; // why"), Some(" why"));
    assert_eq!(comment("//! a page"), Some(" a page"));
    assert_eq!(comment("let a = \"http://host\";"), None);
    assert_eq!(codes_between("P8, K3 and K4"), ["P8", "K3", "K4"]);
    assert_eq!(codes_between("P8 is meant"), Vec::<&str>::new());
    assert_eq!(named_heading("`, Fencing tokens."), Some("Fencing tokens."));
    assert_eq!(named_heading(" says so"), None);
    assert_eq!(
        anchor("What is *not* stored, yet"),
        "what-is-not-stored-yet"
    );
}
