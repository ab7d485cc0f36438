//! What arrives at the cluster port, from the first byte of HTTP/2 on: the server that a node has, with its bounds,
//! before services that check callers and messages as a node does, and do nothing else.
//!
//! Whatever arrives, nothing panics, and the connection ends when its other end has.

#![allow(dead_code)]

#[path = "../../../src/node/peer_server.rs"]
mod peer_server;

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::io::{ReadBuf, duplex};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use crate::base::ids::NodeId;
use crate::base::limits;
use crate::base::proto::cluster::cluster_server::{Cluster, ClusterServer};
use crate::base::proto::cluster::{self, DeliverResponse, ProposeResponse};
use crate::base::proto::raft::raft_server::{Raft, RaftServer};
use crate::base::proto::raft::{self as pb, AppendReply};
use crate::cluster_port;
use crate::peers::PeerInfo;

/// Bytes on their way in each direction.
const PIPE_BYTES: usize = 64 << 10;

/// A time that passes when nothing else happens: by then the server has given a silent client up.
const MOST_TIME: Duration = Duration::from_secs(60);

/// One that passes when the server has done all that it can. It pings only later.
const IDLE: Duration = Duration::from_secs(1);

const METHODS: [&str; 12] = [
    "/quorumq.raft.v1.Raft/Append",
    "/quorumq.raft.v1.Raft/Heartbeat",
    "/quorumq.raft.v1.Raft/Vote",
    "/quorumq.raft.v1.Raft/TransferLeader",
    "/quorumq.raft.v1.Raft/ReadIndex",
    "/quorumq.raft.v1.Raft/Snapshot",
    "/quorumq.raft.v1.Raft/Hello",
    "/quorumq.raft.v1.Raft/Change",
    "/quorumq.cluster.v1.Cluster/Propose",
    "/quorumq.cluster.v1.Cluster/Contact",
    "/quorumq.cluster.v1.Cluster/Deliver",
    "/quorumq.cluster.v1.Cluster/HandOver",
];

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// Kinds of frames, and flags of theirs (RFC 9113 §6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection whose other end has proved which node it is, or not.
struct Proven(DuplexStream, PeerInfo);

impl Connected for Proven {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.1
    }
}

impl AsyncRead for Proven {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Proven {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Both services. `0`: callers have to prove who they are.
#[derive(Clone, Copy)]
struct Node(bool);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Node {
    /// Answers one message.
    fn once<M, A: Default>(self, request: &Request<M>, check: fn(&M)) -> Reply<A> {
        cluster_port::admit(request, self.0)?;
        check(request.get_ref());
        Ok(Response::new(A::default()))
    }

