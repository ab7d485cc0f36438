//! MQTT.js in a browser: headless Chromium against the WebSocket listeners of three nodes, without TLS and with it.
//!
//! A browser is large, so `make test` does without; `make browser` installs it, and runs this.

use cluster_tests::check::kv::assert_none;
use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::script;
use std::net::TcpListener;
use std::process::Command;
use tempfile::TempDir;

/// Rules that the page shows in each run.
const RULES: usize = 4;

/// Ports for a listener of each node.
fn free_ports() -> [u16; 3] {
    let free = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let held = [free(), free(), free()];
    held.map(|listener| listener.local_addr().expect("it is bound").port())
}

#[test]
#[ignore = "needs Chromium; `make browser` runs it"]
fn mqtt_js_speaks_in_a_browser() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let host = ["--host", "localhost"];
    for arguments in [&["ca"][..], &["node", "--id", "1", host[0], host[1]]] {
        let mut command = Command::new(binary());
        command.arg("certificates").args(arguments);
        command.arg("--directory").arg(directory.path());
        let output = command.output().expect("the binary can be run");
        assert!(output.status.success(), "{output:?}");
    }
    let certificate = directory.path().join("node-1.pem");
    let key = directory.path().join("node-1.key");
    let (ws, wss) = (free_ports(), free_ports());
    // The same file for all nodes: each has its ports by its environment.
    let listeners = |node: usize| {
        let (ws, wss) = (ws[node], wss[node]);
        format!(
            "[{{ name = \"ws\", address = \"127.0.0.1:{ws}\", transport = \"ws\" }}, \
              {{ name = \"wss\", address = \"127.0.0.1:{wss}\", transport = \"wss\", \
                 certificates = [{{ certificate = {certificate:?}, key = {key:?} }}] }}]"
        )
    };
    let mut cluster = Cluster::start_with(Plan {
        environment: (0..3)
            .map(|node| (node, "QUORUMQ__LISTENERS".to_owned(), listeners(node)))
            .collect(),
        ..Plan::default()
    });
    let mut broken = Vec::new();
    for (protocol, ports) in [("ws", ws), ("wss", wss)] {
        let mut arguments = vec![certificate.display().to_string()];
        arguments.extend(ports.map(|port| format!("{protocol}://localhost:{port}/mqtt")));
        let program = script::node_js("browser.js");
        let report = script::run(program, &arguments, |what, node| {
            eprintln!("{protocol}: the page asks: {what} {node}");
            script::act(&mut cluster, what, node);
        });
        let shown = report.iter().filter(|said| said["rule"].is_string());
        assert_eq!(shown.count(), RULES, "{report:#?}");
        let said = report.iter().filter(|said| said["holds"] == false);
        broken.extend(said.map(|said| format!("{protocol}: {}: {}", said["rule"], said["why"])));
    }
    assert_none(&broken);
    cluster.assert_states_agree();
}
