//! The command line against a running cluster: what goes to stdout, and the exit codes.

use cluster_tests::cluster::{Cluster, binary};
use cluster_tests::rules;
use cluster_tests::store::{Request, StoreClient, blob};
use cluster_tests::wait;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn command_line() {
    let mut cluster = Cluster::start();
    rules::show(
        &cluster,
        rules![
            set_get_del_and_vdel,
            an_absent_key_is_exit_code_1,
            values_are_bytes,
            scan_lists_keys,
            watch_prints_changes,
            wrong_usage_is_exit_code_2,
            an_unreachable_server_is_exit_code_69,
            what_to_try_is_said_of_a_wrong_port,
            a_node_knows_the_addresses_of_its_own_clients,
            cluster_status_names_the_leader,
            health_tells_whether_a_node_is_ready,
            completions_and_man_pages_are_printed,
        ],
    );
    leadership_is_transferred(&cluster);
    without_a_leader_it_is_exit_code_75(&mut cluster);
}

fn run(arguments: &[&str]) -> Output {
    Command::new(binary())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary can be run")
}

#[track_caller]
fn expect(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {output:?}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn server(cluster: &Cluster, node: usize) -> String {
    cluster.mqtt(node).to_string()
}

fn set_get_del_and_vdel(cluster: &Cluster) {
    let (one, two) = (server(cluster, 0), server(cluster, 1));
    expect(&["kv", "set", "cli", "hello", "--server", &one], 0);
    assert_eq!(
        expect(&["kv", "get", "cli", "--server", &two], 0).trim_end(),
        "hello"
    );
    expect(&["kv", "vdel", "cli", "other", "--server", &two], 1);
    expect(&["kv", "vdel", "cli", "hello", "--server", &two], 0);
    expect(&["kv", "set", "cli", "again", "--server", &one], 0);
    expect(&["kv", "del", "cli", "--server", &one], 0);
    let said = run(&["kv", "get", "cli", "--server", &one]);
    assert!(
        said.stdout.is_empty(),
        "data on stdout, the rest on stderr: {said:?}"
    );
}

fn an_absent_key_is_exit_code_1(cluster: &Cluster) {
    let server = server(cluster, 2);
    expect(&["kv", "get", "cli/absent", "--server", &server], 1);
    expect(&["kv", "del", "cli/absent", "--server", &server], 1);
    expect(&["kv", "vdel", "cli/absent", "v", "--server", &server], 1);
}

fn values_are_bytes(cluster: &Cluster) {
    let mut client = StoreClient::connected("cli-bytes", cluster.mqtt(0));
    client.expect(&Request::set("cli/bytes", b"\x00\xFF\r\n"), "+OK\r\n");
    let output = run(&["kv", "get", "cli/bytes", "--server", &server(cluster, 1)]);
    assert!(output.stdout.starts_with(b"\x00\xFF\r\n"), "{output:?}");
    expect(
        &[
            "kv",
            "set",
            "cli/ключ",
            "é",
            "--server",
            &server(cluster, 1),
        ],
        0,
    );
    client.expect(&Request::get("cli/ключ"), blob("é".as_bytes()));
}

fn scan_lists_keys(cluster: &Cluster) {
    let server = server(cluster, 0);
    for key in ["cli/scan/a", "cli/scan/b"] {
        expect(&["kv", "set", key, "v", "--server", &server], 0);
    }
    let found = expect(&["kv", "scan", "cli/scan/*", "--server", &server], 0);
    for key in ["cli/scan/a", "cli/scan/b"] {
        assert_eq!(
            found.lines().filter(|line| line.contains(key)).count(),
            1,
            "{found}"
        );
    }
}

fn watch_prints_changes(cluster: &Cluster) {
    let mut child = Command::new(binary())
        .args([
            "kv",
            "watch",
            "cli/watch",
            "-o",
            "json",
            "--server",
            &server(cluster, 1),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary can be run");
    let stdout = child.stdout.take().expect("it is piped");
    let (send, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let mut client = StoreClient::connected("cli-watch", cluster.mqtt(0));
    // It says nothing before the first change, so changes are made until it has seen one.
    let mut seen = None;
    for round in 0..50 {
        client.expect(
            &Request::set("cli/watch", format!("value-{round}")),
            "+OK\r\n",
        );
        if let Ok(line) = lines.recv_timeout(Duration::from_millis(200)) {
            seen = Some(line);
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let _ = reader.join();
    let seen = seen.expect("a change was printed");
    let document: serde_json::Value =
        serde_json::from_str(&seen).expect("a line is a JSON document");
    assert!(document.to_string().contains("value-"), "{document}");
}

fn wrong_usage_is_exit_code_2(_: &Cluster) {
    for arguments in [
        &["kv", "get"][..],
        &["kv", "gett", "x"],
        &["--nonsense"],
        &["kv", "get", "x", "--server"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

fn an_unreachable_server_is_exit_code_69(_: &Cluster) {
    // Port 1 of loopback: nothing listens there.
    let output = run(&["kv", "get", "x", "--server", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"),
        "{output:?}"
    );
}

fn what_to_try_is_said_of_a_wrong_port(cluster: &Cluster) {
    let (mqtt, http) = (server(cluster, 0), cluster.nodes[0].http().to_string());
    let (mqtts, https) = (format!("mqtts://{http}"), format!("https://{http}"));
    let get = ["kv", "get", "x", "--server"];
    for (arguments, code, hint) in [
        (
            ["session", "list", "--http", &mqtt].to_vec(),
            69,
            "http.listen",
        ),
        (
            ["session", "list", "--http", &https].to_vec(),
            69,
            "http://",
        ),
        ([&get[..], &[&http]].concat(), 1, "goes to --http"),
        ([&get[..], &[&mqtts]].concat(), 1, "mqtt://"),
    ] {
        let output = run(&arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains(hint) && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
    }
}

fn a_node_knows_the_addresses_of_its_own_clients(cluster: &Cluster) {
    let _client = StoreClient::connected("cli-address", cluster.mqtt(0));
    for (node, address) in [(0, "127.0.0.1".into()), (1, serde_json::Value::Null)] {
        let http = cluster.nodes[node].http().to_string();
        let entry = |arguments: &[&str]| -> serde_json::Value {
            let text = expect(&[arguments, &["-o", "json", "--http", &http]].concat(), 0);
            let mut lines = text.lines().filter(|line| line.contains("cli-address"));
            let line = lines.next().expect("it is connected");
            serde_json::from_str(line).expect("JSON on stdout")
        };
        for entry in [
            entry(&["client", "list"]),
            entry(&["client", "show", "cli-address"]),
        ] {
            assert_eq!(
                (&entry["node"], &entry["address"]),
                (&1.into(), &address),
                "{entry}"
            );
        }
    }
}

fn cluster_status_names_the_leader(cluster: &Cluster) {
    let leader = cluster.wait_leader();
    for node in &cluster.nodes {
        let http = node.addresses.http.to_string();
        let text = expect(&["cluster", "status", "-o", "json", "--http", &http], 0);
        let status: serde_json::Value = serde_json::from_str(&text).expect("JSON on stdout");
        assert!(status.to_string().contains("leader"), "{status}");
        wait::until(
            "the node to see the leader",
            Duration::from_secs(20),
            || {
                let seen = node.leader_seen().map(|(_, id)| id);
                (seen == Some(leader + 1)).then_some(())
            },
        );
        expect(&["cluster", "status", "--http", &http], 0);
    }
}

fn health_tells_whether_a_node_is_ready(cluster: &Cluster) {
    let http = cluster.nodes[0].addresses.http.to_string();
    assert!(expect(&["health", "--http", &http], 0).contains("serving ok"));
    expect(&["health", "--live", "--http", &http], 0);
    expect(&["health", "--http", "127.0.0.1:1"], 69);
}

fn completions_and_man_pages_are_printed(_: &Cluster) {
    for shell in ["bash", "zsh", "fish"] {
        assert!(expect(&["completions", shell], 0).contains("quorumq"));
    }
    assert!(run(&["man"]).status.success());
    assert!(expect(&["--version"], 0).starts_with("quorumq "));
    assert!(expect(&["--help"], 0).contains("serve"));
}

fn leadership_is_transferred(cluster: &Cluster) {
    let to = (cluster.wait_leader() + 1) % 3;
    let id = (to + 1).to_string();
    // On a starved machine another election may follow.
    cluster_tests::wait::until("the transfer", Duration::from_secs(60), || {
        let leader = cluster.wait_leader();
        if leader != to {
            let http = cluster.nodes[leader].addresses.http.to_string();
            expect(&["cluster", "transfer", &id, "--http", &http], 0);
        }
        (cluster.leader() == Some(to)).then_some(())
    });
}

fn without_a_leader_it_is_exit_code_75(cluster: &mut Cluster) {
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    cluster.nodes[0].wait_not_ready(Duration::from_secs(15));
    let http = cluster.nodes[0].addresses.http.to_string();
    let output = run(&["health", "--http", &http]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("not ready"),
        "{output:?}"
    );
    expect(&["health", "--live", "--http", &http], 0);
    let output = run(&["kv", "get", "cli", "--server", &server(cluster, 0)]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
}