    /// Answers each message of a stream, as far as it can be read.
    fn each<M: Send + 'static, A: Default>(
        self,
        request: Request<Streaming<M>>,
        check: fn(&M),
    ) -> Reply<Answers<A>> {
        cluster_port::admit(&request, self.0)?;
        let answers = request.into_inner().map(move |message| {
            check(&message?);
            Ok(A::default())
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

type Reply<A> = Result<Response<A>, Status>;

#[tonic::async_trait]
impl Raft for Node {
    type AppendStream = Answers<AppendReply>;
    type SnapshotStream = Answers<pb::SnapshotStep>;

    async fn append(
        &self,
        request: Request<Streaming<pb::AppendRequest>>,
    ) -> Reply<Self::AppendStream> {
        self.each(request, cluster_port::append)
    }

    async fn heartbeat(&self, request: Request<pb::AppendRequest>) -> Reply<AppendReply> {
        self.once(&request, cluster_port::append)
    }

    async fn vote(&self, request: Request<pb::VoteRequest>) -> Reply<pb::VoteReply> {
        self.once(&request, cluster_port::vote)
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Reply<pb::TransferLeaderReply> {
        self.once(&request, cluster_port::transfer)
    }

    async fn read_index(
        &self,
        request: Request<pb::ReadIndexRequest>,
    ) -> Reply<pb::ReadIndexReply> {
        self.once(&request, |_| {})
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<pb::SnapshotPart>>,
    ) -> Reply<Self::SnapshotStream> {
        self.each(request, cluster_port::part)
    }

    async fn hello(&self, request: Request<pb::HelloRequest>) -> Reply<pb::HelloReply> {
        self.once(&request, |_| {})
    }

    async fn change(&self, request: Request<pb::ChangeRequest>) -> Reply<pb::ChangeReply> {
        self.once(&request, cluster_port::change)
    }
}

#[tonic::async_trait]
impl Cluster for Node {
    type DeliverStream = Answers<DeliverResponse>;

    async fn propose(
        &self,
        request: Request<Streaming<cluster::ProposeRequest>>,
    ) -> Reply<ProposeResponse> {
        cluster_port::admit(&request, self.0)?;
        let mut stream = request.into_inner();
        while let Some(message) = stream.message().await? {
            cluster_port::propose(&message);
        }
        Ok(Response::new(ProposeResponse {}))
    }

    async fn contact(
        &self,
        request: Request<cluster::ContactRequest>,
    ) -> Reply<cluster::ContactResponse> {
        self.once(&request, |_| {})
    }

    async fn deliver(
        &self,
        request: Request<Streaming<cluster::DeliverRequest>>,
    ) -> Reply<Self::DeliverStream> {
        self.each(request, cluster_port::deliver)
    }

    async fn hand_over(
        &self,
        request: Request<cluster::HandOverRequest>,
    ) -> Reply<cluster::HandOverResponse> {
        self.once(&request, |_| {})
    }
}

/// What a client sends, step by step.
#[derive(Default)]
struct Script {
    bytes: Vec<u8>,
    /// Streams that were opened.
    opened: u32,
}

impl Script {
    /// Each step is what to do, an argument, a length, and as many bytes.
    fn read(mut input: &[u8]) -> Vec<u8> {
        let mut script = Script::default();
        script.bytes.extend_from_slice(PREFACE);
        script.frame(SETTINGS, 0, 0, &[]);
        while let Some(([what, argument, length], rest)) = input.split_first_chunk::<3>() {
            let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            script.step(*what, *argument, bytes);
            input = rest;
        }
        script.bytes
    }

    fn step(&mut self, what: u8, argument: u8, bytes: &[u8]) {
        let earlier = u32::from(what >> 4) % self.opened.max(1);
        let stream = 2 * (self.opened - earlier.min(self.opened)) + 1;
        let stream = stream.saturating_sub(2).max(1);
        let ends = if argument & 1 == 0 { 0 } else { END_STREAM };
        let counted = |announced: usize| {
            let announced = u32::try_from(announced).unwrap_or(u32::MAX).to_be_bytes();
            [&[0][..], &announced, bytes].concat()
        };
        match what % 8 {
            0 => self.call(usize::from(argument), None),
            1 => self.call(usize::from(argument & 15), Some((argument >> 4, bytes))),
            2 => self.frame(DATA, ends, stream, &counted(bytes.len())),
            3 => self.frame(DATA, ends, stream, bytes),
            4 => self.bytes.extend_from_slice(bytes),
            5 => {
                let (flags, bytes) = bytes.split_first().unwrap_or((&0, &[]));
                self.frame(argument, *flags, stream, bytes);
            }
            6 => self.frame(
                DATA,
                ends,
                stream,
                &counted(usize::from(argument) << 24 | bytes.len()),
            ),
            _ => self.frame(RST_STREAM, 0, stream, &[0, 0, 0, argument]),
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("steps are short");
        self.bytes.extend_from_slice(&length.to_be_bytes()[1..]);
        self.bytes.extend_from_slice(&[kind, flags]);
        self.bytes.extend_from_slice(&stream.to_be_bytes());
        self.bytes.extend_from_slice(payload);
    }

    /// Opens a call as node 3 does, with another value for one of its headers.
    fn call(&mut self, method: usize, other: Option<(u8, &[u8])>) {
        let machine = cluster_port::own().machine.to_string();
        let format = cluster_port::identity::WIRE_FORMAT.to_string();
        let method = METHODS[method % METHODS.len()];
        let cluster = match method.contains("Cluster") {
            true => "quorumq-forwarding-cluster",
            false => "quorumq-cluster",
        };
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "n"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("quorumq-format", &format),
            ("quorumq-machine", &machine),
            (cluster, "f"),
            ("quorumq-from", "3"),
            ("quorumq-from-directory", "d3"),
            ("quorumq-to", "1"),
            ("quorumq-to-directory", "d"),
            ("grpc-timeout", "9S"),
            ("grpc-encoding", "identity"),
        ];
        let mut block = Vec::new();
        for (index, (name, value)) in headers.iter().enumerate() {
            let other = other.filter(|(which, _)| usize::from(*which) == index);
            let value = other.map_or(value.as_bytes(), |(_, value)| value);
            // RFC 7541 §6.2.2: a literal without indexing.
            block.push(0);
            text(&mut block, name.as_bytes());
            text(&mut block, value);
        }
        self.opened += 1;
        self.frame(HEADERS, END_HEADERS, 2 * self.opened - 1, &block);
    }
}

/// A string as HPACK has it (RFC 7541 §5.2); none is longer than 255 bytes.
fn text(block: &mut Vec<u8>, text: &[u8]) {
    match u8::try_from(text.len()).expect("steps are short") {
        length @ ..127 => block.push(length),
        length @ 127..255 => block.extend_from_slice(&[127, length - 127]),
        255 => block.extend_from_slice(&[127, 0x80, 1]),
    }
    block.extend_from_slice(text);
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    runtime.expect("a runtime of this thread needs nothing")
}

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(runtime());
}

/// A connection's bytes. The first one says whether its other end has proved to be node 3 (1), whether it has to (2),
/// and whether the rest is what arrives (4), or a script.
pub fn conversation(input: &[u8]) {
    let Some((flags, input)) = input.split_first() else {
        return;
    };
    let bytes = match flags & 4 {
        0 => Script::read(input),
        _ => input.to_vec(),
    };
    let proven = (flags & 1 != 0).then_some(NodeId(3));
    let node = Node(flags & 2 != 0);
    RUNTIME.with_borrow(|runtime| runtime.block_on(converse(bytes, PeerInfo { proven }, node)));
}

async fn converse(bytes: Vec<u8>, info: PeerInfo, node: Node) {
    let (client, server) = duplex(PIPE_BYTES);
    let connection = tokio_stream::once(Ok::<_, io::Error>(Proven(server, info)));
    let served = peer_server::peer_server()
        .add_service(RaftServer::new(node).max_decoding_message_size(limits::RAFT_MESSAGE_BYTES))
        .add_service(
            ClusterServer::new(node).max_decoding_message_size(limits::CLUSTER_MESSAGE_BYTES),
        )
        .serve_with_incoming(connection);
    let (mut read, mut write) = tokio::io::split(client);
    let send = async {
        // The server may have closed before it has read all.
        let _ = write.write_all(&bytes).await;
        // Calls that have not begun when the connection ends are dropped.
        tokio::time::sleep(IDLE).await;
        let _ = write.shutdown().await;
    };
    let receive = async {
        let mut answer = Vec::new();
        let _ = read.read_to_end(&mut answer).await;
        answer.len()
    };
    let all = async { tokio::join!(served, send, receive) };
    let ended = tokio::time::timeout(MOST_TIME, all).await;
    let (_, (), answered) = ended.expect("the connection ends when its client has ended it");
    assert!(answered <= 64 * (bytes.len() + 1024), "{answered} bytes");
}
