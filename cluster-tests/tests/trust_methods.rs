//! Who a client is, by token and by a service that is asked: tokens in the password and in AUTH on three nodes, keys
//! that rotate, connections that end with their tokens, and clients that others wrote.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::wire::{
    self, Connect, Disconnect, Message, Packet, Properties, V5, V311, Value, id,
};
use cluster_tests::{rules, script, wait};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value as Json, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECRET: &[u8] = b"a secret of the test, which both sides know, of many bytes";
const CONTINUE: u8 = 0x18;
const RE_AUTHENTICATE: u8 = 0x19;

/// A server on this machine: what it answers to each request, which it gets whole.
fn serve(answer: fn(&str) -> (u16, String)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut bytes = [0; 64 << 10];
                let read = stream.read(&mut bytes).unwrap_or(0);
                let (status, body) = answer(&String::from_utf8_lossy(&bytes[..read]));
                let length = body.len();
                let head = format!("HTTP/1.1 {status} Text\r\nContent-Length: {length}\r\n");
                let _ = write!(stream, "{head}Connection: close\r\n\r\n{body}");
            });
        }
    });
    address
}

/// A key of the issuer whose keys are published.
struct Key {
    id: &'static str,
    pair: rcgen::KeyPair,
}

impl Key {
    fn new(id: &'static str) -> Key {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256);
        Key {
            id,
            pair: pair.expect("a key can be made"),
        }
    }

    fn jwk(&self) -> Json {
        let raw = self.pair.public_key_raw();
        let text = |bytes: &[u8]| base64url(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.id, "alg": "ES256", "use": "sig",
               "x": text(&raw[1..33]), "y": text(&raw[33..])})
    }

    fn token(&self, claims: &Json) -> String {
        let header = Header {
            kid: Some(self.id.into()),
            ..Header::new(Algorithm::ES256)
        };
        let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
        jsonwebtoken::encode(&header, claims, &key).expect("it can be signed")
    }
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let padded = [chunk, &[0, 0]].concat();
        let group = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..=chunk.len() {
            let digit = (group >> (18 - 6 * place)) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

/// The keys, and those that are published now.
fn keys() -> &'static [Key; 2] {
    static KEYS: OnceLock<[Key; 2]> = OnceLock::new();
    KEYS.get_or_init(|| [Key::new("first"), Key::new("second")])
}

static PUBLISHED: Mutex<usize> = Mutex::new(0);

fn jwks(_request: &str) -> (u16, String) {
    let published = *PUBLISHED.lock().expect("nobody panics with it");
    let set = json!({"keys": [keys()[published].jwk()]});
    (200, set.to_string())
}

/// Judges by the user name.
fn judge(request: &str) -> (u16, String) {
    let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
    let asked: Json = serde_json::from_str(body).unwrap_or_default();
    match (asked["user_name"].as_str(), asked["password"].as_str()) {
        (Some("anna"), Some("right")) => (200, json!({"result": "allow"}).to_string()),
        (Some("short"), _) => {
            let end = now_s() + 2;
            (
                200,
                json!({"result": "allow", "expires_at": end}).to_string(),
            )
        }
        (Some("down"), _) => (503, String::new()),
        (Some("odd"), _) => (200, "allow".into()),
        (Some("passer-by"), _) => (200, json!({"result": "ignore"}).to_string()),
        _ => (200, json!({"result": "deny"}).to_string()),
    }
}

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_secs()
}

fn claims(issuer: &str, name: &str, lives_s: i64) -> Json {
    json!({"iss": issuer, "sub": name, "aud": ["mqtt"], "exp": now_s() as i64 + lives_s})
}

fn with_secret(claims: &Json) -> String {
    let key = EncodingKey::from_secret(SECRET);
    jsonwebtoken::encode(&Header::default(), claims, &key).expect("it can be signed")
}

/// A token of the issuer with the secret.
fn plain(name: &str, lives_s: i64) -> String {
    with_secret(&claims("plain", name, lives_s))
}

/// A token of the issuer that publishes its keys.
fn published(name: &str, lives_s: i64) -> String {
    keys()[0].token(&claims("published", name, lives_s))
}

