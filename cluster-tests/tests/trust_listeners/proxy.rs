//! Clients behind a proxy that says in a header for whom it speaks.

use super::*;
use cluster_tests::line;

pub fn a_proxy_header_comes_first(_: &Cluster) {
    let address = SocketAddr::from(([127, 0, 0, 1], place().ports[3]));
    let connect = || {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(WITHIN)).expect("it is open");
        stream
    };
    is_accepted(connect(), b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 1883\r\n");
    let mut binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    binary.extend_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2, 1, 2, 3, 4]);
    is_accepted(connect(), &binary);
    let mut stranger = connect();
    stranger.write_all(CONNECT).expect("it is open");
    let answer = stranger.read(&mut [0; 4]);
    assert!(!matches!(answer, Ok(1..)), "without a header: {answer:?}");
}

/// Where the client of a proxy is.
pub const CLIENT: &str = "192.0.2.77:5000";

pub fn clients_come_through_a_proxy_and_tls_to_another_path(_: &Cluster) {
    let ca = place().path("ca.pem").display().to_string();
    let header = b"PROXY TCP4 192.0.2.77 192.0.2.2 5000 443\r\n".to_vec();
    let port = line::behind(header, place().ports[4]);
    let arguments = ["localhost", &port.to_string(), "websockets", "/broker", &ca];
    let arguments = arguments.map(str::to_owned);
    let report = script::run(script::python("transports.py"), &arguments, |what, _| {
        panic!("nothing is to be done, {what} was asked")
    });
    let said: Vec<_> = report.iter().map(|said| said["holds"] == true).collect();
    assert_eq!(said, [true], "{report:?}");
    let mut elsewhere = Command::new("curl");
    elsewhere.args(["--silent", "--max-time", "10", "--http1.1", "--cacert", &ca]);
    for field in [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol: mqtt",
    ] {
        elsewhere.args(["--header", field]);
    }
    elsewhere.args(["--output", "/dev/null", "--write-out", "%{http_code}"]);
    elsewhere.arg(format!("https://localhost:{port}/mqtt"));
    assert_eq!(succeeds(&mut elsewhere), "404");
}
