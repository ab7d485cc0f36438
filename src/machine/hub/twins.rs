//! Writes of twins: tags and desired properties by back ends, reported properties by the identity itself.
//!
//! What is judged, and in this order: that the identity is there, the etag or version that the request names, sizes.
//! Then everything is written, or nothing was.

use super::outcome::{DesiredChanged, HubReply, Refusal, Reported};
use super::told::Room;
use super::{DESIRED_FILTER, Writer, answers, presence, rows, spend_bytes, told};
use crate::base::ids::{ConnectionId, SessionId};
use crate::base::proto::{command, state};
use crate::events::HubOperation;
use crate::machine::batch::Batch;
use crate::machine::effect::{Output, Reply};
use crate::machine::lifecycle::Lifecycle;
use crate::machine::schema::{self, Part};
use crate::machine::session::{self, owner_of};
use crate::registry::{IdentityId, IfMatch};
use crate::twin::encoding::decode_patch;
use crate::twin::{self, EncodedSection, Members, Section, TooLarge, TwinChange, limits};

/// A section before and after a write.
struct Written {
    before: EncodedSection,
    after: EncodedSection,
    version: u64,
    /// What the identity is told.
    told: Option<(ConnectionId, String)>,
    /// For events of the hub: what was asked for, and what the section is now.
    change: Option<(Members, Section)>,
}

/// What a request for a section is about.
#[derive(Clone, Copy)]
struct Asked {
    part: Part,
    replace: bool,
    /// Somebody asks for events of patches.
    is_told: bool,
}

/// PATCH or PUT of a twin by a back end.
pub(in crate::machine) fn update(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    command: command::UpdateTwin,
) -> HubReply {
    let Ok(id) = IdentityId::of_parts(&command.device, &command.module) else {
        return HubReply::Refused(Refusal::Invalid);
    };
    if let Err(refusal) = try_update(batch, lifecycle, &id, command) {
        return HubReply::Refused(refusal);
    }
    let is_local = batch.outputs.is_local(batch.node);
    match is_local
        .then(|| presence::twin(batch.tables, &id))
        .flatten()
    {
        Some(twin) => HubReply::Twin(Box::new(twin)),
        // Nobody reads the reply on another node.
        None => HubReply::Refused(Refusal::NoDevice),
    }
}

fn try_update(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    command: command::UpdateTwin,
) -> Result<(), Refusal> {
    if rows::identity(batch.tables, id).is_none() {
        return Err(Refusal::NoDevice);
    }
    if batch.hub_budget_left() == 0 {
        return Err(Refusal::Busy);
    }
    let mut head = rows::head(batch.tables, id);
    if !IfMatch::of_command(command.if_match).allows(head.etag) {
        return Err(Refusal::Precondition);
    }
    let patch = |bytes: Option<bytes::Bytes>| {
        let patch = bytes.map(|bytes| decode_patch(&bytes));
        patch.transpose().map_err(|_| Refusal::Invalid)
    };
    let (tags, desired) = (patch(command.tags)?, patch(command.desired)?);
    if tags.is_none() && desired.is_none() {
        return Ok(());
    }
    let replace = command.replace;
    let asked = |part| Asked {
        part,
        replace,
        is_told: !replace && lifecycle.events.wants_hub_events(),
    };
    let tags = tags.map(|tags| written(batch, id, asked(Part::Tags), tags));
    let tags = tags.transpose().map_err(Refusal::TooLarge)?;
    let desired = desired.map(|desired| written(batch, id, asked(Part::Desired), desired));
    let desired = desired.transpose().map_err(Refusal::TooLarge)?;
    head.etag += 1;
    head.version += 1;
    accept(batch, lifecycle, id, head, [tags, desired, None]);
    if replace {
        let operation = HubOperation::ReplaceTwin;
        told::whole(batch, lifecycle, id, operation, &mut Room::new());
    }
    Ok(())
}

/// What becomes of a section.
fn written(
    batch: &mut Batch<'_, '_>,
    id: &IdentityId,
    asked: Asked,
    patch: Members,
) -> Result<Written, TooLarge> {
    let Asked { part, replace, .. } = asked;
    let before = rows::section(batch.tables, id, part);
    let writer = match part {
        Part::Reported => Writer::Device,
        _ => Writer::BackEnd,
    };
    spend_bytes(batch, writer, before.0.len(), 0);
    let former = rows::readable(before.decode());
    let most = match part {
        Part::Tags => limits::TAGS_SIZE,
        _ => limits::PROPERTIES_SIZE,
    };
    let observer = match part {
        Part::Desired => observer(batch, id),
        _ => None,
    };
    let wanted = asked.is_told.then(|| patch.clone());
    let (section, changes) = match replace {
        true => {
            let section = former.replaced(patch, batch.now, most)?;
            let changes = observer.map(|_| twin::difference(&former.members, &section.members));
            (section, changes)
        }
        false => {
            // What the patch says is told; it goes into the section.
            let changes = observer.map(|_| patch.clone());
            (former.merged(patch, batch.now, most)?, changes)
        }
    };
    let body = changes.map(|changes| twin::notification(&changes, section.version));
    let told = observer.zip(body);
    let after = EncodedSection::of(&section);
    Ok(Written {
        before,
        after,
        version: section.version,
        told,
        change: wanted.map(|patch| (patch, section)),
    })
}

