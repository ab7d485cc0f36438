//! Listeners of every transport, with clients that others wrote: TLS with and without client certificates, WebSocket
//! over it, Unix sockets, and the PROXY protocol; certificates that are renewed, and broken, under way.

mod certificates;
mod plain;
mod proxy;

use certificates::{
    a_certificate_is_renewed_under_way_and_a_broken_one_is_not_used,
    each_name_gets_its_certificate, the_time_that_is_left_is_told,
};
use cluster_tests::audit::Audit;
use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::rules;
use cluster_tests::script::{self, Guarded};
use cluster_tests::security::Shown;
use cluster_tests::wait;
use plain::{mosquitto_speaks_over_a_unix_socket, others_speak_over_websockets_without_tls};
use proxy::{
    CLIENT, a_proxy_header_comes_first, clients_come_through_a_proxy_and_tls_to_another_path,
};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// How long what must come may take.
const WITHIN: Duration = Duration::from_secs(20);

/// Where the listeners of the cluster under test are, and the files of its CA.
struct Place {
    directory: TempDir,
    /// TLS; TLS with client certificates; WebSocket over TLS; TCP with PROXY headers; WebSocket over TLS at another
    /// path, with PROXY headers in front of all that; WebSocket.
    ports: [u16; 6],
}

/// The name of the second certificate of the TLS listener, and the directory of its files: another CA has signed it.
const SECOND: &str = "second.test";

static PLACE: OnceLock<Place> = OnceLock::new();

fn place() -> &'static Place {
    PLACE.get().expect("the test makes it first")
}

impl Place {
    fn new() -> Place {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let free = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let held = [(); 6].map(|()| free());
        let ports = held.each_ref().map(|listener| {
            let address = listener.local_addr();
            address.expect("it is bound").port()
        });
        let place = Place { directory, ports };
        place.make(&["ca"]);
        place.make(&["node", "--id", "1", "--host", "localhost,127.0.0.1"]);
        place.make(&["client", "device-1"]);
        place.make_in(SECOND, &["ca"]);
        place.make_in(SECOND, &["node", "--id", "1", "--host", SECOND]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Has the program itself make certificates.
    #[track_caller]
    fn make(&self, arguments: &[&str]) {
        self.make_in("", arguments);
    }

    /// The same, of an authority in another directory.
    #[track_caller]
    fn make_in(&self, directory: &str, arguments: &[&str]) {
        fs::create_dir_all(self.path(directory)).expect("a directory can be made");
        let mut command = Command::new(binary());
        command.arg("certificates").args(arguments);
        command.arg("--directory").arg(self.path(directory));
        let output = command.output().expect("the binary can be run");
        assert!(output.status.success(), "{output:?}");
    }

    /// The listeners, as a node's configuration has them.
    fn toml(&self) -> String {
        let pair_in = |directory: &str| {
            let path = |name| self.path(directory).join(name);
            let (certificate, key) = (path("node-1.pem"), path("node-1.key"));
            format!("{{ certificate = {certificate:?}, key = {key:?} }}")
        };
        let (first, second) = (pair_in(""), pair_in(SECOND));
        let pair = format!("certificates = [{first}]");
        let [tls, mutual, wss, proxy, behind, ws] = self.ports;
        format!(
            "[[listeners]]\nname = \"tls\"\naddress = \"127.0.0.1:{tls}\"\ntransport = \"tls\"\n\
             certificates = [{first}, {second}]\n\
             [[listeners]]\nname = \"mutual\"\naddress = \"127.0.0.1:{mutual}\"\ntransport = \"tls\"\n{pair}\n\
             client_certificates = \"required\"\nclient_ca_file = {:?}\n\
             [[listeners]]\nname = \"wss\"\naddress = \"127.0.0.1:{wss}\"\ntransport = \"wss\"\n{pair}\n\
             [[listeners]]\nname = \"proxy\"\naddress = \"127.0.0.1:{proxy}\"\nproxy_protocol = true\n\
             [[listeners]]\nname = \"behind\"\naddress = \"127.0.0.1:{behind}\"\ntransport = \"wss\"\n{pair}\n\
             proxy_protocol = true\nwebsocket_path = \"/broker\"\n\
             [[listeners]]\nname = \"ws\"\naddress = \"127.0.0.1:{ws}\"\ntransport = \"ws\"\n\
             [[listeners]]\nname = \"unix\"\naddress = \"unix:{}\"\nunix_mode = \"0600\"\n",
            self.path("ca.pem"),
            self.path("socket").display()
        )
    }
}

#[test]
fn listeners() {
    let place = PLACE.get_or_init(Place::new);
    let audit = Audit::new();
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: audit.toml() + &place.toml(),
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            mosquitto_speaks_over_tls,
            paho_speaks_over_tls_and_websockets,
            mqtt_js_speaks_over_tls_and_websockets,
            others_speak_over_websockets_without_tls,
            mosquitto_speaks_over_a_unix_socket,
            openssl_agrees_on_versions_protocols_and_resumption,
            each_name_gets_its_certificate,
            the_time_that_is_left_is_told,
            a_client_certificate_is_asked_for,
            the_command_line_speaks_every_transport,
            a_proxy_header_comes_first,
            a_unix_socket_has_its_permissions,
            clients_come_through_a_proxy_and_tls_to_another_path,
            a_certificate_is_renewed_under_way_and_a_broken_one_is_not_used,
        ],
    );
    // Where the proxy says that they are.
    audit.expect(&json!({
        "event": "log_in", "result": "accepted", "listener": "behind", "address": CLIENT, "method": "anonymous",
    }));
}

