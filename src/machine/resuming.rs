//! Whether a CONNECT has to come again, because a log entry has done all that it may for others.

use super::batch::Batch;
use super::queue::received;
use super::session::{self, owner_of};
use super::will;
use crate::base::ids::SessionId;
use crate::base::proto::{command, state};

/// Whether what the session would have read, to be resumed, or what publishing its will would cost, is too much for
/// this log entry.
pub(super) fn must_wait(
    batch: &Batch<'_, '_>,
    client_id: &str,
    principal: &str,
    command: &command::OpenSession,
) -> bool {
    if batch.may_resume() && !batch.is_overdrawn() {
        return false;
    }
    let Some(row) = session::row(batch.tables, client_id) else {
        return false;
    };
    if session::check_principal(&row, principal).is_err() {
        return false;
    }
    if batch.is_overdrawn() && publishes_will(batch, client_id, &row, command) {
        return true;
    }
    let is_resumed = row.durable && !command.clean_start;
    is_resumed
        && !batch.may_resume()
        && !received::first(batch, SessionId(row.session_id), 1).is_empty()
}

/// Whether the will that a session has is published because a connection opens the session.
fn publishes_will(
    batch: &Batch<'_, '_>,
    client_id: &str,
    row: &state::Session,
    command: &command::OpenSession,
) -> bool {
    if !row.has_will {
        return false;
    }
    let is_due = row.will_at_ms != 0 && row.will_at_ms <= batch.now.0;
    let ends = command.clean_start
        || row.generation != command.generation
        || row.expiry_interval_s == 0
        || row.expires_at_ms != 0 && row.expires_at_ms <= batch.now.0;
    is_due || ends || owner_of(row).is_some() && !will::is_delayed(batch, client_id, row)
}
