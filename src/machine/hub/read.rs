//! Reads of identities and twins for the outside. The caller has waited until this replica has applied what the read
//! must see.
//!
//! Every read here looks at several rows, and apply may write between them. Who wants what there was at one moment
//! reads from a state of one moment ([`crate::storage::StateView`]), or reads until nothing changes
//! ([`at_one_moment`]).
//!
//! Invariant: what shows identities alone reads no sections but the head of one, however large they are. A scan decodes
//! those parts alone that its caller names.

use super::parts::TwinParts;
use super::rows::Gathered;
use crate::base::proto::state;
use crate::machine::schema::{self, Device, Module, Part, Range, Table};
use crate::machine::session::owner_of;
use crate::machine::tables::Backing;
use crate::registry::IdentityId;
use crate::registry::document::IdentityDocument;
use crate::twin::Twin;

/// Devices, or modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// The twins of devices.
    Devices,
    /// The twins of modules.
    Modules,
}

/// Most readings of [`at_one_moment`]. Two are enough unless one of the rows is written meanwhile.
const MOST_READINGS: usize = 8;

/// What `read` finds at one moment in rows that may change meanwhile: it reads until it finds the same twice, which is
/// then what there was between the two. `None`: it has found something else each time.
///
/// Twins and documents of identities show every change of their rows: etags, versions and generations only rise.
pub fn at_one_moment<T: PartialEq>(read: impl Fn() -> T) -> Option<T> {
    let mut former = read();
    for _ in 1..MOST_READINGS {
        let found = read();
        if found == former {
            return Some(found);
        }
        former = found;
    }
    None
}

/// A row of a device or module.
fn row(backing: &dyn Backing, id: &IdentityId, part: Part) -> Option<state::IdentityPart> {
    match id.parts() {
        (device, "") => backing.row::<Device>((device, part)),
        (device, module) => backing.row::<Module>((device, module, part)),
    }
}

/// The identity of a device or module.
pub fn identity(backing: &dyn Backing, id: &IdentityId) -> Option<state::Identity> {
    match row(backing, id, Part::Identity)?.part? {
        state::identity_part::Part::Identity(identity) => Some(identity),
        _ => None,
    }
}

/// The twin of a device or module.
pub fn twin(backing: &dyn Backing, id: &IdentityId) -> Option<Twin> {
    let mut gathered = Gathered::default();
    let (device, module) = id.parts();
    match module {
        "" => backing.rows(&Device::of(device), |(_, part), row| {
            gathered.add(part, row.decode());
            true
        }),
        module => backing.rows(&Module::of(device, module), |(_, _, part), row| {
            gathered.add(part, row.decode());
            true
        }),
    }
    let device = match id.is_module() {
        // Without its device it is about to go, or has just come.
        true => Some(identity(backing, &id.of_device())?),
        false => None,
    };
    let mut twin = gathered.into_twin(id.clone(), device)?;
    complete(backing, &mut twin);
    Some(twin)
}

/// Fills in whether a twin is connected, which [`scan`] leaves out.
pub fn complete(backing: &dyn Backing, twin: &mut Twin) {
    let row = backing.row::<schema::Session>(&twin.id.to_string());
    twin.is_connected = row
        .is_some_and(|row| row.generation == twin.identity.generation && owner_of(&row).is_some());
}

/// The identity of a device or module as a document.
///
/// # Panics
/// When a row is damaged, as for every other row.
pub fn document(backing: &dyn Backing, id: &IdentityId) -> Option<IdentityDocument> {
    let mut gathered = Gathered::default();
    // The reported properties tell when they were written last.
    for part in [Part::Identity, Part::Reported, Part::Activity] {
        if let Some(row) = row(backing, id, part) {
            gathered.add(part, row);
        }
    }
    let mut twin = gathered.into_twin(id.clone(), None)?;
    complete(backing, &mut twin);
    let presence = super::rows::readable(twin.presence());
    Some(IdentityDocument {
        id: twin.id,
        identity: twin.identity,
        presence,
    })
}

