//! Raft's log over the log on disk.
//!
//! It only translates: the library keeps Raft's rules, [`crate::storage`] keeps those of durability.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use openraft::OptionalSend;
use openraft::alias::{LogIdOf, VoteOf};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};

use super::encoding;
use super::type_config::{Entry, LogId, TypeConfig};
use crate::storage::{GroupLog, Mark};

/// Bytes of entries one replication message carries at most.
const READ_BYTES: usize = 1 << 20;

/// The log of one group. Clones read and write the same log.
#[derive(Clone)]
pub struct LogStore {
    log: GroupLog,
}

impl LogStore {
    /// The library's view of `log`.
    pub fn new(log: GroupLog) -> Self {
        LogStore { log }
    }

    async fn read(&self, start: u64, end: u64, bytes: usize) -> io::Result<Vec<Entry>> {
        let records = self.log.read(start, end, bytes).await;
        let entries = records.into_iter().map(encoding::record_from);
        Ok(entries.collect::<Result<_, _>>()?)
    }
}

/// First index of a range, and the index after its last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

/// As much of a stored committed log id as the log bears out; `None` when that is nothing, and the start then goes by
/// what is applied.
///
/// A mark past the log's end is cut to the last entry only when both are of one term, because a term has one leader
/// and so one log. A last entry of an earlier term may never have been committed.
fn usable_committed(
    committed: Option<LogId>,
    purged: Option<LogId>,
    last: Option<LogId>,
) -> Option<LogId> {
    let committed = committed?;
    if purged.is_some_and(|purged| committed.index <= purged.index) {
        return Some(committed);
    }
    let last = last?;
    let (term, last_term) = (encoding::term_of(&committed), encoding::term_of(&last));
    if committed.index <= last.index && term <= last_term {
        return Some(committed);
    }
    (term == last_term).then_some(last)
}

/// First and last of `log` as the library knows them.
fn log_state(log: &GroupLog) -> Result<LogState<TypeConfig>, encoding::Malformed> {
    let bounds = log.bounds();
    let purged = bounds.purged.map(encoding::log_id_from_bytes).transpose()?;
    let last = bounds
        .last
        .map(|(term, index)| encoding::log_id(term, index));
    Ok(LogState {
        last_purged_log_id: purged,
        last_log_id: last.or(purged),
    })
}

/// The stored committed log id, as far as the log bears it out. See [`usable_committed`].
pub fn committed(log: &GroupLog) -> Result<Option<LogId>, encoding::Malformed> {
    let committed = log.committed().map(encoding::log_id_from_bytes);
    let committed = committed.transpose()?;
    let state = log_state(log)?;
    let usable = usable_committed(committed, state.last_purged_log_id, state.last_log_id);
    if usable != committed {
        tracing::warn!(
            stored = ?committed,
            last = ?state.last_log_id,
            usable = ?usable,
            "the stored committed log id is past the log: starting from what the log proves"
        );
    }
    Ok(usable)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        self.read(start, end, usize::MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<TypeConfig>>> {
        let Some(bytes) = self.log.vote() else {
            return Ok(None);
        };
        let vote =
            prost::Message::decode(bytes).map_err(|_| encoding::Malformed { what: "vote" })?;
        Ok(Some(encoding::vote_from(&vote)))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_BYTES).await
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl futures::Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        let log = self.clone();
        // Read in chunks: after a restart the range may be millions of entries.
        let chunks = futures::stream::try_unfold((log, start), move |(log, start)| async move {
            if start >= end {
                return Ok(None);
            }
            let entries = log.read(start, end, READ_BYTES).await?;
            let Some(last) = entries.last() else {
                return Ok(None);
            };
            let next = last.log_id.index + 1;
            let chunk = futures::stream::iter(entries.into_iter().map(Ok));
            Ok::<_, io::Error>(Some((chunk, (log, next))))
        });
        Box::pin(futures::TryStreamExt::try_flatten(chunks))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        Ok(log_state(&self.log)?)
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<TypeConfig>) -> io::Result<()> {
        let bytes = prost::Message::encode_to_vec(&encoding::vote_to(vote));
        self.log.save_vote(bytes.into()).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        self.log.save_committed(committed.as_ref().map(|id| Mark {
            term: encoding::term_of(id),
            index: id.index,
            log_id: encoding::log_id_to_bytes(id),
        }));
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<TypeConfig>>> {
        Ok(committed(&self.log)?)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries.into_iter().map(|entry| encoding::record_to(&entry));
        let records = records.collect();
        self.log
            .append(records, Box::new(move || callback.io_completed(Ok(()))))
            .await
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<TypeConfig>>) -> io::Result<()> {
        self.log
            .truncate(last.map_or(0, |last| last.index + 1))
            .await
    }

    async fn purge(&mut self, upto: LogIdOf<TypeConfig>) -> io::Result<()> {
        self.log
            .purge(upto.index, encoding::log_id_to_bytes(&upto))
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, index: u64) -> Option<LogId> {
        Some(encoding::log_id(term, index))
    }

    #[test]
    fn a_stored_mark_is_used_as_far_as_the_log_bears_it_out() {
        let cases = [
            ("nothing stored", None, None, id(2, 9), None),
            ("within the log", id(2, 7), id(1, 3), id(2, 9), id(2, 7)),
            ("of an earlier term", id(1, 7), None, id(2, 9), id(1, 7)),
            ("purged", id(1, 3), id(1, 3), None, id(1, 3)),
            (
                "past the end of one term",
                id(2, 12),
                None,
                id(2, 9),
                id(2, 9),
            ),
            (
                "past the end of another term",
                id(3, 12),
                None,
                id(2, 9),
                None,
            ),
            ("another entry at its place", id(3, 7), None, id(2, 9), None),
            ("no log", id(1, 7), None, None, None),
        ];
        for (what, committed, purged, last, usable) in cases {
            assert_eq!(usable_committed(committed, purged, last), usable, "{what}");
        }
    }
}
