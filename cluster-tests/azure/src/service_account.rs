//! The client logs in as a pod of Kubernetes does: by `K8S-SAT`, with the token of its service account, which Kubernetes
//! replaces in its file before it ends. The issuer is openssl, and the nodes have its keys as a JWKS file.

use crate::relay::Relay;
use crate::{WITHIN, client_of, get, set, start};
use azure_iot_operations_mqtt::aio::connection_settings::MqttConnectionSettingsBuilder;
use azure_iot_operations_services::state_store::{Client, SetOptions};
use cluster_tests::cluster::Plan;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const NAME: &str = "system:serviceaccount:plant:press";

/// How long the first token lives: longer than the client's wait after a change of the file, which is 10 s.
const FIRST_LIVES: Duration = Duration::from_secs(25);

/// How long the later ones live.
const LIVES: Duration = Duration::from_secs(3_600);

/// How long it may take until the client has found a change of its file, which it looks for ten seconds after it, and
/// has come back: it waits longer each time that it is refused.
const FOUND_WITHIN: Duration = Duration::from_secs(60);

/// Not authorized.
const REFUSED: u8 = 0x87;

/// An issuer of tokens, and the directory in which one of them is handed out.
struct Issuer {
    keys: TempDir,
    /// Apart: the client takes whatever happens in the directory of its token for a change.
    tokens: TempDir,
}

fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut process = Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(input).expect("openssl reads it");
    drop(stdin);
    let output = process.wait_with_output().expect("it was started");
    assert!(output.status.success(), "openssl {arguments:?}");
    output.stdout
}

fn base64url(bytes: &[u8]) -> String {
    let text = String::from_utf8(openssl(&["base64", "-A"], bytes)).expect("base64 is text");
    let text = text.replace('+', "-").replace('/', "_");
    text.trim_end_matches('=').to_owned()
}

impl Issuer {
    fn new() -> Issuer {
        let directory = || TempDir::new().expect("a directory can be made");
        let issuer = Issuer {
            keys: directory(),
            tokens: directory(),
        };
        for key in ["right", "wrong"] {
            openssl(&["genrsa", "-out", &issuer.key(key), "2048"], b"");
        }
        let key = issuer.key("right");
        let modulus = openssl(&["rsa", "-in", &key, "-noout", "-modulus"], b"");
        let modulus = String::from_utf8(modulus).expect("it is text");
        let digits = modulus.trim().trim_start_matches("Modulus=");
        let bytes: Vec<u8> = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).expect("it is ASCII"))
            .map(|pair| u8::from_str_radix(pair, 16).expect("it is hexadecimal"))
            .collect();
        let n = base64url(&bytes);
        let keys = format!(
            r#"{{"keys":[{{"kty":"RSA","use":"sig","alg":"RS256","kid":"1","e":"AQAB","n":"{n}"}}]}}"#
        );
        std::fs::write(issuer.published(), keys).expect("a file can be written");
        issuer
    }

    fn key(&self, name: &str) -> String {
        self.keys.path().join(name).display().to_string()
    }

    /// The keys that the nodes know: the right one.
    fn published(&self) -> PathBuf {
        self.keys.path().join("jwks.json")
    }

    fn token(&self) -> PathBuf {
        self.tokens.path().join("token")
    }

    /// Puts a new token in the place of the one before, as Kubernetes does: by renaming.
    fn put(&self, key: &str, lives: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end_s = (now.expect("it is after 1970") + lives).as_secs();
        let claims =
            format!(r#"{{"iss":"{ISSUER}","sub":"{NAME}","aud":["aio-internal"],"exp":{end_s}}}"#);
        let signed = format!(
            "{}.{}",
            base64url(br#"{"alg":"RS256","kid":"1"}"#),
            base64url(claims.as_bytes())
        );
        let key = self.key(key);
        let signature = openssl(&["dgst", "-sha256", "-sign", &key], signed.as_bytes());
        let token = format!("{signed}.{}", base64url(&signature));
        let new = self.tokens.path().join("new");
        std::fs::write(&new, token).expect("a file can be written");
        std::fs::rename(new, self.token()).expect("it can be renamed");
    }

    fn plan(&self) -> Plan {
        Plan {
            extra: format!(
                "[[auth.jwt]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"RS256\"]\njwks_file = {:?}\n\
                 audiences = [\"aio-internal\"]\naccept = [\"K8S-SAT\"]\nleeway_s = 0\n\
                 [[listeners]]\nname = \"pods\"\naddress = \"{{mqtt}}\"\nauthentication = [\"jwt\"]\n",
                self.published()
            ),
            ..Plan::default()
        }
    }
}

/// Waits until what log-ins were answered is as it should be.
async fn until(relay: &Relay, what: &str, is_so: impl Fn(&[u8]) -> bool) {
    let began = Instant::now();
    while !is_so(&relay.answers()) {
        let answers = relay.answers();
        assert!(began.elapsed() < FOUND_WITHIN, "{what}: {answers:02x?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn reads(client: &Client) {
    assert_eq!(get(client, "sat").await.as_deref(), Some(&b"1"[..]));
}

/// A token that is replaced in time costs no connection; a wrong one is refused whenever it comes, and a good one
/// brings the client back, with its session.
pub async fn logs_in_with_the_token_that_is_in_the_file() {
    let issuer = Issuer::new();
    let cluster = start(issuer.plan()).await;
    let relay = Relay::start(cluster.addresses()).await;
    issuer.put("right", FIRST_LIVES);
    let began = Instant::now();
    let settings = MqttConnectionSettingsBuilder::default()
        .client_id("press")
        .hostname("127.0.0.1")
        .tcp_port(relay.port())
        .use_tls(false)
        .sat_file(issuer.token().display().to_string())
        .build()
        .expect("settings without a contradiction");
    let client = client_of(settings);
    assert!(set(&client, "sat", "1", SetOptions::default()).await);
    issuer.put("right", LIVES);
    // A connection ends when its token does; requests go on until well after that.
    while began.elapsed() < FIRST_LIVES + WITHIN / 2 {
        reads(&client).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(relay.answers(), [0], "it proves itself on its connection");
    println!("the token of a service account, which is replaced in time: ok");
    issuer.put("wrong", LIVES);
    let refused = |answers: &[u8]| answers.ends_with(&[REFUSED, REFUSED]);
    until(&relay, "a wrong token is refused", refused).await;
    issuer.put("right", LIVES);
    let let_in = |answers: &[u8]| answers.last() == Some(&0);
    until(&relay, "a good token is let in", let_in).await;
    reads(&client).await;
    let answers = relay.answers();
    let between = &answers[1..answers.len() - 1];
    assert!(
        between.iter().all(|code| *code == REFUSED),
        "{answers:02x?}"
    );
    println!("a wrong token, and a good one after it: ok");
    client.shutdown().await.expect("the client ends in order");
}
