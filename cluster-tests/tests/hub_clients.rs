//! The unmodified client libraries of Azure IoT Hub, for devices and for back ends, over TLS and WebSocket, with keys
//! and with certificates: Python and Node.js.
//!
//! They know one host and fixed ports (8883 for MQTT, 443 for WebSocket; Node.js also 443 for HTTPS), as behind a load
//! balancer. Here that is an address of this machine's loopback that leads to any node that lives. Each node has an
//! address of its own. A load balancer that reads requests could tell WebSocket from HTTPS at port 443; here an address
//! of its own does.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::script;
use cluster_tests::skip::skip;
use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Base64 of 32 bytes.
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

/// The address that leads to any node.
const HUB: Ipv4Addr = Ipv4Addr::new(127, 8, 8, 8);

/// The address that leads to any node's WebSockets.
const SOCKETS: Ipv4Addr = Ipv4Addr::new(127, 8, 8, 9);

const MQTT: u16 = 8883;
const HTTPS: u16 = 443;

/// Where a node's own address has WebSockets.
const OF_SOCKETS: u16 = 8884;

/// The address of a node.
fn of_node(index: usize) -> Ipv4Addr {
    let last = u8::try_from(index + 1).expect("a small cluster");
    Ipv4Addr::new(127, 8, 8, 100 + last)
}

/// Passes what comes to an address on to a port of the first node that takes it.
fn balance(from: (Ipv4Addr, u16), port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(from)?;
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let nodes = (0..3).map(|index| SocketAddr::from((of_node(index), port)));
            let mut nodes = nodes.filter_map(|node| {
                TcpStream::connect_timeout(&node, Duration::from_millis(500)).ok()
            });
            if let Some(node) = nodes.next() {
                pump(&client, &node);
                pump(&node, &client);
            }
        }
    });
    Ok(())
}

