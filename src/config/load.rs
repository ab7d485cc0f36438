//! Lays a TOML file, the environment and flags over the defaults, and keeps the origin of every value.
//!
//! Loading continues after an error, so that one run reports every problem.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::bounds::LARGEST_CONFIG_FILE_BYTES;
use super::check;
use super::keys::{Config, Key, keys, sections};
use super::listener::Listener;
use super::problem::{Origin, Problem, Problems};
use super::setting::{Input, SettingError};
use super::table::{Table, TableKey};

/// Environment variables with this prefix set keys: `QUORUMQ__MQTT__LISTEN` is `mqtt.listen`.
pub const ENVIRONMENT_PREFIX: &str = "QUORUMQ__";

/// The key of the list of tables.
const LISTENERS: &str = "listeners";

/// One value given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The flag as it was written, for the origin: `--set` or `--node-id`.
    pub flag: String,
    /// The key it sets.
    pub key: String,
    /// The value as text.
    pub value: String,
}

impl Flag {
    /// Parses the value of `--set`: `section.key=value`.
    ///
    /// # Errors
    /// Text without `=`.
    pub fn parse_set(text: &str) -> Result<Flag, SettingError> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| SettingError::unexpected("section.key=value", &Input::Text(text)))?;
        Ok(Flag {
            flag: "--set".into(),
            key: key.trim().to_owned(),
            value: value.to_owned(),
        })
    }
}

/// Where configuration is read from, in rising order of precedence.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The TOML file, when one was named.
    pub file: Option<PathBuf>,
    /// The environment; variables without [`ENVIRONMENT_PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Flags in the order of the command line; the last one wins.
    pub flags: Vec<Flag>,
}

impl Sources {
    /// A file (when named), this process's environment, and flags.
    pub fn of_process(file: Option<PathBuf>, flags: Vec<Flag>) -> Sources {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with(ENVIRONMENT_PREFIX))
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
            .collect();
        Sources {
            file,
            environment,
            flags,
        }
    }
}

/// A configuration without problems and the origin of each of its values.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The effective values.
    pub config: Config,
    /// The origin of each key.
    pub origins: BTreeMap<&'static str, Origin>,
}

impl Loaded {
    /// Name, effective value and origin of every key, in the order of the reference page; secrets are hidden.
    pub fn effective(&self) -> Vec<(&'static str, String, &Origin)> {
        keys()
            .iter()
            .map(|key| (key.name, key.show(&self.config), &self.origins[key.name]))
            .collect()
    }

    /// Writes every value that is not a default to the log at `info`, and every default at `debug`.
    pub fn log_effective(&self) {
        for (key, value, origin) in self.effective() {
            match origin {
                Origin::Default => tracing::debug!(key, %value, %origin, "configuration"),
                _ => tracing::info!(key, %value, %origin, "configuration"),
            }
        }
    }
}

/// Reads every source and checks the result.
///
/// # Errors
/// Every problem of every source at once, those of the file in the order of its lines.
pub fn load(sources: &Sources) -> Result<Loaded, Problems> {
    let mut loader = Loader::new();
    if let Some(path) = &sources.file {
        loader.file(path);
    }
    loader.environment(&sources.environment);
    for flag in &sources.flags {
        let origin = Origin::Flag(flag.flag.clone());
        loader.set(&flag.key, &Input::Text(&flag.value), origin);
    }
    loader.finish()
}

struct Loader {
    keys: Vec<Key>,
    config: Config,
    origins: BTreeMap<&'static str, Origin>,
    problems: Vec<Problem>,
}

impl Loader {
    fn new() -> Loader {
        let keys = keys();
        let origins = keys.iter().map(|key| (key.name, Origin::Default)).collect();
        Loader {
            keys,
            config: Config::default(),
            origins,
            problems: Vec::new(),
        }
    }

    fn problem(&mut self, origin: Origin, key: &str, message: String, hint: Option<String>) {
        self.problems.push(Problem {
            origin,
            key: key.to_owned(),
            message,
            hint,
        });
    }

