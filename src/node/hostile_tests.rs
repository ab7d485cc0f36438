//! A peer that has proved which node it is, and sends what it has no right to on the cluster service: nothing comes of
//! it, and the node goes on serving.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::shutdown::Node;
use super::{Runtimes, start};
use crate::base::ids::{ConnectionId, Incarnation, NodeId};
use crate::base::proto::cluster::cluster_client::ClusterClient;
use crate::base::proto::cluster::{
    ContactRequest, DeliverRequest, HandOverRequest, ProposeRequest,
};
use crate::base::proto::command::{self, command::Kind};
use crate::base::time::wall_now;
use crate::config::{Config, Flag, Sources, load};
use crate::machine::effect::Reply;
use crate::peers::authority::{Authority, Files};
use crate::peers::{Connector, NodeName, Reach, Settings, Source, Trust};
use crate::raft::WIRE_FORMAT;
use crate::replica::share::Share;

/// No machine is so busy that a refusal takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long it is watched that nothing is refused.
const BRIEFLY: Duration = Duration::from_secs(1);

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it is bound")
}

fn config(directory: &Path, files: &Files, cluster: SocketAddr) -> Config {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let flags = [
        ("node.data_dir", path(&directory.join("data"))),
        ("node.stuck_s", "0".to_owned()),
        ("disk.reserve_percent", "0".to_owned()),
        // Who is silent stays live as long as a test takes.
        ("cluster.node_lease_ms", "300000".to_owned()),
        ("cluster.name", "test".to_owned()),
        ("cluster.listen", cluster.to_string()),
        ("cluster.certificate", path(&files.certificate)),
        ("cluster.key", path(&files.key)),
        ("cluster.ca_file", path(&files.authorities)),
        ("mqtt.listen", "127.0.0.1:0".to_owned()),
        ("http.listen", String::new()),
    ];
    let flags = flags.map(|(key, value)| Flag {
        flag: "--set".to_owned(),
        key: key.to_owned(),
        value,
    });
    let sources = Sources {
        flags: flags.into(),
        ..Sources::default()
    };
    load(&sources).expect("a good configuration").config
}

#[derive(Clone)]
pub(super) struct Metadata {
    from: u64,
    cluster: String,
    pub(super) directory: String,
}

impl Metadata {
    /// Names and values of header fields.
    pub(super) fn fields(&self) -> [(&'static str, String); 5] {
        [
            ("quorumq-format", WIRE_FORMAT.to_string()),
            ("quorumq-machine", crate::machine::VERSION.to_string()),
            ("quorumq-forwarding-cluster", self.cluster.clone()),
            ("quorumq-from", self.from.to_string()),
            ("quorumq-from-directory", self.directory.clone()),
        ]
    }
}

impl Interceptor for Metadata {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        for (key, value) in self.fields() {
            let value = value.parse().expect("printable");
            request.metadata_mut().insert(key, value);
        }
        Ok(request)
    }
}

pub(super) type Peer = ClusterClient<InterceptedService<Channel, Metadata>>;

/// A node that serves, and what its peers need.
pub(super) struct Attacked {
    pub(super) node: Node,
    pub(super) config: Config,
    authority: Authority,
    directory: tempfile::TempDir,
}

