//! What a message of the Raft service has to be, whoever sends it: judged on the decoded message, before anything is
//! done with it.
//!
//! The Raft library takes what it is given: it counts on entries that follow each other, and adds one to indexes. So
//! what could not have come from a node that works is refused here.
//!
//! Invariant: nothing here allocates more than the message has, and no number overflows.

use std::collections::BTreeSet;

use crate::base::proto::raft as pb;

/// Terms that a message may be ahead of what this node knows. A cluster that held an election every 300 ms for forty
/// years would not come to it; and a message with the highest term there is, after which no election could follow,
/// must not be believed, whoever sends it.
pub const MOST_TERMS_AHEAD: u64 = 1 << 32;

/// Highest index and term: so far from the end of the numbers that adding to them is safe.
const HIGHEST: u64 = 1 << 62;

/// Entries of one message; the library sends 1,024 at most.
const MOST_ENTRIES: usize = 1 << 16;

/// Members of a membership, more than a Raft group should have by far.
const MOST_MEMBERS: usize = 1024;

/// Files of a snapshot: 64 MiB each, they would be 64 TiB.
const MOST_FILES: usize = 1 << 20;

/// Bytes of a chunk of a snapshot; the sender's have less.
const LARGEST_CHUNK: usize = 16 << 20;

/// Longest `host:port`: a DNS name, brackets and a port.
const LONGEST_ADDRESS: usize = 300;

/// A UUID as text, in whatever form.
const LONGEST_DIRECTORY: usize = 64;

/// A message that no working node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IllFormed(pub &'static str);

fn require(holds: bool, otherwise: &'static str) -> Result<(), IllFormed> {
    match holds {
        true => Ok(()),
        false => Err(IllFormed(otherwise)),
    }
}

/// Whether `term` may be believed by a node that knows `known`.
///
/// # Errors
/// When it is too far ahead.
pub fn term(term: u64, known: u64) -> Result<(), IllFormed> {
    let highest = known.saturating_add(MOST_TERMS_AHEAD).min(HIGHEST);
    require(term <= highest, "the term is impossibly high")
}

fn id(id: Option<&pb::LogId>, vote: &pb::Vote) -> Result<(), IllFormed> {
    let Some(id) = id else {
        return Ok(());
    };
    require(id.index <= HIGHEST, "a log index is impossibly high")?;
    require(
        id.term <= vote.term,
        "a log id is of a term that has yet to come",
    )
}

fn some(vote: Option<&pb::Vote>) -> Result<&pb::Vote, IllFormed> {
    vote.ok_or(IllFormed("there is no vote"))
}

/// Entries of a leader, or its heartbeat.
///
/// # Errors
/// What is wrong with it.
pub fn append(request: &pb::AppendRequest) -> Result<(), IllFormed> {
    let vote = some(request.vote.as_ref())?;
    let previous = request.previous.as_ref();
    id(previous, vote)?;
    id(request.committed.as_ref(), vote)?;
    require(
        request.entries.len() <= MOST_ENTRIES,
        "there are too many entries",
    )?;
    let mut term = previous.map_or(0, |id| id.term);
    let first = previous.map_or(0, |id| id.index.saturating_add(1));
    for (index, entry) in (first..).zip(&request.entries) {
        require(entry.index == index, "the entries do not follow each other")?;
        require(
            (term..=vote.term).contains(&entry.term),
            "the terms of the entries do not rise up to the leader's",
        )?;
        term = entry.term;
    }
    Ok(())
}

/// A candidate's question.
///
/// # Errors
/// What is wrong with it.
pub fn vote(request: &pb::VoteRequest) -> Result<(), IllFormed> {
    let vote = some(request.vote.as_ref())?;
    require(!vote.committed, "a candidate has no majority yet")?;
    id(request.last.as_ref(), vote)
}

/// A leader's order to take over.
///
/// # Errors
/// What is wrong with it.
pub fn transfer(request: &pb::TransferLeaderRequest) -> Result<(), IllFormed> {
    let vote = some(request.from.as_ref())?;
    id(request.last.as_ref(), vote)
}

/// A member.
///
/// # Errors
/// What is wrong with it.
pub fn node(node: &pb::Node) -> Result<(), IllFormed> {
    require(node.id != 0, "no node has number 0")?;
    require(
        node.address.len() <= LONGEST_ADDRESS && node.address.is_ascii(),
        "a node's address is no host:port",
    )?;
    let directory = &node.directory;
    require(
        directory.len() <= LONGEST_DIRECTORY && directory.is_ascii(),
        "a data directory is named by a UUID",
    )
}

