//! Certificates of a listener: several of them, how long they last, and others in their place.

use super::*;

/// What openssl has verified of the certificate that it gets for a name; `None`: it names none.
fn verified(name: Option<&str>, authority: &Path) -> String {
    let mut command = Command::new("openssl");
    let address = format!("localhost:{}", place().ports[0]);
    command.args(["s_client", "-connect", &address, "-verify_return_error"]);
    command.arg("-CAfile").arg(authority).stdin(Stdio::null());
    match name {
        Some(name) => command.args(["-servername", name]),
        None => command.arg("-noservername"),
    };
    let found = output(&mut command);
    let text = [found.stdout, found.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// The first one for whoever names nobody, or a name that no certificate has.
pub fn each_name_gets_its_certificate(_: &Cluster) {
    let first = place().path("ca.pem");
    let second = place().path(SECOND).join("ca.pem");
    for (name, authority, other) in [
        (Some("localhost"), &first, &second),
        (Some(SECOND), &second, &first),
        (Some("third.test"), &first, &second),
        (None, &first, &second),
    ] {
        let said = verified(name, authority);
        assert!(said.contains("Verify return code: 0"), "{name:?}: {said}");
        let said = verified(name, other);
        assert!(said.contains("verify failed"), "{name:?}: {said}");
    }
}

/// Seconds until the certificate of a file expires, as the node tells them.
fn left(cluster: &Cluster, path: &Path) -> Option<f64> {
    let name = format!(
        "quorumq_certificate_expiry_seconds{{file=\"{}\"}}",
        path.display()
    );
    cluster.nodes[0].metric(&name)
}

/// Whether openssl finds that a certificate lasts so long.
fn lasts(path: &Path, seconds: f64) -> bool {
    let mut command = Command::new("openssl");
    command.args([
        "x509",
        "-noout",
        "-checkend",
        &format!("{seconds:.0}"),
        "-in",
    ]);
    output(command.arg(path)).status.success()
}

/// Of every file that a listener has.
pub fn the_time_that_is_left_is_told(cluster: &Cluster) {
    for directory in ["", SECOND] {
        let path = place().path(directory).join("node-1.pem");
        let left = left(cluster, &path).expect("a metric of this file");
        assert!(lasts(&path, left - 120.0), "{path:?} ends before {left} s");
        assert!(!lasts(&path, left + 120.0), "{path:?} ends after {left} s");
    }
}

/// The serial number of the certificate that a new connection gets.
fn serial(port: u16) -> String {
    let said = s_client(port, &[]);
    let from = said.find("-----BEGIN CERTIFICATE-----");
    let certificate = from.map(|from| said[from..].to_owned()).unwrap_or_default();
    let mut command = Command::new("openssl");
    command
        .args(["x509", "-noout", "-serial"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = command.spawn().expect("openssl can be run");
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin.write_all(certificate.as_bytes()).expect("it reads");
    drop(stdin);
    let output = process.wait_with_output().expect("it was started");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Puts a file where another was, at once.
fn replace(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("new");
    fs::write(&beside, bytes).expect("a file can be written");
    fs::rename(&beside, path).expect("a file can be renamed");
}

pub fn a_certificate_is_renewed_under_way_and_a_broken_one_is_not_used(cluster: &Cluster) {
    let place = place();
    let port = place.ports[0];
    let (_process, lines) = subscriber(port, "renewed");
    let before = serial(port);
    assert!(before.starts_with("serial="), "{before}");
    let (pem, key) = (place.path("node-1.pem"), place.path("node-1.key"));
    replace(&pem, b"no certificate");
    wait::until("the node to look at the broken file", WITHIN, || {
        let failed = cluster.nodes[0].metric("quorumq_certificates_failed_total");
        failed.filter(|times| *times > 0.0)
    });
    assert_eq!(serial(port), before, "the old one stays in use");
    for path in [&pem, &key] {
        fs::remove_file(path).expect("it is there");
    }
    let hosts = "localhost,127.0.0.1";
    place.make(&["node", "--id", "1", "--host", hosts, "--days", "20"]);
    let now = wait::until("the new certificate", WITHIN, || {
        Some(serial(port)).filter(|now| *now != before)
    });
    assert!(now.starts_with("serial="), "{now}");
    wait::until_ok("the time that the new one has", WITHIN, || {
        let left = left(cluster, &pem);
        let is_new = left.is_some_and(|left| left < 21.0 * 24.0 * 3_600.0);
        is_new.then_some(()).ok_or(format!("{left:?} s"))
    });
    the_time_that_is_left_is_told(cluster);
    let sent = ["-t", "renewed", "-q", "1", "-m", "still here"];
    succeeds(&mut mosquitto("mosquitto_pub", port, &sent));
    await_line(&lines, "still here");
}