/// The key of the first row of a range.
fn first<T: Table, K>(
    backing: &dyn Backing,
    range: &Range<T>,
    key: impl Fn(T::Key<'_>) -> K,
) -> Option<K> {
    let mut first = None;
    backing.rows(range, |found, _| {
        first = Some(key(found));
        false
    });
    first
}

/// The first devices in the order of their ids, at most `most`. `None`: `goes_on`, which is asked for each, said no.
pub fn devices(
    backing: &dyn Backing,
    most: usize,
    mut goes_on: impl FnMut() -> bool,
) -> Option<Vec<IdentityDocument>> {
    let mut found = Vec::new();
    let mut range = Range::<Device>::all();
    while found.len() < most
        && let Some(device) = first(backing, &range, |(device, _)| device.to_owned())
    {
        if !goes_on() {
            return None;
        }
        let id = IdentityId::device(&device);
        found.extend(id.ok().and_then(|id| document(backing, &id)));
        range = range.after((&device, Part::Activity));
    }
    Some(found)
}

/// The modules of a device in the order of their ids; `None` when there is no such device.
pub fn modules(backing: &dyn Backing, device: &IdentityId) -> Option<Vec<IdentityDocument>> {
    identity(backing, device)?;
    let mut found = Vec::new();
    let mut range = Module::of_device(device.device_id());
    while let Some(module) = first(backing, &range, |(_, module, _)| module.to_owned()) {
        let id = IdentityId::module(device.device_id(), &module);
        found.extend(id.ok().and_then(|id| document(backing, &id)));
        range = range.after((device.device_id(), &module, Part::Activity));
    }
    Some(found)
}

/// Visits the twins of the modules of a device, those after one of them, until `visit` returns `false`. Returns whether
/// it never did. Whether they are connected is not filled in.
pub fn scan_device(
    backing: &dyn Backing,
    device: &IdentityId,
    after: Option<&IdentityId>,
    mut visit: impl FnMut(Twin) -> bool,
) -> bool {
    let mut range = Module::of_device(device.device_id());
    if let Some((device, module)) = after.map(IdentityId::parts) {
        range = range.after((device, module, Part::Activity));
    }
    let mut goes_on = true;
    scan_modules(backing, &range, TwinParts::ALL, &mut |twin| {
        goes_on = visit(twin);
        goes_on
    });
    goes_on
}

/// Visits twins in the order of device and module, those after one of them, until `visit` returns `false`. Whether they
/// are connected is not filled in ([`complete`]): that is one more look-up for each. Parts that are not asked for are
/// as those of a new twin.
pub fn scan(
    backing: &dyn Backing,
    collection: Collection,
    after: Option<&IdentityId>,
    parts: TwinParts,
    mut visit: impl FnMut(Twin) -> bool,
) {
    match collection {
        Collection::Devices => {
            let mut range = Range::<Device>::all();
            if let Some(after) = after {
                range = range.after((after.device_id(), Part::Activity));
            }
            scan_devices(backing, &range, parts, &mut visit);
        }
        Collection::Modules => {
            let mut range = Range::<Module>::all();
            if let Some((device, module)) = after.map(IdentityId::parts) {
                range = range.after((device, module, Part::Activity));
            }
            scan_modules(backing, &range, parts, &mut visit);
        }
    }
}

fn scan_devices(
    backing: &dyn Backing,
    range: &Range<Device>,
    parts: TwinParts,
    visit: &mut dyn FnMut(Twin) -> bool,
) {
    let mut gathered = Gathered::default();
    let mut present = String::new();
    let mut goes_on = true;
    let mut show = |device: &str, gathered: Gathered| {
        let id = IdentityId::device(device);
        let twin = id.ok().and_then(|id| gathered.into_twin(id, None));
        twin.is_none_or(&mut *visit)
    };
    backing.rows(range, |(device, part), row| {
        if device != present {
            goes_on = show(&present, std::mem::take(&mut gathered));
            present.clear();
            present.push_str(device);
        }
        match parts.has(part) {
            true if goes_on => gathered.add(part, row.decode()),
            _ => gathered.pass_over(part),
        }
        goes_on
    });
    if goes_on {
        show(&present, gathered);
    }
}

fn scan_modules(
    backing: &dyn Backing,
    range: &Range<Module>,
    parts: TwinParts,
    visit: &mut dyn FnMut(Twin) -> bool,
) {
    let mut gathered = Gathered::default();
    let mut present = (String::new(), String::new());
    let mut device_row = None;
    let mut goes_on = true;
    let mut show = |(device, module): &(String, String), gathered: Gathered, row| {
        let id = IdentityId::module(device, module);
        // As for one module alone: without its device there is none.
        let twin = id.ok().zip(row);
        let twin = twin.and_then(|(id, row)| gathered.into_twin(id, Some(row)));
        twin.is_none_or(&mut *visit)
    };
    backing.rows(range, |(device, module, part), row| {
        if (device, module) != (&*present.0, &*present.1) {
            goes_on = show(&present, std::mem::take(&mut gathered), device_row.clone());
            if device != present.0 {
                let id = IdentityId::device(device);
                device_row = id.ok().and_then(|id| identity(backing, &id));
            }
            present = (device.to_owned(), module.to_owned());
        }
        match parts.has(part) {
            true if goes_on => gathered.add(part, row.decode()),
            _ => gathered.pass_over(part),
        }
        goes_on
    });
    if goes_on {
        show(&present, gathered, device_row);
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
