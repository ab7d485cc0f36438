//! Twins as queries see them.

use std::cell::OnceCell;

use crate::base::json::{write_double, write_text};
use crate::machine::hub::{TwinParts, read};
use crate::machine::tables::Backing;
use crate::query::{Collection, ItemType, Key, Path, Query, Row, Value};
use crate::registry::IdentityId;
use crate::twin::{Damaged, Found, Twin};

/// Devices that a query may name to have them looked up in rows that apply writes meanwhile.
const MOST_LOOKED_UP: usize = 16;

/// Bytes of their sections: all of them are in memory, twice.
const MOST_LOOKED_UP_BYTES: usize = 4 << 20;

/// A twin as a row of a collection, with the parts that the query looks at. Whether it is connected is looked up when a
/// query asks for it, once.
struct TwinRow<'a> {
    twin: Twin,
    backing: &'a dyn Backing,
    /// Whether it has all parts, or those alone that the query looks at.
    is_whole: bool,
    completed: OnceCell<Twin>,
}

/// What was read of a twin. A part that cannot be read is not there; whoever reads it for itself, apply above all, ends
/// the replica.
fn readable<T: Default>(read: Result<T, Damaged>) -> T {
    read.unwrap_or_else(|error| {
        tracing::error!(%error, "a twin cannot be read");
        T::default()
    })
}

impl TwinRow<'_> {
    /// The twin, and whether it is connected. Sections are shared, not copied.
    fn completed(&self) -> &Twin {
        self.completed.get_or_init(|| {
            let mut twin = self.twin.clone();
            read::complete(self.backing, &mut twin);
            twin
        })
    }
}

/// Whether a path leads to what only [`TwinRow::completed`] knows.
fn is_of_connection(path: &Path) -> bool {
    &*path.names()[0] == "connectionState"
}

fn value(found: Found<'_>) -> Value<'_> {
    match found {
        Found::Null => Value::Null,
        Found::Bool(truth) => Value::Bool(truth),
        // Both are small enough for a double.
        Found::Integer(integer) => Value::Number(integer as f64),
        Found::Double(double) => Value::Number(double),
        Found::Text(text) => Value::Text(text),
        Found::Composite => Value::Composite,
    }
}

impl Row for TwinRow<'_> {
    fn value(&self, path: &Path) -> Value<'_> {
        if is_of_connection(path) {
            let found = readable(self.completed().find(path.names()));
            return found.map_or(Value::Undefined, value);
        }
        readable(self.twin.find(path.names())).map_or(Value::Undefined, value)
    }

    fn write(&self, path: &Path, json: &mut String) -> bool {
        let twin = match is_of_connection(path) {
            true => self.completed(),
            false => &self.twin,
        };
        let names = path.names();
        let Some(found) = readable(twin.find(names)) else {
            return false;
        };
        match found {
            Found::Composite => readable(twin.write_at(names, json)),
            Found::Null => json.push_str("null"),
            Found::Bool(truth) => json.push_str(if truth { "true" } else { "false" }),
            Found::Integer(integer) => json.push_str(&integer.to_string()),
            Found::Double(double) => write_double(json, double),
            Found::Text(text) => write_text(json, &text),
        }
        true
    }

    fn write_all(&self, json: &mut String) {
        if self.is_whole {
            return readable(self.completed().write(json));
        }
        // The rows are those of one moment: it is the same twin.
        if let Some(twin) = read::twin(self.backing, &self.twin.id) {
            readable(twin.write(json));
        }
    }
}

fn key(id: &IdentityId) -> Key {
    let (device, module) = id.parts();
    Key {
        device: device.to_owned(),
        module: module.to_owned(),
    }
}

/// The parts of each twin that a query looks at. Where it shows whole twins, but not all of them, the rest is read when
/// one passes: pages have few items.
fn parts(query: &Query) -> TwinParts {
    match query.item_type() {
        ItemType::Twin if !query.has_condition() => TwinParts::ALL,
        _ => TwinParts::of_paths(query.paths().iter().map(|path| path.names())),
    }
}

