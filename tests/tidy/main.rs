//! Style as a test: rooms, circles, sizes, names, what may panic. CONTRIBUTING says why.

mod imports;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use imports::{circles, named, uses};
use source::{Source, sources};

/// The rooms, lowest first. A room uses those of its own line and of the lines above it in this list.
const ROOMS: &[&[&str]] = &[
    &["base"],
    &["topic", "codec", "auth", "query"],
    &["session", "store", "registry", "twin", "events"],
    &["acl"],
    &["machine"],
    &["config", "telemetry", "http_client"],
    &["transport", "login"],
    &["storage"],
    &["peers"],
    &["raft"],
    &["mailbox"],
    &["router"],
    &["replica"],
    &["forward"],
    &["identity", "webhook"],
    &["connection", "http"],
    &["hub_http"],
    &["node"],
    &["cli"],
    &["main"],
];

/// Modules that compute and do nothing else: no clock, randomness, disk, network, task.
const SANS_IO: &[&str] = &[
    "base::hlc",
    "base::ids",
    "topic",
    "codec",
    "auth",
    "session",
    "store",
    "registry",
    "twin",
    "events",
    "acl",
    "query",
    "machine",
];

/// What a sans-io room does not name. `std::time::Duration` is a number.
const WORLD: &[&str] = &[
    "tokio",
    "std::net",
    "std::fs",
    "std::thread",
    "std::process",
    "std::time::SystemTime",
    "std::time::Instant",
    "SystemTime",
    "Instant",
    "uuid::Uuid::new_v4",
    "Uuid::new_v4",
    "getrandom",
    "rand",
];

/// Rooms whose threads others wait for. Files of the configuration are read by `config::file`, which judges who else
/// may read and write them, and beside these threads.
const NO_FILES: &[&str] = &[
    "http_client",
    "login",
    "peers",
    "mailbox",
    "router",
    "replica",
    "forward",
    "identity",
    "connection",
    "http",
];

/// Crates that one room alone names.
const ENGINES: &[(&str, &str)] = &[("rocksdb", "storage"), ("openraft", "raft")];

/// Longest file, in lines.
const MAX_FILE_LINES: usize = 500;

/// Longest function, in lines, its signature included.
const MAX_FUNCTION_LINES: usize = 70;

/// Widest comment, in characters.
const MAX_COMMENT_WIDTH: usize = 120;

#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{} places:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

fn rank(room: &str) -> Option<usize> {
    ROOMS.iter().position(|rooms| rooms.contains(&room))
}

#[test]
fn every_room_has_its_place_and_every_place_its_room() {
    let sources = sources();
    let there: BTreeSet<&str> = sources
        .iter()
        .map(Source::room)
        .filter(|room| *room != "lib")
        .collect();
    let named: BTreeSet<&str> = ROOMS.iter().copied().flatten().copied().collect();
    assert_eq!(there, named);
}

