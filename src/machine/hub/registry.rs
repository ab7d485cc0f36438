//! The identity registry: creating, updating and deleting devices and modules, and the sessions that end with that.

use super::outcome::{HubReply, Refusal};
use super::told::Room;
use super::{presence, rows, told};
use crate::base::limits;
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::events::HubOperation;
use crate::machine::batch::Batch;
use crate::machine::effect::EndReason;
use crate::machine::events::Events;
use crate::machine::events::clients::Client;
use crate::machine::lifecycle::Lifecycle;
use crate::machine::retained::purge;
use crate::machine::session::{self, owner_of};
use crate::machine::tables::Tables;
use crate::registry::document::IdentityDocument;
use crate::registry::{IdentityId, IfMatch, fingerprint, messages};

/// Row operations that deleting a module with its session takes, or ending its connection, with the events of both.
const MODULE_COST: usize = 52;

/// PUT of an identity.
pub(in crate::machine) fn put(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    command: command::PutIdentity,
) -> HubReply {
    let (Ok(id), Some(fields)) = (
        IdentityId::of_parts(&command.device, &command.module),
        command.fields,
    ) else {
        return HubReply::Refused(Refusal::Invalid);
    };
    let if_match = IfMatch::of_command(command.if_match);
    let written = match if_match {
        IfMatch::Absent => create(batch, lifecycle, &id, fields, command.max_devices),
        if_match => update(batch, lifecycle, &id, fields, &if_match),
    };
    match written {
        Ok(identity) => HubReply::Identity(Box::new(document(batch, id, identity))),
        Err(refusal) => HubReply::Refused(refusal),
    }
}

/// Makes an identity and its twin. Every new identity comes through here.
fn create(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    fields: command::IdentityFields,
    max_devices: u64,
) -> Result<state::Identity, Refusal> {
    let mut device = None;
    if id.is_module() {
        let row = rows::identity(batch.tables, &id.of_device());
        device = Some(row.ok_or(Refusal::NoDevice)?);
    }
    if rows::identity(batch.tables, id).is_some() {
        return Err(Refusal::Exists);
    }
    match &mut device {
        Some(device) if device.modules >= limits::MODULES_PER_DEVICE => {
            return Err(Refusal::TooManyModules);
        }
        Some(device) => device.modules += 1,
        None if max_devices != 0 && batch.meta.devices() >= max_devices => {
            return Err(Refusal::TooManyDevices);
        }
        None => {}
    }
    // Whoever connected under the name before was no identity.
    lifecycle.end_session(batch, &id.to_string(), EndReason::IdentityRevoked);
    // And may have retained what is taken for the identity's now.
    purge::begin(batch, &messages::of(id));
    match &device {
        Some(device) => {
            rows::put_identity(batch.tables, &id.of_device(), device);
            batch.meta.count_module();
        }
        None => batch.meta.count_device(),
    }
    let new = state::Identity {
        generation: batch.meta.new_generation(),
        created_ms: batch.now.0,
        ..Default::default()
    };
    let identity = write(batch, lifecycle.events, id, new, fields);
    let head = state::TwinHead {
        etag: 1,
        version: 2,
        bytes: 0,
    };
    rows::put_head(batch.tables, id, head);
    let operation = HubOperation::CreateDeviceIdentity;
    told::whole(batch, lifecycle, id, operation, &mut Room::new());
    Ok(identity)
}

fn update(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    fields: command::IdentityFields,
    if_match: &IfMatch,
) -> Result<state::Identity, Refusal> {
    let former = existing(batch, id)?;
    if !if_match.allows(former.etag) {
        return Err(Refusal::Precondition);
    }
    // The modules of a device have its status.
    let changes_status = fields.disabled != former.disabled && !id.is_module();
    if changes_status && !affords(batch, &former) {
        return Err(Refusal::Busy);
    }
    let identity = write(batch, lifecycle.events, id, former, fields);
    let is_disabled_now = changes_status && identity.disabled;
    match is_disabled_now {
        true => end_connection(batch, lifecycle, id),
        false => end_connection_without(batch, lifecycle, id, &identity),
    }
    if changes_status {
        for module in rows::modules(batch.tables, id) {
            if is_disabled_now {
                end_connection(batch, lifecycle, &module);
            }
            let client = module.to_string();
            lifecycle.events.client_changed(batch, &client);
        }
    }
    Ok(identity)
}

/// The identity, which is to be there.
fn existing(batch: &Batch<'_, '_>, id: &IdentityId) -> Result<state::Identity, Refusal> {
    match rows::identity(batch.tables, id) {
        Some(identity) => Ok(identity),
        None if id.is_module() && rows::identity(batch.tables, &id.of_device()).is_some() => {
            Err(Refusal::NoModule)
        }
        None => Err(Refusal::NoDevice),
    }
}

