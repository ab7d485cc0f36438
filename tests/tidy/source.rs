//! The sources as the checks see them: parsed, without tests.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Item, Meta};

/// One file below `src/`.
pub struct Source {
    /// Its path, from the root of the repository.
    pub path: PathBuf,
    /// Its module, from the crate's root: `["router", "shared"]`.
    pub module: Vec<String>,
    /// What is compiled into the product; empty for a file of tests.
    pub ast: syn::File,
    /// It is compiled for tests alone.
    pub is_test: bool,
    /// The whole text.
    pub text: String,
}

impl Source {
    /// The room, which is the first part of the module; `lib` and `main` for the crate's roots.
    pub fn room(&self) -> &str {
        self.module.first().map_or("lib", String::as_str)
    }
}

/// All files that the crate's roots reach through `mod`.
pub fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for (file, module) in [("lib.rs", vec![]), ("main.rs", vec!["main".to_owned()])] {
        read(root, Path::new("src").join(file), module, false, &mut found);
    }
    assert!(found.len() > 50, "there is something to look at");
    let reached: HashSet<&Path> = found.iter().map(|source| source.path.as_path()).collect();
    let mut unreached = Vec::new();
    walk(root, Path::new("src"), &mut |path| {
        if !reached.contains(path) {
            unreached.push(path.display().to_string());
        }
    });
    assert!(
        unreached.is_empty(),
        "no `mod` names these files: {unreached:?}"
    );
    found
}

fn walk(root: &Path, directory: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(root.join(directory)).expect("src can be read") {
        let path = directory.join(entry.expect("src can be read").file_name());
        if root.join(&path).is_dir() {
            walk(root, &path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&path);
        }
    }
}

fn read(root: &Path, path: PathBuf, module: Vec<String>, is_test: bool, found: &mut Vec<Source>) {
    let text = fs::read_to_string(root.join(&path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut ast =
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // A file's own modules lie beside it if it is a root or `mod.rs`, below its name otherwise.
    let directory = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => path.parent().expect("it is in src").to_owned(),
        _ => path.with_extension(""),
    };
    let here = path.parent().expect("it is in src").to_owned();
    for item in &ast.items {
        let Item::Mod(declared) = item else { continue };
        if declared.content.is_some() {
            continue;
        }
        let name = declared.ident.to_string();
        let child = match path_attribute(&declared.attrs) {
            Some(named) => here.join(named),
            None => [
                directory.join(format!("{name}.rs")),
                directory.join(&name).join("mod.rs"),
            ]
            .into_iter()
            .find(|path| root.join(path).exists())
            .unwrap_or_else(|| panic!("{}: mod {name} has no file", path.display())),
        };
        let mut child_module = module.clone();
        child_module.push(name);
        let is_test = is_test || is_for_tests(&declared.attrs);
        read(root, child, child_module, is_test, found);
    }
    if is_test {
        ast.items.clear();
    } else {
        WithoutTests.visit_file_mut(&mut ast);
    }
    found.push(Source {
        path,
        module,
        ast,
        is_test,
        text,
    });
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        })
}

/// Whether an item has `#[test]` or `#[cfg(test)]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|path| path.is_ident("test")))
    })
}

/// Takes away the items that are compiled for tests alone, and nothing else.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_for_tests(attributes(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !is_for_tests(attributes(item)));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            syn::ImplItem::Fn(function) => !is_for_tests(&function.attrs),
            syn::ImplItem::Const(constant) => !is_for_tests(&constant.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
