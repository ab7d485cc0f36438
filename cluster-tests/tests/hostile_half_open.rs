//! P12: a client whose network vanishes leaves a connection that nobody closes. It ends by itself, also without a
//! keep-alive. Needs a network namespace; without the right to make one the test is skipped, which fails it.

use cluster_tests::cluster::{Cluster, Plan, binary};
use cluster_tests::skip::skip;
use cluster_tests::wait;
use cluster_tests::wire::Connect;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `mqtt.tcp_timeout_s` of the test.
const TIMEOUT_S: u16 = 8;

/// The system's timers are coarse; what is judged is that there is an end.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// A network of two addresses, one of them in a namespace of its own; it goes with this value.
struct Cable {
    name: String,
    near: String,
    far: String,
}

fn run(words: &[&str]) -> bool {
    let output = Command::new("ip").args(words).output();
    output.is_ok_and(|output| output.status.success())
}

impl Cable {
    fn lay() -> Option<Self> {
        let number = std::process::id() % 250;
        let cable = Self {
            name: format!("quorumq{number}"),
            near: format!("10.213.{number}.1"),
            far: format!("10.213.{number}.2"),
        };
        let (name, far_end) = (cable.name.as_str(), format!("{}f", cable.name));
        let (near, far) = (format!("{}/30", cable.near), format!("{}/30", cable.far));
        let laid = run(&["netns", "add", name])
            && run(&[
                "link", "add", name, "type", "veth", "peer", "name", &far_end,
            ])
            && run(&["link", "set", &far_end, "netns", name])
            && run(&["addr", "add", &near, "dev", name])
            && run(&["link", "set", name, "up"])
            && run(&["-n", name, "addr", "add", &far, "dev", &far_end])
            && run(&["-n", name, "link", "set", &far_end, "up"]);
        laid.then_some(cable)
    }

    fn pull(&self) {
        assert!(run(&["link", "set", &self.name, "down"]));
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        run(&["link", "del", &self.name]);
        run(&["netns", "del", &self.name]);
    }
}

/// A process; it ends with this value.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_whose_network_vanishes_is_ended() {
    let Some(cable) = Cable::lay() else {
        skip("a network namespace cannot be made here; it takes root and ip");
        return;
    };
    let mut cluster = Cluster::prepare(Plan {
        size: 1,
        ..Plan::default()
    });
    let node = &mut cluster.nodes[0];
    let port = node.addresses.mqtt.port();
    let mut set = |key: &str, value: String| node.environment.push((key.to_owned(), value));
    set("QUORUMQ__MQTT__LISTEN", format!("0.0.0.0:{port}"));
    let keys = Command::new(binary())
        .args(["reference", "configuration"])
        .output();
    let keys = keys.expect("the binary can be started").stdout;
    if String::from_utf8_lossy(&keys).contains("mqtt.tcp_timeout_s") {
        set("QUORUMQ__MQTT__TCP_TIMEOUT_S", TIMEOUT_S.to_string());
    }
    cluster.start_node(0);
    cluster.wait_ready();
    // bash can open a socket by itself; the CONNECT has no keep-alive.
    let connect = cluster.directory().join("connect");
    std::fs::write(&connect, Connect::v5("vanishes").bytes()).expect("a file can be written");
    let script = format!(
        "exec 3<>/dev/tcp/{}/{port}; cat {} >&3; exec sleep 600",
        cable.near,
        connect.display()
    );
    let client = Command::new("ip")
        .args(["netns", "exec", &cable.name, "bash", "-c", &script])
        .stdin(Stdio::null())
        .spawn();
    let _client = Client(client.expect("ip can be started"));
    let open = |count: f64| {
        let found = cluster.nodes[0].metric("quorumq_connections");
        found.filter(|found| *found == count)
    };
    wait::until("the connection", Duration::from_secs(10), || open(1.0));
    wait::until("its session", Duration::from_secs(10), || {
        cluster.nodes[0].has_session("vanishes").then_some(())
    });
    cable.pull();
    let began = Instant::now();
    wait::until("the end of the connection", ENDS_WITHIN, || open(0.0));
    eprintln!("ended after {:.1?}", began.elapsed());
}
