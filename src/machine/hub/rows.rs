//! The rows of identities and twins, read and written by their parts.
//!
//! Invariant: a part that says what a new identity would has no row, so an identity that was only created is two rows.

use crate::base::proto::state::{self, identity_part::Part as Row};
use crate::machine::schema::{Device, Module, Part};
use crate::machine::tables::{Backing, Tables};
use crate::registry::IdentityId;
use crate::twin::{Damaged, EncodedSection, Twin};

/// A row that was read.
///
/// # Panics
/// When it is damaged, as for every other row: a replica that can't read its state must stop.
pub(super) fn readable<T>(read: Result<T, Damaged>) -> T {
    match read {
        Ok(read) => read,
        Err(error) => panic!("a row of a twin is not what this version writes: {error}"),
    }
}

fn get(tables: &Tables<'_>, id: &IdentityId, part: Part) -> Option<Row> {
    let row = match id.parts() {
        (device, "") => tables.get::<Device>((device, part)),
        (device, module) => tables.get::<Module>((device, module, part)),
    };
    row.and_then(|row| row.part)
}

fn put(tables: &mut Tables<'_>, id: &IdentityId, part: Part, row: Row) {
    let row = state::IdentityPart { part: Some(row) };
    match id.parts() {
        (device, "") => tables.put::<Device>((device, part), &row),
        (device, module) => tables.put::<Module>((device, module, part), &row),
    }
}

/// The identity.
pub(in crate::machine) fn identity(
    tables: &Tables<'_>,
    id: &IdentityId,
) -> Option<state::Identity> {
    match get(tables, id, Part::Identity)? {
        Row::Identity(identity) => Some(identity),
        _ => None,
    }
}

pub(super) fn put_identity(tables: &mut Tables<'_>, id: &IdentityId, row: &state::Identity) {
    put(tables, id, Part::Identity, Row::Identity(row.clone()));
}

/// The counters of its twin.
pub(super) fn head(tables: &Tables<'_>, id: &IdentityId) -> state::TwinHead {
    match get(tables, id, Part::Head) {
        Some(Row::Head(head)) => head,
        _ => state::TwinHead::default(),
    }
}

pub(super) fn put_head(tables: &mut Tables<'_>, id: &IdentityId, head: state::TwinHead) {
    put(tables, id, Part::Head, Row::Head(head));
}

/// A section of its twin.
pub(super) fn section(tables: &Tables<'_>, id: &IdentityId, part: Part) -> EncodedSection {
    match get(tables, id, part) {
        Some(Row::Section(section)) => EncodedSection(section),
        _ => EncodedSection::default(),
    }
}

/// Writes a section, and returns it as it is stored.
pub(super) fn put_section(
    tables: &mut Tables<'_>,
    id: &IdentityId,
    part: Part,
    section: EncodedSection,
) {
    put(tables, id, part, Row::Section(section.0));
}

/// What is known of its connections.
pub(super) fn activity(tables: &Tables<'_>, id: &IdentityId) -> state::Activity {
    match get(tables, id, Part::Activity) {
        Some(Row::Activity(activity)) => activity,
        _ => state::Activity::default(),
    }
}

pub(super) fn put_activity(tables: &mut Tables<'_>, id: &IdentityId, activity: state::Activity) {
    put(tables, id, Part::Activity, Row::Activity(activity));
}

/// Removes all rows of an identity.
pub(super) fn delete(tables: &mut Tables<'_>, id: &IdentityId) {
    for part in Part::ALL {
        match id.parts() {
            (device, "") => tables.delete::<Device>((device, part)),
            (device, module) => tables.delete::<Module>((device, module, part)),
        }
    }
}

/// The modules of a device in the order of their ids. Of each one row is read: sections are large.
pub(super) fn modules(tables: &Tables<'_>, device: &IdentityId) -> Vec<IdentityId> {
    let mut modules: Vec<IdentityId> = Vec::new();
    loop {
        let mut range = Module::of_device(device.device_id());
        if let Some((device, module)) = modules.last().map(IdentityId::parts) {
            range = range.after((device, module, Part::LAST));
        }
        let mut next = None;
        tables.scan(&range, |(device, module, _), _| {
            next = IdentityId::module(device, module).ok();
            false
        });
        match next {
            Some(module) => modules.push(module),
            None => return modules,
        }
    }
}

/// Bytes of an identity's reported properties as they are stored.
pub fn reported_bytes(backing: &dyn Backing, id: &IdentityId) -> usize {
    section_bytes(backing, id, Part::Reported)
}

/// The same of what back ends write.
pub fn back_end_bytes(backing: &dyn Backing, id: &IdentityId) -> usize {
    section_bytes(backing, id, Part::Tags) + section_bytes(backing, id, Part::Desired)
}

fn section_bytes(backing: &dyn Backing, id: &IdentityId, part: Part) -> usize {
    let row = match id.parts() {
        (device, "") => backing.row::<Device>((device, part)),
        (device, module) => backing.row::<Module>((device, module, part)),
    };
    match row.and_then(|row| row.part) {
        Some(Row::Section(section)) => section.len(),
        _ => 0,
    }
}

/// The rows of one identity, as they come.
#[derive(Default)]
pub(super) struct Gathered {
    pub identity: Option<state::Identity>,
    head: state::TwinHead,
    tags: EncodedSection,
    desired: EncodedSection,
    reported: EncodedSection,
    activity: state::Activity,
}

impl Gathered {
    pub fn add(&mut self, part: Part, row: state::IdentityPart) {
        match (part, row.part) {
            (Part::Identity, Some(Row::Identity(identity))) => self.identity = Some(identity),
            (Part::Head, Some(Row::Head(head))) => self.head = head,
            (Part::Tags, Some(Row::Section(section))) => self.tags.0 = section,
            (Part::Desired, Some(Row::Section(section))) => self.desired.0 = section,
            (Part::Reported, Some(Row::Section(section))) => self.reported.0 = section,
            (Part::Activity, Some(Row::Activity(activity))) => self.activity = activity,
            _ => {}
        }
    }

    /// There is a row of this part, which nobody looks into.
    pub fn pass_over(&mut self, part: Part) {
        if part == Part::Identity {
            self.identity.get_or_insert_default();
        }
    }

    /// The twin, if the rows had its identity. `device`: the identity of a module's device.
    pub fn into_twin(self, id: IdentityId, device: Option<state::Identity>) -> Option<Twin> {
        Some(Twin {
            id,
            identity: self.identity?,
            device,
            head: self.head,
            tags: self.tags,
            desired: self.desired,
            reported: self.reported,
            activity: self.activity,
            is_connected: false,
        })
    }
}

/// The whole twin, but for whether it is connected.
pub(super) fn twin(tables: &Tables<'_>, id: &IdentityId) -> Option<Twin> {
    let device = match id.is_module() {
        true => identity(tables, &id.of_device()),
        false => None,
    };
    Some(Twin {
        identity: identity(tables, id)?,
        device,
        head: head(tables, id),
        tags: section(tables, id, Part::Tags),
        desired: section(tables, id, Part::Desired),
        reported: section(tables, id, Part::Reported),
        activity: activity(tables, id),
        is_connected: false,
        id: id.clone(),
    })
}
