//! A genuine member whose bytes on the cluster service are none that a node sends: nobody stops, and others are served.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::{Code, Status};

use super::hostile_tests::{Attacked, PATIENCE, proposal};
use crate::base::ids::{Incarnation, NodeId};
use crate::base::limits::{CLUSTER_MESSAGE_BYTES, RAFT_MESSAGE_BYTES};
use crate::base::proto::cluster::{ContactRequest, ProposeRequest};
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::raft::raft_client::RaftClient;
use crate::base::proto::raft::{self as pb, change_request::Change};
use crate::base::time::wall_now;

/// Of the service between nodes that serve clients.
const METHODS: [&str; 4] = [
    "cluster.v1.Cluster/Propose",
    "cluster.v1.Cluster/Contact",
    DELIVER,
    "cluster.v1.Cluster/HandOver",
];

/// Of the service between replicas.
const RAFT_METHODS: [&str; 8] = [
    APPEND,
    "raft.v1.Raft/Heartbeat",
    "raft.v1.Raft/Vote",
    "raft.v1.Raft/TransferLeader",
    "raft.v1.Raft/ReadIndex",
    "raft.v1.Raft/Snapshot",
    "raft.v1.Raft/Hello",
    "raft.v1.Raft/Change",
];

const DELIVER: &str = "cluster.v1.Cluster/Deliver";

/// Its refusal is the end of the stream, and says nothing.
const APPEND: &str = "raft.v1.Raft/Append";

/// Calls that a connection of another node may have open.
const STREAMS: u32 = 512;

/// Another connection of the same member is answered.
async fn is_answered(attacked: &Attacked) {
    let request = ContactRequest {
        node: 1,
        incarnation: attacked.incarnation().0,
        wall_ms: wall_now().0,
        log_ms: None,
    };
    let mut peer = attacked.peer(1, 1);
    let answer = tokio::time::timeout(PATIENCE, peer.contact(request)).await;
    answer.expect("an answer").expect("it is node 1");
    attacked.serves().await;
}

/// A body of these bytes that ends.
fn whole(bytes: &[u8]) -> Body {
    Body::new(Full::new(Bytes::copy_from_slice(bytes)))
}

/// One that goes on behind these bytes, and never does.
fn unfinished(bytes: &[u8]) -> Body {
    let begun = Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)));
    let frames = tokio_stream::iter([begun]);
    let frames = tokio_stream::StreamExt::chain(frames, tokio_stream::pending());
    Body::new(StreamBody::new(frames))
}

/// A call with this body: its status, and how many bytes of answer came before.
async fn call(attacked: &Attacked, method: &str, body: Body) -> (Code, usize) {
    let path = format!("http://node/quorumq.{method}");
    let mut request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in attacked.metadata(1).fields() {
        request = request.header(name, value);
    }
    let request = request.body(body).expect("a request");
    let mut channel = attacked.channel(1);
    let answered = async {
        let ready = std::future::poll_fn(|context| channel.poll_ready(context)).await;
        ready.expect("a connection");
        let answer = channel.call(request).await.expect("an answer");
        let (head, body) = answer.into_parts();
        let body = body.collect().await.expect("a whole answer");
        let status = Status::from_header_map(&head.headers);
        let trailers = body.trailers().and_then(Status::from_header_map);
        let status = status.or(trailers).expect("a status");
        (status.code(), body.to_bytes().len())
    };
    let answered = tokio::time::timeout(PATIENCE, answered).await;
    answered.unwrap_or_else(|_| panic!("{method} is never answered"))
}

