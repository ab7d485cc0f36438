//! A peer with a certificate that answers Hello with whatever it likes, and nothing else.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::Stream;
use quorumq::base::proto::raft::raft_server::{Raft, RaftServer};
use quorumq::base::proto::raft::{self as pb};
use quorumq::testing::{Trust, incoming};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The peer. It ends when this is dropped.
pub struct Liar {
    pub address: SocketAddr,
    asked: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

struct Service {
    says: pb::HelloReply,
    asked: Arc<AtomicU64>,
}

impl Liar {
    /// Proves by `trust` who it is, and says `says`.
    pub async fn start(trust: Trust, says: pb::HelloReply) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let service = Service {
            says,
            asked: asked.clone(),
        };
        let server = tonic::transport::Server::builder().add_service(RaftServer::new(service));
        let serving = tokio::spawn(async move {
            let incoming = incoming(listener, trust);
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Liar {
            address,
            asked,
            serving,
        }
    }

    /// How often it was asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn nothing<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("it only says who it is"))
}

#[tonic::async_trait]
impl Raft for Service {
    type AppendStream = Answers<pb::AppendReply>;
    type SnapshotStream = Answers<pb::SnapshotStep>;

    async fn hello(
        &self,
        _request: Request<pb::HelloRequest>,
    ) -> Result<Response<pb::HelloReply>, Status> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(self.says.clone()))
    }

    async fn append(
        &self,
        _request: Request<Streaming<pb::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        nothing()
    }

    async fn heartbeat(
        &self,
        _request: Request<pb::AppendRequest>,
    ) -> Result<Response<pb::AppendReply>, Status> {
        nothing()
    }

    async fn vote(
        &self,
        _request: Request<pb::VoteRequest>,
    ) -> Result<Response<pb::VoteReply>, Status> {
        nothing()
    }

    async fn transfer_leader(
        &self,
        _request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::TransferLeaderReply>, Status> {
        nothing()
    }

    async fn read_index(
        &self,
        _request: Request<pb::ReadIndexRequest>,
    ) -> Result<Response<pb::ReadIndexReply>, Status> {
        nothing()
    }

    async fn snapshot(
        &self,
        _request: Request<Streaming<pb::SnapshotPart>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        nothing()
    }

    async fn change(
        &self,
        _request: Request<pb::ChangeRequest>,
    ) -> Result<Response<pb::ChangeReply>, Status> {
        nothing()
    }
}
