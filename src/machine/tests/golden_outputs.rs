//! Outputs as bytes that no renaming changes.

use crate::machine::effect::{ApplicationMessage, Change, Output, Reply};

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn optional(number: Option<impl Into<u64>>) -> u64 {
    number.map_or(u64::MAX, Into::into)
}

fn put_message(out: &mut Vec<u8>, message: &ApplicationMessage) {
    put_bytes(out, message.topic.as_bytes());
    put_bytes(out, &message.payload);
    put_bytes(out, &message.properties);
    put_numbers(
        out,
        &[
            message.qos as u64,
            message.retain.into(),
            optional(message.expires_at.map(|at| at.0)),
            optional(message.publisher.map(|session| session.0)),
        ],
    );
}

fn put_reply(out: &mut Vec<u8>, reply: &Reply) {
    match reply {
        Reply::Done => out.push(0),
        Reply::NotOwner => out.push(1),
        Reply::Opened {
            session,
            present,
            durable,
            received,
        } => {
            out.push(2);
            put_numbers(out, &[session.0, (*present).into(), (*durable).into()]);
            received
                .iter()
                .for_each(|packet_id| put_numbers(out, &[(*packet_id).into()]));
        }
        Reply::Subscribed { index, new, .. } => {
            out.push(3);
            put_numbers(out, &[index.0]);
            new.iter().for_each(|new| out.push((*new).into()));
        }
        Reply::Unsubscribed(removed) => {
            out.push(4);
            removed
                .iter()
                .for_each(|removed| out.push((*removed).into()));
        }
        Reply::Published { matched } => out.extend([5, (*matched).into()]),
        Reply::QuotaExceeded => out.push(6),
        Reply::NotNow => out.push(13),
        Reply::Relayed(index) => {
            out.push(8);
            put_numbers(out, &[index.0]);
        }
        Reply::Store(reply) => {
            out.push(7);
            reply.encode(out);
        }
        Reply::NotAuthorized => out.push(10),
        Reply::Directory(reply) => {
            out.push(11);
            put_bytes(out, format!("{reply:?}").as_bytes());
        }
        Reply::Hub(reply) => {
            out.push(13);
            put_bytes(out, format!("{reply:?}").as_bytes());
        }
        Reply::Events(reply) => {
            out.push(12);
            put_bytes(out, format!("{reply:?}").as_bytes());
        }
        Reply::Undecodable => out.push(8),
        Reply::HashesState(index) => {
            out.push(9);
            put_numbers(out, &[index.0]);
        }
    }
}

/// An output as bytes that no renaming changes.
pub(super) fn put_output(out: &mut Vec<u8>, output: &Output) {
    match output {
        // A proposal's sequence is that of the `ProposalApplied` that follows.
        Output::Reply {
            incarnation, reply, ..
        } => {
            out.push(0);
            put_numbers(out, &[incarnation.0]);
            put_reply(out, reply);
        }
        Output::NodesChanged => out.push(1),
        Output::HashRoundChanged(round) => {
            out.push(16);
            put_numbers(out, &[round.index, round.nodes.len() as u64]);
        }
        Output::DirectoryChanged(changed) => {
            out.push(17);
            put_numbers(out, &[changed.kind as u64, changed.entry.is_some().into()]);
            put_bytes(out, changed.name.as_bytes());
            if let Some(entry) = &changed.entry {
                put_numbers(out, &[entry.version, entry.expires_at_ms]);
                put_bytes(out, &entry.value);
            }
        }
        Output::Desired(changed) => {
            out.push(21);
            put_numbers(out, &[changed.connection.0, changed.version]);
            put_bytes(out, changed.body.as_bytes());
            put_bytes(out, &changed.before.0);
            put_bytes(out, &changed.after.0);
        }
        Output::ProposalApplied {
            incarnation,
            sequence,
        } => {
            out.push(2);
            put_numbers(out, &[incarnation.0, *sequence]);
        }
        Output::ProposalGap {
            incarnation,
            expected,
        } => {
            out.push(3);
            put_numbers(out, &[incarnation.0, *expected]);
        }
        Output::ProposalRefused {
            incarnation,
            sequence,
        } => {
            out.push(90);
            put_numbers(out, &[incarnation.0, *sequence]);
        }
        Output::Skipped { index, what } => {
            out.push(91);
            put_numbers(out, &[index.0]);
            put_bytes(out, format!("{what:?}").as_bytes());
        }
        Output::IncarnationRefused { refused, known } => {
            out.push(4);
            put_numbers(out, &[refused.0, known.0]);
        }
        Output::End { connection, reason } => {
            out.push(5);
            put_numbers(out, &[connection.0, *reason as u64]);
        }
        Output::Notify {
            connection,
            key,
            change,
        } => {
            out.push(6);
            put_numbers(out, &[connection.0]);
            put_bytes(out, key);
            match change {
                Change::Set { value, version } => {
                    put_bytes(out, value);
                    put_bytes(out, version.to_string().as_bytes());
                }
                Change::Delete { version } => put_bytes(out, version.to_string().as_bytes()),
            }
        }
        Output::Publish {
            message, expiry_s, ..
        } => {
            out.push(7);
            put_message(out, message);
            put_numbers(out, &[optional(*expiry_s)]);
        }
        Output::Send {
            connection,
            retain,
            expiry_s,
            identifiers,
            message,
        } => {
            out.push(8);
            put_numbers(out, &[connection.0, (*retain).into(), optional(*expiry_s)]);
            identifiers
                .iter()
                .for_each(|identifier| put_numbers(out, &[(*identifier).into()]));
            put_message(out, message);
        }
        Output::Deliver(granted) => {
            out.push(9);
            put_numbers(
                out,
                &[
                    granted.connection.0,
                    granted.sequence.0,
                    granted.qos as u64,
                    granted.dup.into(),
                    granted.retain.into(),
                    optional(granted.expiry_s),
                ],
            );
            granted
                .identifiers
                .iter()
                .for_each(|identifier| put_numbers(out, &[(*identifier).into()]));
            put_message(out, &granted.message);
        }
        Output::SendPubRel {
            connection,
            sequence,
        } => {
            out.push(10);
            put_numbers(out, &[connection.0, sequence.0]);
        }
        Output::Relayed(batch) => {
            out.push(13);
            put_numbers(out, &[batch.from.0, batch.incarnation.0, batch.sequence]);
            out.extend_from_slice(&batch.messages);
        }
        Output::Dropped { reason, count } => {
            out.push(11);
            put_numbers(out, &[*reason as u64, *count]);
        }
        Output::EventsChanged => out.push(18),
        Output::EventRecorded { kind, reason } => {
            out.push(19);
            put_numbers(out, &[*kind as u64, *reason as u64]);
        }
        Output::EventsDropped { reason, count } => {
            out.push(20);
            put_numbers(out, &[*reason as u64, *count]);
        }
        Output::NodeEnded { node, incarnation } => {
            out.push(12);
            put_numbers(out, &[node.0, incarnation.0]);
        }
    }
}
