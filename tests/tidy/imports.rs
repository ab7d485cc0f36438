//! Which file uses which: every path that a file names, followed to the file that defines what it names.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use super::source::Source;

/// A path that a file names, from the crate's root if it is inside the crate.
pub struct Named {
    /// The line it stands in.
    pub line: usize,
    /// Its parts: `["router", "shared", "Group"]`, or `["tokio", "spawn"]` of another crate.
    pub parts: Vec<String>,
    /// It is inside this crate.
    pub is_local: bool,
}

/// The paths that a file names outside tests. Re-exports are left out: they define nothing and use nothing.
pub fn named(source: &Source) -> Vec<Named> {
    let mut collector = Collector {
        module: source.module.clone(),
        children: children(&source.ast.items),
        found: Vec::new(),
    };
    collector.visit_file(&source.ast);
    collector.found
}

fn children(items: &[Item]) -> Vec<String> {
    items
        .iter()
        .filter_map(|item| match item {
            Item::Mod(module) if module.content.is_none() => Some(module.ident.to_string()),
            _ => None,
        })
        .collect()
}

struct Collector {
    module: Vec<String>,
    children: Vec<String>,
    found: Vec<Named>,
}

impl Collector {
    fn add(&mut self, line: usize, path: &[String]) {
        let (parts, is_local) = absolute(&self.module, &self.children, path);
        self.found.push(Named {
            line,
            parts,
            is_local,
        });
    }
}

/// A path from the crate's root, and whether it is inside the crate.
fn absolute(module: &[String], children: &[String], path: &[String]) -> (Vec<String>, bool) {
    let Some(first) = path.first() else {
        return (Vec::new(), false);
    };
    match first.as_str() {
        "crate" | "quorumq" => (path[1..].to_vec(), true),
        "self" => ([module, &path[1..]].concat(), true),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            let from = &module[..module.len().saturating_sub(up)];
            ([from, &path[up..]].concat(), true)
        }
        name if children.iter().any(|child| child == name) => ([module, path].concat(), true),
        _ => (path.to_vec(), false),
    }
}

fn use_paths(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            use_paths(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => {
            let mut path = before.clone();
            if name.ident != "self" {
                path.push(name.ident.to_string());
            }
            let name = path.last().cloned().unwrap_or_default();
            found.push((path, name));
        }
        UseTree::Rename(rename) => {
            let mut path = before.clone();
            path.push(rename.ident.to_string());
            found.push((path, rename.rename.to_string()));
        }
        UseTree::Glob(_) => found.push((before.clone(), "*".to_owned())),
        UseTree::Group(group) => {
            for tree in &group.items {
                use_paths(tree, before, found);
            }
        }
    }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    !matches!(visibility, syn::Visibility::Inherited)
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_public(&item.vis) {
            return;
        }
        let mut paths = Vec::new();
        use_paths(&item.tree, &mut Vec::new(), &mut paths);
        for (path, _) in paths {
            self.add(item.span().start().line, &path);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` and `pub(in crate::room)` use nothing.
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if parts.len() > 1 {
            self.add(path.span().start().line, &parts);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        // What a macro is given need not be Rust; most of the time it is a list of expressions.
        if let Ok(arguments) = call.parse_body_with(
            syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated,
        ) {
            for argument in &arguments {
                self.visit_expr(argument);
            }
        }
        visit::visit_macro(self, call);
    }
}

/// The modules of the crate, by their paths.
pub struct Modules<'a> {
    files: HashMap<&'a [String], usize>,
    /// What a module re-exports: the name, and the path it stands for.
    exports: HashMap<(usize, String), Vec<String>>,
}

impl<'a> Modules<'a> {
    /// The modules that `sources` are.
    pub fn new(sources: &'a [Source]) -> Modules<'a> {
        let mut files = HashMap::new();
        let mut exports = HashMap::new();
        for (at, source) in sources.iter().enumerate() {
            files.insert(source.module.as_slice(), at);
            let children = children(&source.ast.items);
            for item in &source.ast.items {
                let Item::Use(item) = item else { continue };
                if !is_public(&item.vis) {
                    continue;
                }
                let mut paths = Vec::new();
                use_paths(&item.tree, &mut Vec::new(), &mut paths);
                for (path, name) in paths {
                    if let (path, true) = absolute(&source.module, &children, &path) {
                        exports.insert((at, name), path);
                    }
                }
            }
        }
        Modules { files, exports }
    }

    /// The file that defines what a path inside the crate names.
    pub fn defining(&self, path: &[String]) -> Option<usize> {
        let mut path = path.to_vec();
        // Re-exports are a few deep at most.
        for _ in 0..8 {
            let (length, file) = (0..=path.len())
                .rev()
                .find_map(|length| Some((length, *self.files.get(&path[..length])?)))?;
            let Some(name) = path.get(length) else {
                return Some(file);
            };
            let Some(target) = self.exports.get(&(file, name.clone())) else {
                return Some(file);
            };
            path = [target, &path[length + 1..]].concat();
        }
        None
    }
}

/// For each file the files that it uses, with the names it takes from there.
pub type Uses = BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>;

/// Who uses whom.
pub fn uses(sources: &[Source]) -> Uses {
    let modules = Modules::new(sources);
    let mut uses = Uses::new();
    for (at, source) in sources.iter().enumerate() {
        for named in named(source).into_iter().filter(|named| named.is_local) {
            if let Some(target) = modules.defining(&named.parts)
                && target != at
            {
                let name = named.parts.last().cloned().unwrap_or_default();
                uses.entry(at)
                    .or_default()
                    .entry(target)
                    .or_default()
                    .insert(name);
            }
        }
    }
    uses
}

/// Sets of nodes that reach each other, each with more than one node.
pub fn circles<N: Ord + Clone>(edges: &BTreeMap<N, BTreeSet<N>>) -> Vec<Vec<N>> {
    let reach = |from: &N| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(node) = open.pop() {
            for next in edges.get(&node).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<N, BTreeSet<N>> = edges
        .keys()
        .map(|node| (node.clone(), reach(node)))
        .collect();
    let mut found: Vec<Vec<N>> = Vec::new();
    for (node, seen) in &reached {
        if seen.contains(node) && !found.iter().any(|circle| circle.contains(node)) {
            let circle = seen
                .iter()
                .filter(|other| reached.get(*other).is_some_and(|back| back.contains(node)));
            found.push(circle.cloned().collect());
        }
    }
    found
}
