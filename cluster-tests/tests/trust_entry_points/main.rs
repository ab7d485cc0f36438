//! Every transport of a listener with every way to say who a client is: the cells of the table in docs/security.md.

mod services;

use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::line::{self, Line, Transport};
use cluster_tests::security::{Shown, of_code};
use cluster_tests::wire::{self, Connect, Disconnect, Packet, Properties, V5, V311, Value, id};
use jsonwebtoken::{EncodingKey, Header};
use quorumq::auth::scram::{Algorithm, Client};
use serde_json::json;
use services::{serve_judgements, service_accounts_and_a_service_that_judges};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const SECRET: &str = "a secret of the test, which both sides know, of many bytes";
const OTHER_SECRET: &str = "a secret of somebody else, also of many bytes";
const PASSWORD: &str = "the password of anna";

/// The part of the table that is shown here.
const PART: &str = "Clients";

/// A row for those who are let in without being asked.
const UNASKED: &str = "nobody, where a listener says `anonymous`";

/// How a client says who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    Password(&'static str),
    Scram(&'static str),
    /// A token that this secret has signed.
    Token(&'static str),
    /// A certificate of the authority in this directory.
    Certificate(&'static str),
}

/// The transports that the command line speaks: in the configuration, in a URL, and in the table.
const TRANSPORTS: [(&str, &str, &str); 4] = [
    ("tcp", "mqtt", "TCP"),
    ("tls", "mqtts", "TLS"),
    ("ws", "ws", "WebSocket"),
    ("wss", "wss", "WebSocket over TLS"),
];

/// The listeners: of each transport one that asks, one that lets everybody in, one that asks and is behind a proxy, and
/// one that has a service judge its clients.
struct Place {
    directory: TempDir,
    /// By transport.
    asking: [u16; 4],
    open: [u16; 4],
    proxied: [u16; 4],
    judged: [u16; 4],
    service: SocketAddr,
}

impl Place {
    fn new() -> Place {
        let held = [(); 16].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let port = |at: usize| {
            let address: std::io::Result<std::net::SocketAddr> = held[at].local_addr();
            address.expect("it is bound").port()
        };
        let place = Place {
            directory: TempDir::new().expect("a temporary directory can be made"),
            asking: [0, 1, 2, 3].map(port),
            open: [4, 5, 6, 7].map(port),
            proxied: [8, 9, 10, 11].map(port),
            judged: [12, 13, 14, 15].map(port),
            service: serve_judgements(),
        };
        for authority in ["own", "foreign"] {
            place.make(authority, &["ca"]);
            place.make(authority, &["client", "device-1"]);
        }
        place.make("own", &["node", "--id", "1", "--host", "localhost"]);
        let secret = place.path("own", "secret");
        std::fs::write(&secret, SECRET).expect("a file can be written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&secret, mode).expect("it is ours");
        place
    }

    fn path(&self, authority: &str, name: &str) -> PathBuf {
        self.directory.path().join(authority).join(name)
    }

    #[track_caller]
    fn make(&self, authority: &str, arguments: &[&str]) {
        let directory = self.directory.path().join(authority);
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        let mut command = Command::new(binary());
        command.arg("certificates").args(arguments);
        let output = command.arg("--directory").arg(directory).output();
        let output = output.expect("the binary can be run");
        assert!(output.status.success(), "{output:?}");
    }

    fn socket(&self, kind: &str) -> PathBuf {
        self.directory.path().join(format!("{kind}.socket"))
    }

    /// The way to a listener.
    fn line(&self, kind: &str, transport: Transport) -> line::Place {
        let ports = match kind {
            "asking" => self.asking,
            "open" => self.open,
            "judged" => self.judged,
            _ => self.proxied,
        };
        let at = Transport::ALL.iter().position(|one| *one == transport);
        let port = at.and_then(|at| ports.get(at)).copied().unwrap_or_default();
        line::Place {
            socket: self.socket(kind),
            ..line::Place::new(transport, port)
        }
    }

    fn toml(&self) -> String {
        let mut text = format!(
            "[auth]\npassword_memory_kib = 64\npassword_passes = 1\nscram_iterations = 4096\n\
             http_url = \"http://{}/judge\"\n\
             [[auth.jwt]]\nissuer = \"plain\"\nalgorithms = [\"HS256\"]\nsecret_file = {:?}\n\
             accept = [\"password\", \"JWT\", \"K8S-SAT\"]\n\
             [[listeners]]\nname = \"first\"\naddress = \"{{mqtt}}\"\n",
            self.service,
            self.path("own", "secret")
        );
        let mut add = |kind: &str, transport: &str, address: String, methods: &str| {
            text += &format!(
                "[[listeners]]\nname = \"{kind}-{transport}\"\naddress = \"{address}\"\n\
                 authentication = [{methods}]\n"
            );
            if kind == "proxied" {
                text += "proxy_protocol = true\n";
            }
            if transport != "unix" {
                text += &format!("transport = \"{transport}\"\n");
            }
            if matches!(transport, "tls" | "wss") {
                text += &format!(
                    "certificates = [{{ certificate = {:?}, key = {:?} }}]\n\
                     client_certificates = \"optional\"\nclient_ca_file = {:?}\n",
                    self.path("own", "node-1.pem"),
                    self.path("own", "node-1.key"),
                    self.path("own", "ca.pem")
                );
            }
        };
        let methods = "\"jwt\", \"password\", \"scram\"";
        for (at, (transport, _, _)) in TRANSPORTS.into_iter().enumerate() {
            let first = match transport {
                "tls" | "wss" => "\"certificate\", ",
                _ => "",
            };
            let address = |port: u16| format!("127.0.0.1:{port}");
            let asking = address(self.asking[at]);
            add("asking", transport, asking, &format!("{first}{methods}"));
            add("open", transport, address(self.open[at]), "\"anonymous\"");
            add("proxied", transport, address(self.proxied[at]), methods);
            add("judged", transport, address(self.judged[at]), "\"http\"");
        }
        for (kind, methods) in [
            ("asking", methods),
            ("open", "\"anonymous\""),
            ("proxied", methods),
            ("judged", "\"http\""),
        ] {
            let address = format!("unix:{}", self.socket(kind).display());
            add(kind, "unix", address, methods);
        }
        text
    }

    /// What the command line is told.
    fn outcome(&self, scheme: &str, port: u16, way: Way) -> String {
        let mut command = Command::new(binary());
        command
            .args(["kv", "set", "entry", "1", "--timeout", "10", "--server"])
            .arg(format!("{scheme}://localhost:{port}"))
            .arg("--ca-file")
            .arg(self.path("own", "ca.pem"))
            .stdin(Stdio::null());
        let mut shows = |password: &str| {
            command.args(["--username", "anna", "--password", password]);
        };
        match way {
            Way::Nothing => {}
            Way::Password(password) => shows(password),
            Way::Scram(password) => {
                shows(password);
                command.arg("--scram");
            }
            Way::Token(secret) => shows(&token(secret)),
            Way::Certificate(authority) => {
                let certificate = self.path(authority, "client-device-1.pem");
                command.arg("--certificate").arg(certificate);
                let key = self.path(authority, "client-device-1.key");
                command.arg("--key").arg(key);
            }
        }
        let output = command.output().expect("the binary can be run");
        if output.status.success() {
            return of_code(0);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = said
            .split_once("(0x")
            .and_then(|(_, rest)| rest.split_once(')'));
        match code {
            Some((code, _)) => format!("0x{code}"),
            // An alert of TLS.
            None if said.contains("received fatal alert") => "refused".to_owned(),
            None => said,
        }
    }
}

/// A token of anna.
fn token(secret: &str) -> String {
    token_of("anna", secret, 600)
}

/// A token that ends so many seconds from now.
fn token_of(name: &str, secret: &str, ends_in_s: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now.expect("it is after 1970").as_secs();
    let end_s = i64::try_from(now_s).expect("it is not that late") + ends_in_s;
    let claims = json!({"iss": "plain", "sub": name, "exp": end_s});
    let key = EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("it can be signed")
}

/// What a client is told over a transport that it speaks itself.
fn told(place: &line::Place, connect: &Connect) -> String {
    place.code(connect).map_or("refused".to_owned(), of_code)
}

/// A CONNECT of anna with this password; of nobody without.
fn anna(level: u8, password: Option<&str>) -> Connect {
    Connect {
        user_name: password.map(|_| "anna".to_owned()),
        password: password.map(|password| password.as_bytes().to_vec()),
        // A session belongs to whoever has opened it.
        ..Connect::at(password.map_or("nobodys", |_| "annas"), level)
    }
}

fn with_method(name: &str, data: Vec<u8>) -> Properties {
    Properties::new()
        .with(id::AUTHENTICATION_METHOD, Value::Text(name.into()))
        .with(id::AUTHENTICATION_DATA, Value::Binary(data))
}

/// The code of the CONNACK, by SCRAM.
fn scram_code_at(place: &line::Place, password: &str) -> u8 {
    let mut client =
        Client::by(Algorithm::Sha256, "anna", password, &[7; 32]).expect("plain names");
    let name = Algorithm::Sha256.name();
    let connect = Connect {
        properties: with_method(name, client.first().into()),
        ..Connect::at("entry-scram", V5)
    };
    let mut line = Line::open(place).expect("it is open");
    line.send(&connect.bytes());
    let Some(Packet::Auth(Disconnect {
        properties: challenge,
        ..
    })) = line.packet(V5)
    else {
        panic!("no AUTH");
    };
    let challenge = challenge
        .binary(id::AUTHENTICATION_DATA)
        .expect("a challenge");
    let answer = client.answer(challenge).expect("a challenge of SCRAM");
    let properties = wire::properties(&with_method(name, answer.as_bytes().to_vec()));
    line.send(&wire::packet(0xF0, &[&[0x18][..], &properties].concat()));
    match line.packet(V5) {
        Some(Packet::Connack(connack)) => connack.code,
        other => panic!("instead of CONNACK: {other:?}"),
    }
}

/// What is shown at a listener that asks, and the row of the table that it is.
const ROWS: [(Way, &str); 9] = [
    (Way::Nothing, "nobody"),
    (Way::Password(PASSWORD), "a user's password"),
    (Way::Password("another one"), "a wrong password"),
    (Way::Scram(PASSWORD), "SCRAM of a user"),
    (Way::Scram("another one"), "SCRAM with a wrong password"),
    (Way::Token(SECRET), "a token"),
    (
        Way::Token(OTHER_SECRET),
        "a token that another key has signed",
    ),
    (Way::Certificate("own"), "a certificate"),
    (
        Way::Certificate("foreign"),
        "a certificate of another authority",
    ),
];

#[test]
fn every_transport_asks_for_every_method() {
    let place = Place::new();
    let cluster = Cluster::start_with(Plan {
        size: 1,
        extra: place.toml(),
        ..Plan::default()
    });
    let mut command = Command::new(binary());
    command
        .args(["user", "add", "anna", "--http"])
        .arg(cluster.nodes[0].http().to_string())
        .stdin(Stdio::piped());
    let mut process = command.spawn().expect("the binary can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(PASSWORD.as_bytes()).expect("it is read");
    drop(stdin);
    assert!(process.wait().expect("it was started").success());
    let mut shown = Shown::by("every_transport_asks_for_every_method");
    for (at, (transport, scheme, entry)) in TRANSPORTS.into_iter().enumerate() {
        let has_tls = matches!(transport, "tls" | "wss");
        for (way, row) in ROWS {
            if has_tls || !matches!(way, Way::Certificate(_)) {
                let outcome = place.outcome(scheme, place.asking[at], way);
                shown.saw(PART, entry, row, outcome);
            }
        }
        let outcome = place.outcome(scheme, place.open[at], Way::Nothing);
        shown.saw(PART, entry, UNASKED, outcome);
    }
    let asking = place.line("asking", Transport::Unix);
    for (way, row) in ROWS {
        let outcome = match way {
            Way::Nothing => told(&asking, &anna(V5, None)),
            Way::Password(password) => told(&asking, &anna(V5, Some(password))),
            Way::Token(secret) => told(&asking, &anna(V5, Some(&token(secret)))),
            Way::Scram(password) => of_code(scram_code_at(&asking, password)),
            Way::Certificate(_) => continue,
        };
        shown.saw(PART, "Unix socket", row, outcome);
    }
    let outcome = told(&place.line("open", Transport::Unix), &anna(V5, None));
    shown.saw(PART, "Unix socket", UNASKED, outcome);
    shown.finish();
    other_versions_other_packets_and_proxies(&place);
    service_accounts_and_a_service_that_judges(&place);
}

/// Clients that the command line is none of.
fn other_versions_other_packets_and_proxies(place: &Place) {
    let mut shown = Shown::by("other_versions_other_packets_and_proxies");
    let in_auth = |secret: &str| Connect {
        properties: with_method("JWT", token(secret).into_bytes()),
        ..Connect::at("entry-auth", V5)
    };
    let rows = [
        ("nobody, MQTT 3.1.1", anna(V311, None)),
        ("a user's password, MQTT 3.1.1", anna(V311, Some(PASSWORD))),
        (
            "a wrong password, MQTT 3.1.1",
            anna(V311, Some("another one")),
        ),
        ("a token in AUTH (`JWT`)", in_auth(SECRET)),
        (
            "a token in AUTH that another key has signed",
            in_auth(OTHER_SECRET),
        ),
    ];
    let (right, wrong) = (anna(V5, Some(PASSWORD)), anna(V5, Some("another one")));
    for transport in Transport::ALL {
        let mut see = |row: &str, place: &line::Place, connect: &Connect| {
            shown.saw(PART, transport.name(), row, told(place, connect));
        };
        for (row, connect) in &rows {
            see(row, &place.line("asking", transport), connect);
        }
        let bare = place.line("proxied", transport);
        let proxied = line::Place {
            header: b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 1883\r\n".to_vec(),
            ..bare.clone()
        };
        see("a user's password behind a PROXY header", &proxied, &right);
        see("a wrong password behind a PROXY header", &proxied, &wrong);
        see(
            "a user's password without the PROXY header that a listener asks for",
            &bare,
            &right,
        );
    }
    shown.finish();
}
