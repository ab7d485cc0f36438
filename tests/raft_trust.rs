//! Replicas that prove to each other who they are: a hostile peer changes nothing and stops nobody, whichever message
//! it sends, and certificates and their authority are replaced while the cluster runs.

mod authority;
mod directory;
mod raft_support;

use std::sync::Arc;

use authority::{Authority, Files, Subject};
use bytes::{Buf as _, BufMut as _, Bytes};
use quorumq::base::ids::NodeId;
use quorumq::base::proto::raft::change_request::Change;
use quorumq::base::proto::raft::raft_client::RaftClient;
use quorumq::base::proto::raft::{self as pb, snapshot_part::Part};
use quorumq::testing::{
    Connector, NodeName, RaftConfig, Reload, Timing, Trust, TrustSettings, TrustSource, WIRE_FORMAT,
};
use raft_support::{CLUSTER, Cluster, eventually, insist};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const NAME: &str = "test";

/// No machine is so busy that a follower takes this for silence.
const PATIENT: Timing = Timing {
    heartbeat_ms: 50,
    election_min_ms: 1_000,
    election_max_ms: 2_000,
};

fn trust(files: &Files, id: u64) -> Trust {
    let settings = TrustSettings {
        own: NodeName {
            cluster: NAME.parse().unwrap(),
            node: NodeId(id),
        },
        cluster: CLUSTER.to_owned(),
        source: TrustSource::Certificates {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
            authorities: files.authorities.clone(),
        },
    };
    Trust::new(settings).unwrap()
}

/// Three replicas with certificates, and the authority that signed them.
struct Proved {
    cluster: Cluster,
    authority: Arc<Authority>,
    directory: tempfile::TempDir,
}

impl Proved {
    async fn start() -> Proved {
        let authority = Arc::new(Authority::new("nodes"));
        let directory = tempfile::tempdir().unwrap();
        let (signer, root) = (authority.clone(), directory.path().to_owned());
        let settings = move |id: u64, config: &mut RaftConfig| {
            let directory = root.join(id.to_string());
            let files = match directory.exists() {
                true => Files::in_directory(&directory),
                false => signer.files(&directory, NAME, id),
            };
            config.trust = trust(&files, id);
            config.timing = PATIENT;
        };
        let cluster = Cluster::start_with(3, Arc::new(settings)).await;
        cluster.write("before", "1").await;
        cluster.everywhere("before", "1").await;
        Proved {
            cluster,
            authority,
            directory,
        }
    }

    fn files(&self, id: u64) -> Files {
        Files::in_directory(&self.directory.path().join(id.to_string()))
    }

    /// A connection to node `to` by who has the certificate of node `id`, which need not be a member.
    fn channel(&self, to: u64, id: u64) -> Channel {
        let directory = self.directory.path().join(format!("peer{id}"));
        let files = self.authority.files(&directory, NAME, id);
        let connector = Connector::new(trust(&files, id), Some(NodeId(to)));
        let address = self.cluster.addresses[&to];
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        endpoint.connect_with_connector_lazy(connector)
    }

    /// The data directory that the cluster knows a node with; some other one for who is no member.
    fn directory_of(&self, id: u64) -> String {
        let status = self.cluster.nodes.values().next().unwrap().raft.status();
        let known = status.member(NodeId(id));
        known.map_or("d".to_owned(), |member| member.data_directory.clone())
    }

    /// Calls node `to` as node `says`, with the certificate of node `id`.
    fn peer_that_says(&self, to: u64, id: u64, says: u64) -> Peer {
        let metadata = Metadata {
            from: says,
            directory: self.directory_of(says),
        };
        RaftClient::with_interceptor(self.channel(to, id), metadata)
    }

    fn peer(&self, to: u64, id: u64) -> Peer {
        self.peer_that_says(to, id, id)
    }

    /// What must not change: term and leader as every node sees them, and the members.
    fn state(&self) -> Vec<(u64, Option<u64>, Vec<u64>)> {
        let nodes = self.cluster.nodes.values();
        let states = nodes.map(|node| {
            let status = node.raft.status();
            let members = status.members.iter().map(|member| member.node).collect();
            (status.term, status.leader, members)
        });
        states.collect()
    }

    /// Two members that do not lead.
    async fn followers(&self) -> (u64, u64, u64) {
        let leader = self.cluster.leader().await;
        let known = || {
            let all = self.state();
            let all = all.iter().all(|(_, known, _)| *known == Some(leader));
            all.then_some(())
        };
        eventually("everybody to know the leader", known).await;
        let mut others = (1..=3).filter(|id| *id != leader);
        (leader, others.next().unwrap(), others.next().unwrap())
    }