fn mosquitto(program: &str, port: u16, arguments: &[&str]) -> Command {
    // Line by line, although it goes into a pipe.
    let mut command = Command::new("stdbuf");
    command
        .args(["-oL", program])
        .args(["-h", "localhost", "-p", &port.to_string(), "-V", "5"])
        .arg("--cafile")
        .arg(place().path("ca.pem"))
        .args(arguments)
        .stdin(Stdio::null());
    command
}

#[track_caller]
fn output(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"))
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let found = output(command);
    assert!(found.status.success(), "{command:?}: {found:?}");
    String::from_utf8_lossy(&found.stdout).into_owned()
}

/// mosquitto_sub, subscribed.
fn subscriber(port: u16, topic: &str) -> (Guarded, std::sync::mpsc::Receiver<String>) {
    subscribed(mosquitto(
        "mosquitto_sub",
        port,
        &["-t", topic, "-q", "1", "-d"],
    ))
}

fn subscribed(mut command: Command) -> (Guarded, std::sync::mpsc::Receiver<String>) {
    command.stdout(Stdio::piped());
    let mut process = Guarded(command.spawn().expect("mosquitto_sub can be started"));
    let lines = script::lines_of(process.0.stdout.take().expect("it is piped"));
    await_line(&lines, "Subscribed ");
    (process, lines)
}

#[track_caller]
fn await_line(lines: &std::sync::mpsc::Receiver<String>, wanted: &str) {
    loop {
        let line = lines.recv_timeout(WITHIN);
        match line {
            Ok(line) if line.contains(wanted) => return,
            Ok(_) => {}
            Err(why) => panic!("no {wanted:?}: {why}"),
        }
    }
}

fn mosquitto_speaks_over_tls(_: &Cluster) {
    let port = place().ports[0];
    let (_process, lines) = subscriber(port, "tls/#");
    for (qos, text) in [("0", "text zero"), ("1", "text one"), ("2", "text two")] {
        let sent = ["-t", "tls/a", "-q", qos, "-m", text];
        succeeds(&mut mosquitto("mosquitto_pub", port, &sent));
        await_line(&lines, text);
    }
    let mut stranger = Command::new("mosquitto_pub");
    let plain = [
        "-h",
        "localhost",
        "-p",
        &port.to_string(),
        "-t",
        "a",
        "-m",
        "b",
    ];
    assert!(
        !output(stranger.args(plain)).status.success(),
        "without TLS"
    );
}

fn paho_speaks_over_tls_and_websockets(_: &Cluster) {
    let place = place();
    let ca = place.path("ca.pem").display().to_string();
    let mut broken = Vec::new();
    for (port, transport) in [(place.ports[0], "tcp"), (place.ports[2], "websockets")] {
        let arguments = ["localhost", &port.to_string(), transport, "/mqtt", &ca];
        broken.extend(broken_rules(script::python("transports.py"), &arguments));
    }
    assert_none(&broken);
}

fn mqtt_js_speaks_over_tls_and_websockets(_: &Cluster) {
    let place = place();
    let ca = place.path("ca.pem").display().to_string();
    let mut broken = Vec::new();
    for url in [
        format!("mqtts://localhost:{}", place.ports[0]),
        format!("wss://localhost:{}/mqtt", place.ports[2]),
    ] {
        broken.extend(broken_rules(script::node_js("transports.js"), &[&url, &ca]));
    }
    assert_none(&broken);
}

/// What a program that reports one rule says of it, if that does not hold.
#[track_caller]
fn broken_rules(command: Command, arguments: &[&str]) -> Vec<String> {
    let owned: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    let report = script::run(command, &owned, |what, _| {
        panic!("nothing is to be done, {what} was asked")
    });
    assert_eq!(report.len(), 1, "{report:?}");
    let said = report.iter().filter(|said| said["holds"] != true);
    said.map(|said| format!("{arguments:?}: {said}")).collect()
}

