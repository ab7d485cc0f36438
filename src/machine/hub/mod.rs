//! The hub's part of the machine: identities of devices and modules, and their twins. What documents mean is decided in
//! [`crate::twin`] and [`crate::registry`]; here rows, sessions and notifications follow from it.
//!
//! Nothing is kept in memory: who observes desired properties is read from the rows of its session and subscription
//! when they are written.
//!
//! | file | |
//! |---|---|
//! | `outcome` | answers and notifications |
//! | `answers` | answers that are remembered |
//! | `rows`, `parts` | rows by their parts, and which of them a scan looks into |
//! | `presence` | who may connect, and who is connected |
//! | `registry` | creating, updating and deleting identities |
//! | `twins` | writing twins |
//! | `told` | events for those who ask |
//! | `read` | reads for the outside |
//!
//! Invariant: the generation and the etag of an identity come from counters, so neither is ever given out twice.
//! Invariant: a request that is refused changes no row.
//! Invariant: what is done with documents is counted by their bytes ([`spend_bytes`]): no entry's commands of back ends
//! take much longer than its budget. Whatever devices and modules patch, their back ends' commands have it.

mod answers;
mod outcome;
mod parts;
pub(super) mod presence;
pub(crate) mod read;
pub(super) mod registry;
mod rows;
mod told;
pub(super) mod twins;

pub use outcome::{DesiredChanged, HubReply, Refusal, Reported};
pub use parts::TwinParts;
pub use presence::has_devices;
pub use rows::{back_end_bytes, reported_bytes};

use super::batch::Batch;

/// Bytes of sections, as they are stored, that are decoded, merged and encoded while a row operation is done.
const SECTION_BYTES_PER_OPERATION: usize = 32;

/// Bytes of JSON that are written in that time.
const JSON_BYTES_PER_OPERATION: usize = 256;

/// Whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// What an entry has no work left for is refused as busy.
    BackEnd,
    /// It is never refused, because its proposal weighs what it takes. So it takes no work from those who are.
    Device,
}

/// Counts what a command has done with documents.
fn spend_bytes(batch: &mut Batch<'_, '_>, writer: Writer, sections: usize, json: usize) {
    let operations = sections / SECTION_BYTES_PER_OPERATION + json / JSON_BYTES_PER_OPERATION;
    match writer {
        Writer::BackEnd => batch.spend_for_hub(operations),
        Writer::Device => batch.spend(operations),
    }
}

/// What the topics of requests and answers begin with. Nothing that is published there goes through routing, whoever
/// publishes it, because all devices and modules subscribe to the same filters.
pub const PREFIX: &str = "$iothub/";

/// The subscription with which an identity observes its desired properties.
pub const DESIRED_FILTER: &str = "$iothub/twin/PATCH/properties/desired/#";

/// The rows of a state that counts this and has nothing else.
#[cfg(test)]
pub(crate) fn rows_of_meta(
    meta: crate::base::proto::state::Meta,
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let empty = std::collections::BTreeMap::new();
    let mut tables = super::tables::Tables::new(&empty);
    tables.put::<super::schema::Meta>((), &meta);
    rows_in(tables)
}

#[cfg(test)]
fn rows_in(tables: super::tables::Tables<'_>) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let rows = tables.into_changes().into_iter();
    rows.filter_map(|(key, change)| Some((key, change.value()?.to_vec())))
        .collect()
}

/// The rows of a state that has one identity and nothing else.
#[cfg(test)]
pub(crate) fn rows_of(
    id: &crate::registry::IdentityId,
    identity: &crate::base::proto::state::Identity,
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    rows_of_twin(id, identity, crate::twin::EncodedSection::default())
}

/// The same of one that has these desired properties.
#[cfg(test)]
pub(crate) fn rows_of_twin(
    id: &crate::registry::IdentityId,
    identity: &crate::base::proto::state::Identity,
    desired: crate::twin::EncodedSection,
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let empty = std::collections::BTreeMap::new();
    let mut tables = super::tables::Tables::new(&empty);
    rows::put_identity(&mut tables, id, identity);
    rows::put_section(&mut tables, id, super::schema::Part::Desired, desired);
    rows_in(tables)
}

/// The same of one that has something in each part: these sections, a session that is connected, and counters and
/// times other than a new one's.
#[cfg(test)]
pub(crate) fn rows_of_used_twin(
    id: &crate::registry::IdentityId,
    identity: &crate::base::proto::state::Identity,
    [tags, desired, reported]: [crate::twin::EncodedSection; 3],
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    use super::schema::Part;
    use crate::base::proto::state::{Activity, Session, TwinHead};
    let empty = std::collections::BTreeMap::new();
    let mut tables = super::tables::Tables::new(&empty);
    rows::put_identity(&mut tables, id, identity);
    let head = TwinHead {
        etag: 7,
        version: 8,
        ..TwinHead::default()
    };
    rows::put_head(&mut tables, id, head);
    for (part, section) in [
        (Part::Tags, tags),
        (Part::Desired, desired),
        (Part::Reported, reported),
    ] {
        rows::put_section(&mut tables, id, part, section);
    }
    let activity = Activity {
        connection_ms: 9_000,
        model_id: "dtmi:model;1".to_owned(),
        ..Activity::default()
    };
    rows::put_activity(&mut tables, id, activity);
    let session = Session {
        generation: identity.generation,
        owner_node: 1,
        ..Session::default()
    };
    tables.put::<super::schema::Session>(id.to_string().as_str(), &session);
    rows_in(tables)
}

/// The rows of a state that has these reported properties and nothing else.
#[cfg(test)]
pub(crate) fn rows_of_reported(
    id: &crate::registry::IdentityId,
    reported: crate::twin::EncodedSection,
) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let empty = std::collections::BTreeMap::new();
    let mut tables = super::tables::Tables::new(&empty);
    rows::put_section(&mut tables, id, super::schema::Part::Reported, reported);
    rows_in(tables)
}
