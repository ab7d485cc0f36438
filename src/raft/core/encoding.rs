//! The Raft library's types as protobuf messages (`proto/raft.proto`), on the wire and on disk.
//!
//! `*_to` encodes, `*_from` decodes. Invariant: decoding never panics; what makes no sense is [`Malformed`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message;

use super::type_config::{
    Batch, Entry, LogId, Membership, NodeInfo, Payload, SnapshotMeta, StoredMembership, Term, Vote,
};
use crate::base::proto::raft as pb;
use crate::storage::Record;

/// Kinds of entries; for ever.
const KIND_BLANK: u8 = 0;
const KIND_BATCH: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

/// A message or stored value that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}")]
pub struct Malformed {
    /// What was being read.
    pub what: &'static str,
}

impl From<Malformed> for tonic::Status {
    fn from(error: Malformed) -> Self {
        tonic::Status::invalid_argument(error.to_string())
    }
}

impl From<Malformed> for std::io::Error {
    fn from(error: Malformed) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

fn malformed<T>(what: &'static str) -> Result<T, Malformed> {
    Err(Malformed { what })
}

pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(Term::new(term), index)
}

pub fn term_of(id: &LogId) -> u64 {
    id.leader_id.term
}

pub fn log_id_to(id: &LogId) -> pb::LogId {
    pb::LogId {
        term: term_of(id),
        index: id.index,
    }
}

pub fn log_id_from(id: &pb::LogId) -> LogId {
    log_id(id.term, id.index)
}

pub fn log_id_to_bytes(id: &LogId) -> Bytes {
    log_id_to(id).encode_to_vec().into()
}

pub fn log_id_from_bytes(bytes: Bytes) -> Result<LogId, Malformed> {
    let id = pb::LogId::decode(bytes).map_err(|_| Malformed { what: "log id" })?;
    Ok(log_id_from(&id))
}

pub fn vote_to(vote: &Vote) -> pb::Vote {
    let leader = &vote.leader_id;
    pb::Vote {
        term: leader.term,
        node: leader.voted_for,
        committed: vote.committed,
    }
}

pub fn vote_from(vote: &pb::Vote) -> Vote {
    if vote.committed {
        Vote::new_committed(vote.term, vote.node)
    } else {
        Vote::new(vote.term, vote.node)
    }
}

pub fn some_vote(vote: &Option<pb::Vote>) -> Result<Vote, Malformed> {
    match vote {
        Some(vote) => Ok(vote_from(vote)),
        None => malformed("vote"),
    }
}

pub fn membership_to(membership: &Membership) -> pb::Membership {
    let configs = membership
        .get_joint_config()
        .iter()
        .map(|voters| pb::Voters {
            nodes: voters.iter().copied().collect(),
        });
    let nodes = membership.nodes().map(|(id, node)| pb::Node {
        id: *id,
        address: node.address.clone(),
        directory: node.directory.clone(),
    });
    pb::Membership {
        configs: configs.collect(),
        nodes: nodes.collect(),
    }
}

pub fn membership_from(membership: pb::Membership) -> Result<Membership, Malformed> {
    let configs: Vec<BTreeSet<u64>> = membership
        .configs
        .into_iter()
        .map(|voters| voters.nodes.into_iter().collect())
        .collect();
    let nodes: BTreeMap<u64, NodeInfo> = membership
        .nodes
        .into_iter()
        .map(|node| {
            let info = NodeInfo {
                address: node.address,
                directory: node.directory,
            };
            (node.id, info)
        })
        .collect();
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|_| Malformed { what: "membership" })
}

pub fn stored_to(stored: &StoredMembership) -> pb::StoredMembership {
    pb::StoredMembership {
        log_id: stored.log_id().as_ref().map(log_id_to),
        membership: Some(membership_to(stored.membership())),
    }
}

pub fn stored_from(stored: pb::StoredMembership) -> Result<StoredMembership, Malformed> {
    let membership = membership_from(stored.membership.unwrap_or_default())?;
    Ok(StoredMembership::new(
        stored.log_id.as_ref().map(log_id_from),
        membership,
    ))
}

pub fn stored_from_bytes(bytes: Bytes) -> Result<StoredMembership, Malformed> {
    let stored =
        pb::StoredMembership::decode(bytes).map_err(|_| Malformed { what: "membership" })?;
    stored_from(stored)
}

pub fn meta_to(meta: &SnapshotMeta) -> pb::SnapshotMeta {
    pb::SnapshotMeta {
        last: meta.last_log_id.as_ref().map(log_id_to),
        membership: Some(stored_to(&meta.last_membership)),
    }
}

pub fn meta_from(meta: pb::SnapshotMeta) -> Result<SnapshotMeta, Malformed> {
    Ok(SnapshotMeta {
        last_log_id: meta.last.as_ref().map(log_id_from),
        last_membership: stored_from(meta.membership.unwrap_or_default())?,
    })
}

fn payload_to(payload: &Payload) -> (u8, Bytes) {
    match payload {
        Payload::Blank => (KIND_BLANK, Bytes::new()),
        Payload::Normal(batch) => (KIND_BATCH, batch.0.clone()),
        Payload::Membership(membership) => (
            KIND_MEMBERSHIP,
            membership_to(membership).encode_to_vec().into(),
        ),
    }
}

fn payload_from(kind: u32, bytes: Bytes) -> Result<Payload, Malformed> {
    if kind == u32::from(KIND_BATCH) {
        Ok(Payload::Normal(Batch(bytes)))
    } else if kind == u32::from(KIND_BLANK) {
        Ok(Payload::Blank)
    } else if kind == u32::from(KIND_MEMBERSHIP) {
        let membership =
            pb::Membership::decode(bytes).map_err(|_| Malformed { what: "membership" })?;
        Ok(Payload::Membership(membership_from(membership)?))
    } else {
        malformed("kind of entry")
    }
}

pub fn record_to(entry: &Entry) -> Record {
    let (kind, payload) = payload_to(&entry.payload);
    Record {
        index: entry.log_id.index,
        term: term_of(&entry.log_id),
        kind,
        payload,
    }
}

pub fn record_from(record: Record) -> Result<Entry, Malformed> {
    Ok(Entry {
        log_id: log_id(record.term, record.index),
        payload: payload_from(u32::from(record.kind), record.payload)?,
    })
}

pub fn entry_to(entry: &Entry) -> pb::Entry {
    let (kind, payload) = payload_to(&entry.payload);
    pb::Entry {
        term: term_of(&entry.log_id),
        index: entry.log_id.index,
        kind: u32::from(kind),
        payload,
    }
}

pub fn entry_from(entry: pb::Entry) -> Result<Entry, Malformed> {
    Ok(Entry {
        log_id: log_id(entry.term, entry.index),
        payload: payload_from(entry.kind, entry.payload)?,
    })
}