    /// Runs an attack while the cluster is used, and checks that nothing came of it.
    async fn withstand(&self, attack: impl Future<Output = ()>) {
        let before = self.state();
        let uses = async {
            for number in 0..20 {
                self.cluster.write("during", &number.to_string()).await;
                for node in self.cluster.nodes.values() {
                    node.raft.read_barrier().await.expect("a node answers");
                }
            }
        };
        tokio::join!(attack, uses);
        assert_eq!(self.state(), before, "term, leader or members changed");
        self.cluster.everywhere("during", "19").await;
        self.cluster.everywhere("before", "1").await;
    }
}

#[derive(Clone)]
struct Metadata {
    from: u64,
    directory: String,
}

impl Interceptor for Metadata {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let machine = raft_support::config(1, "127.0.0.1:1".parse().unwrap()).machine;
        let all = [
            ("quorumq-format", WIRE_FORMAT.to_string()),
            ("quorumq-machine", machine.to_string()),
            ("quorumq-cluster", CLUSTER.to_owned()),
            ("quorumq-from", self.from.to_string()),
            ("quorumq-from-directory", self.directory.clone()),
        ];
        for (key, value) in all {
            let value = value.parse().expect("printable");
            request.metadata_mut().insert(key, value);
        }
        Ok(request)
    }
}

type Peer = RaftClient<InterceptedService<Channel, Metadata>>;

fn vote(term: u64, node: u64, committed: bool) -> Option<pb::Vote> {
    Some(pb::Vote {
        term,
        node,
        committed,
    })
}

fn append(vote: Option<pb::Vote>) -> pb::AppendRequest {
    pb::AppendRequest {
        vote,
        ..pb::AppendRequest::default()
    }
}

/// Sends one message on a stream of entries; whether anything was answered.
async fn append_answer(peer: &mut Peer, request: pb::AppendRequest) -> Option<pb::AppendReply> {
    let answers = peer.append(tokio_stream::iter([request])).await;
    let mut answers = answers.ok()?.into_inner();
    answers.message().await.ok()?
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map(|_| ()).expect_err("it is refused").code()
}

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
            // It says that its log is longer: it may be one whose promotion this node has missed, so it is judged by
            // Raft's rules, and a leader is there.
            let request = pb::VoteRequest {
                vote: vote(term + 1, 4, false),
                last: Some(pb::LogId {
                    term,
                    index: 1 << 40,
                }),
                ..pb::VoteRequest::default()
            };
            let answer = proved.peer(to, 4).vote(request).await.unwrap();
            assert!(!answer.into_inner().granted);
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

