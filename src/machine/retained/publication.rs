//! What of retained messages goes into a queue before a message that is published meanwhile.

use super::page::is_owed;
use crate::base::ids::{LogIndex, SessionId};
use crate::base::proto::state;
use crate::machine::effect::ApplicationMessage;
use crate::session::MessageId;

/// A message that goes into queues, and what was retained of its topic.
pub(in crate::machine) struct Publication {
    /// The log entry that published it.
    pub index: LogIndex,
    /// Its number, when it was published by an earlier portion of what goes on now.
    pub number: Option<MessageId>,
    /// The retained message of its topic: the one before it, or the present one when it goes on.
    pub retained: Option<state::Retained>,
}

impl Publication {
    /// Whether [`Publication::before`] gives anything for any replay.
    pub fn concerns_replays(&self, message: &ApplicationMessage) -> bool {
        self.retained.is_some() || self.number.is_none() && message.retain
    }

    /// What of retained messages goes before the message into a queue, and whether the replay would find something to
    /// send all the same when it comes to the topic.
    pub fn before(
        &self,
        session: SessionId,
        replay: &state::RetainedReplay,
        message: &ApplicationMessage,
    ) -> (Option<state::Retained>, bool) {
        let row = self.retained.as_ref();
        let owed = row.filter(|row| is_owed(replay, session, row));
        if self.number.is_none() {
            let finds = match message.retain {
                false => owed.is_some(),
                true => self.index.0 <= replay.index && !message.payload.is_empty(),
            };
            return (owed.cloned(), finds);
        }
        // What was retained before may have made place: for this message, or for one that follows.
        let is_older = |row: &state::Retained| {
            row.index < self.index.0 || row.index == self.index.0 && !message.retain
        };
        let finds = owed.is_some_and(|row| is_older(row) || replay.index <= self.index.0);
        (owed.filter(|row| is_older(row)).cloned(), finds)
    }
}