/// A message behind its head, as gRPC frames it.
fn framed(length: usize, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).expect("four bytes");
    [&[0][..], &length.to_be_bytes(), message].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_member_that_are_no_message_are_refused() {
    let attacked = Attacked::start().await;
    let before = attacked.state();
    let junk: [&[u8]; 5] = [
        b"\xff",
        b"\x08",
        b"\x12\x05\x08",
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        &[0xa5; 300],
    ];
    for method in METHODS {
        let mut bodies: Vec<Vec<u8>> = junk.iter().map(|junk| framed(junk.len(), junk)).collect();
        // A message that breaks off, one that is compressed, and a head that is none.
        bodies.push(framed(100, b"abc"));
        bodies.push([&[1][..], &framed(3, b"abc")[1..]].concat());
        bodies.push(vec![7; 9]);
        for body in bodies {
            let (code, length) = call(&attacked, method, whole(&body)).await;
            assert_eq!(length, 0, "{method} answers {body:?}");
            // Of a stream of messages only what has come is lost.
            let is_refused = code != Code::Ok || method == DELIVER;
            assert!(is_refused, "{method}: {body:?}");
        }
        attacked.serves().await;
    }
    let nothing = whole(&framed(0, b""));
    let unknown = call(&attacked, "cluster.v1.Cluster/Nothing", nothing).await;
    assert_eq!(unknown, (Code::Unimplemented, 0));
    is_answered(&attacked).await;
    assert_eq!(attacked.state(), before);
    attacked.node.shutdown().await;
}

