//! Devices that show a certificate, over TLS, with a client that others wrote.

use crate::back_end::{HOST, Hub};
use cluster_tests::cluster::Plan;
use cluster_tests::wait;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use serde_json::json;
use std::fs::{File, FileTimes};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// How long what must come may take.
const WITHIN: Duration = Duration::from_secs(20);

/// How often a node looks at the file of the authorities.
const LOOKS_EVERY: Duration = Duration::from_secs(2);

/// A line of a node that can't use what the file has become.
const FAILED: &str = "the authorities of the hub can't be read again";

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Files of a certificate and its key.
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Identity {
    fn write(directory: &Path, name: &str, certificate: &str, key: &KeyPair) -> Identity {
        let identity = Identity {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        std::fs::write(&identity.certificate, certificate).expect("a file can be written");
        std::fs::write(&identity.key, key.serialize_pem()).expect("a file can be written");
        identity
    }

    pub fn self_signed(
        directory: &Path,
        name: &str,
        change: fn(&mut CertificateParams),
    ) -> Identity {
        let key = KeyPair::generate().expect("random numbers");
        let mut params = params(name);
        change(&mut params);
        let certificate = params.self_signed(&key).expect("signed");
        Identity::write(directory, name, &certificate.pem(), &key)
    }

    /// Signed by an authority.
    fn issued(directory: &Path, name: &str, by: &CertifiedIssuer<'_, KeyPair>) -> Identity {
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params(name).signed_by(&key, by).expect("signed");
        Identity::write(directory, name, &certificate.pem(), &key)
    }

    /// As openssl tells it.
    pub fn thumbprint(&self, digest: &str) -> String {
        let mut command = Command::new("openssl");
        command.args(["x509", "-noout", "-fingerprint", digest, "-in"]);
        let said = command
            .arg(&self.certificate)
            .output()
            .expect("openssl can be started");
        let said = String::from_utf8(said.stdout).expect("text");
        let digits = said.trim().rsplit('=').next().expect("digits");
        digits.replace(':', "")
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("random numbers");
    CertifiedIssuer::self_signed(params, key).expect("a CA")
}

/// The listener, and what it shows.
struct Place {
    server: Identity,
    port: u16,
}

impl Place {
    /// Whether a device that shows this certificate can send a message.
    fn speaks(&self, device: &str, shown: Option<&Identity>, version: &str) -> bool {
        let mut command = Command::new("mosquitto_pub");
        command.args(["-h", "localhost", "-p", &self.port.to_string(), "--cafile"]);
        command.arg(&self.server.certificate);
        command.args(["-V", version, "-q", "1", "-m", "hello", "-i", device]);
        command.args(["-u", &format!("{HOST}/{device}/?api-version=2021-04-12")]);
        command.args(["-t", &format!("devices/{device}/messages/events/")]);
        if let Some(shown) = shown {
            command.arg("--cert").arg(&shown.certificate);
            command.arg("--key").arg(&shown.key);
        }
        let said = command.output().expect("mosquitto_pub can be started");
        said.status.success()
    }
}

/// Replaces a file at once.
fn put(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("a file can be written");
    std::fs::rename(&beside, path).expect("a file can be renamed");
}

#[test]
fn devices_show_certificates() {
    let files = TempDir::new().expect("a temporary directory can be made");
    let files = files.path();
    let server = Identity::self_signed(files, "localhost", |_| ());
    let ca = authority();
    let ca_file = files.join("ca.pem");
    std::fs::write(&ca_file, ca.pem()).expect("a file can be written");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = free.local_addr().expect("it is bound").port();
    drop(free);
    let extra = format!(
        "client_ca_file = {ca_file:?}\n\
         [[listeners]]\nname = \"plain\"\naddress = \"{{mqtt}}\"\n\
         [[listeners]]\nname = \"devices\"\naddress = \"127.0.0.1:{port}\"\ntransport = \"tls\"\n\
         certificates = [{{ certificate = {:?}, key = {:?} }}]\n",
        server.certificate, server.key
    );
    let hub = Hub::start_with(Plan {
        size: 1,
        extra,
        ..Plan::default()
    });
    let own = Identity::self_signed(files, "whatever", |_| ());
    let over = Identity::self_signed(files, "over", |params| {
        params.not_after = date_time_ymd(2020, 1, 1);
        params.not_before = date_time_ymd(2019, 1, 1);
    });
    for (device, thumbprint) in [
        ("by-sha1", own.thumbprint("-sha1")),
        ("by-sha256", own.thumbprint("-sha256").to_lowercase()),
        ("by-other", over.thumbprint("-sha256")),
    ] {
        let thumbprints = json!({"primaryThumbprint": thumbprint, "secondaryThumbprint": null});
        hub.create_with(
            device,
            &json!({"type": "selfSigned", "x509Thumbprint": thumbprints}),
        );
    }
    hub.create_with("by-ca", &json!({"type": "certificateAuthority"}));
    let (by_ca, another) = (
        Identity::issued(files, "by-ca", &ca),
        Identity::issued(files, "another", &ca),
    );
    let forged = Identity::self_signed(files, "by-ca-forged", |params| {
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, "by-ca");
    });
    let place = Place { server, port };
    let speaks = |device: &str, shown: Option<&Identity>, version: &str| {
        place.speaks(device, shown, version)
    };
    for version in ["311", "5"] {
        assert!(speaks("by-sha1", Some(&own), version));
        assert!(speaks("by-sha256", Some(&own), version));
        assert!(speaks("by-ca", Some(&by_ca), version));
        for (device, shown) in [
            ("by-sha1", Some(&by_ca)),
            ("by-sha1", None),
            ("by-other", Some(&own)),
            ("by-other", Some(&over)),
            ("by-ca", Some(&another)),
            ("by-ca", Some(&forged)),
            ("by-ca", Some(&own)),
            ("unknown", Some(&own)),
        ] {
            assert!(!speaks(device, shown, version), "{device}");
        }
    }
    // The certificate is of no use to ordinary clients, and does not stand in their way either.
    let mut ordinary = Command::new("mosquitto_pub");
    ordinary.args([
        "-h",
        "localhost",
        "-p",
        &port.to_string(),
        "-t",
        "a",
        "-m",
        "b",
        "--cafile",
    ]);
    ordinary.arg(&place.server.certificate);
    ordinary
        .arg("--cert")
        .arg(&own.certificate)
        .arg("--key")
        .arg(&own.key);
    let said = ordinary.output().expect("mosquitto_pub can be started");
    assert!(said.status.success());
    the_authorities_are_read_again_when_it_is_asked_to(&hub, &place, &ca_file, &by_ca);
}

/// Waits until a file is read. A file system that doesn't keep when its files were read tells nothing: there the wait is
/// twice as long as the node's own between two looks, and ends so.
fn wait_for_a_look(path: &Path) {
    let never = SystemTime::UNIX_EPOCH;
    let file = File::options().write(true).open(path);
    let file = file.expect("the file can be opened");
    // Next to every file system keeps the first time of reading that comes after a change.
    file.set_times(FileTimes::new().set_accessed(never))
        .expect("it is ours");
    let began = Instant::now();
    wait::until("a look at the file", WITHIN, || {
        let read = file.metadata().and_then(|data| data.accessed());
        let is_read = read.expect("the file has times") != never;
        (is_read || began.elapsed() >= 2 * LOOKS_EVERY).then_some(())
    });
}

/// What is wrong with a file is told once however often it is looked at, and again at each SIGHUP.
fn the_authorities_are_read_again_when_it_is_asked_to(
    hub: &Hub,
    place: &Place,
    ca_file: &Path,
    former: &Identity,
) {
    let node = &hub.cluster.nodes[0];
    // What is counted, and the lines of the log.
    let told = || {
        let counted = node.metric("quorumq_certificates_failed_total");
        (counted, node.log_text().matches(FAILED).count())
    };
    let failed = |times: u32| {
        wait::until_ok("the failures that are told", WITHIN, || {
            let told = told();
            (told == (Some(times.into()), times as usize))
                .then_some(())
                .ok_or(format!("{told:?} of {times}"))
        });
    };
    put(ca_file, "no certificate\n");
    failed(1);
    // A look is over when the next one has begun.
    for _ in 0..2 {
        wait_for_a_look(ca_file);
    }
    assert_eq!(told(), (Some(1.0), 1), "it was looked at again");
    for times in [2, 3] {
        node.hang_up();
        failed(times);
    }
    assert!(
        place.speaks("by-ca", Some(former), "5"),
        "the old ones stay"
    );
    let next = authority();
    put(ca_file, &next.pem());
    node.hang_up();
    let directory = ca_file.parent().expect("it is in a directory");
    let issued = Identity::issued(directory, "by-ca-again", &next);
    let said = |device: &str, shown| place.speaks(device, Some(shown), "5");
    hub.create_with("by-ca-again", &json!({"type": "certificateAuthority"}));
    wait::until("the new authority", WITHIN, || {
        said("by-ca-again", &issued).then_some(())
    });
    assert!(!said("by-ca", former), "the old one vouches for nobody");
    failed(3);
}
