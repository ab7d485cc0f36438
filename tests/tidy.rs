//! Style as a test: layers, sizes, names, what may panic. `DESIGN` §3 and `STYLE` say why.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Layers, lowest first: a module imports its own layer and lower ones. `mqtt::codec` is a leaf below the rest of
/// `mqtt`: whoever handles a packet names its types, and only the codec knows its bytes.
const LAYERS: &[&[&str]] = &[
    &["ids", "limits", "time", "hlc", "proto"],
    &["topic"],
    &["mqtt::codec"],
    &["session", "store", "twin", "events"],
    &["machine"],
    &["config", "telemetry"],
    &["storage"],
    &["raft"],
    &["router", "auth", "overload"],
    &["replica"],
    &["mqtt", "http"],
    &["node"],
    &["cli"],
    &["main"],
];

/// Modules that compute and do nothing else: no clock, randomness, disk, network, task.
const SANS_IO: &[&str] = &[
    "topic",
    "session",
    "store",
    "twin",
    "events",
    "machine",
    "hlc",
    "mqtt::codec",
    "auth",
];

/// What a sans-io module must not name.
const WORLD: &[&str] = &[
    "tokio::",
    "std::net",
    "std::fs",
    "std::thread",
    "std::time::SystemTime",
    "std::time::Instant",
    "SystemTime::now",
    "Instant::now",
    "Uuid::new_v4",
    "rand::",
];

/// Longest file, in lines.
const MAX_LINES: usize = 800;

/// One source file: its path and its lines without comments and tests.
struct Source {
    path: PathBuf,
    layer: String,
    /// Line number and text.
    code: Vec<(usize, String)>,
    lines: usize,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("src can be read") {
            let path = entry.expect("src can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(read(&root, path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "there is something to look at");
    found
}

fn read(root: &Path, path: PathBuf) -> Source {
    let text = fs::read_to_string(&path).expect("a source file can be read");
    let inside = path.strip_prefix(root).expect("it is inside").to_owned();
    let name = inside.file_stem().unwrap_or_default().to_string_lossy();
    // Tests may panic and look at what they like: files of them, and what follows `#[cfg(test)]`.
    let is_test =
        name == "tests" || name.ends_with("_tests") || inside.iter().any(|part| part == "tests");
    let code = if is_test {
        Vec::new()
    } else {
        text.lines()
            .enumerate()
            .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
            .map(|(number, line)| (number + 1, strip(line).to_owned()))
            .collect()
    };
    Source {
        layer: layer_of(&inside),
        lines: text.lines().count(),
        path: Path::new("src").join(inside),
        code,
    }
}

/// A line without its comment. A `//` in a string ends it too early, which can only hide what a string says.
fn strip(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

fn layer_of(inside: &Path) -> String {
    let parts: Vec<String> = inside
        .iter()
        .map(|part| part.to_string_lossy().trim_end_matches(".rs").to_owned())
        .collect();
    match parts.as_slice() {
        [first, second, ..] if first == "mqtt" && second == "codec" => "mqtt::codec".into(),
        [first, ..] => first.clone(),
        [] => String::new(),
    }
}

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&layer))
}

/// The layers that a line names as `crate::…`, braces included.
fn imports(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("crate::") {
        // `$crate::` of a macro counts too; `some_crate::` does not.
        let before = line[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &line[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(top_level(list)),
            None => found.push(name_of(rest)),
        }
    }
    found
}

/// The first names of `a::b, c::{d, e}, f}`.
fn top_level(list: &str) -> Vec<String> {
    let mut depth = 0;
    let mut start = true;
    let mut found = Vec::new();
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            ' ' => {}
            _ if start => {
                found.push(name_of(&list[at..]));
                start = false;
            }
            _ => {}
        }
    }
    found
}

fn name_of(path: &str) -> String {
    let word = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let first = word(path);
    match path[first.len()..].strip_prefix("::") {
        Some(rest) if first == "mqtt" && word(rest) == "codec" => "mqtt::codec".into(),
        _ => first,
    }
}

#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{} places:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

#[test]
fn a_lower_layer_never_imports_a_higher_one() {
    let mut found = Vec::new();
    for source in sources() {
        if source.layer == "lib" || source.code.is_empty() {
            continue;
        }
        let Some(own) = rank(&source.layer) else {
            found.push(format!(
                "{}: in no layer; put `{}` in its place",
                source.path.display(),
                source.layer
            ));
            continue;
        };
        for (number, line) in &source.code {
            for import in imports(line) {
                if rank(&import).is_some_and(|other| other > own) {
                    found.push(format!(
                        "{}:{number}: {} imports {import}",
                        source.path.display(),
                        source.layer
                    ));
                }
            }
        }
    }
    assert_none(&found);
}

#[test]
fn pure_layers_touch_no_clock_disk_network_or_task() {
    let mut found = Vec::new();
    for source in sources() {
        if !SANS_IO.contains(&source.layer.as_str()) {
            continue;
        }
        for (number, line) in &source.code {
            for name in WORLD.iter().filter(|name| line.contains(**name)) {
                found.push(format!("{}:{number}: {name}", source.path.display()));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn each_engine_is_named_in_one_place() {
    let only = BTreeMap::from([("rocksdb::", "storage"), ("openraft::", "raft")]);
    let mut found = Vec::new();
    for source in sources() {
        for (number, line) in &source.code {
            for (engine, place) in &only {
                if line.contains(engine) && source.layer != *place {
                    found.push(format!(
                        "{}:{number}: {engine} outside {place}/",
                        source.path.display()
                    ));
                }
            }
        }
    }
    assert_none(&found);
}

#[test]
fn no_file_is_too_long() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| source.lines > MAX_LINES)
        .map(|source| format!("{}: {} lines", source.path.display(), source.lines))
        .collect();
    assert_none(&found);
}

#[test]
fn nothing_unwraps_outside_tests() {
    let mut found = Vec::new();
    for source in sources() {
        for (number, line) in &source.code {
            for banned in [".unwrap()", "todo!(", "unimplemented!(", "dbg!("] {
                if line.contains(banned) {
                    found.push(format!("{}:{number}: {banned}", source.path.display()));
                }
            }
        }
    }
    assert_none(&found);
}

#[test]
fn every_module_says_what_it_is_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| !source.code.is_empty())
        .filter(|source| {
            let text = fs::read_to_string(root.join(&source.path)).expect("it was read before");
            !text.starts_with("//!")
        })
        .map(|source| source.path.display().to_string())
        .collect();
    assert_none(&found);
}

#[test]
fn imports_are_found_in_every_form() {
    assert_eq!(imports("use crate::raft::read::Reader;"), ["raft"]);
    assert_eq!(
        imports("use crate::{ids::NodeId, machine::{a, b}, raft};"),
        ["ids", "machine", "raft"]
    );
    assert_eq!(
        imports("let x = crate::codec::V5 + crate::mqtt::LIMIT;"),
        ["mqtt::codec", "mqtt"]
    );
    assert_eq!(imports("use my_crate::raft;"), Vec::<String>::new());
    assert_eq!(strip("call(); // crate::raft"), "call(); ");
    assert!(rank("raft") > rank("store") && rank("mqtt::codec") < rank("router"));
}