/// It is refused by its head, before the rest has come, and nothing is made ready for that.
async fn is_refused_by_its_head(methods: &[&str], limit: usize) {
    let attacked = Attacked::start().await;
    let before = attacked.state();
    for length in [limit + 1, u32::MAX as usize] {
        for method in methods {
            let body = unfinished(&framed(length, b"x"));
            let (code, answer) = call(&attacked, method, body).await;
            assert_eq!(answer, 0, "{method}");
            let wanted = match *method {
                APPEND => Code::Ok,
                _ => Code::OutOfRange,
            };
            assert_eq!(code, wanted, "{method}: {length} bytes");
        }
        is_answered(&attacked).await;
    }
    assert_eq!(attacked.state(), before);
    attacked.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_member_that_is_too_large_is_refused_by_its_head() {
    is_refused_by_its_head(&METHODS, CLUSTER_MESSAGE_BYTES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_replica_that_is_too_large_is_refused_by_its_head() {
    is_refused_by_its_head(&RAFT_METHODS, RAFT_MESSAGE_BYTES).await;
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("it is short");
    let head = [&length.to_be_bytes()[1..], &[kind, flags]].concat();
    [&head, &stream.to_be_bytes()[..], payload].concat()
}

/// A header field as it is, in no table (RFC 7541 §6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
        let mut bytes = vec![length.expect("it is short")];
        bytes.extend(text.as_bytes());
        bytes
    };
    [vec![0], text(name), text(value)].concat()
}

/// The codes of the streams that are reset, until there are `count` of them.
async fn resets(stream: &mut (impl tokio::io::AsyncRead + Unpin), count: usize) -> Vec<(u32, u32)> {
    const RST_STREAM: u8 = 3;
    const GOAWAY: u8 = 7;
    let mut found = Vec::new();
    while found.len() < count {
        let mut head = [0; 9];
        stream
            .read_exact(&mut head)
            .await
            .expect("the connection goes on");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream
            .read_exact(&mut payload)
            .await
            .expect("a whole frame");
        let number = |at: usize, bytes: &[u8]| {
            let bytes = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_be_bytes(bytes)
        };
        assert_ne!(head[3], GOAWAY, "{payload:?}");
        if head[3] == RST_STREAM {
            found.push((number(5, &head), number(0, &payload)));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_has_so_many_calls_open_and_no_more() {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END_HEADERS: u8 = 4;
    const REFUSED_STREAM: u32 = 7;
    let attacked = Attacked::start().await;
    let before = attacked.state();
    let port = attacked.config.cluster.listen.port();
    let mut stream = attacked
        .connector(1)
        .connect("127.0.0.1", port)
        .await
        .expect("it has proved who it is");
    let mut fields: Vec<u8> = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/quorumq.cluster.v1.Cluster/Propose"),
        (":authority", "node"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    .iter()
    .flat_map(|(name, value)| field(name, value))
    .collect();
    for (name, value) in attacked.metadata(1).fields() {
        fields.extend(field(name, &value));
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    // It does not ask how many it may open, and none of them ever goes on.
    const MORE: u32 = 3;
    for number in 0..STREAMS + MORE {
        bytes.extend(frame(HEADERS, END_HEADERS, 2 * number + 1, &fields));
    }
    stream.write_all(&bytes).await.expect("it is read");
    let found = tokio::time::timeout(PATIENCE, resets(&mut stream, MORE as usize)).await;
    let refused = (STREAMS..STREAMS + MORE).map(|number| (2 * number + 1, REFUSED_STREAM));
    assert_eq!(
        found.expect("they are refused"),
        refused.collect::<Vec<_>>()
    );
    is_answered(&attacked).await;
    assert_eq!(attacked.state(), before);
    drop(stream);
    attacked.node.shutdown().await;
}

/// Node 2 becomes a member that gets no entries: nobody is at its address.
async fn becomes_a_member(attacked: &Attacked) {
    let metadata = attacked.metadata(2);
    let node = pb::Node {
        id: 2,
        address: "127.0.0.1:1".to_owned(),
        directory: metadata.directory.clone(),
    };
    let mut peer = RaftClient::with_interceptor(attacked.channel(2), metadata);
    let request = pb::ChangeRequest {
        change: Some(Change::Join(node)),
        ..pb::ChangeRequest::default()
    };
    // It is answered when node 2 votes, which it never does.
    let joining = tokio::spawn(async move { peer.change(request).await });
    let joined = async {
        while !attacked.node.raft.is_member(NodeId(2)) {
            assert!(!joining.is_finished(), "it is refused");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let joined = tokio::time::timeout(PATIENCE, joined).await;
    joined.expect("a member");
    joining.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn junk_at_the_next_sequence_of_a_member_takes_its_place_and_does_nothing() {
    let attacked = Attacked::start().await;
    becomes_a_member(&attacked).await;
    let (term, members, _) = attacked.state();
    let incarnation = wall_now().0;
    let live = async |is_live: bool| {
        let wanted = (NodeId(2), Incarnation(incarnation));
        let waited = async {
            while attacked.state().2.contains(&wanted) != is_live {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waited).await;
        waited.unwrap_or_else(|_| panic!("node 2 is live: {}", !is_live));
    };
    let bytes = |kind| command::Command { kind: Some(kind) }.encode_length_delimited_to_vec();
    let down = Kind::NodeDown(command::NodeDown {
        node: 2,
        incarnation,
    });
    let (sender, receiver) = tokio::sync::mpsc::channel::<ProposeRequest>(8);
    let mut peer = attacked.peer(2, 2);
    let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let proposing = tokio::spawn(async move { peer.propose(requests).await });
    let send = async |sequence, commands: &[u8]| {
        let sent = sender.send(proposal(2, incarnation, sequence, commands));
        sent.await.expect("the stream is open");
    };
    send(1, &bytes(Kind::Nothing(command::Nothing {}))).await;
    live(true).await;
    // Each is the next one of its node.
    let junk: [&[u8]; 3] = [b"junk", b"\xff\xff\xff", b"\x02\x08\x00"];
    for (commands, sequence) in junk.iter().zip(2..) {
        send(sequence, commands).await;
    }
    send(5, &bytes(down)).await;
    live(false).await;
    let refused = attacked.node.broker.metrics.proposals_refused.get();
    assert_eq!(refused, 3, "what came after them was applied");
    assert!(!proposing.is_finished(), "the stream goes on");
    is_answered(&attacked).await;
    let (now, still, _) = attacked.state();
    assert_eq!((now, still), (term, members));
    attacked.node.shutdown().await;
}