/// Copies bytes in one direction until either end is gone.
fn pump(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else {
        return;
    };
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

#[track_caller]
fn certificates(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new(binary());
    command.arg("certificates").args(arguments);
    let made = command.arg("--directory").arg(directory).output();
    let made = made.expect("the binary can be run");
    assert!(made.status.success(), "{made:?}");
}

/// What the nodes and their clients read.
struct Files {
    directory: TempDir,
}

impl Files {
    fn make() -> Files {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let path = directory.path();
        certificates(path, &["ca"]);
        for index in 0..3 {
            let id = (index + 1).to_string();
            let hosts = format!("{HUB},{SOCKETS},{}", of_node(index));
            certificates(path, &["node", "--id", &id, "--host", &hosts]);
        }
        for device in ["py-ca", "js-ca"] {
            certificates(path, &["client", device]);
        }
        let key = KeyPair::generate().expect("random numbers");
        let own = CertificateParams::default().self_signed(&key);
        let own = own.expect("a certificate").pem();
        for (name, text) in [("own.pem", own), ("own.key", key.serialize_pem())] {
            std::fs::write(path.join(name), text).expect("a file can be written");
        }
        let policies = path.join("policies");
        let line = format!("all:RegistryRead,RegistryWrite,ServiceConnect,DeviceConnect:{KEY}\n");
        std::fs::write(&policies, line).expect("a file can be written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&policies, mode).expect("it is there");
        Files { directory }
    }

    fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// What differs from node to node.
    fn environment(&self, index: usize) -> Vec<(usize, String, String)> {
        let file = |ending: &str| {
            self.directory
                .path()
                .join(format!("node-{}.{ending}", index + 1))
        };
        let pair = format!(
            "{{ certificate = {:?}, key = {:?} }}",
            file("pem"),
            file("key")
        );
        let address = of_node(index);
        let listener = |transport: &str, port: u16| {
            format!(
                "{{ name = {transport:?}, address = \"{address}:{port}\", transport = {transport:?}, \
                 certificates = [{pair}] }}"
            )
        };
        let listeners = [listener("tls", MQTT), listener("wss", OF_SOCKETS)].join(", ");
        let name = |key: &str| format!("QUORUMQ__{key}");
        vec![
            (index, name("LISTENERS"), format!("[{listeners}]")),
            (
                index,
                name("HUB__HTTPS_LISTEN"),
                format!("{address}:{HTTPS}"),
            ),
            (index, name("HUB__HTTPS_CERTIFICATES"), format!("[{pair}]")),
        ]
    }

    fn plan(&self) -> Plan {
        let policies = self.directory.path().join("policies");
        Plan {
            extra: format!(
                "[hub]\nhost_names = [\"{HUB}\", \"{SOCKETS}\"]\npolicies_file = {policies:?}\n\
                 client_ca_file = {:?}\n",
                self.ca()
            ),
            environment: (0..3).flat_map(|index| self.environment(index)).collect(),
            ..Plan::default()
        }
    }

    /// A program with what it needs in its environment.
    fn equip(&self, mut command: Command) -> Command {
        let ca = self.ca();
        command.env("HUB_KEY", KEY).env("HUB_CA", &ca);
        command.env("HUB_CERTIFICATES", self.directory.path());
        for name in ["REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"] {
            command.env(name, &ca);
        }
        command
    }
}

/// The rules that a program has found broken.
#[track_caller]
fn broken(name: &str, report: &[Value], rules: usize) -> Vec<String> {
    assert_eq!(report.len(), rules, "{name} shows its rules: {report:#?}");
    let broken = report.iter().filter(|rule| rule["holds"] != true);
    broken
        .map(|rule| {
            format!(
                "{name}: {}: {}",
                rule["rule"],
                rule["why"].as_str().unwrap_or("?")
            )
        })
        .collect()
}

/// One after the other: their ports are the same.
#[test]
fn azure_clients() {
    libraries_work_unmodified();
    the_guide_is_right();
}

fn libraries_work_unmodified() {
    if let Err(error) = balance((HUB, HTTPS), HTTPS) {
        return skip(&format!("port {HTTPS} cannot be used: {error}"));
    }
    balance((SOCKETS, HTTPS), OF_SOCKETS).expect("as at the other address");
    balance((HUB, MQTT), MQTT).expect("a port above 1024 of an address of our own");
    let files = Files::make();
    let mut cluster = Cluster::start_with(files.plan());
    let host = HUB.to_string();
    let python = files.equip(script::azure_python("azure_hub.py"));
    let sockets = SOCKETS.to_string();
    let addresses = [host.clone(), HTTPS.to_string(), sockets.clone()];
    let report = script::run(python, &addresses, |what, node| {
        script::act(&mut cluster, what, node);
    });
    let mut found = broken("azure-iot-hub and azure-iot-device", &report, 9);
    let js = files.equip(script::node_js("azure_hub.js"));
    let report = script::run(js, &[host, sockets], |what, node| {
        script::act(&mut cluster, what, node);
    });
    found.extend(broken("azure-iothub and azure-iot-device-mqtt", &report, 7));
    assert_none(&found);
    cluster.assert_states_agree();
}

/// The blocks of a language on a page.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let opening = format!("```{language}\n");
    let behind = page.split(opening.as_str()).skip(1);
    behind.filter_map(|text| text.split("```").next()).collect()
}

/// What `docs/twins.md` says, word for word: commands, configuration, program.
fn the_guide_is_right() {
    // It holds the machine.
    let alone = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let directory = TempDir::new().expect("a temporary directory can be made");
    let path = directory.path();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/twins.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let (shell, toml, program) = (
        blocks(&page, "sh"),
        blocks(&page, "toml"),
        blocks(&page, "python"),
    );
    let ([first, commands @ ..], [toml], [program]) = (&shell[..], &toml[..], &program[..]) else {
        panic!("the page has other blocks");
    };
    let write = |name: &str, text: &str| std::fs::write(path.join(name), text).expect("writable");
    write("node.toml", toml);
    write("module.py", program);
    let (export, rest) = commands.concat().split_once('\n').map_or_else(
        || panic!("commands begin with where the hub is"),
        |(export, rest)| (export.to_owned(), rest.to_owned()),
    );
    let (before, after) = rest
        .split_once("quorumq twin get")
        .expect("it looks at the twin");
    let script = format!(
        "set -euo pipefail\n{export}\nuntil quorumq device list; do sleep 0.2; done\n{before}\n\
         export MODULE_KEY=$(quorumq -o json module show thermostat/control | python -c \
         'import json,sys; print(json.load(sys.stdin)[\"authentication\"][\"symmetricKey\"][\"primaryKey\"])')\n\
         python module.py\nquorumq twin get{after}"
    );
    let programs = binary();
    let programs = programs.parent().expect("it is in a directory");
    let search = format!(
        "{}:{}:{}",
        programs.display(),
        script::installed().join("azure/bin").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let bash = |script: &str| {
        let mut command = Command::new("timeout");
        command.args(["60", "bash", "-c", script]).current_dir(path);
        let done = command.env("PATH", &search).output().expect("bash runs");
        let (out, error) = (done.stdout, done.stderr);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (out, error) = (text(out), text(error));
        assert!(done.status.success(), "{script}\n{out}\n{error}");
        out
    };
    bash(&format!("set -euo pipefail\n{first}"));
    let cluster = alone.nodes[0].addresses.cluster.to_string();
    let mut node = Command::new(binary());
    node.args([
        "serve",
        "--config",
        "node.toml",
        "--data-dir",
        "data",
        "--http-listen",
        "",
    ]);
    node.args(["--cluster-listen", &cluster, "--log-level", "warn"]);
    let node = node.current_dir(path).spawn().expect("the node starts");
    let _node = script::Guarded(node);
    let said = bash(&script);
    assert!(
        said.contains("\"status\": \"success\""),
        "the back end sees what was reported: {said}"
    );
    assert!(
        said.contains("thermostat  control"),
        "the query finds it: {said}"
    );
    assert!(
        said.contains("\"site\": \"43\""),
        "the condition holds: {said}"
    );
}
