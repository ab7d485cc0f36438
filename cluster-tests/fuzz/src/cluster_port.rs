//! What another node sends: no panic, no overflow, nothing accepted that the layers behind could not take, and
//! forwarded messages that are read can be written and are read back as the same.

#![allow(dead_code)]

#[path = "../../../src/machine/entry.rs"]
mod entry;
#[path = "../../../src/raft/transport/identity.rs"]
pub mod identity;
#[path = "../../../src/raft/transport/wellformed.rs"]
mod wellformed;
#[path = "../../../src/forward/wire.rs"]
mod wire;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::base::ids::NodeId;
use crate::base::proto::{cluster, command, raft as pb};
use crate::peers::PeerInfo;
use crate::router::Recipients;

/// The number of this node, whose calls nobody else may make.
const OWN: u64 = 1;

/// This node, as calls find it.
pub fn own() -> identity::Identity {
    identity::Identity {
        node: NodeId(OWN),
        cluster: "f".to_owned(),
        directory: "d".to_owned(),
        address: "127.0.0.1:7883".to_owned(),
        machine: 1,
    }
}

/// The first byte chooses the message, the rest is what arrives.
pub fn message(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind % 28 {
        0 => read(bytes, append),
        1 => read(bytes, vote),
        2 => read(bytes, transfer),
        3 => read(bytes, begin),
        4 => read(bytes, part),
        5 => read(bytes, change),
        6 => read(bytes, propose),
        7 => commands(bytes),
        8 => {
            let bytes = Bytes::copy_from_slice(bytes);
            let _ = entry::Entry::decode(&bytes).map(|entry| entry.proposals.len());
        }
        9 => read(bytes, deliver),
        10 => forwarded(bytes),
        11 => metadata(bytes),
        12 => read(bytes, |_: &pb::ReadIndexRequest| {}),
        13 => read(bytes, |_: &pb::HelloRequest| {}),
        14 => read(bytes, |_: &cluster::ContactRequest| {}),
        15 => read(bytes, |_: &cluster::HandOverRequest| {}),
        16 => read(bytes, |_: &pb::AppendReply| {}),
        17 => read(bytes, |_: &pb::VoteReply| {}),
        18 => read(bytes, |_: &pb::TransferLeaderReply| {}),
        19 => read(bytes, |_: &pb::ReadIndexReply| {}),
        20 => read(bytes, |_: &pb::SnapshotStep| {}),
        21 => read(bytes, |_: &pb::HelloReply| {}),
        22 => read(bytes, |_: &pb::ChangeReply| {}),
        23 => read(bytes, |_: &cluster::ContactResponse| {}),
        24 => read(bytes, |_: &cluster::DeliverResponse| {}),
        25 => read(bytes, |_: &cluster::HandOverResponse| {}),
        26 => read(bytes, |_: &cluster::ProposeResponse| {}),
        _ => read(bytes, |_: &pb::StoredMembership| {}),
    }
}

/// What can be read can be written, and is read again as the same.
fn read<M>(bytes: &[u8], check: impl Fn(&M))
where
    M: prost::Message + Default + PartialEq + std::fmt::Debug,
{
    let Ok(message) = M::decode(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    let again = M::decode(Bytes::from(message.encode_to_vec()));
    assert!(again.as_ref() == Ok(&message), "{message:?}: {again:?}");
    check(&message);
}

/// Metadata of a call: name and value in turn, zero bytes between them. Who is let in has said that it belongs to this
/// cluster, and is who it has proved to be.
fn metadata(bytes: &[u8]) {
    let Some((flags, bytes)) = bytes.split_first() else {
        return;
    };
    let mut request = tonic::Request::new(());
    let mut parts = bytes.split(|byte| *byte == 0);
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        let name = tonic::metadata::MetadataKey::from_bytes(name);
        let value = tonic::metadata::MetadataValue::try_from(value);
        if let (Ok(name), Ok(value)) = (name, value) {
            request.metadata_mut().insert(name, value);
        }
    }
    let proven = (flags & 1 != 0).then_some(NodeId(3));
    request.extensions_mut().insert(PeerInfo { proven });
    let _ = admit(&request, flags & 2 != 0);
}

