//! Connections of identities: who is let in, and what is kept of connecting and disconnecting.
//!
//! Invariant: a session with a generation is that of the identity that has its client id and this generation. Deleting
//! the identity ends the session in the same command, so no identity ever finds the session of a former one.

use super::rows;
use crate::base::proto::{command, state};
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::machine::session;
use crate::machine::tables::{Backing, Tables};
use crate::registry::document::Presence;
use crate::registry::{IdentityId, fingerprint};
use crate::twin::Twin;

/// The client may not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct NotAdmitted;

/// Whether a CONNECT may open its session: one of the hub only for an identity that is there, has the generation that
/// was proved, is enabled, and holds the credential that was shown; any other one only under a client id that is no
/// identity's.
pub(in crate::machine) fn admit(
    batch: &Batch<'_, '_>,
    client_id: &str,
    command: &command::OpenSession,
) -> Result<(), NotAdmitted> {
    if command.generation == 0 {
        return match batch.meta.devices() > 0 && is_identity(batch, client_id) {
            true => Err(NotAdmitted),
            false => Ok(()),
        };
    }
    let id = IdentityId::of_client_id(client_id).map_err(|_| NotAdmitted)?;
    let identity = rows::identity(batch.tables, &id).ok_or(NotAdmitted)?;
    let is_disabled = match id.is_module() {
        true => rows::identity(batch.tables, &id.of_device()).is_none_or(|row| row.disabled),
        false => identity.disabled,
    };
    let is_proved = identity.generation == command.generation
        && fingerprint::holds(&identity, &command.fingerprint);
    match is_proved && !is_disabled {
        true => Ok(()),
        false => Err(NotAdmitted),
    }
}

/// Whether the cluster has devices, whatever this node's configuration says.
pub fn has_devices(backing: &dyn Backing) -> bool {
    let meta = backing.row::<schema::Meta>(());
    meta.is_some_and(|meta| meta.devices > 0)
}

fn is_identity(batch: &Batch<'_, '_>, client_id: &str) -> bool {
    let id = IdentityId::of_client_id(client_id);
    id.is_ok_and(|id| rows::identity(batch.tables, &id).is_some())
}

/// A connection owns an identity's session from now on.
pub(in crate::machine) fn connected(
    batch: &mut Batch<'_, '_>,
    client_id: &str,
    model_id: Option<String>,
) {
    if let Ok(id) = IdentityId::of_client_id(client_id) {
        let former = rows::activity(batch.tables, &id);
        let activity = state::Activity {
            connection_ms: batch.now.0,
            model_id: model_id.unwrap_or(former.model_id),
            answers: former.answers,
        };
        rows::put_activity(batch.tables, &id, activity);
    }
}

/// No connection owns the session `row` any more.
pub(in crate::machine) fn disconnected(
    batch: &mut Batch<'_, '_>,
    client_id: &str,
    row: &state::Session,
) {
    if row.generation != 0 {
        connected(batch, client_id, None);
    }
}

/// The whole twin of an identity.
pub(super) fn twin(tables: &Tables<'_>, id: &IdentityId) -> Option<Twin> {
    let mut twin = rows::twin(tables, id)?;
    let row = session::row(tables, &id.to_string());
    twin.is_connected = row.is_some_and(|row| {
        row.generation == twin.identity.generation && session::owner_of(&row).is_some()
    });
    Some(twin)
}

/// What the document of an identity says of its connections.
pub(super) fn of(tables: &Tables<'_>, id: &IdentityId) -> Presence {
    let presence = twin(tables, id).map(|twin| rows::readable(twin.presence()));
    presence.unwrap_or_default()
}
