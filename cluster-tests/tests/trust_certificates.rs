//! Clients that log in with a certificate, on three nodes, with mosquitto's programs: the name that counts, and a
//! revocation under way. And what stands before the log-in on each node: PROXY headers and Unix sockets.

use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::script::Guarded;
use cluster_tests::wait;
use cluster_tests::wire::Connect;
use cluster_tests::{rules, rules::show};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// How long what must come may take.
const WITHIN: Duration = Duration::from_secs(20);

/// A CA with its list of revoked certificates, and the files that nodes and clients read.
struct Place {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

static PLACE: OnceLock<Place> = OnceLock::new();

fn place() -> &'static Place {
    PLACE.get().expect("the test makes it first")
}

impl Place {
    fn new() -> Place {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("random numbers");
        let place = Place {
            directory: TempDir::new().expect("a temporary directory can be made"),
            ca: CertifiedIssuer::self_signed(params, key).expect("a CA"),
        };
        place.write("ca.pem", &place.ca.pem());
        place.issue("localhost", 1);
        place.issue("device-1", 2);
        place.issue("device-2", 3);
        place.revoke(1, &[]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces a file as a whole.
    fn write(&self, name: &str, text: &str) {
        let new = self.path("new");
        std::fs::write(&new, text).expect("a file can be written");
        std::fs::rename(new, self.path(name)).expect("it is there");
    }

    fn issue(&self, name: &str, serial: u64) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params.signed_by(&key, &self.ca).expect("it is signed");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Publishes a list of revoked certificates.
    fn revoke(&self, number: u64, serials: &[u64]) {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.ca).expect("it is signed");
        self.write("revoked.pem", &list.pem().expect("it can be written"));
    }

    fn toml(&self) -> String {
        format!(
            "[[listeners]]\nname = \"devices\"\naddress = \"{{mqtt}}\"\ntransport = \"tls\"\n\
             certificates = [{{ certificate = {:?}, key = {:?} }}]\nclient_certificates = \"required\"\n\
             client_ca_file = {:?}\ncrl_files = [{:?}]\nauthentication = [\"certificate\"]\n",
            self.path("localhost.pem"),
            self.path("localhost.key"),
            self.path("ca.pem"),
            self.path("revoked.pem"),
        )
    }
}

fn mosquitto(cluster: &Cluster, node: usize, program: &str, shown: Option<&str>) -> Command {
    let mut command = Command::new(program);
    let port = cluster.mqtt(node).port().to_string();
    command.args(["-h", "localhost", "-p", &port, "-V", "5", "--cafile"]);
    command.arg(place().path("ca.pem"));
    if let Some(name) = shown {
        command
            .arg("--cert")
            .arg(place().path(&format!("{name}.pem")));
        command
            .arg("--key")
            .arg(place().path(&format!("{name}.key")));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Whether a client comes in.
#[track_caller]
fn publishes(cluster: &Cluster, node: usize, shown: Option<&str>, client_id: &str) -> bool {
    let mut command = mosquitto(cluster, node, "mosquitto_pub", shown);
    command.args(["-i", client_id, "-q", "1", "-t", "t", "-m", "hello"]);
    command.stderr(Stdio::null());
    command
        .status()
        .expect("mosquitto_pub can be started")
        .success()
}

#[test]
fn certificates() {
    let place = PLACE.get_or_init(Place::new);
    let cluster = Cluster::start_with(Plan {
        extra: place.toml(),
        ..Plan::default()
    });
    show(
        &cluster,
        rules![
            a_certificate_opens_a_session_on_every_node,
            a_session_belongs_to_the_name_of_the_certificate,
            a_revoked_certificate_ends_connections_on_every_node,
        ],
    );
    cluster.assert_states_agree();
}

fn a_certificate_opens_a_session_on_every_node(cluster: &Cluster) {
    for node in 0..3 {
        assert!(publishes(cluster, node, Some("device-1"), "anything"));
        assert!(!publishes(cluster, node, None, "anything"), "without one");
    }
}

fn a_session_belongs_to_the_name_of_the_certificate(cluster: &Cluster) {
    let mut command = mosquitto(cluster, 0, "mosquitto_sub", Some("device-1"));
    command.args(["-i", "owned", "-t", "t", "-c", "-x", "600"]);
    let _subscriber = Guarded(command.spawn().expect("mosquitto_sub can be started"));
    wait::until("its session", WITHIN, || {
        cluster.nodes[0].has_session("owned").then_some(())
    });
    for node in 0..3 {
        assert!(!publishes(cluster, node, Some("device-2"), "owned"));
    }
    assert!(publishes(cluster, 1, Some("device-1"), "owned"));
}

fn a_revoked_certificate_ends_connections_on_every_node(cluster: &Cluster) {
    let client = |node: usize, name: &str| {
        let mut command = mosquitto(cluster, node, "mosquitto_sub", Some(name));
        let client_id = format!("{name}-at-{node}");
        command
            .args(["-i", &client_id, "-t", "t"])
            .stderr(Stdio::null());
        let running = Guarded(command.spawn().expect("mosquitto_sub can be started"));
        wait::until("its session", WITHIN, || {
            cluster.nodes[node].has_session(&client_id).then_some(())
        });
        running
    };
    let _running: Vec<Guarded> = (0..3)
        .flat_map(|node| ["device-1", "device-2"].map(|name| client(node, name)))
        .collect();
    place().revoke(2, &[3]);
    wait::until(
        "the end of the revoked client's connections",
        WITHIN,
        || {
            let is_gone = |node| !cluster.nodes[0].has_session(&format!("device-2-at-{node}"));
            (0..3).all(is_gone).then_some(())
        },
    );
    for node in 0..3 {
        assert!(cluster.nodes[node].has_session(&format!("device-1-at-{node}")));
        assert!(!publishes(cluster, node, Some("device-2"), "again"));
        assert!(publishes(cluster, node, Some("device-1"), "again"));
    }
    // A list that can't be read changes nothing.
    place().write("revoked.pem", "no list at all");
    assert!(publishes(cluster, 0, Some("device-1"), "again"));
    assert!(!publishes(cluster, 0, Some("device-2"), "again"));
}

/// CONNECT after `before`; the code of the CONNACK, if one comes.
#[track_caller]
fn connects(mut stream: impl Read + Write, before: &[u8], client_id: &str) -> Option<u8> {
    let connect = Connect::v5(client_id).bytes();
    let _ = stream.write_all(&[before, &connect].concat());
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    assert_eq!(head[0], 0x20, "a CONNACK");
    Some(head[3])
}

#[test]
fn what_stands_before_the_log_in() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let socket = |port: u16| directory.path().join(format!("{port}.socket"));
    let path = directory.path().display();
    let extra = format!(
        "[[listeners]]\nname = \"proxy\"\naddress = \"{{mqtt}}\"\nproxy_protocol = true\n\
         [[listeners]]\nname = \"unix\"\naddress = \"unix:{path}/{{mqtt_port}}.socket\"\nunix_mode = \"0600\"\n"
    );
    let cluster = Cluster::start_with(Plan {
        extra,
        ..Plan::default()
    });
    let mut ban = Command::new(binary());
    ban.args(["ban", "add", "address:192.0.2.7", "--seconds", "600"]);
    ban.args(["--http", &cluster.nodes[0].addresses.http.to_string()]);
    assert!(ban.status().expect("the binary can be run").success());
    for node in 0..3 {
        let address = cluster.mqtt(node);
        let tcp = || {
            let stream = TcpStream::connect(address).expect("the port is open");
            stream
                .set_read_timeout(Some(WITHIN))
                .expect("it is a socket");
            stream
        };
        let from = |client: &str| format!("PROXY TCP4 {client} 192.0.2.1 4711 1883\r\n");
        let proxied = |client: &str| connects(tcp(), from(client).as_bytes(), "proxied");
        assert_eq!(proxied("192.0.2.8"), Some(0));
        assert_ne!(proxied("192.0.2.7"), Some(0), "it is banned");
        assert_eq!(connects(tcp(), b"", "bare"), None, "there is no header");
        let unix = UnixStream::connect(socket(address.port())).expect("the socket is open");
        unix.set_read_timeout(Some(WITHIN)).expect("it is a socket");
        assert_eq!(connects(unix, b"", "local"), Some(0));
    }
    cluster.assert_states_agree();
}
