//! Replicas that have proved to each other who they are, and who calls them.

use std::sync::Arc;

use quorumq::base::ids::NodeId;
use quorumq::base::proto::raft::raft_client::RaftClient;
use quorumq::base::proto::raft::{self as pb, snapshot_part::Part};
use quorumq::testing::{
    Connector, NodeName, RaftConfig, Reach, Timing, Trust, TrustSettings, TrustSource, WIRE_FORMAT,
};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::authority::{Authority, Files};
use crate::raft_support::{self, CLUSTER, Cluster, eventually};

pub const NAME: &str = "test";

/// No machine is so busy that a follower takes this for silence.
pub const PATIENT: Timing = Timing {
    heartbeat_ms: 50,
    election_min_ms: 1_000,
    election_max_ms: 2_000,
};

pub fn trust(files: &Files, id: u64) -> Trust {
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
            lists: Vec::new(),
        },
        reach: Reach::default(),
    };
    Trust::new(settings).unwrap()
}

/// Three replicas with certificates, and the authority that signed them.
pub struct Proved {
    pub cluster: Cluster,
    pub authority: Arc<Authority>,
    pub directory: tempfile::TempDir,
}

impl Proved {
    pub async fn start() -> Proved {
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

    pub fn files(&self, id: u64) -> Files {
        Files::in_directory(&self.directory.path().join(id.to_string()))
    }

    /// A connection to node `to` by who has the certificate of node `id`, which need not be a member.
    pub fn channel(&self, to: u64, id: u64) -> Channel {
        let directory = self.directory.path().join(format!("peer{id}"));
        let files = self.authority.files(&directory, NAME, id);
        let connector = Connector::new(trust(&files, id), Some(NodeId(to)));
        let address = self.cluster.addresses[&to];
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        endpoint.connect_with_connector_lazy(connector)
    }

    /// The data directory that the cluster knows a node with; some other one for who is no member.
    pub fn directory_of(&self, id: u64) -> String {
        let known = self.cluster.nodes.values().find_map(|node| {
            let status = node.raft.status();
            status
                .member(NodeId(id))
                .map(|member| member.data_directory.clone())
        });
        known.unwrap_or_else(|| "d".to_owned())
    }

    /// Calls node `to` as node `says`, with the certificate of node `id`.
    pub fn peer_that_says(&self, to: u64, id: u64, says: u64) -> Caller {
        let metadata = Metadata {
            from: says,
            directory: self.directory_of(says),
        };
        RaftClient::with_interceptor(self.channel(to, id), metadata)
    }

    pub fn peer(&self, to: u64, id: u64) -> Caller {
        self.peer_that_says(to, id, id)
    }

    /// What must not change: term and leader as every node sees them, and the members.
    pub fn state(&self) -> Vec<(u64, Option<u64>, Vec<u64>)> {
        let nodes = self.cluster.nodes.values();
        let states = nodes.map(|node| {
            let status = node.raft.status();
            let members = status.members.iter().map(|member| member.node).collect();
            (status.term, status.leader, members)
        });
        states.collect()
    }

    /// Two members that do not lead.
    pub async fn followers(&self) -> (u64, u64, u64) {
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
    pub async fn withstand(&self, attack: impl Future<Output = ()>) {
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
pub struct Metadata {
    pub from: u64,
    pub directory: String,
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

pub type Caller = RaftClient<InterceptedService<Channel, Metadata>>;

pub fn vote(term: u64, node: u64, committed: bool) -> Option<pb::Vote> {
    Some(pb::Vote {
        term,
        node,
        committed,
    })
}

pub fn append(vote: Option<pb::Vote>) -> pb::AppendRequest {
    pb::AppendRequest {
        vote,
        ..pb::AppendRequest::default()
    }
}

/// Sends one message on a stream of entries; whether anything was answered.
pub async fn append_answer(
    peer: &mut Caller,
    request: pb::AppendRequest,
) -> Option<pb::AppendReply> {
    let answers = peer.append(tokio_stream::iter([request])).await;
    let mut answers = answers.ok()?.into_inner();
    answers.message().await.ok()?
}

pub fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map(|_| ()).expect_err("it is refused").code()
}

/// Sends the parts of a snapshot; the code of the refusal.
pub async fn snapshot_code(mut peer: Caller, parts: Vec<Part>) -> Code {
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
