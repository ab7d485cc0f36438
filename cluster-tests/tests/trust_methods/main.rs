//! Who a client is, by token and by a service that is asked: tokens in the password and in AUTH on three nodes, keys
//! that rotate, connections that end with their tokens, and clients that others wrote.

mod issuers;
mod words;

use cluster_tests::audit::Audit;
use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::{Connection, TIMEOUT};
use cluster_tests::security::{Shown, of_code};
use cluster_tests::wire::{
    self, Connect, Disconnect, Message, Packet, Properties, V5, V311, Value, id,
};
use cluster_tests::{rules, script, wait};
use issuers::{
    LONG_SECRET, MADE, PUBLISHED, SECRET, Signers, base64url, claims, judge, jwks, keys, plain,
    published, serve, with_secret,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value as Json, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use words::{no_token_is_shown, the_audit_log_says_who_it_was};

const CONTINUE: u8 = 0x18;
const RE_AUTHENTICATE: u8 = 0x19;

/// Authentication Methods of tokens.
const METHODS: [&str; 2] = ["JWT", "K8S-SAT"];

/// The part of the table in docs/security.md that is shown here, and its columns.
const OTHER_WAYS: &str = "Other ways of a client";
const IN_AUTH: &str = "tokens in AUTH (`JWT`, `K8S-SAT`)";
const SERVICE: &str = "a service that judges (`http`)";
const AGAIN: &str = "AUTH 0x19";

#[test]
fn methods() {
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let private = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("a file can be written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("it is ours");
        path
    };
    let (secret, long) = (private("secret", SECRET), private("long", LONG_SECRET));
    let keys = private("keys.pem", Signers::get().pem.as_bytes());
    let (jwks, judge, audit) = (serve(jwks), serve(judge), Audit::new());
    let mut extra = format!(
        "{}[auth]\nhttp_url = \"http://{judge}/judge\"\n\
         [[listeners]]\nname = \"clients\"\naddress = \"{{mqtt}}\"\nauthentication = [\"jwt\", \"http\"]\n",
        audit.toml()
    );
    for (issuer, algorithms, more) in [
        ("plain", "HS256", format!("secret_file = {secret:?}")),
        (
            "published",
            "ES256",
            format!(
                "jwks_url = \"http://{jwks}/keys\"\naccept = [\"password\", \"JWT\", \"K8S-SAT\"]"
            ),
        ),
        (
            "hashes",
            "HS256 HS384 HS512",
            format!("secret_file = {long:?}"),
        ),
        (
            "keys",
            "RS256 RS384 RS512 PS256 PS384 PS512 ES384 EdDSA",
            format!("keys_file = {keys:?}"),
        ),
    ] {
        let algorithms: Vec<&str> = algorithms.split(' ').collect();
        extra += &format!(
            "[[auth.jwt]]\nissuer = \"{issuer}\"\nalgorithms = {algorithms:?}\naudiences = [\"mqtt\"]\n\
             leeway_s = 0\n{more}\n"
        );
    }
    let cluster = Cluster::start_with(Plan {
        extra,
        ..Plan::default()
    });
    rules::show(
        &cluster,
        rules![
            a_token_opens_a_session_on_every_node_in_every_version,
            every_algorithm_is_taken,
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
    the_audit_log_says_who_it_was(&audit);
    no_token_is_shown(&cluster, &audit);
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

/// Of an issuer that names it; HS256 and ES256 are those of the other tests.
fn every_algorithm_is_taken(cluster: &Cluster) {
    let tokens = Signers::get().tokens();
    assert_eq!(tokens.len(), 11);
    for (number, (algorithm, token)) in tokens.iter().enumerate() {
        let node = cluster.mqtt(number % 3);
        assert_eq!(code(node, &connect(V5, "any", token)), 0, "{algorithm}");
        let (signed, signature) = token.rsplit_once('.').expect("three parts");
        let other = if signature.starts_with('A') { "B" } else { "A" };
        let changed = format!("{signed}.{other}{}", &signature[1..]);
        let told = code(node, &connect(V5, "any", &changed));
        assert_eq!(told, 0x87, "{algorithm}");
    }
}

fn a_wrong_token_opens_nothing(cluster: &Cluster) {
    let mut shown = Shown::by("a_wrong_token_opens_nothing");
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
        for method in METHODS {
            let told = code(cluster.mqtt(2), &with_method("wrong", method, token));
            assert_eq!(told, 0x87, "{why}, {method}");
            shown.saw(OTHER_WAYS, IN_AUTH, "what is wrong", of_code(told));
        }
    }
    shown.finish();
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
        match connection.receive(Duration::from_secs(15)) {
            Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, 0x87),
            other => panic!("instead of DISCONNECT: {other:?}"),
        }
        connection.expect_closed();
    }
    let connect = connect(V311, "any", &plain("brief", 2));
    let (mut connection, _) = Connection::connect(cluster.mqtt(2), &connect);
    assert!(
        connection.receive(Duration::from_secs(15)).is_err(),
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
    let mut shown = Shown::by("a_client_proves_itself_again_before_its_token_expires");
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
    shown.saw(OTHER_WAYS, AGAIN, "what is right", of_code(0));
    connection.send(&auth(RE_AUTHENTICATE, "JWT", &plain("bob", 60)));
    connection.expect_disconnect(0x87);
    let (mut connection, _) = Connection::connect(cluster.mqtt(1), &connect_again());
    connection.send(&auth(RE_AUTHENTICATE, "JWT", &plain("anna", -5)));
    connection.expect_disconnect(0x87);
    shown.saw(OTHER_WAYS, AGAIN, "what is wrong", of_code(0x87));
    shown.finish();
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
    let Packet::Connack(connack) = connection.expect() else {
        panic!("no CONNACK");
    };
    let mut shown = Shown::by("kubernetes_clients_send_the_token_of_their_service_account");
    shown.saw(OTHER_WAYS, IN_AUTH, "what is right", of_code(connack.code));
    let by_jwt = code(
        cluster.mqtt(1),
        &with_method("sat", "JWT", &published(name, 60)),
    );
    shown.saw(OTHER_WAYS, IN_AUTH, "what is right", of_code(by_jwt));
    shown.finish();
}

fn the_service_that_judges_clients_is_obeyed(cluster: &Cluster) {
    let mut shown = Shown::by("the_service_that_judges_clients_is_obeyed");
    for node in cluster.addresses() {
        let told = code(node, &connect(V5, "anna", "right"));
        shown.saw(OTHER_WAYS, SERVICE, "what is right", of_code(told));
        assert_eq!(code(node, &connect(V311, "anna", "right")), 0);
        for user in ["anna", "nobody", "passer-by"] {
            let told = code(node, &connect(V5, user, "wrong"));
            shown.saw(OTHER_WAYS, SERVICE, "what is wrong", of_code(told));
        }
        // Nobody has judged: the client may come again, and has not guessed.
        for user in ["down", "odd"] {
            assert_eq!(code(node, &connect(V5, user, "right")), 0x89, "{user}");
            assert_eq!(code(node, &connect(V311, user, "right")), 3, "{user}");
        }
    }
    shown.finish();
}

fn an_answer_that_expires_ends_the_connection(cluster: &Cluster) {
    let mut shown = Shown::by("an_answer_that_expires_ends_the_connection");
    let (mut connection, _) = Connection::connect(cluster.mqtt(1), &connect(V5, "short", "any"));
    match connection.receive(Duration::from_secs(15)) {
        Ok(Packet::Disconnect(disconnect)) => {
            shown.saw(
                OTHER_WAYS,
                SERVICE,
                "what was withdrawn",
                of_code(disconnect.code),
            );
        }
        other => panic!("instead of DISCONNECT: {other:?}"),
    }
    shown.finish();
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
    let mut live = Vec::new();
    for (at, node) in cluster.addresses().into_iter().enumerate() {
        let in_password = Connect {
            user_name: Some("any".into()),
            password: Some(published("anna", 600).into()),
            ..Connect::v5(&format!("rotated-{at}"))
        };
        live.push((None, Connection::connect(node, &in_password).0));
        for method in METHODS {
            let name = format!("rotated-{method}-{at}");
            let request = with_method(&name, method, &published("anna", 600));
            live.push((Some(IN_AUTH), Connection::connect(node, &request).0));
        }
        // Its first token stays good; what it rests on is the second one.
        let request = with_method(&format!("rotated-again-{at}"), "JWT", &plain("anna", 600));
        let (mut connection, _) = Connection::connect(node, &request);
        connection.send(&auth(RE_AUTHENTICATE, "JWT", &published("anna", 600)));
        expect_auth(connection.expect_answer(), 0, "JWT");
        live.push((Some(AGAIN), connection));
    }
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
    let mut shown = Shown::by("keys_are_rotated_without_a_restart");
    for (entry, mut connection) in live {
        connection.expect_disconnect(0x87);
        if let Some(entry) = entry {
            shown.saw(OTHER_WAYS, entry, "what was withdrawn", of_code(0x87));
        }
    }
    shown.finish();
}