/// Lets a call in, as a node does, but for what its membership says.
///
/// # Errors
/// What the caller is told.
pub fn admit<T>(request: &tonic::Request<T>, prove: bool) -> Result<u64, tonic::Status> {
    let own = own();
    let call: identity::Call<'_> = request.into();
    let proven = request.extensions().get::<PeerInfo>();
    let proven = proven.and_then(|info| info.proven);
    let checked = identity::check_caller(&own, call, prove);
    if let Ok(from) = &checked {
        assert!(call.is_of(&own));
        assert!(proven.map_or(!prove, |proven| proven.0 == *from));
    }
    checked.map_err(|refusal| {
        let told = refusal.to_status(call, &own);
        assert!(call.is_of(&own) || told.message() == "refused");
        told
    })
}

fn believe(term: u64) {
    for known in [0, term.saturating_sub(1), term, u64::MAX] {
        if wellformed::term(term, known).is_ok() {
            assert!(term <= known.saturating_add(wellformed::MOST_TERMS_AHEAD));
            assert!(term < u64::MAX, "an election can follow");
        }
    }
}

/// Entries or a heartbeat.
pub fn append(request: &pb::AppendRequest) {
    if wellformed::append(request).is_err() {
        return;
    }
    let mut next = request.previous.map_or(0, |previous| previous.index + 1);
    for entry in &request.entries {
        assert_eq!(entry.index, next);
        next += 1;
    }
    believe(request.vote.expect("checked").term);
}

/// A candidate's question.
pub fn vote(request: &pb::VoteRequest) {
    if wellformed::vote(request).is_err() {
        return;
    }
    let vote = request.vote.expect("checked");
    let last = request.last.map_or(0, |last| last.index + 1);
    assert!(last < u64::MAX && !vote.committed);
    believe(vote.term);
}

/// A leader's order to take over.
pub fn transfer(request: &pb::TransferLeaderRequest) {
    let _ = wellformed::transfer(request);
}

fn begin(begin: &pb::SnapshotBegin) {
    if let Ok(total) = wellformed::snapshot(begin) {
        let files = begin.files.iter();
        assert_eq!(total, files.map(|file| file.bytes).sum::<u64>());
    }
}

/// A piece of a snapshot.
pub fn part(part: &pb::SnapshotPart) {
    let _ = wellformed::part(part);
    if let Some(pb::snapshot_part::Part::Begin(first)) = &part.part {
        begin(first);
    }
}

/// A change of members.
pub fn change(request: &pb::ChangeRequest) {
    if let Some(pb::change_request::Change::Join(node)) = &request.change {
        let _ = wellformed::node(node);
    }
}

/// Proposals of another node.
pub fn propose(request: &cluster::ProposeRequest) {
    commands(&request.commands);
}

/// Messages for the clients of this node.
pub fn deliver(request: &cluster::DeliverRequest) {
    forwarded(&request.messages);
}

/// What is let into the log can be decoded by every replica.
fn commands(bytes: &[u8]) {
    if entry::check_commands(bytes).is_err() {
        return;
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let command = command::Command::decode_length_delimited(&mut rest);
        assert!(command.expect("it was let in").kind.is_some());
    }
}

fn forwarded(bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok(message) = wire::Forwarded::decode(&mut rest) else {
            return;
        };
        let groups: Vec<&str> = message.groups.iter().collect();
        let recipients = Recipients {
            groups: &groups,
            only_groups: message.only_groups,
        };
        let mut written = BytesMut::new();
        wire::encode(&message.message, recipients, &mut written);
        let mut again = &written[..];
        let again = wire::Forwarded::decode(&mut again).expect("it was written");
        assert_eq!(again.message, message.message);
        assert!(again.groups.iter().eq(message.groups.iter()));
    }
}