fn membership(membership: &pb::Membership) -> Result<(), IllFormed> {
    require(
        membership.nodes.len() <= MOST_MEMBERS && membership.configs.len() <= 2,
        "the membership is impossibly large",
    )?;
    for voters in &membership.configs {
        require(
            voters.nodes.len() <= MOST_MEMBERS,
            "the membership is impossibly large",
        )?;
    }
    membership.nodes.iter().try_for_each(node)
}

/// The beginning of a snapshot: its list of files. Returns how many bytes they have together.
///
/// # Errors
/// What is wrong with it.
pub fn snapshot(begin: &pb::SnapshotBegin) -> Result<u64, IllFormed> {
    let vote = some(begin.vote.as_ref())?;
    if let Some(meta) = &begin.meta {
        id(meta.last.as_ref(), vote)?;
        if let Some(stored) = &meta.membership {
            id(stored.log_id.as_ref(), vote)?;
            stored.membership.as_ref().map_or(Ok(()), membership)?;
        }
    }
    require(begin.files.len() <= MOST_FILES, "there are too many files")?;
    let mut names = BTreeSet::new();
    let mut bytes = 0_u64;
    for file in &begin.files {
        require(names.insert(file.name.as_str()), "two files have one name")?;
        bytes = bytes
            .checked_add(file.bytes)
            .ok_or(IllFormed("the files are impossibly large"))?;
    }
    Ok(bytes)
}

/// What follows the beginning of a snapshot.
///
/// # Errors
/// When it is larger than any sender makes it.
pub fn part(part: &pb::SnapshotPart) -> Result<(), IllFormed> {
    match &part.part {
        Some(pb::snapshot_part::Part::Chunk(chunk)) => {
            require(chunk.data.len() <= LARGEST_CHUNK, "a chunk is too large")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote_in(term: u64) -> pb::Vote {
        pb::Vote {
            term,
            node: 1,
            committed: true,
        }
    }

    fn append_of(previous: Option<(u64, u64)>, entries: &[(u64, u64)]) -> pb::AppendRequest {
        let entry = |(term, index): &(u64, u64)| pb::Entry {
            term: *term,
            index: *index,
            ..pb::Entry::default()
        };
        pb::AppendRequest {
            vote: Some(vote_in(5)),
            previous: previous.map(|(term, index)| pb::LogId { term, index }),
            entries: entries.iter().map(entry).collect(),
            ..pb::AppendRequest::default()
        }
    }

    #[test]
    fn entries_follow_each_other_and_their_terms_rise() {
        for (previous, entries) in [
            (None, &[][..]),
            (None, &[(0, 0), (1, 1)]),
            (Some((3, 7)), &[(3, 8), (4, 9), (5, 10)]),
            (Some((5, HIGHEST)), &[(5, HIGHEST + 1)]),
        ] {
            assert_eq!(append(&append_of(previous, entries)), Ok(()));
        }
        for (previous, entries) in [
            (None, &[(1, 1)][..]),
            (Some((3, 7)), &[(3, 7)]),
            (Some((3, 7)), &[(3, 8), (3, 10)]),
            (Some((3, 7)), &[(2, 8)]),
            (Some((3, 7)), &[(6, 8)]),
            (Some((3, u64::MAX)), &[]),
            (Some((6, 7)), &[]),
        ] {
            assert!(
                append(&append_of(previous, entries)).is_err(),
                "{entries:?}"
            );
        }
        let mut ahead = append_of(None, &[]);
        ahead.committed = Some(pb::LogId {
            term: 5,
            index: u64::MAX,
        });
        assert!(append(&ahead).is_err());
        ahead.vote = None;
        assert!(append(&ahead).is_err());
    }

    #[test]
    fn a_term_beyond_every_election_is_not_believed() {
        assert_eq!(term(7, 7), Ok(()));
        assert_eq!(term(0, 9), Ok(()), "an old one is answered");
        assert_eq!(term(MOST_TERMS_AHEAD, 0), Ok(()));
        assert!(term(MOST_TERMS_AHEAD + 1, 0).is_err());
        assert!(term(u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn files_of_a_snapshot_are_counted_without_overflow() {
        let file = |name: &str, bytes| pb::SnapshotFile {
            name: name.to_owned(),
            bytes,
            crc32c: None,
        };
        let begin = |files| pb::SnapshotBegin {
            vote: Some(vote_in(5)),
            files,
            ..pb::SnapshotBegin::default()
        };
        assert_eq!(snapshot(&begin(vec![file("a", 3), file("b", 4)])), Ok(7));
        assert!(snapshot(&begin(vec![file("a", 3), file("a", 4)])).is_err());
        let huge = begin(vec![file("a", u64::MAX), file("b", 1)]);
        assert!(snapshot(&huge).is_err());
    }
}