/// Visits the twins that a query looks at in the order of their keys, those after a key, until `visit` returns `false`.
/// The rows of `backing` are those of one moment.
pub(super) fn visit(
    query: &Query,
    after: Option<&Key>,
    backing: &dyn Backing,
    mut visit: impl FnMut(&Key, &dyn Row) -> bool,
) {
    visit_parts(query, after, backing, parts(query), &mut visit);
}

/// The same, with all parts of each.
#[cfg(test)]
pub(super) fn visit_whole(
    query: &Query,
    backing: &dyn Backing,
    mut visit: impl FnMut(&Key, &dyn Row) -> bool,
) {
    visit_parts(query, None, backing, TwinParts::ALL, &mut visit);
}

fn visit_parts(
    query: &Query,
    after: Option<&Key>,
    backing: &dyn Backing,
    parts: TwinParts,
    visit: &mut dyn FnMut(&Key, &dyn Row) -> bool,
) {
    twins(query, after, backing, parts, &mut |twin| {
        let key = key(&twin.id);
        let row = TwinRow {
            twin,
            backing,
            is_whole: parts == TwinParts::ALL,
            completed: OnceCell::new(),
        };
        visit(&key, &row)
    });
}

/// Twins that were looked up, each with whether it is connected.
#[derive(PartialEq)]
pub(super) struct LookedUp(Vec<Twin>);

/// Whether the rows of a query are to be looked up with [`look_up`].
pub(super) fn is_looked_up(query: &Query) -> bool {
    query
        .devices()
        .is_some_and(|devices| devices.len() <= MOST_LOOKED_UP)
}

/// The twins that a query looks at, those after a key; `None` when they are too large to hold them.
pub(super) fn look_up(
    query: &Query,
    after: Option<&Key>,
    backing: &dyn Backing,
) -> Option<LookedUp> {
    let mut found = Vec::new();
    let mut bytes = 0;
    twins(query, after, backing, TwinParts::ALL, &mut |mut twin| {
        bytes += twin.tags.0.len() + twin.desired.0.len() + twin.reported.0.len();
        read::complete(backing, &mut twin);
        found.push(twin);
        bytes <= MOST_LOOKED_UP_BYTES
    });
    (bytes <= MOST_LOOKED_UP_BYTES).then_some(LookedUp(found))
}

/// Visits them, until `visit` returns `false`.
pub(super) fn visit_looked_up(
    found: LookedUp,
    backing: &dyn Backing,
    mut visit: impl FnMut(&Key, &dyn Row) -> bool,
) {
    for twin in found.0 {
        let key = key(&twin.id);
        let completed = OnceCell::from(twin.clone());
        let row = TwinRow {
            twin,
            backing,
            is_whole: true,
            completed,
        };
        if !visit(&key, &row) {
            return;
        }
    }
}

/// Those that are looked up have all their parts, whichever are asked for.
fn twins(
    query: &Query,
    after: Option<&Key>,
    backing: &dyn Backing,
    parts: TwinParts,
    show: &mut dyn FnMut(Twin) -> bool,
) {
    // A key that is no id is of no row: it was never given out.
    let after = after.and_then(|key| IdentityId::of_parts(&key.device, &key.module).ok());
    let Some(devices) = query.devices() else {
        let collection = match query.collection() {
            Collection::Devices => read::Collection::Devices,
            Collection::Modules => read::Collection::Modules,
        };
        return read::scan(backing, collection, after.as_ref(), parts, show);
    };
    for device in devices {
        let Ok(device) = IdentityId::device(&device) else {
            continue;
        };
        let after = after.as_ref();
        let goes_on = match query.collection() {
            Collection::Devices if after.is_some_and(|after| device <= *after) => true,
            Collection::Devices => read::twin(backing, &device).is_none_or(&mut *show),
            Collection::Modules => match after {
                Some(after) if after.device_id() > device.device_id() => true,
                Some(after) if after.device_id() == device.device_id() => {
                    read::scan_device(backing, &device, Some(after), &mut *show)
                }
                _ => read::scan_device(backing, &device, None, &mut *show),
            },
        };
        if !goes_on {
            return;
        }
    }
}