impl Attacked {
    pub(super) async fn start() -> Attacked {
        let authority = Authority::new("nodes");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let files = authority.files(&directory.path().join("1"), "test", 1);
        let config = config(directory.path(), &files, free_address());
        let runtime = tokio::runtime::Handle::current();
        let node = start(config.clone(), &Runtimes::one(&runtime)).await;
        let node = node.expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !node.broker.state.is_serving() {
            assert!(Instant::now() < deadline, "the node does not serve");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Attacked {
            node,
            config,
            authority,
            directory,
        }
    }

    /// What connects with the certificate of node `id`.
    pub(super) fn connector(&self, id: u64) -> Connector {
        let files = self.directory.path().join(format!("peer{id}"));
        let files = self.authority.files(&files, "test", id);
        let trust = Trust::new(Settings {
            own: NodeName {
                cluster: "test".parse().expect("a word"),
                node: NodeId(id),
            },
            cluster: String::new(),
            source: Source::Certificates {
                certificate: files.certificate,
                key: files.key,
                authorities: files.authorities,
                lists: Vec::new(),
            },
            reach: Reach::default(),
        });
        Connector::new(trust.expect("good files"), Some(NodeId(1)))
    }

    pub(super) fn channel(&self, id: u64) -> Channel {
        let address = format!("http://{}", self.config.cluster.listen);
        let endpoint = Endpoint::from_shared(address).expect("an address");
        endpoint.connect_with_connector_lazy(self.connector(id))
    }

    /// What node `says` says of itself with each call.
    pub(super) fn metadata(&self, says: u64) -> Metadata {
        let status = self.node.raft.status();
        let known = status.member(NodeId(says));
        Metadata {
            from: says,
            cluster: self.config.cluster.identity().to_string(),
            directory: known.map_or("d".to_owned(), |member| member.data_directory.clone()),
        }
    }

    /// A peer with the certificate of node `id` that says that it is node `says`.
    pub(super) fn peer(&self, id: u64, says: u64) -> Peer {
        ClusterClient::with_interceptor(self.channel(id), self.metadata(says))
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.node.broker.services.proposer.incarnation()
    }

    /// A command of this node goes through the log.
    pub(super) async fn serves(&self) {
        let proposer = &self.node.broker.services.proposer;
        let proposed = proposer.propose(Share::Common, Kind::Nothing(command::Nothing {}));
        let reply = tokio::time::timeout(Duration::from_secs(30), proposed).await;
        assert!(matches!(reply, Ok(Ok(Reply::Done))), "{reply:?}");
        assert!(self.node.broker.state.is_serving());
    }

    /// What must not change.
    pub(super) fn state(&self) -> (u64, usize, Vec<(NodeId, Incarnation)>) {
        let status = self.node.raft.status();
        let live = self.node.broker.services.view.live_nodes();
        (status.term, status.members.len(), live)
    }
}

pub(super) fn proposal(
    node: u64,
    incarnation: u64,
    sequence: u64,
    commands: &[u8],
) -> ProposeRequest {
    ProposeRequest {
        node,
        incarnation,
        sequence,
        commands: Bytes::copy_from_slice(commands),
        applied: 0,
        weight: 0,
        committed: 0,
    }
}

/// The code of the refusal; `None` when nothing is said within that time.
async fn propose(mut peer: Peer, request: ProposeRequest, within: Duration) -> Option<Code> {
    // The stream stays open: only a refusal ends it.
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::iter([request]),
        tokio_stream::pending::<ProposeRequest>(),
    );
    let answered = tokio::time::timeout(within, peer.propose(requests)).await;
    answered
        .ok()
        .map(|answer| answer.expect_err("it is refused").code())
}

async fn deliver(mut peer: Peer, request: DeliverRequest) -> Code {
    let answers = match peer.deliver(tokio_stream::iter([request])).await {
        Ok(answers) => answers,
        Err(status) => return status.code(),
    };
    match answers.into_inner().message().await {
        Err(status) => status.code(),
        Ok(_) => Code::Ok,
    }
}