    fn set(&mut self, name: &str, input: &Input<'_>, origin: Origin) {
        let Some(key) = self.keys.iter().find(|key| key.name == name) else {
            let hint = self.nearest(name);
            self.problem(origin, name, "there is no such key".into(), hint);
            return;
        };
        match (key.set)(&mut self.config, input) {
            Ok(()) => {
                self.origins.insert(key.name, origin);
            }
            Err(error) => {
                let kind = describe(key.kind, key.unit, key.range.as_ref());
                let hint = Some(format!("{} takes: {kind}", key.name));
                self.problem(origin, name, error.to_string(), hint);
            }
        }
    }

    fn nearest(&self, name: &str) -> Option<String> {
        let section = name.split('.').next().unwrap_or_default();
        let names = self.keys.iter().map(|key| key.name);
        let best = names
            .map(|known| (strsim::damerau_levenshtein(known, name), known))
            .min_by_key(|(distance, _)| *distance)?;
        if best.0 <= 2.max(name.len() / 3) {
            return Some(format!("did you mean {}?", best.1));
        }
        let of_section: Vec<_> = self
            .keys
            .iter()
            .filter_map(|key| key.name.strip_prefix(section)?.strip_prefix('.'))
            .collect();
        (!of_section.is_empty()).then(|| format!("[{section}] has: {}", of_section.join(", ")))
    }

    fn file(&mut self, path: &Path) {
        let text = match read(path) {
            Ok(text) => text,
            Err(error) => {
                let origin = Origin::File {
                    path: path.to_owned(),
                    line: 1,
                };
                let hint = Some(
                    "name another file with --config, or leave it out to use the defaults".into(),
                );
                return self.problem(origin, "", error.to_string(), hint);
            }
        };
        let line_of = |offset: usize| Origin::File {
            path: path.to_owned(),
            line: line_at(&text, offset),
        };
        let (document, errors) = DeTable::parse_recoverable(&text);
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            self.problem(line_of(offset), "", error.message().to_owned(), None);
        }
        let mut values = Vec::new();
        for (section, value) in document.get_ref().iter() {
            let at = section.span().start;
            match value.get_ref() {
                DeValue::Array(tables) if section.get_ref() == LISTENERS => {
                    self.listeners(tables, &line_of);
                }
                DeValue::Table(table) if self.is_section(section.get_ref()) => {
                    for (key, value) in table.iter() {
                        let name = format!("{}.{}", section.get_ref(), key.get_ref());
                        values.push((key.span().start, name, value.get_ref()));
                    }
                }
                DeValue::Table(_) => {
                    let hint = nearest_section(section.get_ref());
                    let message = "there is no such section".to_owned();
                    self.problem(line_of(at), section.get_ref(), message, hint);
                }
                value => values.push((at, section.get_ref().to_string(), value)),
            }
        }
        values.sort_by_key(|(at, ..)| *at);
        for (at, name, value) in values {
            self.set(&name, &Input::Toml(value), line_of(at));
        }
    }

    /// The tables of `[[listeners]]`: each problem is told with its own line.
    fn listeners(&mut self, tables: &[Spanned<DeValue<'_>>], line_of: &impl Fn(usize) -> Origin) {
        let keys = Listener::keys();
        self.config.listeners.clear();
        for (number, table) in tables.iter().enumerate() {
            let at = line_of(table.span().start);
            if number == 0 {
                self.origins.insert(LISTENERS, at.clone());
            }
            let mut listener = Listener::default();
            let DeValue::Table(table) = table.get_ref() else {
                let message = "a listener is a table".to_owned();
                self.problem(at, LISTENERS, message, None);
                continue;
            };
            for (name, value) in table.iter() {
                let at = line_of(name.span().start);
                let (name, full) = (name.get_ref(), format!("{LISTENERS}.{}", name.get_ref()));
                let Some(key) = keys.iter().find(|key| key.name == *name) else {
                    let hint = nearest_listener_key(name, &keys);
                    self.problem(at, &full, "there is no such key".into(), Some(hint));
                    continue;
                };
                if let Err(error) = (key.set)(&mut listener, &Input::Toml(value.get_ref())) {
                    let kind = describe(key.kind, key.unit, key.range.as_ref());
                    let hint = Some(format!("{full} takes: {kind}"));
                    self.problem(at, &full, error.to_string(), hint);
                }
            }
            self.config.listeners.push(listener);
        }
    }

    fn is_section(&self, name: &str) -> bool {
        sections().iter().any(|section| section.name == name)
    }

    fn environment(&mut self, variables: &[(String, String)]) {
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix(ENVIRONMENT_PREFIX) else {
                continue;
            };
            let name = rest.to_ascii_lowercase().replacen("__", ".", 1);
            let origin = Origin::Environment(variable.clone());
            self.set(&name, &Input::Text(value), origin);
        }
    }

    fn finish(mut self) -> Result<Loaded, Problems> {
        if !self.config.listeners.is_empty() && self.origins["mqtt.listen"] == Origin::Default {
            self.config.mqtt.listen.clear();
        }
        for finding in check::findings(&self.config) {
            let origin = finding
                .keys
                .iter()
                .map(|key| self.origins[key].clone())
                .find(|origin| *origin != Origin::Default)
                .unwrap_or(Origin::Default);
            // A rule is judged on defaults where a value could not be read: that would be noise.
            let unreadable = |key: &&str| self.problems.iter().any(|problem| problem.key == **key);
            if !finding.keys.iter().any(unreadable) {
                let key = finding.keys[0];
                self.problem(origin, key, finding.message, Some(finding.hint));
            }
        }
        if !self.problems.is_empty() {
            self.problems.sort_by_key(|problem| match problem.origin {
                Origin::File { line, .. } => line,
                _ => usize::MAX,
            });
            return Err(Problems(self.problems));
        }
        Ok(Loaded {
            config: self.config,
            origins: self.origins,
        })
    }
}

