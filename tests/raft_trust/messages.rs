//! Messages of Raft that are forged, and bytes that are none.

use bytes::{Buf as _, BufMut as _, Bytes};
use quorumq::base::proto::raft::{self as pb, snapshot_part::Part};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Status};

use crate::proved::{Metadata, Proved, append, append_answer, code, snapshot_code, vote};
use crate::raft_support;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_votes_move_no_term_and_no_leader() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let term = proved.state()[0].0;
    let attack = async {
        for to in [leader, other] {
            for pre in [true, false] {
                for (id, term, node, transfer, committed, last) in [
                    // Who is no member: whatever it says of its log, and whoever it says has asked it.
                    (4, term + 1, 4, false, false, None),
                    (4, term + 1, 4, true, false, Some(1 << 40)),
                    (4, u64::MAX, 4, true, false, Some(u64::MAX)),
                    // A voter for another one, or in a term after which there is none.
                    (voter, term + 1, other, true, false, Some(1 << 40)),
                    (voter, term + 1, leader, true, false, Some(1 << 40)),
                    (voter, u64::MAX, voter, true, false, Some(1 << 40)),
                    (voter, term + (1 << 33), voter, true, false, None),
                    (voter, term + 1, voter, true, true, Some(1 << 40)),
                ] {
                    let request = pb::VoteRequest {
                        group: 0,
                        vote: vote(term, node, committed),
                        last: last.map(|index| pb::LogId { term, index }),
                        pre,
                        transfer,
                    };
                    let answer = proved.peer(to, id).vote(request).await;
                    let code = code(answer);
                    assert!(
                        matches!(code, Code::PermissionDenied | Code::InvalidArgument),
                        "{code:?}"
                    );
                }
            }
            // It says that its log is longer, as one whose promotion this node has missed would; nobody vouches for it.
            let request = pb::VoteRequest {
                vote: vote(term + 1, 4, false),
                last: Some(pb::LogId {
                    term,
                    index: 1 << 40,
                }),
                ..pb::VoteRequest::default()
            };
            let answer = proved.peer(to, 4).vote(request).await;
            assert_eq!(code(answer), Code::PermissionDenied);
        }
    };
    proved.withstand(attack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_entries_and_heartbeats_are_not_taken() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let term = proved.state()[0].0;
    let attack = async {
        let entry = |index| pb::Entry {
            term,
            index,
            kind: 1,
            payload: Bytes::from_static(b"forged=1"),
        };
        let mut forged = vec![
            // Another one than the leader speaks for it, or for itself as if it had been elected.
            (voter, append(vote(term, leader, true))),
            (4, append(vote(term, leader, true))),
            (4, append(vote(term + 1, 4, true))),
            (4, append(vote(u64::MAX, 4, true))),
            (voter, append(vote(term + 1, other, true))),
            (voter, append(vote(u64::MAX, voter, true))),
            (voter, append(vote(term + 1, voter, false))),
            (voter, append(None)),
        ];
        // What even the leader's node can't send: entries that leave a gap, indexes at the end of the numbers, a group
        // that is not there, an entry of a kind that is not known.
        for change in [
            |request: &mut pb::AppendRequest| request.group = 7,
            |request: &mut pb::AppendRequest| request.entries[1].index = u64::MAX,
            |request: &mut pb::AppendRequest| request.entries[1].term = u64::MAX,
            |request: &mut pb::AppendRequest| request.entries[0].kind = 77,
            |request: &mut pb::AppendRequest| {
                request.committed = Some(pb::LogId {
                    term: 1,
                    index: u64::MAX,
                });
            },
        ] {
            let mut request = append(vote(term, leader, true));
            request.entries = vec![entry(0), entry(1)];
            change(&mut request);
            forged.push((leader, request));
        }
        // What only a leader that lacks what is committed could send.
        for previous in [0, 1] {
            let mut request = append(vote(term + 1, voter, true));
            request.previous = Some(pb::LogId {
                term: term + 1,
                index: previous,
            });
            forged.push((voter, request));
        }
        for (id, request) in forged {
            let mut peer = proved.peer(other, id);
            let answer = append_answer(&mut peer, request.clone()).await;
            assert_eq!(answer, None, "node {id}: {request:?}");
            let mut heartbeat = request;
            heartbeat.entries.truncate(2);
            let answer = peer.heartbeat(heartbeat).await;
            assert!(answer.is_err(), "node {id}: {answer:?}");
        }
        let transfer = pb::TransferLeaderRequest {
            group: 0,
            from: vote(term, leader, true),
            to: other,
            last: None,
        };
        for id in [voter, 4] {
            let answer = proved.peer(other, id).transfer_leader(transfer).await;
            assert_eq!(code(answer), Code::PermissionDenied);
        }
    };
    proved.withstand(attack).await;
    for node in proved.cluster.nodes.values() {
        let row = raft_support::row(&*node.raft.backing(), "forged");
        assert_eq!(row, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_snapshots_fill_no_disk_and_install_nothing() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let term = proved.state()[0].0;
    let begin = |vote, files: &[(&str, u64)]| {
        Part::Begin(pb::SnapshotBegin {
            group: 0,
            vote,
            meta: Some(pb::SnapshotMeta::default()),
            id: "forged".to_owned(),
            files: files
                .iter()
                .map(|(name, bytes)| pb::SnapshotFile {
                    name: (*name).to_owned(),
                    bytes: *bytes,
                    crc32c: None,
                })
                .collect(),
        })
    };
    let chunk = |file, offset, data: &'static [u8], wrong| {
        Part::Chunk(pb::SnapshotChunk {
            file,
            offset,
            data: Bytes::from_static(data),
            crc32c: crc32c::crc32c(data) ^ wrong,
        })
    };
    let attack = async {
        let own = vote(term, leader, true);
        for (id, vote, wanted) in [
            (4, vote(term + 1, 4, true), Code::PermissionDenied),
            (4, vote(u64::MAX, 4, true), Code::InvalidArgument),
            (voter, own, Code::PermissionDenied),
            (voter, vote(term + 1, voter, false), Code::PermissionDenied),
        ] {
            let parts = vec![begin(vote, &[("CURRENT", 3)])];
            let code = snapshot_code(proved.peer(other, id), parts).await;
            assert_eq!(code, wanted, "node {id}");
        }
        // It has a later last entry than what is committed here, at an earlier index.
        let Part::Begin(mut early) = begin(vote(term + 1, voter, true), &[("CURRENT", 3)]) else {
            unreachable!("it is a beginning");
        };
        early.meta.as_mut().unwrap().last = Some(pb::LogId {
            term: term + 1,
            index: 1,
        });
        let code = snapshot_code(proved.peer(other, voter), vec![Part::Begin(early)]).await;
        assert_eq!(code, Code::PermissionDenied);
        // What follows comes from the leader's node itself.
        for (files, wanted) in [
            (&[("a", 1 << 62)][..], Code::ResourceExhausted),
            (&[("a", u64::MAX), ("b", u64::MAX)], Code::InvalidArgument),
            (&[("a", 1), ("a", 2)], Code::InvalidArgument),
            (&[("../../a", 1)], Code::InvalidArgument),
            (&[("", 1)], Code::InvalidArgument),
        ] {
            let parts = vec![begin(own, files)];
            let code = snapshot_code(proved.peer(other, leader), parts).await;
            assert_eq!(code, wanted, "{files:?}");
        }
        for part in [
            chunk(0, 0, b"abc", 1),
            chunk(0, 1, b"abc", 0),
            chunk(0, u64::MAX, b"abc", 0),
            chunk(0, 0, b"more than was announced", 0),
            chunk(1, 0, b"abc", 0),
            chunk(u32::MAX, 0, b"abc", 0),
            Part::End(pb::SnapshotFileEnd { file: 0, crc32c: 0 }),
            Part::End(pb::SnapshotFileEnd { file: 9, crc32c: 0 }),
        ] {
            let parts = vec![begin(own, &[("a", 3)]), part];
            let code = snapshot_code(proved.peer(other, leader), parts).await;
            assert_eq!(code, Code::DataLoss);
        }
        for parts in [
            vec![chunk(0, 0, b"abc", 0)],
            vec![begin(own, &[("a", 3)]), begin(own, &[("a", 3)])],
            vec![begin(own, &[("a", 3)]), Part::Done(pb::SnapshotDone {})],
            vec![begin(own, &[("a", 3)])],
            Vec::new(),
        ] {
            snapshot_code(proved.peer(other, leader), parts).await;
        }
    };
    proved.withstand(attack).await;
    for node in proved.cluster.nodes.values() {
        let metrics = node.raft.metrics();
        let installed = &metrics.snapshots_installed;
        assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}

/// Bytes as they are, instead of a message.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_message_are_refused() {
    let proved = Proved::start().await;
    let (_, voter, other) = proved.followers().await;
    let attack = async {
        let metadata = Metadata {
            from: voter,
            directory: proved.directory_of(voter),
        };
        let channel = InterceptedService::new(proved.channel(other, voter), metadata);
        let mut grpc = tonic::client::Grpc::new(channel);
        for method in [
            "Append",
            "Heartbeat",
            "Vote",
            "TransferLeader",
            "ReadIndex",
            "Snapshot",
            "Hello",
            "Change",
            "Nothing",
        ] {
            for bytes in [
                &b"\xff"[..],
                b"\x08",
                b"\x12\x05\x08",
                b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                b"\x22\x02\x22\x7f",
                b"\x0a\x00\x0b",
                &[0xa5; 300],
            ] {
                grpc.ready().await.unwrap();
                let path = format!("/quorumq.raft.v1.Raft/{method}").parse().unwrap();
                let request = Request::new(tokio_stream::iter([Bytes::copy_from_slice(bytes)]));
                let answers = grpc.streaming(request, path, Raw).await;
                let Ok(answers) = answers else {
                    continue;
                };
                let mut answers = answers.into_inner();
                let answer = answers.message().await;
                // A greeting has no content: fields that are not known are passed over.
                let is_answered = matches!(answer, Ok(Some(_))) && method != "Hello";
                assert!(!is_answered, "{method} answers {bytes:?}");
            }
        }
    };
    proved.withstand(attack).await;
}
