//! Runs rumqttd with its default limits on a given port, as a peer for `cluster-tests/benches/compare`.
//!
//! usage: rumqttd_peer PORT      MQTT 3.1.1 on PORT, MQTT 5 on PORT + 1

use std::process::ExitCode;

fn configuration(port: u16) -> String {
    let listener = |version: &str, port: u16| {
        format!(
            "[{version}.1]\nname = \"{version}\"\nlisten = \"127.0.0.1:{port}\"\nnext_connection_delay_ms = 0\n\
             [{version}.1.connections]\nconnection_timeout_ms = 60000\nmax_payload_size = 262144\n\
             max_inflight_count = 100\ndynamic_filters = true\n"
        )
    };
    format!(
        "id = 0\n[router]\nid = 0\nmax_connections = 10010\nmax_outgoing_packet_count = 200\n\
         max_segment_size = 104857600\nmax_segment_count = 10\n{}{}",
        listener("v4", port),
        listener("v5", port + 1)
    )
}

fn main() -> ExitCode {
    let port = std::env::args()
        .nth(1)
        .and_then(|port| port.parse::<u16>().ok());
    let Some(port) = port.filter(|port| *port < u16::MAX) else {
        eprintln!("usage: rumqttd_peer PORT");
        return ExitCode::from(2);
    };
    let config = match toml::from_str(&configuration(port)) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("rumqttd_peer: {error}");
            return ExitCode::FAILURE;
        }
    };
    match rumqttd::Broker::new(config).start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rumqttd_peer: {error}");
            ExitCode::FAILURE
        }
    }
}
