//! Renders `docs/configuration.md` and an example file from the definition of the keys.

use std::fmt::Write;
use std::ops::RangeInclusive;

use super::keys::{Config, Key, keys, sections};
use super::listener::Listener;
use super::table::Table;
use super::token_issuer::TokenIssuer;

/// The reference page: every section and key with type, unit, default, range and meaning.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Generated from `src/config/keys.rs`: `quorumq reference configuration > docs/configuration.md`. Do not edit by hand.\n\n\
         A value is taken from the first of these sources that has it:\n\n\
         1. flags: `quorumq serve --set section.key=value`, or the direct flags of `quorumq serve --help`;\n\
         2. the environment: `QUORUMQ__SECTION__KEY=value`, for example `QUORUMQ__MQTT__LISTEN=0.0.0.0:1883`;\n\
         3. the TOML file named by `--config`;\n\
         4. the default.\n\n\
         An unknown key is an error. `quorumq check --config FILE` reports every problem with its line.\n\
         The log shows at start which values differ from the defaults and where each came from.\n",
    );
    let defaults = Config::default();
    let keys = keys();
    for section in sections() {
        let _ = writeln!(
            page,
            "\n## [{}]\n\n{}",
            section.name,
            paragraph(section.doc)
        );
        for key in keys.iter().filter(|key| in_section(key, section.name)) {
            let _ = write!(
                page,
                "### `{}`\n\n{}\n* type: {}{}\n* default: `{}`\n{}\n",
                key.name,
                paragraph(key.doc),
                key.kind,
                unit(key.unit),
                key.show(&defaults),
                range(key.range.as_ref()),
            );
        }
    }
    tables::<TokenIssuer>(&mut page, "auth.jwt");
    tables::<Listener>(&mut page, "listeners");
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

/// The keys of a table of the list `name`.
fn tables<T: Table>(page: &mut String, name: &str) {
    let _ = writeln!(page, "\n## [[{name}]]\n");
    let keys = keys();
    let doc = keys.iter().find(|key| key.name == name);
    page.push_str(&paragraph(doc.map_or("", |key| key.doc)));
    let default = T::default();
    for key in T::keys() {
        let _ = write!(
            page,
            "\n### `{name}.{}`\n\n{}\n* type: {}{}\n* default: `{}`\n{}",
            key.name,
            paragraph(key.doc),
            key.kind,
            unit(key.unit),
            (key.show)(&default),
            range(key.range.as_ref()),
        );
    }
}

/// A TOML file with every key at its default, commented out.
pub fn example() -> String {
    let defaults = Config::default();
    let keys = keys();
    let mut file = String::new();
    for section in sections() {
        let _ = writeln!(file, "[{}]", section.name);
        for key in keys.iter().filter(|key| in_section(key, section.name)) {
            for line in key.doc.lines() {
                let _ = writeln!(file, "#{line}");
            }
            let name = key.name.split_once('.').map_or(key.name, |(_, name)| name);
            let _ = writeln!(file, "#{name} = {}", key.show(&defaults));
        }
        file.push('\n');
    }
    // Comments only: a table here would be a listener.
    let _ = writeln!(file, "# [[listeners]]");
    let default = Listener::default();
    for key in Listener::keys() {
        for line in key.doc.lines() {
            let _ = writeln!(file, "#{line}");
        }
        let _ = writeln!(file, "# {} = {}", key.name, (key.show)(&default));
    }
    file.truncate(file.trim_end().len());
    file.push('\n');
    file
}

fn in_section(key: &Key, section: &str) -> bool {
    key.name
        .strip_prefix(section)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn paragraph(doc: &str) -> String {
    let mut text = String::new();
    for line in doc.lines() {
        let _ = writeln!(text, "{}", line.trim());
    }
    text
}

fn unit(unit: &str) -> String {
    match unit {
        "" => String::new(),
        unit => format!(" ({unit})"),
    }
}

fn range(range: Option<&RangeInclusive<u64>>) -> String {
    range.map_or_else(String::new, |range| {
        format!("* range: {} to {}\n", range.start(), range.end())
    })
}