/// Sends the parts of a snapshot; the code of the refusal.
async fn snapshot_code(mut peer: Peer, parts: Vec<Part>) -> Code {
    let parts = parts
        .into_iter()
        .map(|part| pb::SnapshotPart { part: Some(part) });
    let parts: Vec<_> = parts.collect();
    let mut steps = match peer.snapshot(tokio_stream::iter(parts)).await {
        Ok(steps) => steps.into_inner(),
        Err(status) => return status.code(),
    };
    loop {
        match steps.message().await {
            Ok(Some(step)) => {
                let finished = matches!(step.step, Some(pb::snapshot_step::Step::Finished(_)));
                assert!(!finished, "nothing is installed");
            }
            Ok(None) => panic!("the receiver says why"),
            Err(status) => return status.code(),
        }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_asks_only_for_itself_and_only_members_ask_for_others() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let change = |change, forwarded| pb::ChangeRequest {
        group: 0,
        change: Some(change),
        forwarded,
    };
    let node = |id, address: &str, directory: &str| {
        Change::Join(pb::Node {
            id,
            address: address.to_owned(),
            directory: directory.to_owned(),
        })
    };
    let attack = async {
        let here = "127.0.0.1:9";
        let long = format!("{}:1", "a".repeat(1 << 20));
        for (id, request) in [
            (4, change(node(5, here, "d"), false)),
            (4, change(node(4, here, "another"), false)),
            (4, change(node(voter, here, "d"), false)),
            (4, change(node(5, here, "d"), true)),
            (4, change(Change::Remove(voter), false)),
            (4, change(Change::Remove(voter), true)),
            (4, change(Change::Transfer(voter), true)),
            (voter, change(Change::Remove(other), false)),
            (voter, change(node(5, here, "d"), false)),
            // Nobody could reach it, or it could never be taken out again.
            (4, change(node(4, "nowhere", "d"), false)),
            (4, change(node(4, &long, "d"), false)),
            (4, change(node(0, here, "d"), false)),
            (voter, change(node(u64::MAX, here, "d"), true)),
            (voter, change(node(5, here, &long), true)),
        ] {
            for to in [leader, other] {
                let code = code(proved.peer(to, id).change(request.clone()).await);
                assert!(
                    matches!(code, Code::PermissionDenied | Code::InvalidArgument),
                    "node {id}: {request:?}: {code:?}"
                );
            }
        }
        let read = pb::ReadIndexRequest { group: 0 };
        assert!(proved.peer(leader, 4).read_index(read).await.is_err());
        // Under another one's name, whatever is asked.
        for says in [leader, other] {
            let mut peer = proved.peer_that_says(leader, voter, says);
            assert_eq!(code(peer.read_index(read).await), Code::FailedPrecondition);
            let hello = pb::HelloRequest { group: 0 };
            assert_eq!(code(peer.hello(hello).await), Code::FailedPrecondition);
        }
    };
    proved.withstand(attack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_foreign_certificate_is_not_added_and_one_with_a_good_one_is() {
    let mut proved = Proved::start().await;
    let via = proved.cluster.addresses[&1].to_string();
    // It trusts the cluster, which does not trust it.
    let foreign = Authority::new("nodes");
    let directory = proved.directory.path().join("4");
    let files = foreign.files(&directory, NAME, 4);
    files.put_authorities(&[&proved.authority, &foreign]);
    proved.cluster.run(4).await;
    let before = proved.state();
    for _ in 0..3 {
        let joined = proved.cluster.nodes[&4].raft.join(&via).await;
        assert!(joined.is_err(), "{joined:?}");
    }
    assert_eq!(proved.state(), before);
    let trust = proved.cluster.nodes[&4].raft.status();
    assert!(trust.members.is_empty(), "it has learned nothing");
    proved.cluster.kill(4).await;
    files.put_certificate(&proved.authority, &Subject::node(NAME, 4));
    files.put_authorities(&[&proved.authority]);
    proved.cluster.run(4).await;
    insist("a join", || proved.cluster.nodes[&4].raft.join(&via)).await;
    proved.cluster.write("after", "1").await;
    proved.cluster.everywhere("after", "1").await;
}

/// A removed node does not know it, and goes on campaigning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_disturbs_nobody() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let directory = proved.directory_of(voter);
    let asked = &proved.cluster.nodes[&leader].raft;
    insist("a removal", || asked.remove(NodeId(voter))).await;
    let gone = || (proved.cluster.nodes[&other].raft.status().members.len() == 2).then_some(());
    eventually("the removal", gone).await;
    let term = asked.status().term;
    for to in [leader, other] {
        let metadata = Metadata {
            from: voter,
            directory: directory.clone(),
        };
        let mut peer = RaftClient::with_interceptor(proved.channel(to, voter), metadata);
        let request = pb::VoteRequest {
            vote: vote(term + 1, voter, false),
            last: Some(pb::LogId { term, index: 3 }),
            transfer: true,
            ..pb::VoteRequest::default()
        };
        assert_eq!(code(peer.vote(request).await), Code::PermissionDenied);
        let heartbeat = append(vote(term + 1, voter, true));
        assert_eq!(
            code(peer.heartbeat(heartbeat).await),
            Code::PermissionDenied
        );
        let read = pb::ReadIndexRequest { group: 0 };
        assert!(peer.read_index(read).await.is_err());
    }
    assert_eq!(asked.status().term, term);
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

/// Changes the files of one node after the other, and writes after each.
async fn rotate(proved: &Proved, step: &str, change: impl Fn(u64, &Files)) {
    for (id, node) in &proved.cluster.nodes {
        change(*id, &proved.files(*id));
        assert_eq!(node.raft.trust().reload(), Reload::Used);
        proved.cluster.write(step, &id.to_string()).await;
    }
    proved.cluster.everywhere(step, "3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_their_authority_are_replaced_in_a_running_cluster() {
    let proved = Proved::start().await;
    let term = proved.state()[0].0;
    let (old, new) = (proved.authority.clone(), Authority::new("new"));
    rotate(&proved, "both", |_, files| {
        files.put_authorities(&[&old, &new])
    })
    .await;
    rotate(&proved, "certificates", |id, files| {
        files.put_certificate(&new, &Subject::node(NAME, id));
    })
    .await;
    rotate(&proved, "new", |_, files| files.put_authorities(&[&new])).await;
    // Who has a certificate of the old one is a stranger now.
    let (leader, voter, other) = proved.followers().await;
    for to in [leader, other] {
        let read = pb::ReadIndexRequest { group: 0 };
        assert!(proved.peer(to, voter).read_index(read).await.is_err());
    }
    let after = proved.state()[0].0;
    assert!(
        after <= term + 2,
        "connections broke, at most: {term}, {after}"
    );
}