#[test]
fn methods() {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let secret = directory.path().join("secret");
    std::fs::write(&secret, SECRET).expect("a file can be written");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&secret, mode).expect("it is ours");
    let (jwks, judge) = (serve(jwks), serve(judge));
    let extra = format!(
        "[auth]\nhttp_url = \"http://{judge}/judge\"\n\
         [[auth.jwt]]\nissuer = \"plain\"\nalgorithms = [\"HS256\"]\nsecret_file = {secret:?}\n\
         audiences = [\"mqtt\"]\nleeway_s = 0\n\
         [[auth.jwt]]\nissuer = \"published\"\nalgorithms = [\"ES256\"]\njwks_url = \"http://{jwks}/keys\"\n\
         audiences = [\"mqtt\"]\nleeway_s = 0\naccept = [\"password\", \"JWT\", \"K8S-SAT\"]\n\
         [[listeners]]\nname = \"clients\"\naddress = \"{{mqtt}}\"\nauthentication = [\"jwt\", \"http\"]\n"
    );
    let cluster = Cluster::start_with(Plan {
        extra,
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            a_token_opens_a_session_on_every_node_in_every_version,
            a_wrong_token_opens_nothing,
            nobody_comes_in_without_anything,
            a_connection_ends_when_its_token_expires,
            a_client_proves_itself_again_before_its_token_expires,
            kubernetes_clients_send_the_token_of_their_service_account,
            the_service_that_judges_clients_is_obeyed,
            an_answer_that_expires_ends_the_connection,
            mosquitto_logs_in_with_a_token,
            paho_logs_in_with_a_token,
            keys_are_rotated_without_a_restart,
        ],
    );
}

fn connect(level: u8, user_name: &str, password: &str) -> Connect {
    Connect {
        user_name: Some(user_name.into()),
        password: Some(password.into()),
        ..Connect::at(&format!("client-{level}-{user_name}"), level)
    }
}

/// The code of the CONNACK.
#[track_caller]
fn code(node: SocketAddr, connect: &Connect) -> u8 {
    let mut connection = Connection::open(node, connect.level).expect("a node accepts connections");
    connection.send(&connect.bytes());
    match connection.expect() {
        Packet::Connack(connack) => connack.code,
        other => panic!("instead of CONNACK: {other:?}"),
    }
}

fn a_token_opens_a_session_on_every_node_in_every_version(cluster: &Cluster) {
    for node in cluster.addresses() {
        for level in [V311, V5] {
            for token in [plain("anna", 60), published("anna", 60)] {
                assert_eq!(code(node, &connect(level, "any", &token)), 0);
            }
        }
    }
}

