//! Administration over TLS, with client certificates.

use super::*;

/// Who has a certificate, and the row of the table that is theirs.
const ROWS: [(&str, &str); 3] = [
    ("look", "a client certificate with the scope `read`"),
    ("root", "a client certificate with the scope `admin`"),
    ("nobody", "a client certificate without a scope"),
];

/// What curl is answered, with these further arguments: the status, and whether the server's certificate holds (0).
fn curl(directory: &Path, url: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("curl")
        .current_dir(directory)
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "10",
            "--output",
            "/dev/null",
        ])
        .args(["--write-out", "%{http_code} %{ssl_verify_result}"])
        .args(arguments)
        .arg(url)
        .output()
        .expect("curl can be run");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The port that speaks TLS, and the files of who asks there.
struct Place<'a> {
    directory: &'a Path,
    port: SocketAddr,
}

impl Place<'_> {
    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Has the program itself make a CA and certificates.
    fn make_certificates(&self) {
        let directory = self.directory.to_str().expect("a path is text");
        let hosts = "127.0.0.1,localhost";
        let clients = ROWS.map(|(name, _)| ["client", name]);
        let others = [&["ca"][..], &["node", "--id", "1", "--host", hosts]];
        for arguments in others
            .into_iter()
            .chain(clients.iter().map(|client| &client[..]))
        {
            let all = [&["certificates"], arguments, &["--directory", directory]].concat();
            let made = quorumq(&all, &[]);
            assert!(made.status.success(), "{made:?}");
        }
    }

    /// What the node's environment says of it.
    fn settings(&self) -> Vec<(usize, String, String)> {
        let (certificate, key) = (self.path("node-1.pem"), self.path("node-1.key"));
        let pair = format!("[{{ certificate = {certificate:?}, key = {key:?} }}]");
        let settings = [
            ("ADMIN_LISTEN", self.port.to_string()),
            ("CERTIFICATES", pair),
            ("CLIENT_CERTIFICATES", "optional".to_owned()),
            ("CLIENT_CA_FILE", self.path("ca.pem")),
            ("CLIENT_SCOPES", "look=read,root=admin".to_owned()),
        ];
        let settings = settings.map(|(key, value)| (0, format!("QUORUMQ__HTTP__{key}"), value));
        settings.to_vec()
    }

    fn curl(&self, scheme: &str, target: &str, arguments: &[&str]) -> Result<String, String> {
        let url = format!("{scheme}://{}{target}", self.port);
        curl(self.directory, &url, arguments)
    }

    /// What the holder of a certificate is answered.
    #[track_caller]
    fn status(&self, name: &str, method: &str, target: &str) -> u16 {
        let (certificate, key) = (format!("client-{name}.pem"), format!("client-{name}.key"));
        let identity = ["--cacert", "ca.pem", "--cert", &certificate, "--key", &key];
        let change = ["--header", "content-type: application/json", "--data", "{}"];
        let arguments = match method {
            "GET" => identity.to_vec(),
            _ => [&identity[..], &change, &["--request", method]].concat(),
        };
        let said = self.curl("https", target, &arguments);
        let said = said.unwrap_or_else(|why| panic!("{name}: {method} {target}: {why}"));
        let status = said
            .strip_suffix(" 0")
            .and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("{name}: {method} {target}: {said}"))
    }

    /// Everybody asks for everything that is, or is not, below `/v1/`.
    fn show(&self, shown: &mut Shown, is_administration: bool) {
        for (entry, routes) in ENTRIES {
            for (method, target) in routes {
                if target.starts_with("/v1/") != is_administration {
                    continue;
                }
                for (name, who) in ROWS {
                    let status = self.status(name, method, target);
                    shown.saw("HTTP", entry, who, of_status(status));
                }
                let plain = self.curl("http", target, &["--request", *method]);
                let outcome = plain.map_or("refused".to_owned(), |said| said);
                shown.saw(
                    "HTTP",
                    entry,
                    "plain HTTP to the port that speaks TLS",
                    outcome,
                );
            }
        }
    }
}

/// Administration on a port of its own, over TLS, for who has a client certificate or a token.
#[test]
fn administration_over_tls() {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !has_curl {
        cluster_tests::skip::skip("there is no curl");
        return;
    }
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let mut place = Place {
        directory: directory.path(),
        port: port.expect("there is a free port"),
    };
    place.make_certificates();
    let mut cluster = Cluster::start_with(Plan {
        size: 1,
        environment: place.settings(),
        ..Plan::default()
    });
    // Probes have a port of their own, with nothing else.
    let elsewhere = cluster.nodes[0].get("/v1/sessions");
    assert_eq!(elsewhere.map(|answer| answer.status), Some(404));
    let sessions = |arguments: &[&str]| place.curl("https", "/v1/sessions", arguments);
    assert!(sessions(&[]).is_err(), "the CA is not one of the system's");
    for version in ["--tlsv1.2", "--tlsv1.3"] {
        let told = sessions(&["--cacert", "ca.pem", version]);
        assert_eq!(told, Ok("401 0".into()), "{version}");
    }
    let mut shown = Shown::by("administration_over_tls");
    place.show(&mut shown, true);
    the_command_line_shows_a_certificate(&place);
    what_to_try_is_said_of_the_other_port(&cluster, &place);
    // All on one port: who probes it speaks TLS, too, and is asked for nothing.
    let node = &mut cluster.nodes[0];
    assert!(node.terminate().success());
    node.environment
        .retain(|(name, _)| !name.ends_with("ADMIN_LISTEN"));
    node.start();
    place.port = node.http();
    wait::until("the node to be ready", WITHIN, || {
        let said = place.curl("https", "/readyz", &["--cacert", "ca.pem"]);
        said.is_ok_and(|said| said == "200 0").then_some(())
    });
    place.show(&mut shown, false);
    shown.finish();
}

fn the_command_line_shows_a_certificate(place: &Place<'_>) {
    let (http, ca_file) = (place.port.to_string(), place.path("ca.pem"));
    let (certificate, key) = (place.path("client-root.pem"), place.path("client-root.key"));
    let flags = ["--http", &http, "--ca-file", &ca_file];
    let identity = ["--certificate", &certificate, "--key", &key];
    let add = ["token", "add", "look", "--scope", "read"];
    let made = quorumq(&[&add, &flags[..], &identity].concat(), &[]);
    assert!(made.status.success(), "{made:?}");
    let token = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let list = [&["session", "list"], &flags[..]].concat();
    let listed = quorumq(&list, &[("QUORUMQ_TOKEN", &token)]);
    assert!(listed.status.success(), "{listed:?}");
}

/// Without TLS at the port that speaks it, and at the port that has probes alone.
fn what_to_try_is_said_of_the_other_port(cluster: &Cluster, place: &Place<'_>) {
    let (administration, probes) = (place.port.to_string(), cluster.nodes[0].http().to_string());
    for (address, code, hint) in [
        (
            administration,
            69,
            "if it speaks TLS: https:// before the address",
        ),
        (probes, 1, "/v1 is at http.admin_listen"),
    ] {
        let asked = quorumq(&["session", "list", "--http", &address], &[]);
        let said = String::from_utf8_lossy(&asked.stderr);
        assert_eq!(asked.status.code(), Some(code), "{said}");
        assert!(said.contains(hint), "{said}");
    }
}
