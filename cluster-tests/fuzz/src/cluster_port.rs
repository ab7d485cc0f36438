//! What another node sends: no panic, no overflow, nothing accepted that the layers behind could not take, and
//! forwarded messages that are read can be written and are read back as the same.

#![allow(dead_code)]

#[path = "../../../src/machine/entry.rs"]
mod entry;
#[path = "../../../src/raft/transport/wellformed.rs"]
mod wellformed;
#[path = "../../../src/forward/wire.rs"]
mod wire;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::base::proto::{cluster, command, raft as pb};
use crate::router::Recipients;

/// The first byte chooses the message, the rest is what arrives.
pub fn message(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    let bytes = Bytes::copy_from_slice(bytes);
    match kind % 12 {
        0 => append(bytes),
        1 => {
            if let Ok(request) = pb::VoteRequest::decode(bytes)
                && wellformed::vote(&request).is_ok()
            {
                let vote = request.vote.expect("checked");
                let last = request.last.map_or(0, |last| last.index + 1);
                assert!(last < u64::MAX && !vote.committed);
                believe(vote.term);
            }
        }
        2 => {
            if let Ok(request) = pb::TransferLeaderRequest::decode(bytes) {
                let _ = wellformed::transfer(&request);
            }
        }
        3 => {
            if let Ok(begin) = pb::SnapshotBegin::decode(bytes)
                && let Ok(total) = wellformed::snapshot(&begin)
            {
                let files = begin.files.iter();
                assert_eq!(total, files.map(|file| file.bytes).sum::<u64>());
            }
        }
        4 => {
            if let Ok(part) = pb::SnapshotPart::decode(bytes) {
                let _ = wellformed::part(&part);
            }
        }
        5 => {
            if let Ok(request) = pb::ChangeRequest::decode(bytes)
                && let Some(pb::change_request::Change::Join(node)) = request.change
            {
                let _ = wellformed::node(&node);
            }
        }
        6 => {
            if let Ok(request) = cluster::ProposeRequest::decode(bytes) {
                commands(&request.commands);
            }
        }
        7 => commands(&bytes),
        8 => {
            let _ = entry::Entry::decode(&bytes).map(|entry| entry.proposals.len());
        }
        9 => {
            if let Ok(request) = cluster::DeliverRequest::decode(bytes) {
                forwarded(&request.messages);
            }
        }
        10 => forwarded(&bytes),
        _ => {
            let _ = cluster::ContactRequest::decode(bytes.clone());
            let _ = cluster::HandOverRequest::decode(bytes.clone());
            let _ = pb::AppendReply::decode(bytes.clone());
            let _ = pb::VoteReply::decode(bytes);
        }
    }
}

fn believe(term: u64) {
    for known in [0, term.saturating_sub(1), term, u64::MAX] {
        if wellformed::term(term, known).is_ok() {
            assert!(term <= known.saturating_add(wellformed::MOST_TERMS_AHEAD));
            assert!(term < u64::MAX, "an election can follow");
        }
    }
}

fn append(bytes: Bytes) {
    let Ok(request) = pb::AppendRequest::decode(bytes) else {
        return;
    };
    if wellformed::append(&request).is_err() {
        return;
    }
    let mut next = request.previous.map_or(0, |previous| previous.index + 1);
    for entry in &request.entries {
        assert_eq!(entry.index, next);
        next += 1;
    }
    believe(request.vote.expect("checked").term);
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