fn describe(kind: &str, unit: &str, range: Option<&RangeInclusive<u64>>) -> String {
    match (range, unit) {
        (Some(range), "") => format!("a {kind} from {} to {}", range.start(), range.end()),
        (Some(range), unit) => {
            format!(
                "a {kind} of {unit} from {} to {}",
                range.start(),
                range.end()
            )
        }
        (None, _) => kind.to_owned(),
    }
}

fn nearest_listener_key(name: &str, keys: &[TableKey<Listener>]) -> String {
    let names = keys.iter().map(|key| key.name);
    let nearest = names
        .clone()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= 2.max(name.len() / 3));
    match nearest {
        Some((_, known)) => format!("did you mean {known}?"),
        None => format!("a listener has: {}", names.collect::<Vec<_>>().join(", ")),
    }
}

fn nearest_section(name: &str) -> Option<String> {
    let sections = sections();
    let nearest = sections
        .iter()
        .map(|section| {
            (
                strsim::damerau_levenshtein(section.name, name),
                section.name,
            )
        })
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= 2);
    let all: Vec<_> = sections.iter().map(|section| section.name).collect();
    Some(match nearest {
        Some((_, known)) => format!("did you mean [{known}]?"),
        None => format!("the sections are: {}", all.join(", ")),
    })
}

fn line_at(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Why a configuration file was not read.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("is larger than {LARGEST_CONFIG_FILE_BYTES} bytes: not a configuration file")]
    TooLarge,
    #[error("is not UTF-8 text")]
    NotText(#[from] std::string::FromUtf8Error),
}

fn read(path: &Path) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LARGEST_CONFIG_FILE_BYTES + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_CONFIG_FILE_BYTES {
        return Err(FileError::TooLarge);
    }
    Ok(String::from_utf8(bytes)?)
}
