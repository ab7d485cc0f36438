//! Clusters with everything on that keeps strangers out: nodes that prove to each other who they are by certificates,
//! listeners of TLS that ask for a password. The clients of the harness speak no TLS: a door in front of each node
//! carries their connections to its listener.

#[path = "../../../tests/authority/mod.rs"]
mod authority;

use authority::{Authority, put};
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::http::{self, Answer};
use cluster_tests::wire;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// The harness calls its clusters so.
const NAME: &str = "test";

/// The user of every client that says nothing else.
const USER: (&str, &str) = ("load", "the password of the load");

/// Cheap hashes, so that clients come back quickly, and no pause for an address from which everybody comes.
const AUTH: &str =
    "[auth]\npassword_memory_kib = 64\npassword_passes = 1\nscram_iterations = 4096\n";

/// The files of a cluster, and what clients need to know of them.
pub struct Secure {
    directory: TempDir,
    /// The listeners' certificate, in which clients trust.
    certificate: CertificateDer<'static>,
}

/// Carries connections as long as it is there.
pub struct Doors {
    _runtime: Runtime,
}

impl Secure {
    pub fn new() -> Secure {
        let directory =
            TempDir::with_prefix("quorumq-secure-").expect("a temporary directory can be made");
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let made = made.expect("a certificate can be made");
        put(&directory.path().join("listener.pem"), &made.cert.pem());
        put(
            &directory.path().join("listener.key"),
            &made.signing_key.serialize_pem(),
        );
        Secure {
            certificate: made.cert.der().clone(),
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Three nodes with their certificates, and the one listener of each.
    pub fn plan(&self) -> Plan {
        let authority = Authority::new("nodes");
        let mut environment = Vec::new();
        for id in 1..=3 {
            let files = authority.files(&self.path(&id.to_string()), NAME, id as u64);
            for (key, path) in [
                ("CERTIFICATE", files.certificate),
                ("KEY", files.key),
                ("CA_FILE", files.authorities),
            ] {
                let name = format!("QUORUMQ__CLUSTER__{key}");
                environment.push((id - 1, name, path.to_string_lossy().into_owned()));
            }
        }
        let (certificate, key) = (self.path("listener.pem"), self.path("listener.key"));
        Plan {
            environment,
            extra: format!(
                "[[listeners]]\nname = \"tls\"\naddress = \"{{mqtt}}\"\ntransport = \"tls\"\n\
                 certificates = [{{ certificate = {certificate:?}, key = {key:?} }}]\n\
                 authentication = [\"password\"]\n{AUTH}"
            ),
            ..Plan::default()
        }
    }

    /// Opens a door in front of each node, and makes the user who clients say that they are from now on.
    pub fn open(&self, cluster: &mut Cluster) -> Doors {
        let doors = Doors {
            _runtime: self.doors(cluster),
        };
        let (name, password) = USER;
        add_user(cluster, name, password);
        wire::log_in_as(name, password);
        doors
    }

    fn doors(&self, cluster: &mut Cluster) -> Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("threads can be started");
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let doors = cluster.nodes.iter().map(|node| {
            let bound = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
            let door = bound.expect("a free port");
            let address = door.local_addr().expect("it is bound");
            runtime.spawn(serve(door, connector.clone(), node.mqtt()));
            address
        });
        let doors = doors.collect();
        cluster.enter_by(doors);
        runtime
    }
}

async fn serve(door: TcpListener, connector: TlsConnector, node: SocketAddr) {
    loop {
        let Ok((mut plain, _)) = door.accept().await else {
            continue;
        };
        let connector = connector.clone();
        tokio::spawn(async move {
            let _ = plain.set_nodelay(true);
            // Whatever goes wrong, the client's connection ends.
            let Ok(stream) = TcpStream::connect(node).await else {
                return;
            };
            let _ = stream.set_nodelay(true);
            let name = ServerName::try_from("localhost").expect("a name");
            if let Ok(mut stream) = connector.connect(name, stream).await {
                let _ = copy_bidirectional(&mut plain, &mut stream).await;
            }
        });
    }
}

/// Asks a node, with the token that the harness shows.
#[track_caller]
pub fn ask(cluster: &Cluster, node: usize, method: &str, target: &str, body: &str) -> Answer {
    let token = http::token().map(|token| format!("Bearer {token}"));
    let fields = token.as_deref().map(|token| ("authorization", token));
    let answer = http::ask(
        cluster.nodes[node].http(),
        method,
        target,
        fields.as_slice(),
        body,
    );
    answer.unwrap_or_else(|| panic!("{method} {target}: node {} does not answer", node + 1))
}

/// The same where the node is to do it.
#[track_caller]
pub fn done(cluster: &Cluster, node: usize, method: &str, target: &str, body: &str) -> Answer {
    let answer = ask(cluster, node, method, target, body);
    assert_eq!(answer.status, 200, "{method} {target}: {}", answer.body);
    answer
}

/// Makes a user, who may log in everywhere then.
#[track_caller]
pub fn add_user(cluster: &Cluster, name: &str, password: &str) {
    let body = format!("{{\"name\":{name:?},\"password\":{password:?}}}");
    done(cluster, 0, "POST", "/v1/users", &body);
}
