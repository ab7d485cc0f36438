//! Clients that log in with a certificate, on three nodes, with mosquitto's programs: the name that counts, and a
//! revocation under way. And what stands before the log-in on each node: PROXY headers and Unix sockets.

use cluster_tests::audit::Audit;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::script::{Guarded, lines_of};
use cluster_tests::security::{Shown, of_code};
use cluster_tests::wait;
use cluster_tests::wire::Connect;
use cluster_tests::{rules, rules::show};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
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
    // Line by line, although it may go into a pipe.
    let mut command = Command::new("stdbuf");
    command.args(["-oL", program]);
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
    let audit = Audit::new();
    let cluster = Cluster::start_with(Plan {
        extra: audit.toml() + &place.toml(),
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
    the_audit_log_says_whose_certificate(&audit);
}

fn the_audit_log_says_whose_certificate(audit: &Audit) {
    let files = |result: &str, reason: &Value| {
        json!({"event": "certificates", "result": result, "files": "*", "reason": reason,
               "principal": null, "address": null})
    };
    let of_client = |event: &str, name: &str, reason: &Value| {
        json!({"event": event, "result": "accepted", "principal": name, "method": "certificate",
               "listener": "devices", "reason": reason})
    };
    let withdrawn = "the client's certificate is not valid any more".into();
    audit.expect_all(&[
        of_client("log_in", "device-1", &Value::Null),
        of_client("revocation", "device-2", &withdrawn),
        files("accepted", &Value::Null),
        files("failed", &"*".into()),
    ]);
}

fn a_certificate_opens_a_session_on_every_node(cluster: &Cluster) {
    let mut shown = Shown::by("a_certificate_opens_a_session_on_every_node");
    for node in 0..3 {
        assert!(publishes(cluster, node, Some("device-1"), "anything"));
        shown.saw(
            "Other ways of a client",
            "certificates",
            "what is right",
            "allowed",
        );
        assert!(!publishes(cluster, node, None, "anything"), "without one");
    }
    shown.finish();
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
        command.args(["-i", &client_id, "-t", "t", "-d"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Guarded(command.spawn().expect("mosquitto_sub can be started"));
        wait::until("its session", WITHIN, || {
            cluster.nodes[node].has_session(&client_id).then_some(())
        });
        let lines = lines_of(running.0.stdout.take().expect("it is piped"));
        (running, lines)
    };
    let staying: Vec<_> = (0..3).map(|node| client(node, "device-1")).collect();
    let going: Vec<_> = (0..3).map(|node| client(node, "device-2")).collect();
    place().revoke(2, &[3]);
    let mut shown = Shown::by("a_revoked_certificate_ends_connections_on_every_node");
    for (node, (_running, lines)) in going.iter().enumerate() {
        let told = |line: &String| line.contains("Received DISCONNECT");
        let found = wait::until("the end of the revoked client's connection", WITHIN, || {
            lines.try_iter().find(told)
        });
        let code = found
            .rsplit_once('(')
            .and_then(|(_, rest)| rest.split_once(')'));
        let code = code.and_then(|(code, _)| code.parse().ok());
        let code = code.unwrap_or_else(|| panic!("no code at {node}: {found}"));
        shown.saw(
            "Other ways of a client",
            "certificates",
            "what was withdrawn",
            of_code(code),
        );
    }
    wait::until("the end of the revoked client's sessions", WITHIN, || {
        let is_gone = |node| !cluster.nodes[0].has_session(&format!("device-2-at-{node}"));
        (0..3).all(is_gone).then_some(())
    });
    for (node, (_running, lines)) in staying.iter().enumerate() {
        assert!(cluster.nodes[node].has_session(&format!("device-1-at-{node}")));
        let ended = lines
            .try_iter()
            .find(|line| line.contains("Received DISCONNECT"));
        assert_eq!(ended, None, "at {node}");
        assert!(!publishes(cluster, node, Some("device-2"), "again"));
        assert!(publishes(cluster, node, Some("device-1"), "again"));
    }
    shown.finish();
    a_list_that_cannot_be_read_changes_nothing(cluster);
}

fn a_list_that_cannot_be_read_changes_nothing(cluster: &Cluster) {
    place().write("revoked.pem", "no list at all");
    wait::until("the node to look at it", WITHIN, || {
        let failed = cluster.nodes[0].metric("quorumq_certificates_failed_total");
        failed.filter(|times| *times > 0.0)
    });
    assert!(publishes(cluster, 0, Some("device-1"), "again"));
    assert!(!publishes(cluster, 0, Some("device-2"), "again"));
}

/// Sends a CONNECT after `before`; the code of the CONNACK, if one comes.
#[track_caller]
fn connects(mut stream: impl Read + Write, before: &[u8], connect: &Connect) -> Option<u8> {
    let _ = stream.write_all(&[before, &connect.bytes()].concat());
    let mut head = [0; 4];
    stream.read_exact(&mut head).ok()?;
    assert_eq!(head[0], 0x20, "a CONNACK");
    Some(head[3])
}

#[track_caller]
fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the port is open");
    let waits = stream.set_read_timeout(Some(WITHIN));
    waits.expect("it is a socket");
    stream
}

/// What a client behind a proxy is told.
#[track_caller]
fn proxied(node: SocketAddr, client: &str, connect: &Connect) -> Option<u8> {
    let header = format!("PROXY TCP4 {client} 192.0.2.1 4711 1883\r\n");
    connects(tcp(node), header.as_bytes(), connect)
}

/// What an operator does at the first node; "pencil" is the password of users.
#[track_caller]
fn operate(cluster: &Cluster, arguments: &[&str]) {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .arg("--http")
        .arg(cluster.nodes[0].http().to_string());
    let process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut process = process.expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    // One that reads nothing may have ended already.
    let _ = stdin.write_all(b"pencil\n");
    drop(stdin);
    let status = process.wait().expect("it was started");
    assert!(status.success(), "{arguments:?}");
}

#[test]
fn what_stands_before_the_log_in() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let socket = |port: u16| directory.path().join(format!("{port}.socket"));
    let path = directory.path().display();
    let extra = format!(
        "[auth]\npassword_memory_kib = 64\npassword_passes = 1\nfailures_per_address = {FAILURES}\n\
         failures_per_user = 1000\nfailures_pause_s = 600\nfailure_delay_ms = {DELAY_MS}\n\
         [[listeners]]\nname = \"proxy\"\naddress = \"{{mqtt}}\"\nproxy_protocol = true\n\
         [[listeners]]\nname = \"unix\"\naddress = \"unix:{path}/{{mqtt_port}}.socket\"\nunix_mode = \"0600\"\n"
    );
    let cluster = Cluster::start_with(Plan {
        extra,
        ..Plan::default()
    });
    operate(
        &cluster,
        &["ban", "add", "address:192.0.2.7", "--seconds", "600"],
    );
    for node in cluster.addresses() {
        let connect = Connect::v5("proxied");
        assert_eq!(proxied(node, "192.0.2.8", &connect), Some(0));
        assert_ne!(
            proxied(node, "192.0.2.7", &connect),
            Some(0),
            "it is banned"
        );
        let bare = connects(tcp(node), b"", &Connect::v5("bare"));
        assert_eq!(bare, None, "there is no header");
        let unix = UnixStream::connect(socket(node.port())).expect("the socket is open");
        unix.set_read_timeout(Some(WITHIN)).expect("it is a socket");
        assert_eq!(connects(unix, b"", &Connect::v5("local")), Some(0));
    }
    an_address_that_fails_too_often_has_to_wait(&cluster);
    the_log_has_the_true_reason_in_one_line(&cluster);
    cluster.assert_states_agree();
}

