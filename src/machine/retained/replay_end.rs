//! The end of retained replays: what they have remembered goes some rows at a time, so that no batch takes long.

use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::machine::batch::Batch;
use crate::machine::schema::timer::Kind;
use crate::machine::schema::{self, ReplayedTopic, retained_replay};

/// Row operations that forgetting a replayed topic takes.
const REPLAYED_TOPIC_COST: usize = 2;

/// A replay is known by its session and a number.
pub(super) type ReplayId = (SessionId, u64);

/// A later batch goes on with a replay.
pub(super) fn set_timer(batch: &mut Batch<'_, '_>, due: Millis, (session, number): ReplayId) {
    let subject = retained_replay::subject(session, number);
    batch.set_timer(due, Kind::RetainedReplay, &subject);
}

/// Goes on with what is left of a replay that had ended before.
pub(super) fn go_on_purging(batch: &mut Batch<'_, '_>, id: ReplayId) {
    let replay = batch.tables.get::<schema::RetainedReplay>(id);
    purge(batch, id, replay.unwrap_or_default());
}

/// Removes what is left of a replay that has ended, as much as the batch's budget allows. Nothing is left of the topics
/// before that from which it goes on.
pub(super) fn purge(batch: &mut Batch<'_, '_>, id: ReplayId, mut replay: state::RetainedReplay) {
    let most = batch.allowance(REPLAYED_TOPIC_COST);
    let mut topics = Vec::new();
    let range = ReplayedTopic::from(id.0, id.1, &replay.from);
    batch.tables.scan(&range, |(.., topic), _| {
        topics.push(topic.to_owned());
        topics.len() < most
    });
    batch.spend(topics.len() * REPLAYED_TOPIC_COST);
    for topic in &topics {
        batch.tables.delete::<ReplayedTopic>((id.0, id.1, topic));
    }
    if topics.len() < most {
        batch.tables.delete::<schema::RetainedReplay>(id);
        return;
    }
    if let Some(last) = topics.pop() {
        replay.from = last;
    }
    batch.tables.put::<schema::RetainedReplay>(id, &replay);
    let soon = batch.now.plus(1);
    set_timer(batch, soon, id);
}