/// It has the certificate of one that was a member, say. What is kept free for nodes is not for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_member_is_a_stranger_whatever_it_has_proved() {
    let attacked = Attacked::start().await;
    let knows = || {
        let trust = attacked.node.raft.trust();
        trust.knows(std::net::Ipv4Addr::LOCALHOST.into())
    };
    let proposal = || proposal(7, 1, 1, &[]);
    let refused = propose(attacked.peer(7, 7), proposal(), PATIENCE).await;
    assert_eq!((refused, knows()), (Some(Code::PermissionDenied), false));
    let refused = propose(attacked.peer(1, 1), proposal(), PATIENCE).await;
    assert_eq!((refused, knows()), (Some(Code::PermissionDenied), true));
    attacked.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_forwards_only_as_itself_and_only_as_a_member() {
    let attacked = Attacked::start().await;
    let before = attacked.state();
    let now = wall_now().0;
    let own = attacked.incarnation().0;
    let down = command::Command {
        kind: Some(Kind::NodeDown(command::NodeDown {
            node: 1,
            incarnation: own,
        })),
    };
    let down = down.encode_length_delimited_to_vec();
    for (id, says, request, wanted) in [
        // Who is no member, and who says that it is another one.
        (2, 2, proposal(2, now, 1, &down), Code::PermissionDenied),
        (2, 1, proposal(1, own, 9, &down), Code::FailedPrecondition),
        (1, 1, proposal(2, now, 1, &down), Code::PermissionDenied),
        (1, 1, proposal(0, 0, 1, &down), Code::PermissionDenied),
        // An incarnation that no other could follow.
        (1, 1, proposal(1, u64::MAX, 1, &down), Code::InvalidArgument),
        (1, 1, proposal(1, now * 4, 1, &down), Code::InvalidArgument),
    ] {
        let code = propose(attacked.peer(id, says), request.clone(), PATIENCE).await;
        assert_eq!(code, Some(wanted), "node {id} as {says}: {request:?}");
        attacked.serves().await;
    }
    // Junk under the right name goes nowhere: a sequence that is not next, an incarnation that has ended.
    for request in [
        proposal(1, own, u64::MAX, b"\xff\xff\xff"),
        proposal(1, own, 1, b"junk"),
        proposal(1, 1, 1, &down),
    ] {
        assert_eq!(propose(attacked.peer(1, 1), request, BRIEFLY).await, None);
        attacked.serves().await;
    }
    assert_eq!(attacked.state(), before);
    attacked.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_contacts_and_hand_overs_of_another_node_are_refused() {
    let attacked = Attacked::start().await;
    let before = attacked.state();
    let own = attacked.incarnation().0;
    let batch = |node, incarnation| DeliverRequest {
        node,
        incarnation,
        sequence: 1,
        messages: Bytes::from_static(b"\x00\x00\x00\x01junk"),
        ..DeliverRequest::default()
    };
    for (id, says, request, wanted) in [
        (2, 2, batch(2, own), Code::PermissionDenied),
        (2, 1, batch(1, own), Code::FailedPrecondition),
        (1, 1, batch(2, own), Code::PermissionDenied),
        (1, 1, batch(1, u64::MAX), Code::InvalidArgument),
        // Its own messages, which can't be read.
        (1, 1, batch(1, own), Code::Ok),
    ] {
        let code = deliver(attacked.peer(id, says), request).await;
        assert_eq!(code, wanted, "node {id} as {says}");
        attacked.serves().await;
    }
    let contact = |node, incarnation, log_ms| ContactRequest {
        node,
        incarnation,
        wall_ms: u64::MAX,
        log_ms,
    };
    for (id, says, request, wanted) in [
        (2, 2, contact(2, own, None), Code::PermissionDenied),
        (2, 1, contact(1, own, None), Code::FailedPrecondition),
        (1, 1, contact(2, own, None), Code::PermissionDenied),
        (1, 1, contact(1, u64::MAX, None), Code::InvalidArgument),
    ] {
        let answer = attacked.peer(id, says).contact(request).await;
        assert_eq!(answer.expect_err("it is refused").code(), wanted);
    }
    // A time at the end of the numbers is no log time.
    let answer = attacked
        .peer(1, 1)
        .contact(contact(1, own, Some(u64::MAX)))
        .await;
    let told = answer.expect("it is node 1").into_inner().log_ms;
    assert!(
        told.is_none_or(|log_ms| log_ms < wall_now().0 + 60_000),
        "{told:?}"
    );
    let hand_over = HandOverRequest {
        incarnation: own,
        connection: ConnectionId(1).0,
    };
    for (id, says, wanted) in [
        (2, 2, Code::PermissionDenied),
        (2, 1, Code::FailedPrecondition),
    ] {
        let answer = attacked.peer(id, says).hand_over(hand_over).await;
        assert_eq!(answer.expect_err("it is refused").code(), wanted);
    }
    attacked.serves().await;
    assert_eq!(attacked.state(), before);
    attacked.node.shutdown().await;
}