/// Of an address, before it has to wait; and how long the answer to the first one takes.
const FAILURES: u32 = 4;
const DELAY_MS: u32 = 30;

/// Each failure is answered twice as late as the one before, and then that address, alone, is not listened to.
fn an_address_that_fails_too_often_has_to_wait(cluster: &Cluster) {
    operate(cluster, &["user", "add", "anna"]);
    let node = cluster.mqtt(0);
    let log_in = |node, client: &str, name: &str, password: &str| {
        let connect = Connect {
            user_name: Some(name.into()),
            password: Some(password.into()),
            ..Connect::v5(name)
        };
        let began = Instant::now();
        (proxied(node, client, &connect), began.elapsed())
    };
    let refused = || {
        cluster.nodes[0]
            .metric("quorumq_logins_refused_total")
            .unwrap_or_default()
    };
    let before = refused();
    // Other names each time: nothing is known of them.
    for failure in 0..=FAILURES {
        let (code, took) = log_in(node, "192.0.2.9", &format!("guess-{failure}"), "guess");
        let least = Duration::from_millis(u64::from(DELAY_MS << failure));
        assert_eq!(code, Some(0x87), "failure {failure}");
        assert!(
            took >= least,
            "failure {failure} is told after {took:?}, not {least:?}"
        );
    }
    for (name, password) in [("anna", "pencil"), ("guess", "guess")] {
        let (code, _) = log_in(node, "192.0.2.9", name, password);
        assert_eq!(code, Some(0x97), "{name}");
    }
    for other in ["192.0.2.8", "192.0.2.10"] {
        assert_eq!(log_in(node, other, "anna", "pencil").0, Some(0), "{other}");
    }
    let elsewhere = log_in(cluster.mqtt(1), "192.0.2.9", "anna", "pencil").0;
    assert_eq!(elsewhere, Some(0), "each node counts");
    let counted = refused() - before;
    assert_eq!(counted, f64::from(FAILURES + 1 + 2), "each is counted");
}

/// Everybody is told the same, and an operator why.
fn the_log_has_the_true_reason_in_one_line(cluster: &Cluster) {
    operate(cluster, &["user", "add", "idle"]);
    operate(cluster, &["user", "disable", "idle"]);
    for (number, name, password, reason) in [
        (1, "anna", "wrong", "the password is wrong"),
        (2, "who-is-this", "wrong", "there is no such user"),
        (3, "idle", "pencil", "the user is disabled"),
        (4, "idle", "wrong", "the password is wrong"),
    ] {
        let (client_id, address) = (format!("reason-{number}"), format!("192.0.2.10{number}"));
        let connect = Connect {
            user_name: Some(name.into()),
            password: Some(password.into()),
            ..Connect::v5(&client_id)
        };
        assert_eq!(
            proxied(cluster.mqtt(2), &address, &connect),
            Some(0x87),
            "{reason}"
        );
        let lines = wait::until("a line of the log", WITHIN, || {
            let log = cluster.nodes[2].log_text();
            let lines = log.lines().filter(|line| line.contains(&client_id));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            (!lines.is_empty()).then_some(lines)
        });
        let [line] = &lines[..] else {
            panic!("not one line: {lines:#?}");
        };
        for part in ["not authenticated", name, &address, reason] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
    }
}