fn a_wrong_token_opens_nothing(cluster: &Cluster) {
    let unsigned = {
        let good = plain("anna", 60);
        let parts: Vec<&str> = good.split('.').collect();
        format!("{}.{}.", base64url(br#"{"alg":"none"}"#), parts[1])
    };
    let confused = {
        let key = EncodingKey::from_secret(keys()[0].pair.public_key_pem().as_bytes());
        let claims = claims("published", "anna", 60);
        jsonwebtoken::encode(&Header::default(), &claims, &key).expect("it can be signed")
    };
    let mut elsewhere = claims("plain", "anna", 60);
    elsewhere["aud"] = json!("another");
    let wrong = [
        ("expired", plain("anna", -1)),
        ("another audience", with_secret(&elsewhere)),
        ("another issuer", with_secret(&claims("nobody", "anna", 60))),
        (
            "the other issuer's name",
            with_secret(&claims("published", "anna", 60)),
        ),
        ("no signature", unsigned),
        ("the public key as a secret", confused),
        ("a changed signature", format!("{}A", plain("anna", 60))),
    ];
    for (why, token) in &wrong {
        assert_eq!(
            code(cluster.mqtt(0), &connect(V5, "any", token)),
            0x87,
            "{why}"
        );
        assert_eq!(
            code(cluster.mqtt(1), &connect(V311, "any", token)),
            5,
            "{why}"
        );
    }
}

fn nobody_comes_in_without_anything(cluster: &Cluster) {
    assert_eq!(code(cluster.mqtt(0), &Connect::v5("nobody")), 0x87);
    let unknown =
        Connect::v5("nobody").with(id::AUTHENTICATION_METHOD, Value::Text("PLAIN".into()));
    assert_eq!(code(cluster.mqtt(0), &unknown), 0x8C);
}

fn a_connection_ends_when_its_token_expires(cluster: &Cluster) {
    // Each is made when it is used.
    for (node, token) in [(0, plain as fn(&str, _) -> String), (1, published)] {
        let connect = connect(V5, "any", &token("brief", 2));
        let (mut connection, connack) = Connection::connect(cluster.mqtt(node), &connect);
        assert_eq!(connack.code, 0);
        match connection.receive(Duration::from_secs(4)) {
            Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x87),
            other => panic!("instead of DISCONNECT: {other:?}"),
        }
        connection.expect_closed();
    }
    let connect = connect(V311, "any", &plain("brief", 2));
    let (mut connection, _) = Connection::connect(cluster.mqtt(2), &connect);
    assert!(
        connection.receive(Duration::from_secs(4)).is_err(),
        "the socket is closed"
    );
}

fn with_method(client_id: &str, method: &str, token: &str) -> Connect {
    Connect::v5(client_id)
        .with(id::AUTHENTICATION_METHOD, Value::Text(method.into()))
        .with(id::AUTHENTICATION_DATA, Value::Binary(token.into()))
}

fn auth(code: u8, method: &str, token: &str) -> Vec<u8> {
    let list = Properties::new()
        .with(id::AUTHENTICATION_METHOD, Value::Text(method.into()))
        .with(id::AUTHENTICATION_DATA, Value::Binary(token.into()));
    wire::packet(0xF0, &[&[code][..], &wire::properties(&list)].concat())
}

#[track_caller]
fn expect_auth(packet: Packet, code: u8, method: &str) {
    let Packet::Auth(Disconnect {
        code: came,
        properties,
    }) = packet
    else {
        panic!("instead of AUTH: {packet:?}");
    };
    assert_eq!(came, code);
    assert_eq!(properties.text(id::AUTHENTICATION_METHOD), Some(method));
}

fn a_client_proves_itself_again_before_its_token_expires(cluster: &Cluster) {
    let connect = with_method("again", "JWT", &plain("anna", 3));
    let (mut connection, connack) = Connection::connect(cluster.mqtt(0), &connect);
    let properties = &connack.properties;
    assert_eq!(properties.text(id::AUTHENTICATION_METHOD), Some("JWT"));
    connection.send(&auth(RE_AUTHENTICATE, "JWT", &plain("anna", 60)));
    expect_auth(connection.expect_answer(), 0, "JWT");
    connection.subscribe(&[("again", 1)]);
    // One with as short a token that proves nothing again: its end shows that both tokens have expired.
    let forgetful = with_method("forgetful", "JWT", &plain("anna", 3));
    Connection::connect(cluster.mqtt(0), &forgetful)
        .0
        .expect_disconnect(0x87);
    assert_eq!(
        connection.publish(Message::new("again", "still here").qos(1, 0)),
        0
    );
    assert_eq!(connection.publish_received().payload, b"still here");
    connection.send(&auth(RE_AUTHENTICATE, "JWT", &plain("bob", 60)));
    connection.expect_disconnect(0x87);
    let (mut connection, _) = Connection::connect(cluster.mqtt(1), &connect_again());
    connection.send(&auth(RE_AUTHENTICATE, "JWT", &plain("anna", -5)));
    connection.expect_disconnect(0x87);
}

fn connect_again() -> Connect {
    with_method("again", "JWT", &plain("anna", 60))
}

/// As Azure IoT Operations' clients do: the data of CONNECT is the file of the token, and AUTH 0x19 has the next one.
fn kubernetes_clients_send_the_token_of_their_service_account(cluster: &Cluster) {
    let name = "system:serviceaccount:plant:press";
    let connect = with_method("sat", "K8S-SAT", &published(name, 60));
    let (mut connection, connack) = Connection::connect(cluster.mqtt(2), &connect);
    let properties = &connack.properties;
    assert_eq!(properties.text(id::AUTHENTICATION_METHOD), Some("K8S-SAT"));
    connection.send(&auth(RE_AUTHENTICATE, "K8S-SAT", &published(name, 90)));
    expect_auth(connection.expect_answer(), 0, "K8S-SAT");
    let other = with_method("sat", "K8S-SAT", &plain(name, 60));
    assert_eq!(
        code(cluster.mqtt(2), &other),
        0x87,
        "its tokens are for JWT alone"
    );
    let mut asked = with_method("sat", "K8S-SAT", "");
    asked.properties =
        Properties::new().with(id::AUTHENTICATION_METHOD, Value::Text("K8S-SAT".into()));
    let mut connection = Connection::open(cluster.mqtt(0), V5).expect("a node accepts connections");
    connection.send(&asked.bytes());
    expect_auth(connection.expect(), CONTINUE, "K8S-SAT");
    connection.send(&auth(CONTINUE, "K8S-SAT", &published(name, 60)));
    assert!(matches!(connection.expect(), Packet::Connack(connack) if connack.code == 0));
}

fn the_service_that_judges_clients_is_obeyed(cluster: &Cluster) {
    for node in cluster.addresses() {
        assert_eq!(code(node, &connect(V5, "anna", "right")), 0);
        assert_eq!(code(node, &connect(V311, "anna", "right")), 0);
        for user in ["anna", "nobody", "passer-by"] {
            assert_eq!(code(node, &connect(V5, user, "wrong")), 0x87, "{user}");
        }
        // Nobody has judged: the client may come again, and has not guessed.
        for user in ["down", "odd"] {
            assert_eq!(code(node, &connect(V5, user, "right")), 0x89, "{user}");
            assert_eq!(code(node, &connect(V311, user, "right")), 3, "{user}");
        }
    }
}

fn an_answer_that_expires_ends_the_connection(cluster: &Cluster) {
    let (mut connection, _) = Connection::connect(cluster.mqtt(1), &connect(V5, "short", "any"));
    match connection.receive(Duration::from_secs(4)) {
        Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x87),
        other => panic!("instead of DISCONNECT: {other:?}"),
    }
}