/// Writes what a back end says of an identity. Every accepted write of an identity comes through here.
fn write(
    batch: &mut Batch<'_, '_>,
    events: &mut Events,
    id: &IdentityId,
    former: state::Identity,
    fields: command::IdentityFields,
) -> state::Identity {
    let status_updated_ms = match fields.disabled == former.disabled {
        true => former.status_updated_ms,
        false => batch.now.0,
    };
    let identity = state::Identity {
        generation: former.generation,
        etag: batch.meta.new_identity_etag(),
        disabled: fields.disabled,
        status_reason: fields.status_reason,
        status_updated_ms,
        authentication: fields.authentication,
        primary_key: fields.primary_key,
        secondary_key: fields.secondary_key,
        primary_thumbprint: fields.primary_thumbprint,
        secondary_thumbprint: fields.secondary_thumbprint,
        iot_edge: fields.iot_edge,
        managed_by: fields.managed_by,
        created_ms: former.created_ms,
        written_ms: batch.now.0,
        modules: former.modules,
    };
    rows::put_identity(batch.tables, id, &identity);
    events.client_changed(batch, &id.to_string());
    identity
}

/// The client that an identity is, as its events say it.
pub(in crate::machine) fn client(tables: &Tables<'_>, client_id: &str) -> Option<Client> {
    let id = IdentityId::of_client_id(client_id).ok()?;
    let identity = rows::identity(tables, &id)?;
    let device = match id.is_module() {
        true => rows::identity(tables, &id.of_device()),
        false => None,
    };
    // A module has the status of its device, and changes with it.
    let of_status = device.as_ref().unwrap_or(&identity);
    let updated_ms = identity.written_ms.max(of_status.status_updated_ms);
    Some(Client {
        created: Millis(identity.created_ms),
        updated: Millis(updated_ms),
        disabled: of_status.disabled,
    })
}

/// DELETE of an identity. What its modules and their sessions keep goes with it.
pub(in crate::machine) fn delete(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    command: command::DeleteIdentity,
) -> HubReply {
    let Ok(id) = IdentityId::of_parts(&command.device, &command.module) else {
        return HubReply::Refused(Refusal::Invalid);
    };
    let if_match = IfMatch::of_command(command.if_match);
    match try_delete(batch, lifecycle, &id, &if_match) {
        Ok(()) => HubReply::Deleted,
        Err(refusal) => HubReply::Refused(refusal),
    }
}

fn try_delete(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    if_match: &IfMatch,
) -> Result<(), Refusal> {
    if *if_match == IfMatch::Absent {
        return Err(Refusal::Precondition);
    }
    let identity = existing(batch, id)?;
    if !if_match.allows(identity.etag) {
        return Err(Refusal::Precondition);
    }
    if !affords(batch, &identity) {
        return Err(Refusal::Busy);
    }
    let mut room = Room::new();
    if id.is_module() {
        let device = id.of_device();
        if let Some(mut row) = rows::identity(batch.tables, &device) {
            row.modules = row.modules.saturating_sub(1);
            rows::put_identity(batch.tables, &device, &row);
        }
        batch.meta.uncount_modules(1);
    } else {
        let modules = rows::modules(batch.tables, id);
        batch.meta.uncount_modules(modules.len() as u64);
        for module in modules {
            remove(batch, lifecycle, &module, &mut room);
        }
        batch.meta.uncount_device();
    }
    remove(batch, lifecycle, id, &mut room);
    Ok(())
}

/// Removes one identity with its twin and its session. Every deleted identity comes through here, the modules of a
/// device included.
fn remove(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    room: &mut Room,
) {
    lifecycle.end_session(batch, &id.to_string(), EndReason::IdentityRevoked);
    let operation = HubOperation::DeleteDeviceIdentity;
    told::whole(batch, lifecycle, id, operation, room);
    let head = rows::head(batch.tables, id);
    batch.meta.count_twin_bytes(head.bytes, 0);
    rows::delete(batch.tables, id);
    purge::begin(batch, &messages::of(id));
    lifecycle.events.client_changed(batch, &id.to_string());
}

/// Whether the batch has work left for an identity and its modules; it is spent then. Nothing but commands of the hub
/// spends it, and every identity is affordable to the first of them: each has its turn soon.
fn affords(batch: &mut Batch<'_, '_>, identity: &state::Identity) -> bool {
    let cost = identity.modules as usize * MODULE_COST;
    let left = batch.hub_budget_left();
    let affords = left > 0 && cost <= left;
    if affords {
        batch.spend_for_hub(cost);
    }
    affords
}

/// Ends the connection of an identity; its session goes on.
fn end_connection(batch: &mut Batch<'_, '_>, lifecycle: &mut Lifecycle<'_>, id: &IdentityId) {
    lifecycle.disconnect(batch, &id.to_string(), EndReason::IdentityRevoked);
}

/// Ends the connection of an identity, and drops the will that one has left, if it was opened with a credential that
/// the identity has no more.
fn end_connection_without(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    identity: &state::Identity,
) {
    let row = session::row(batch.tables, &id.to_string());
    let is_live = |row: &state::Session| owner_of(row).is_some() || row.has_will;
    if let Some(row) = row.filter(is_live)
        && !fingerprint::holds(identity, &row.fingerprint)
    {
        end_connection(batch, lifecycle, id);
    }
}

/// The document that answers a write.
fn document(batch: &Batch<'_, '_>, id: IdentityId, identity: state::Identity) -> IdentityDocument {
    let presence = match batch.outputs.is_local(batch.node) {
        true => presence::of(batch.tables, &id),
        // Nobody reads it on another node.
        false => Default::default(),
    };
    IdentityDocument {
        id,
        identity,
        presence,
    }
}
