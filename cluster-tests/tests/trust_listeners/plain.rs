//! Transports without TLS, with clients that others wrote.

use super::*;

pub fn others_speak_over_websockets_without_tls(_: &Cluster) {
    let port = place().ports[5].to_string();
    let url = format!("ws://localhost:{port}/mqtt");
    let paho = ["localhost", &port, "websockets", "/mqtt", "-"];
    let broken = [
        broken_rules(script::python("transports.py"), &paho),
        broken_rules(script::node_js("transports.js"), &[&url, "-"]),
    ];
    assert_none(&broken.concat());
}

pub fn mosquitto_speaks_over_a_unix_socket(_: &Cluster) {
    let over_socket = |program: &str, arguments: &[&str]| {
        // Line by line, although it goes into a pipe.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", program, "-V", "5", "--unix"]);
        command.arg(place().path("socket")).args(arguments);
        command.stdin(Stdio::null());
        command
    };
    let (_process, lines) = subscribed(over_socket(
        "mosquitto_sub",
        &["-t", "unix/#", "-q", "2", "-d"],
    ));
    for (qos, text) in [("0", "text zero"), ("1", "text one"), ("2", "text two")] {
        let sent = ["-t", "unix/a", "-q", qos, "-m", text];
        succeeds(&mut over_socket("mosquitto_pub", &sent));
        await_line(&lines, text);
    }
    let mut elsewhere = Command::new("mosquitto_pub");
    elsewhere.arg("--unix").arg(place().path("no-socket"));
    let sent = output(elsewhere.args(["-t", "unix/a", "-m", "x"]));
    assert!(!sent.status.success(), "no other way leads there: {sent:?}");
}
