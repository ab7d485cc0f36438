//! Endpoints with a certificate that proves nothing: they get no events, an operator is told why, and everything comes
//! once the certificate is right.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::connection::Connection;
use cluster_tests::http::ask;
use cluster_tests::receiver::Receiver;
use cluster_tests::script::{self, Guarded, lines_of};
use cluster_tests::wait;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// How long what must come may take, a few steps of the schedule included.
const WITHIN: Duration = Duration::from_secs(60);

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().expect("random numbers");
    CertifiedIssuer::self_signed(params, key).expect("a CA")
}

/// Files of an endpoint, which may be replaced while it runs.
struct Endpoint {
    certificate: PathBuf,
    key: PathBuf,
    keys: KeyPair,
    port: u64,
    _process: Guarded,
}

impl Endpoint {
    /// TLS in front of a receiver.
    fn start(directory: &Path, name: &str, receiver: &Receiver) -> Endpoint {
        let (certificate, key) = (
            directory.join(format!("{name}.pem")),
            directory.join(format!("{name}.key")),
        );
        let url = receiver.url();
        let plain = url.split([':', '/']).nth(4).expect("a URL has a port");
        let mut command = script::python("tls_endpoint.py");
        command.args([&certificate, &key]).arg(plain);
        let started = command.stdout(Stdio::piped()).spawn();
        let mut process = Guarded(started.expect("Python is there"));
        let lines = lines_of(process.0.stdout.take().expect("it is piped"));
        let line = lines.recv_timeout(WITHIN).expect("it tells its port");
        let told: Value = serde_json::from_str(&line).expect("it is JSON");
        Endpoint {
            certificate,
            key,
            keys: KeyPair::generate().expect("random numbers"),
            port: told["port"].as_u64().expect("a port"),
            _process: process,
        }
    }

    /// Gets another certificate.
    fn certify(&self, ca: &Authority, name: &str, until_year: i32) {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until_year, 1, 1);
        let certificate = params.signed_by(&self.keys, ca).expect("it is signed");
        for (path, text) in [
            (&self.key, self.keys.serialize_pem()),
            (&self.certificate, certificate.pem()),
        ] {
            let new = path.with_extension("new");
            std::fs::write(&new, text).expect("a file can be written");
            std::fs::rename(new, path).expect("it is there");
        }
    }
}

fn shown(cluster: &Cluster, node: usize, name: &str) -> Result<Value, String> {
    let target = format!("/v1/events/subscriptions/{name}");
    let answer = cluster.nodes[node].get(&target).ok_or("no answer")?;
    serde_json::from_str(&answer.body).map_err(|error| error.to_string())
}

#[test]
fn who_can_not_prove_its_name_gets_no_events() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let (known, unknown) = (authority("known"), authority("unknown"));
    std::fs::write(directory.path().join("ca.pem"), known.pem()).expect("it can be written");
    let cluster = Cluster::start_with(Plan {
        extra: format!("[events]\nca_directory = {:?}", directory.path()),
        ..Plan::default()
    });
    let cases = [
        ("unknown", &unknown, "127.0.0.1", 2090, "unknownissuer"),
        ("name", &known, "events.example", 2090, "not valid for name"),
        ("expired", &known, "127.0.0.1", 2021, "expired"),
    ];
    let mut endpoints = Vec::new();
    for (name, ca, of, until_year, why) in cases {
        let receiver = Receiver::start();
        let endpoint = Endpoint::start(directory.path(), name, &receiver);
        endpoint.certify(ca, of, until_year);
        let body = json!({
            "url": format!("https://127.0.0.1:{}/events", endpoint.port),
            "ca_file": "ca.pem",
            "subject_begins_with": format!("clients/tls-{name}"),
        });
        let target = format!("/v1/events/subscriptions/{name}");
        let address = cluster.nodes[0].http();
        let answer = ask(address, "PUT", &target, &[], &body.to_string()).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.body);
        Connection::v5(cluster.mqtt(1), &format!("tls-{name}")).disconnect();
        endpoints.push((name, why, receiver, endpoint));
    }
    for (name, why, receiver, endpoint) in &endpoints {
        wait::until_ok("why nothing is delivered", WITHIN, || {
            let shown = shown(&cluster, 2, name)?;
            let error = shown["last_error"].as_str().unwrap_or_default();
            let is_told = error.contains("TLS") && error.to_lowercase().contains(why);
            let waits = shown["state"] == "awaiting_consent" && shown["waiting"] != 0;
            (is_told && waits).then_some(()).ok_or(shown.to_string())
        });
        assert!(receiver.received().is_empty(), "{name}: nothing was sent");
        endpoint.certify(&known, "127.0.0.1", 2090);
        wait::until_ok("what waited to be delivered", WITHIN, || {
            let shown = shown(&cluster, 1, name)?;
            let is_done = shown["delivered"] == 2 && shown["state"] == "active";
            let is_done = is_done && shown["last_error"].as_str().unwrap_or_default().is_empty();
            is_done.then_some(()).ok_or(shown.to_string())
        });
        let sessions: Vec<Value> = receiver
            .events()
            .iter()
            .map(|event| event["data"]["clientSessionName"].clone())
            .collect();
        assert_eq!(sessions, vec![json!(format!("tls-{name}")); 2]);
    }
}