/// What openssl tells of a connection.
fn s_client(port: u16, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command
        .args(["s_client", "-connect", &format!("localhost:{port}")])
        .arg("-CAfile")
        .arg(place().path("ca.pem"))
        .args(["-verify_return_error", "-servername", "localhost"])
        .args(arguments)
        .stdin(Stdio::null());
    let found = output(&mut command);
    let text = [found.stdout, found.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn openssl_agrees_on_versions_protocols_and_resumption(_: &Cluster) {
    let port = place().ports[0];
    for version in ["2", "3"] {
        let said = s_client(port, &[&format!("-tls1_{version}"), "-alpn", "mqtt"]);
        assert!(said.contains(&format!("TLSv1.{version}")), "{said}");
        assert!(said.contains("ALPN protocol: mqtt"), "{said}");
        assert!(said.contains("Verify return code: 0"), "{said}");
    }
    let old = s_client(port, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]);
    assert!(
        !old.contains("ALPN protocol: mqtt") && old.contains("alert"),
        "{old}"
    );
    let other = s_client(port, &["-alpn", "h2"]);
    assert!(other.contains("no application protocol"), "{other}");
    let resumed = s_client(port, &["-tls1_2", "-reconnect"]);
    assert!(resumed.contains("Reused, TLSv1.2"), "{resumed}");
    let session = place().path("session").display().to_string();
    let first = converse(port, &["-tls1_3", "-sess_out", &session]);
    assert!(first.contains("New, TLSv1.3"), "{first}");
    let second = converse(port, &["-tls1_3", "-sess_in", &session]);
    assert!(second.contains("Reused, TLSv1.3"), "{second}");
}

/// What openssl tells of a connection on which a client connects: with TLS 1.3 tickets come behind the handshake, and
/// are there before the CONNACK.
#[track_caller]
fn converse(port: u16, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command
        .args([
            "s_client",
            "-connect",
            &format!("localhost:{port}"),
            "-CAfile",
        ])
        .arg(place().path("ca.pem"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = Guarded(command.spawn().expect("openssl can be run"));
    let mut stdin = process.0.stdin.take().expect("it is piped");
    stdin.write_all(CONNECT).expect("it reads");
    let mut stdout = process.0.stdout.take().expect("it is piped");
    let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
    while !said.windows(CONNACK.len()).any(|bytes| bytes == CONNACK) {
        let read = stdout.read(&mut chunk).expect("a pipe can be read");
        assert_ne!(read, 0, "no CONNACK: {}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&chunk[..read]);
    }
    drop(stdin);
    stdout.read_to_end(&mut said).expect("a pipe can be read");
    let status = process.0.wait().expect("it was started");
    assert!(status.success(), "{status}");
    String::from_utf8_lossy(&said).into_owned()
}

fn a_client_certificate_is_asked_for(_: &Cluster) {
    let place = place();
    let port = place.ports[1];
    let sent = ["-t", "mutual/a", "-q", "1", "-m", "x"];
    let refused = output(&mut mosquitto("mosquitto_pub", port, &sent));
    assert!(!refused.status.success(), "{refused:?}");
    // Of an authority with the same name.
    place.make_in("foreign", &["ca"]);
    place.make_in("foreign", &["client", "device-1"]);
    let foreign = |name: &str| place.path("foreign").join(name);
    let mut command = mosquitto("mosquitto_pub", port, &sent);
    command.arg("--cert").arg(foreign("client-device-1.pem"));
    command.arg("--key").arg(foreign("client-device-1.key"));
    let stranger = output(&mut command);
    assert!(!stranger.status.success(), "{stranger:?}");
    let mut shown = Shown::by("a_client_certificate_is_asked_for");
    shown.saw(
        "Other ways of a client",
        "certificates",
        "what is wrong",
        "refused",
    );
    shown.finish();
    let mut command = mosquitto("mosquitto_pub", port, &sent);
    command.arg("--cert").arg(place.path("client-device-1.pem"));
    command.arg("--key").arg(place.path("client-device-1.key"));
    succeeds(&mut command);
}

fn the_command_line_speaks_every_transport(_: &Cluster) {
    let place = place();
    let ca = place.path("ca.pem");
    let run = |url: &str, arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--server", url, "--ca-file"]);
        command.arg(&ca).stdin(Stdio::null());
        command
    };
    let [tls, mutual, wss, ..] = place.ports;
    let urls = [
        format!("mqtts://localhost:{tls}"),
        format!("wss://localhost:{wss}"),
    ];
    for url in &urls {
        succeeds(&mut run(url, &["kv", "set", "transport", url]));
        let value = succeeds(&mut run(url, &["kv", "get", "transport"]));
        assert_eq!(value.trim_end(), url);
    }
    let url = format!("mqtts://localhost:{mutual}");
    let mut command = run(&url, &["kv", "get", "transport", "--timeout", "5"]);
    assert!(
        !output(&mut command).status.success(),
        "without a certificate"
    );
    let mut command = run(&url, &["kv", "get", "transport"]);
    command
        .arg("--certificate")
        .arg(place.path("client-device-1.pem"));
    command.arg("--key").arg(place.path("client-device-1.key"));
    succeeds(&mut command);
}

/// A CONNECT of MQTT 3.1.1 and the CONNACK that accepts it.
const CONNECT: &[u8] = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01p";
const CONNACK: &[u8] = b"\x20\x02\0\0";

#[track_caller]
fn is_accepted(mut stream: impl Read + Write, before: &[u8]) {
    let sent = stream.write_all(&[before, CONNECT].concat());
    sent.expect("it is open");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("a CONNACK");
    assert_eq!(answer, CONNACK);
}

fn a_unix_socket_has_its_permissions(_: &Cluster) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = place().path("socket");
    let mode = fs::metadata(&path).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    is_accepted(UnixStream::connect(&path).expect("it listens"), b"");
}