/// Writes what a request has changed of tags, desired and reported properties, and tells the identity and those who ask
/// for events. Every accepted write of a twin comes through here.
fn accept(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    mut head: state::TwinHead,
    [mut tags, mut desired, mut reported]: [Option<Written>; 3],
) {
    for written in [&tags, &desired, &reported].into_iter().flatten() {
        let [before, after] =
            [&written.before, &written.after].map(|section| section.0.len() as u64);
        batch.meta.count_twin_bytes(before, after);
        head.bytes = (head.bytes + after).saturating_sub(before);
    }
    rows::put_head(batch.tables, id, head);
    let take = |written: &mut Option<Written>| written.as_mut()?.change.take();
    let change = TwinChange {
        version: head.version,
        tags: take(&mut tags).map(|(patch, _)| patch),
        desired: take(&mut desired),
        reported: take(&mut reported),
    };
    if change.tags.is_some() || change.desired.is_some() || change.reported.is_some() {
        told::changed(batch, lifecycle, id, &change);
    }
    for (part, written) in [(Part::Tags, tags), (Part::Reported, reported)] {
        if let Some(written) = written {
            rows::put_section(batch.tables, id, part, written.after);
        }
    }
    let Some(desired) = desired else {
        return;
    };
    let after = desired.after.clone();
    rows::put_section(batch.tables, id, Part::Desired, after);
    if let Some((connection, body)) = desired.told {
        let changed = DesiredChanged {
            connection,
            version: desired.version,
            body,
            before: desired.before,
            after: desired.after,
        };
        batch.outputs.push(Output::Desired(Box::new(changed)));
    }
}

/// The connection of this node that owns the identity's session, if the session observes desired properties.
fn observer(batch: &Batch<'_, '_>, id: &IdentityId) -> Option<ConnectionId> {
    let row = session::row(batch.tables, &id.to_string())?;
    let owner = owner_of(&row).filter(|owner| batch.outputs.has_connection(*owner))?;
    let key = (SessionId(row.session_id), DESIRED_FILTER);
    batch.tables.get::<schema::Subscription>(key)?;
    (row.generation != 0).then_some(owner.connection)
}

/// An identity patches its reported properties.
pub(in crate::machine) fn patch_reported(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    command: command::PatchReported,
) -> Reply {
    let client_id = &command.client_id;
    let owned = session::owned(batch, client_id, command.connection);
    let is_identity = owned.is_some_and(|(row, _)| row.generation != 0);
    let id = IdentityId::of_client_id(client_id);
    let Some(id) = id.ok().filter(|_| is_identity) else {
        return Reply::NotOwner;
    };
    let former = (command.dup || command.remember).then(|| rows::activity(batch.tables, &id));
    if command.dup
        && let Some(activity) = &former
        && let Some(reported) =
            answers::find(&activity.answers, &command.fingerprint, batch.meta.served())
    {
        return Reply::Hub(HubReply::Reported(reported));
    }
    let reported = match try_patch(batch, lifecycle, &id, &command) {
        Ok(version) => Reported::Patched(version),
        Err(refused) => refused,
    };
    if let Some(mut activity) = former.filter(|_| command.remember) {
        let (former, now) = (&activity.answers, batch.meta.served());
        activity.answers = answers::remember(former, &command.fingerprint, now, reported);
        rows::put_activity(batch.tables, &id, activity);
    }
    Reply::Hub(HubReply::Reported(reported))
}

fn try_patch(
    batch: &mut Batch<'_, '_>,
    lifecycle: &mut Lifecycle<'_>,
    id: &IdentityId,
    command: &command::PatchReported,
) -> Result<u64, Reported> {
    let patch = decode_patch(&command.patch).map_err(|_| Reported::Invalid)?;
    if let Some(expected) = command.expected_version {
        let head = rows::section(batch.tables, id, Part::Reported).head();
        if rows::readable(head).0 != expected {
            return Err(Reported::Precondition);
        }
    }
    let asked = Asked {
        part: Part::Reported,
        replace: false,
        is_told: lifecycle.events.wants_hub_events(),
    };
    let written = written(batch, id, asked, patch).map_err(Reported::TooLarge)?;
    let mut head = rows::head(batch.tables, id);
    head.version += 1;
    let version = written.version;
    accept(batch, lifecycle, id, head, [None, None, Some(written)]);
    Ok(version)
}
