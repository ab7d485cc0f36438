//! The end of groups: what waits in one goes some at a time, so that no batch takes long.

use super::group::waiting;
use crate::machine::batch::Batch;
use crate::machine::queue::message;
use crate::machine::queue::purge::PURGE_COST;
use crate::machine::schema;
use crate::machine::schema::timer::Kind;

/// A timer asks to go on with the rows of an ended group.
pub(in crate::machine) fn go_on_purging(batch: &mut Batch<'_, '_>, subject: &[u8]) {
    if let Ok(id) = subject.try_into() {
        purge(batch, u64::from_be_bytes(id));
    }
}

/// Removes what waits in an ended group, as much as the batch's budget allows.
pub(super) fn purge(batch: &mut Batch<'_, '_>, id: u64) {
    let most = batch.allowance(PURGE_COST);
    let found = waiting(batch, id, 0, most);
    let more = found.len() == most;
    batch.spend(found.len() * PURGE_COST);
    for (number, queued) in found {
        batch.tables.delete::<schema::Waiting>((id, number));
        batch.meta.count_out(queued.size);
        message::release(batch, queued.message);
    }
    if more {
        let soon = batch.now.plus(1);
        batch.set_timer(soon, Kind::PurgeGroup, &id.to_be_bytes());
    }
}