fn mosquitto_logs_in_with_a_token(cluster: &Cluster) {
    let publish = |version: &str, token: &str| {
        let node = cluster.mqtt(0);
        let (host, port) = (node.ip().to_string(), node.port().to_string());
        let status = Command::new("mosquitto_pub")
            .args([
                "-h", &host, "-p", &port, "-V", version, "-u", "any", "-P", token,
            ])
            .args(["-t", "mosquitto", "-m", "hello", "-q", "1"])
            .stderr(Stdio::null())
            .status();
        status.expect("mosquitto_pub can be started").success()
    };
    for version in ["311", "5"] {
        assert!(publish(version, &published("mosquitto", 60)));
        assert!(!publish(version, &plain("mosquitto", -1)));
    }
}

fn paho_logs_in_with_a_token(cluster: &Cluster) {
    let addresses = cluster.addresses();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut program = script::python("log_in.py");
    program
        .env("TOKEN", published("paho", 60))
        .env("BRIEF", plain("paho", 4));
    let never = |what: &str, _| panic!("nothing is to be done to nodes, {what} was asked");
    let report = script::run(program, &addresses, never);
    let broken = report.iter().filter(|said| said["holds"] != true);
    assert_none(&broken.map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(report.len(), 2, "{report:#?}");
}

/// Last, because the keys stay rotated.
fn keys_are_rotated_without_a_restart(cluster: &Cluster) {
    let live = cluster.addresses().into_iter().enumerate();
    let live = live.map(|(at, node)| {
        let request = Connect {
            user_name: Some("any".into()),
            password: Some(published("anna", 600).into()),
            ..Connect::v5(&format!("rotated-{at}"))
        };
        Connection::connect(node, &request).0
    });
    let live: Vec<Connection> = live.collect();
    *PUBLISHED.lock().expect("nobody panics with it") = 1;
    for node in cluster.addresses() {
        let next = || keys()[1].token(&claims("published", "anna", 60));
        wait::until("the new key", TIMEOUT, || {
            (code(node, &connect(V5, "any", &next())) == 0).then_some(())
        });
        // While the issuer was asked a moment ago, nobody can say that it has no such key (0x89).
        let told = code(node, &connect(V5, "any", &published("anna", 60)));
        assert!([0x87, 0x89].contains(&told), "the old key: {told:#04x}");
    }
    // Whoever has come with the old key goes.
    for mut connection in live {
        connection.expect_disconnect(0x87);
    }
}