#[test]
fn a_lower_room_never_imports_a_higher_one() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.room() != "lib") {
        for named in named(source).iter().filter(|named| named.is_local) {
            let Some(other) = named.parts.first() else {
                continue;
            };
            if rank(other) > rank(source.room()) {
                let path = named.parts.join("::");
                found.push(format!("{}:{}: {path}", source.path.display(), named.line));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let sources = sources();
    let uses = uses(&sources);
    let edges: BTreeMap<usize, BTreeSet<usize>> = uses
        .iter()
        .map(|(from, targets)| (*from, targets.keys().copied().collect()))
        .collect();
    let mut found = Vec::new();
    for circle in circles(&edges) {
        let mut lines = vec![format!("circle of {} files:", circle.len())];
        for from in &circle {
            for (to, names) in uses[from].iter().filter(|(to, _)| circle.contains(to)) {
                let (from, to) = (sources[*from].path.display(), sources[*to].path.display());
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                lines.push(format!("  {from} -> {to}: {}", names.join(", ")));
            }
        }
        found.push(lines.join("\n"));
    }
    assert_none(&found);
}

#[test]
fn pure_rooms_touch_no_clock_disk_network_or_task() {
    let mut found = Vec::new();
    for source in sources() {
        let module = source.module.join("::");
        let is_below = |pure: &&str| module == **pure || module.starts_with(&format!("{pure}::"));
        if !SANS_IO.iter().any(is_below) {
            continue;
        }
        for named in named(&source).iter().filter(|named| !named.is_local) {
            let path = named.parts.join("::");
            let is_world =
                |world: &&str| path == **world || path.starts_with(&format!("{world}::"));
            if WORLD.iter().any(is_world) {
                found.push(format!("{}:{}: {path}", source.path.display(), named.line));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn rooms_that_serve_open_no_files() {
    let mut found = Vec::new();
    for source in sources() {
        if !NO_FILES.contains(&source.room()) {
            continue;
        }
        for named in named(&source).iter().filter(|named| !named.is_local) {
            let path = named.parts.join("::");
            if path.starts_with("std::fs") || path.starts_with("tokio::fs") {
                found.push(format!("{}:{}: {path}", source.path.display(), named.line));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn each_engine_is_named_in_one_room() {
    let mut found = Vec::new();
    for source in sources() {
        for named in named(&source).iter().filter(|named| !named.is_local) {
            for (engine, room) in ENGINES {
                if named.parts[0] == *engine && source.room() != *room {
                    let place = source.path.display();
                    found.push(format!("{place}:{}: {engine} outside {room}/", named.line));
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
        .map(|source| (source, source.text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_FILE_LINES)
        .map(|(source, lines)| format!("{}: {lines} lines", source.path.display()))
        .collect();
    assert_none(&found);
}

/// Gathers something from the functions and calls of a file.
struct Functions<'a> {
    source: &'a Source,
    long: Vec<String>,
    unwraps: Vec<String>,
}

impl Functions<'_> {
    fn function(&mut self, name: &syn::Ident, whole: Span) {
        let lines = whole.end().line - whole.start().line + 1;
        if lines > MAX_FUNCTION_LINES {
            let (path, line) = (self.source.path.display(), whole.start().line);
            self.long
                .push(format!("{path}:{line}: {name} has {lines} lines"));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let whole = function.sig.span().join(function.block.span());
        self.function(
            &function.sig.ident,
            whole.unwrap_or_else(|| function.span()),
        );
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let whole = function.sig.span().join(function.block.span());
        self.function(
            &function.sig.ident,
            whole.unwrap_or_else(|| function.span()),
        );
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" {
            let (path, line) = (self.source.path.display(), call.method.span().start().line);
            self.unwraps.push(format!("{path}:{line}"));
        }
        visit::visit_expr_method_call(self, call);
    }
}

fn functions(pick: fn(Functions<'_>) -> Vec<String>) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources() {
        let mut functions = Functions {
            source: &source,
            long: Vec::new(),
            unwraps: Vec::new(),
        };
        functions.visit_file(&source.ast);
        found.extend(pick(functions));
    }
    found
}

#[test]
fn no_function_is_too_long() {
    assert_none(&functions(|functions| functions.long));
}

/// `todo!`, `unimplemented!` and `dbg!` are the linter's.
#[test]
fn nothing_unwraps_outside_tests() {
    assert_none(&functions(|functions| functions.unwraps));
}

#[test]
fn every_file_says_what_it_is_for() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|source| !source.is_test && !source.text.starts_with("//!"))
        .map(|source| source.path.display().to_string())
        .collect();
    assert_none(&found);
}

#[test]
fn no_comment_is_too_wide() {
    let mut found = Vec::new();
    for source in sources() {
        for (at, line) in source.text.lines().enumerate() {
            let trimmed = line.trim_start();
            // A row of a table is one line.
            let is_table = trimmed.starts_with("//! |") || trimmed.starts_with("/// |");
            let is_comment = trimmed.starts_with("//") && !is_table;
            if is_comment && line.chars().count() > MAX_COMMENT_WIDTH {
                found.push(format!("{}:{}", source.path.display(), at + 1));
            }
        }
    }
    assert_none(&found);
}

#[test]
fn circles_are_found() {
    let edges = |pairs: &[(u8, u8)]| {
        let mut edges: BTreeMap<u8, BTreeSet<u8>> = BTreeMap::new();
        for (from, to) in pairs {
            edges.entry(*from).or_default().insert(*to);
        }
        edges
    };
    assert!(circles(&edges(&[(1, 2), (2, 3), (1, 3)])).is_empty());
    assert_eq!(circles(&edges(&[(1, 2), (2, 3), (3, 2)])), [[2, 3]]);
    assert_eq!(circles(&edges(&[(1, 2), (2, 1), (3, 4), (4, 3)])).len(), 2);
}

#[test]
fn what_is_for_tests_alone_is_left_out_and_nothing_else() {
    let sources = sources();
    let find = |name: &str| {
        let found = sources.iter().find(|source| source.path.ends_with(name));
        found.unwrap_or_else(|| panic!("{name} is there"))
    };
    // Its tests are declared in the middle of the file.
    let machine = find("src/machine/mod.rs");
    let has = |name: &str| {
        machine
            .ast
            .items
            .iter()
            .any(|item| matches!(item, syn::Item::Struct(found) if found.ident == name))
    };
    assert!(has("Machine"), "items after #[cfg(test)] are looked at");
    assert!(find("src/machine/tests/mod.rs").is_test);
    assert!(named(machine).iter().any(|named| named.is_local));
}
