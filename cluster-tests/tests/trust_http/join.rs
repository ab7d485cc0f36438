//! Where an administrator may make a node connect to, and what comes back of it: nothing.

use super::*;
use serde_json::json;

/// How long an operator may wait to hear that somebody is no node.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// What a service answers that is no node, and that nobody may see who made a node ask.
const ANSWER: &str = "what only this machine may see";

pub fn nobody_joins_where_no_node_can_be(cluster: &Cluster) {
    for address in [
        "169.254.169.254:80",
        "[fe80::1]:7883",
        "[fd00:ec2::254]:80",
        "0.0.0.0:1",
        "x",
    ] {
        let body = format!("{{\"id\":9,\"address\":\"{address}\"}}");
        let answer = ask(
            http_of(cluster, 0),
            "POST",
            "/v1/cluster/join",
            &admin(),
            &body,
        );
        assert_eq!(answer.status, 400, "{address}: {}", answer.body);
    }
}

/// A service of this machine: what it does with a connection.
fn serve(answer: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// Answers as a web server does.
fn answer_once(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 4096]);
    let length = ANSWER.len();
    let head =
        format!("HTTP/1.1 200 {ANSWER}\r\nServer: {ANSWER}\r\nContent-Length: {length}\r\n\r\n");
    let _ = write!(stream, "{head}{ANSWER}");
    // It would keep the connection.
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Says something before it is asked, as mail servers do, and does not end.
fn talk(mut stream: TcpStream) {
    while write!(stream, "220 {ANSWER}\r\n").is_ok() {}
}

pub fn who_is_no_node_is_left_and_says_nothing(cluster: &Cluster) {
    for service in [answer_once as fn(TcpStream), talk] {
        let address = serve(service);
        for (index, node) in cluster.nodes.iter().enumerate() {
            let body = format!("{{\"id\":9,\"address\":\"{address}\"}}");
            let began = Instant::now();
            let answer = ask(node.http(), "POST", "/v1/cluster/join", &admin(), &body);
            let took = began.elapsed();
            let why = format!("{address} answers, and not as a node does");
            assert!(
                answer.status >= 400 && answer.body.contains(&why),
                "{index}: {answer:?}"
            );
            assert!(!answer.body.contains(ANSWER), "{index}: {answer:?}");
            assert!(took < wait::allowed(REFUSED_WITHIN), "{index}: {took:?}");
        }
    }
    let status = cluster.nodes[0].get("/livez");
    assert_eq!(status.map(|answer| answer.status), Some(200));
}

/// The attempts are in the audit log, and what was answered is nowhere.
pub fn nothing_came_back(cluster: &Cluster, audit: &Audit) {
    audit.expect(&json!({
        "event": "membership", "result": "failed", "action": "join", "member": "9", "principal": "ops",
    }));
    let mut places = Places::of(cluster);
    places.add("audit", audit.text());
    places.assert_has("audit", "ops");
    places.assert_without([ANSWER]);
}
